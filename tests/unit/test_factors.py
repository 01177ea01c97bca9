"""Factors travel, and the servers make their product: equal to adding the product, and as many bytes as is said."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from ps2.client import factors, plans
from ps2.client.plans import Target
from ps2.errors import DTypeError, OutOfRangeError, ShapeError, UsageError
from ps2.matrix.partition import MatrixSpec, assign_owners, partition_bounds
from ps2.matrix.route import Route
from ps2.ops.factors import add_dense_factors, add_factors
from tests.fakes import FleetInProcess, session_over

WIDTH = 3
FEATURES = 20
SAMPLES = 40


def a_target(servers=3, **fields):
    spec = MatrixSpec(FEATURES * WIDTH, 1, **{"align": WIDTH, "dtype": "float64"} | fields)
    bounds = partition_bounds(spec, servers)
    return Target(7, spec, Route(1, bounds, tuple(f"s{i}" for i in assign_owners(len(bounds) - 1, servers))), (0,))


def sent_bytes(operation):
    """Return what an operation's values and keys take on the way; a set of keys that has a name counts in full."""
    keys = 0
    if operation.keys is not None and operation.keys.columns is not None:
        keys = factors.packed_bytes(operation.keys.columns)
    return keys + sum(
        array.size * 2 if operation.wire is not None and array.dtype.kind == "f" else array.nbytes
        for array in operation.arrays
    )


@pytest.fixture(params=[1, 3])
def world(request):
    """A row of zeros on a fleet, and what runs a plan on it."""
    over = session_over(FleetInProcess(servers=request.param))
    info = over.new_matrix(MatrixSpec(FEATURES * WIDTH, 1, dtype="float64", align=WIDTH))
    target = Target(info.id, info.spec, info.route, (0,))
    return target, lambda plan: over.dispatch.run([plan])[0]


def data(keys, density=0.3):
    rng = np.random.default_rng(6)
    x = rng.normal(size=(SAMPLES, len(keys))) * (rng.random((SAMPLES, len(keys))) < density)
    return rng.normal(size=(SAMPLES, WIDTH)), x


def product(b, x, keys):
    expected = np.zeros((FEATURES, WIDTH))
    np.add.at(expected, np.asarray(keys), x.T @ b)
    return expected.reshape(-1)


FORMS = pytest.mark.parametrize("form", [np.asarray, sp.csr_array, sp.coo_array], ids=["dense", "csr", "coo"])
KEYS = pytest.mark.parametrize(
    "keys", [range(FEATURES), [5], [19, 0, 7], [3, 18, 3, 0, 18, 3]], ids=["all", "one", "shuffled", "duplicates"]
)


@FORMS
@KEYS
def test_factors_when_added_then_the_row_has_their_product(world, form, keys):
    target, run = world
    b, x = data(keys)
    for times in (1, 2):
        run(factors.add_factors(target, b, form(x), keys))
        np.testing.assert_allclose(run(plans.pull(target, 0, target.spec.dim)), times * product(b, x, keys), atol=1e-12)


@FORMS
@KEYS
@pytest.mark.parametrize("block_bytes", [16, 300])
def test_factors_when_larger_than_block_then_cut_same_result(world, monkeypatch, form, keys, block_bytes):
    target, run = world
    monkeypatch.setattr(plans, "BLOCK_BYTES", block_bytes)
    b, x = data(keys)
    plan = factors.add_factors(target, b, form(x), keys)
    assert len(plan.operations) > 2
    run(plan)
    np.testing.assert_allclose(run(plans.pull(target, 0, target.spec.dim)), product(b, x, keys), atol=1e-12)


def test_factors_when_there_are_no_samples_then_nothing_changes(world):
    target, run = world
    run(factors.add_factors(target, np.empty((0, WIDTH)), sp.csr_array((0, 2)), [1, 2]))
    assert not run(plans.pull(target, 0, target.spec.dim)).any()


@FORMS
@KEYS
@pytest.mark.parametrize("fields", [{}, {"dtype": "float32"}, {"wire": "float16"}], ids=["f8", "f4", "wire"])
def test_bytes_of_factors_when_told_then_are_those_that_travel(form, keys, fields):
    target = a_target(**fields)
    b, x = data(keys)
    sent = sum(map(sent_bytes, factors.add_factors(target, b, form(x), keys).operations))
    assert factors.factor_bytes(b, form(x), keys, target.spec, target.route) == pytest.approx(sent, abs=4 * len(keys))


@KEYS
@pytest.mark.parametrize("fields", [{}, {"dtype": "float32"}, {"wire": "float16"}], ids=["f8", "f4", "wire"])
def test_addition_bytes_when_told_then_match_bytes_sent(keys, fields):
    target = a_target(**fields)
    columns = (np.asarray(keys)[:, None] * WIDTH + np.arange(WIDTH)).reshape(-1)
    plan = plans.push_columns(target, "scatter_add", np.zeros(columns.size), columns)
    assert factors.add_bytes(WIDTH, keys, target.spec, target.route) == sum(map(sent_bytes, plan.operations))


@pytest.mark.parametrize(
    ("fields", "b", "x", "keys", "error", "said"),
    [
        (
            {"align": 4},
            (2, 3),
            (2, 1),
            [0],
            UsageError,
            r"align of the vector must be a multiple of width 3.*got align=4",
        ),
        ({"kind": "sparse", "align": 1}, (2, 3), (2, 1), [0], UsageError, "addFactors needs a dense vector"),
        ({}, (2,), (2, 1), [0], ShapeError, r"b: expected shape \(samples, width\), width at least 1, got \(2,\)"),
        ({}, (2, 3), (2, 2), [0], ShapeError, r"x: expected shape \(2, 1\), got \(2, 2\)"),
        ({}, (2, 3), (2, 1), [20], OutOfRangeError, r"key 20 \(at position 0\) is outside \[0, 20\)"),
        ({}, (2, 3), (2, 1), [0.5], DTypeError, "indices: expected integers"),
        ({"dtype": "int64"}, (2, 3), (2, 1), [0], DTypeError, "works on float32 or float64, got int64"),
    ],
)
def test_factors_when_they_do_not_fit_then_the_error_says_why(fields, b, x, keys, error, said):
    with pytest.raises(error, match=said):
        factors.add_factors(a_target(**fields), np.ones(b), np.ones(x), keys)


@pytest.mark.parametrize("index", [-1, 1 << 30])
@pytest.mark.parametrize("form", [sp.csr_array, sp.csc_array])
def test_factors_when_x_has_no_such_place_then_refused(form, index):
    x = form(np.ones((2, 2)))
    x.indices[0] = index
    with pytest.raises(ShapeError, match="addFactors: x: got a malformed sparse matrix: indices must be"):
        factors.add_factors(a_target(), np.ones((2, WIDTH)), x, [0, 1])


def test_factors_when_x_is_complex_then_the_error_says_so():
    with pytest.raises(DTypeError, match="x: expected numbers, got complex128"):
        factors.add_factors(a_target(), np.ones((2, 3)), np.ones((2, 1), complex), [0])


# -- on the server -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [[4, 0], [0, 4], [0, 1], [4, 4]], ids=["any order", "apart", "overlapping", "twice"])
def test_add_factors_when_features_lie_anyhow_then_all_are_added(slots):
    u, dense = np.zeros(8), np.zeros(8)
    b, x = np.arange(6.0), np.array([1.0, 2.0, 3.0, 4.0])
    b = b.reshape(2, 3)
    add_factors(u, np.array(slots), np.array([2, 2], np.uint8), np.array([0, 1, 0, 1], np.uint8), x, b, width=3)
    add_dense_factors(dense, np.array(slots), x.reshape(2, 2), b, width=3)
    expected = np.zeros(8)
    for slot, values in zip(slots, x.reshape(2, 2) @ b, strict=True):
        expected[slot : slot + 3] += values
    assert u.tolist() == dense.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("slots", "counts", "samples", "x", "b", "error", "said"),
    [
        ([6], [1], [0], 1, (1, 3), OutOfRangeError, "slot 6: the 3 columns from this slot on are not inside"),
        ([0], [1], [2], 1, (2, 3), OutOfRangeError, r"sample 2 \(at position 0\) is outside \[0, 2\)"),
        ([0], [1, 1], [0], 1, (1, 3), ShapeError, "counts: expected 1 elements, got 2"),
        ([0], [0], [0], 1, (1, 3), ShapeError, "samples: expected 0 elements, got 1"),
        (
            [0],
            [2**63],
            [0],
            1,
            (1, 3),
            ShapeError,
            "counts: expected at most 1, the number of entries, got 9223372036854775808",
        ),
        ([0], [1], [0], 2, (1, 3), ShapeError, "x: expected 1 elements, got 2"),
        ([0], [1], [0], 1, (1, 4), ShapeError, r"b: expected shape \(samples, 3\), got \(1, 4\)"),
    ],
)
def test_add_factors_when_lengths_do_not_fit_then_writes_nothing(slots, counts, samples, x, b, error, said):
    u = np.zeros(8)
    with pytest.raises(error, match=said):
        add_factors(
            u,
            np.array(slots),
            np.array(counts, np.uint64),
            np.array(samples, np.uint8),
            np.ones(x),
            np.ones(b),
            width=3,
        )
    assert not u.any()
