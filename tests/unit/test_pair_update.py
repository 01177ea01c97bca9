"""``DCVMatrix.pairUpdate``: both ways, and the choice between them, against NumPy."""

from __future__ import annotations

import math
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ps2 import DCV
from ps2.client import calibration, pairs
from ps2.client.placement import Pairs
from ps2.errors import DTypeError, OutOfRangeError, ShapeError, UsageError

pytestmark = pytest.mark.parametrize("ps", [1, 3], indirect=True, scope="module")

K, DIM = 6, 13
# Pairs that come twice, either way round; rows in several pairs; a row with itself; a row (2) in none.
A = [0, 3, 0, 1, 4, 5, 0]
B = [3, 0, 3, 4, 5, 5, 1]
LABELS = np.array([1, 0, 1, 0, 0, 1, 0])
TOLERANCE = {"float32": {"rtol": 1e-5, "atol": 1e-6}, "float64": {"rtol": 1e-12, "atol": 1e-14}}
each_dtype = pytest.mark.parametrize("dtype", TOLERANCE)
each_way = pytest.mark.parametrize("via", ["servers", "rows", "auto"])


def step(dots, labels=LABELS):
    """Skip-gram with negative sampling."""
    return 0.3 * (labels - 1 / (1 + np.exp(-dots)))


def oracle(values, a, b, coefficients):
    """Update values; return the dots."""
    old = values.astype(np.float64)
    dots = np.einsum("ij,ij->i", old[a], old[b])
    new, scales = old.copy(), coefficients(dots)[:, None]
    np.add.at(new, a, scales * old[b])
    np.add.at(new, b, scales * old[a])
    values[:] = new
    return dots


def a_matrix(dtype="float64", **options):
    """A matrix and its values."""
    values = np.random.default_rng(0).normal(size=(K, DIM)).astype(dtype)
    return DCV.dense(DIM, K, dtype, **options).matrix().push(range(K), values), values


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch):
    """Forget what other tests have measured."""
    monkeypatch.setattr(calibration, "_cache", {})


@each_way
@each_dtype
def test_pair_update_when_rows_are_shared_then_numpy(ps, via, dtype):
    m, values = a_matrix(dtype)
    for _ in range(3):
        dots = m.pairUpdate(A, B, step, via)
        assert (dots.dtype, dots.shape) == (np.float64, (len(A),))
        np.testing.assert_allclose(dots, oracle(values, A, B, step), **TOLERANCE[dtype])
    np.testing.assert_allclose(m.pull(range(K)), values, **TOLERANCE[dtype])


@pytest.mark.parametrize("make", [DCV.dense, DCV.sparse], ids=["dense", "sparse"])
def test_pair_update_when_over_server_limit_then_is_still_atomic(ps, monkeypatch, make):
    """A second time, as what is added up comes into rows that are not empty any more."""
    monkeypatch.setattr(pairs, "MAX_ON_SERVERS", len(A) - 1)
    _, values = a_matrix()
    m = make(DIM, K, "float64").matrix().add(range(K), values, range(DIM))
    for _ in range(2):
        dots = m.pairUpdate(A, B, step, "servers")
        np.testing.assert_allclose(dots, oracle(values, A, B, step), **TOLERANCE["float64"])
        np.testing.assert_allclose(m.pull(range(K), range(DIM)), values, **TOLERANCE["float64"])
    assert m.shape == (K, DIM)


def test_pair_update_when_over_server_limit_then_auto_pulls_rows(ps, monkeypatch):
    monkeypatch.setattr(pairs, "MAX_ON_SERVERS", len(A) - 1)
    m, values = a_matrix()
    np.testing.assert_allclose(m.pairUpdate(A, B, step), oracle(values, A, B, step), **TOLERANCE["float64"])
    np.testing.assert_allclose(m.pull(range(K)), values, **TOLERANCE["float64"])


@each_dtype
def test_pair_update_when_many_pairs_then_both_methods_agree(ps, dtype):
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 40, 3000), rng.integers(0, 40, 3000)
    start = rng.normal(size=(40, 97)).astype(dtype)
    ends = []
    for via in ("servers", "rows"):
        m = DCV.dense(97, 40, dtype).matrix().push(range(40), start)
        m.pairUpdate(a, b, lambda dots: 0.001 * np.tanh(dots), via)
        ends.append(m.pull(range(40)))
    assert not np.array_equal(ends[0], start)
    np.testing.assert_allclose(*ends, rtol=1e-4 if dtype == "float32" else 1e-12, atol=1e-5)


@each_way
def test_pair_update_when_several_partitions_then_matches_numpy(ps, via):
    m, values = a_matrix(align=2, partitionsPerServer=2)
    m.pairUpdate(A, B, step, via)
    oracle(values, A, B, step)
    np.testing.assert_allclose(m.pull(range(K)), values, **TOLERANCE["float64"])


@pytest.mark.parametrize("via", ["servers", "rows"])
def test_pair_update_when_many_pairs_then_two_requests_each(ps, requests_by, via):
    m, _ = a_matrix()
    assert requests_by(lambda: m.pairUpdate(A * 100, B * 100, lambda d: 0 * d, via)) == [2] * len(ps.servers)


@each_way
def test_coefficients_when_computed_in_place_then_dots_stay(ps, via):
    m, values = a_matrix()
    expected = oracle(values.copy(), A, B, step)
    np.testing.assert_allclose(m.pairUpdate(A, B, lambda dots: np.multiply(dots, 0, out=dots), via), expected)


@each_way
def test_coefficients_when_asked_then_once(ps, via):
    m, _ = a_matrix()
    asked = []
    m.pairUpdate(A, B, lambda dots: asked.append(dots) or step(dots), via)
    assert len(asked) == 1


@pytest.mark.parametrize("via", ["servers", "rows"])
def test_pair_update_when_another_worker_adds_then_both_count(ps, via):
    m, values = a_matrix()

    def coefficients(dots):
        m.add([2, 3], np.ones((2, DIM)))
        return np.zeros_like(dots)

    m.pairUpdate(A, B, coefficients, via)
    values[[2, 3]] += 1
    np.testing.assert_allclose(m.pull(range(K)), values)


@each_way
def test_pair_update_when_no_pairs_then_nothing_happens(ps, via, requests_by):
    m, _ = a_matrix()
    result = []
    assert sum(requests_by(lambda: result.append(m.pairUpdate([], [], step, via)))) == 0
    assert result[0].shape == (0,)


@each_way
def test_pair_update_when_pickled_then_works(ps, via):
    m, values = a_matrix()
    pickle.loads(pickle.dumps(m)).pairUpdate(A, B, step, via)
    oracle(values, A, B, step)
    np.testing.assert_allclose(m.pull(range(K)), values, **TOLERANCE["float64"])


@pytest.mark.parametrize("via", ["servers", "auto"])
def test_pair_update_when_sparse_then_computes_on_the_servers(ps, via):
    keys, values = np.arange(DIM) * 10**9, np.random.default_rng(0).normal(size=(K, DIM))
    m = DCV.sparse(2**60, K, "float64").matrix().add(range(K), values, keys)
    dots = m.pairUpdate(A, B, step, via)
    np.testing.assert_allclose(dots, oracle(values, A, B, step))
    np.testing.assert_allclose(m.pull(range(K), keys), values)


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("via", "arguments", "error", "text"),
    [
        ("servers", ([0, 1], [0], step), ShapeError, r"rows_b: expected 2 rows, as many as rows_a, got 1"),
        ("rows", ([0], [K], step), OutOfRangeError, r"rows_b: row 6 \(at position 0\) is outside \[0, 6\)"),
        ("auto", ([0.5], [0], step), DTypeError, r"rows_a: expected integers, got float64"),
        ("servers", ([[0]], [[0]], step), ShapeError, r"rows_a: expected one dimension"),
        ("rows", ([0], [1], 0.5), UsageError, r"coefficients: expected a function, got 0.5"),
        ("auto", ([0, 1], [1, 0], lambda d: d[:1]), ShapeError, r"coefficients: expected shape \(2,\), got \(1,\)"),
        ("servers", ([0, 1], [1, 0], lambda d: 0.5), ShapeError, r"coefficients: expected shape \(2,\), got \(\)"),
        (
            "rows",
            ([0], [1], lambda d: None),
            DTypeError,
            r"coefficients: expected .* fit float64, got object",
        ),
        (
            "auto",
            ([0], [1], lambda d: d * 1j),
            DTypeError,
            r"coefficients: expected .* fit float64, got complex",
        ),
        (
            "servers",
            ([0, 2], [1, 2], lambda d: [0, math.nan]),
            DTypeError,
            r"finite numbers, got nan for the dot .* \(pair 1\)",
        ),
    ],
)
def test_pair_update_when_arguments_are_wrong_then_names_them(ps, via, arguments, error, text):
    m, values = a_matrix()
    with pytest.raises(error, match=text):
        m.pairUpdate(*arguments, via)
    assert np.array_equal(m.pull(range(K)), values)


@each_way
def test_pair_update_when_coefficients_raise_then_unchanged(ps, via):
    m, values = a_matrix()
    with pytest.raises(ZeroDivisionError):
        m.pairUpdate(A, B, lambda dots: 1 / 0, via)
    assert np.array_equal(m.pull(range(K)), values)


def test_pair_update_when_the_way_is_unknown_then_usage_error(ps):
    with pytest.raises(UsageError, match="via: expected 'auto', 'servers' or 'rows', got 'row'"):
        a_matrix()[0].pairUpdate(A, B, step, "row")


@each_way
def test_pair_update_when_int64_then_dtype_error(ps, via):
    with pytest.raises(DTypeError, match=r"rows_pair_update.*got int64"):
        DCV.dense(DIM, K, "int64").matrix().pairUpdate(A, B, step, via)


def test_pair_update_when_matrix_is_sparse_then_usage_error(ps):
    with pytest.raises(UsageError, match="needs a dense matrix"):
        DCV.sparse(DIM, K).matrix().pairUpdate(A, B, step, "rows")


@each_way
def test_pair_update_when_in_a_batch_then_usage_error(ps, via):
    m, _ = a_matrix()
    with pytest.raises(UsageError, match="cannot be part of a batch: call it before or after"), ps.batch():
        m.pairUpdate(A, B, step, via)


# -- measuring -------------------------------------------------------------------------------------------------------


def measured(m, a=A, b=B):
    return calibration.measure(m._first._session, m._target(), Pairs.of(a, b, K))


def test_measure_when_it_runs_then_only_reads(ps, monkeypatch):
    m, values = a_matrix()
    mutated, session = [], m._first._session
    monkeypatch.setattr(
        session.dispatch,
        "run",
        lambda plans, run=session.dispatch.run: mutated.extend(plan.mutates for plan in plans) or run(plans),
    )
    costs = measured(m)
    assert mutated
    assert not any(mutated)
    assert min(costs.latency_s, costs.local_madd_s) > 0
    monkeypatch.undo()
    assert np.array_equal(m.pull(range(K)), values)


def test_measure_when_asked_again_then_sends_nothing(ps, requests_by):
    m, _ = a_matrix()
    measured(m)
    assert sum(requests_by(lambda: measured(m, A[1:], B[1:]))) == 0


def test_measure_when_batch_size_changes_then_measures_again(ps, requests_by):
    m, _ = a_matrix()
    measured(m)
    assert min(requests_by(lambda: measured(m, A * 100, B * 100))) > 0


def test_measure_when_the_costs_are_old_then_measures_again(ps, requests_by, monkeypatch):
    m, _ = a_matrix()
    measured(m)
    monkeypatch.setattr(calibration, "CACHE_S", 0.0)
    assert min(requests_by(lambda: measured(m))) > 0


def test_measure_when_threads_ask_at_once_then_one_measures(ps):
    m, _ = a_matrix()
    with ThreadPoolExecutor(4) as threads:
        costs = list(threads.map(lambda _: measured(m), range(8)))
    assert len(set(map(id, costs))) == 1


def test_plan_when_row_is_too_long_then_servers_unmeasured(ps, requests_by, monkeypatch):
    m, _ = a_matrix()
    monkeypatch.setattr(pairs, "MAX_BYTES", 8)
    variants = []
    session, target, checked = m._first._session, m._target(), Pairs.of(A, B, K)
    assert sum(requests_by(lambda: variants.append(pairs.choose_strategy(session, target, checked)))) == 0
    assert variants == ["servers"]


@pytest.mark.parametrize("way", ["servers", "rows"])
def test_pair_update_when_auto_then_goes_the_way_that_is_planned(ps, monkeypatch, way):
    m, _ = a_matrix()
    gone = []
    monkeypatch.setattr(pairs, "choose_strategy", lambda *_: way)
    for name in ("_update_on_servers", "_update_locally"):
        monkeypatch.setattr(pairs, name, lambda *_, name=name: gone.append(name))
    m.pairUpdate(A, B, step)
    assert gone == [{"servers": "_update_on_servers", "rows": "_update_locally"}[way]]
