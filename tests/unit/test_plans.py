"""A call is cut into one operation a partition, and the results are put together again, whatever the partitioning."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.client import keysets, plans
from ps2.client.declared import declared
from ps2.client.plans import Target
from ps2.client.zipped import map_partitions
from ps2.errors import ConfigError, DTypeError, NotFoundError, OutOfRangeError, ShapeError, UsageError
from ps2.matrix.partition import MatrixSpec, assign_owners, partition_bounds
from ps2.matrix.route import Route
from tests.fakes import FleetInProcess, session_over


def routed(spec, count):
    bounds = partition_bounds(spec, count)
    return Route(1, bounds, tuple(f"s{owner}" for owner in assign_owners(len(bounds) - 1, count)))


def a_target(dim=10, count=3, rows=(0,), **fields):
    spec = MatrixSpec(dim, 3, **fields)
    return Target(7, spec, routed(spec, count), rows)


# -- plans against real engines and a NumPy model --------------------------------------------------------------------


@pytest.fixture(scope="module", params=[1, 3])
def world(request):
    """Three rows of 23 columns, aligned to 4, as a target, a session and a NumPy model of them."""
    over = session_over(FleetInProcess(servers=request.param))
    info = over.new_matrix(MatrixSpec(23, 3, dtype="float64", align=4))
    over.take_rows(info.id, 2)
    model = np.random.default_rng(0).standard_normal((3, 23))
    target = Target(info.id, info.spec, info.route, (0,))

    def run(plan):
        return over.dispatch.run([plan])[0]

    run(plans.rows_push(target, "rows_push", [0, 1, 2], model))
    return target, run, model


@pytest.mark.parametrize(("start", "stop"), [(0, 23), (3, 4), (7, 20), (5, 5)])
def test_pull_when_given_interval_then_matches_model(world, start, stop):
    target, run, model = world
    assert run(plans.pull(target, start, stop)).tolist() == model[0, start:stop].tolist()


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 16 bytes, two float64: everything is cut into many operations."""
    monkeypatch.setattr(plans, "BLOCK_BYTES", 16)
    monkeypatch.setattr(keysets, "GROUP_KEYS", 2)


def test_pull_when_longer_than_block_then_is_cut_into_blocks(world, small_blocks):
    target, run, model = world
    plan = plans.pull(target, 0, 23)
    assert max(op.reply_bytes for op in plan.operations) <= 16
    assert run(plan).tolist() == model[0].tolist()


@pytest.mark.parametrize("rows", [[2], [1, 0, 1]])
@pytest.mark.parametrize("columns", [None, [22, 0, 0, 11]])
def test_rows_pull_when_longer_than_a_block_then_it_comes_whole(world, small_blocks, rows, columns):
    target, run, model = world
    expected = model[rows] if columns is None else model[rows][:, columns]
    assert run(plans.rows_pull(target, rows, columns)).tolist() == expected.tolist()


def test_writes_when_longer_than_block_then_rows_match_model(world, small_blocks):
    test_writes_when_run_in_sequence_then_rows_match_model(world)


@pytest.mark.parametrize("indices", [None, [22, 0, 0, 11], [0, 5, 22]])
def test_pull_when_given_an_array_then_the_answer_is_in_it(world, indices):
    target, run, model = world
    expected = model[0] if indices is None else model[0, indices]
    out = np.empty(expected.size)
    plan = plans.pull(target, 0, 23, out) if indices is None else plans.pull_columns(target, indices, out)
    assert run(plan) is out
    assert out.tolist() == expected.tolist()


@pytest.mark.parametrize("columns", [None, [22, 0, 0, 11], [0, 5, 22]])
def test_rows_pull_when_given_an_array_then_the_answer_is_in_it(world, columns):
    target, run, model = world
    expected = model[[2, 0]] if columns is None else model[[2, 0]][:, columns]
    out = np.empty(expected.shape)
    assert run(plans.rows_pull(target, [2, 0], columns, out)) is out
    assert out.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("out", "error", "said"),
    [
        ([0.0] * 10, DTypeError, "out: expected a numpy array, got list"),
        (np.empty(10, np.float64), DTypeError, "out: expected an array of float32, got float64"),
        (np.empty(9, np.float32), ShapeError, r"out: expected shape \(10,\), got \(9,\)"),
        (np.frombuffer(bytes(40), np.float32), UsageError, "out: the array is read-only"),
    ],
)
def test_pull_when_array_does_not_fit_then_error_says_why(out, error, said):
    with pytest.raises(error, match=said):
        plans.pull(a_target(), 0, 10, out)


@pytest.mark.parametrize("indices", [None, [22, 0, 0, 11]])
def test_push_pull_when_run_then_the_sums_come_back(world, indices):
    target, run, model = world
    added = np.arange(1.0, 5.0) if indices is not None else np.arange(23.0)
    expected = model[0].copy()
    np.add.at(expected, slice(None) if indices is None else indices, added)
    if indices is None:
        result = run(plans.push_pull(target, added))
    else:
        result = run(plans.push_pull_columns(target, added, indices))
    run(plans.rows_push(target, "rows_push", [0, 1, 2], model))
    assert np.allclose(result, expected if indices is None else expected[indices])


@pytest.mark.parametrize(
    ("verb", "of"), [("mul", np.multiply), ("div", np.divide), ("sub", np.subtract), ("add", np.add)]
)
def test_push_columns_when_indices_repeat_then_each_counts(world, verb, of):
    target, run, model = world
    indices, values = [22, 0, 0, 11, 0], np.array([2.0, 3.0, 5.0, 7.0, 0.5])
    expected = model[0].copy()
    of.at(expected, indices, values)
    run(plans.push_columns(target, f"scatter_{verb}", values, indices))
    result = run(plans.pull(target, 0, 23))
    run(plans.rows_push(target, "rows_push", [0, 1, 2], model))
    assert np.allclose(result, expected)


def test_push_columns_when_indices_repeat_then_last_wins(world):
    target, run, model = world
    run(plans.push_columns(target, "scatter", [1.0, 2.0, 3.0, 4.0], [5, 0, 5, 5]))
    result = run(plans.pull_columns(target, [0, 5]))
    run(plans.rows_push(target, "rows_push", [0, 1, 2], model))
    assert result.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("columns", [[], [22, 0, 0, 11], list(range(23))])
def test_pull_columns_when_unordered_then_answer_keeps_order(world, columns):
    target, run, model = world
    assert run(plans.pull_columns(target, columns)).tolist() == model[0, columns].tolist()


@pytest.mark.parametrize("columns", [None, [], [22, 0, 0, 11]])
@pytest.mark.parametrize("rows", [[], [2], [1, 0, 1]])
def test_rows_pull_when_rows_are_unordered_then_keeps_order(world, rows, columns):
    target, run, model = world
    expected = model[rows] if columns is None else model[rows][:, columns]
    answer = run(plans.rows_pull(target, rows, columns))
    assert answer.shape == expected.shape
    assert answer.tolist() == expected.tolist()


def test_rows_dot_when_given_pairs_then_their_inner_products(world):
    target, run, model = world
    expected = [model[0] @ model[1], model[2] @ model[2]]
    assert np.allclose(run(declared(target, "rows_dot", {"rows_a": [0, 2], "rows_b": [1, 2]})), expected)


@pytest.mark.parametrize(("name", "of"), [("sum", np.sum), ("max", np.max), ("min", np.min), ("nnz", np.count_nonzero)])
def test_call_when_it_reduces_then_partitions_are_reduced_alike(world, name, of):
    target, run, model = world
    assert np.isclose(run(declared(target, name, {})), of(model[0]))


def test_then_when_given_function_then_applies_it_to_answer(world):
    target, run, model = world
    assert run(declared(target, "norm2_squared", {}).then(np.sqrt)) == pytest.approx(np.linalg.norm(model[0]))


def test_writes_when_run_in_sequence_then_rows_match_model(world):
    target, run, model = world
    rng = np.random.default_rng(1)
    scattered, whole, many = rng.standard_normal(4), rng.standard_normal(9), rng.standard_normal((2, 3))
    expected = model.copy()
    np.add.at(expected[0], [22, 0, 0, 11], scattered)
    expected[0, 7:16] = whole
    np.add.at(expected, (np.array([[2], [2]]), [5, 5, 19]), many)
    expected[1] += 2.0 * expected[2]
    expected[0] += 2.0 * expected[1]
    run(plans.push_columns(target, "scatter_add", scattered, [22, 0, 0, 11]))
    run(plans.push(target, "push", whole, 7, 16))
    run(plans.rows_scatter_add(target, [2, 2], many, [5, 5, 19]))
    run(declared(target, "rows_axpy", {"rows_y": [1, 0], "rows_x": [2, 1], "alphas": [2, 2]}))
    result = run(plans.rows_pull(target, [0, 1, 2], None))
    run(plans.rows_push(target, "rows_push", [0, 1, 2], model))
    assert np.allclose(result, expected)


@pytest.mark.parametrize("counted", [False, True])
def test_pull_active_when_sparse_then_returns_sorted_keys(counted):
    over = session_over(FleetInProcess(servers=3))
    info = over.new_matrix(MatrixSpec(2**63, 1, dtype="int64", kind="sparse"))
    target = Target(info.id, info.spec, info.route, (0,))
    model = {2**63 - 1: 1, 0: 2, 12345: 3, 77: 4}
    over.dispatch.run([plans.push_columns(target, "scatter", list(model.values()), list(model))])
    counts = over.dispatch.run([plans.count_active(target)])[0] if counted else None
    keys, values = over.dispatch.run([plans.pull_active(target, counts)])[0]
    assert dict(zip(keys.tolist(), values.tolist(), strict=True)) == model
    assert keys.tolist() == sorted(model)


def test_map_when_index_is_requested_then_partition_comes_first():
    over = session_over(FleetInProcess(servers=3))
    info = over.new_matrix(MatrixSpec(10, 2))
    target = Target(info.id, info.spec, info.route, (0,))
    plan = map_partitions(target, lambda p, row: (p.index, p.begin, p.end, row.size), with_index=True)
    assert over.dispatch.run([plan])[0].collect() == [(0, 0, 3, 3), (1, 3, 6, 3), (2, 6, 10, 4)]


# -- what is checked before anything is sent -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "mutates"),
    [
        (lambda t: plans.pull(t, 0, 10), False),
        (lambda t: declared(t, "sum", {}), False),
        (lambda t: declared(t, "fill", {"value": 1}), True),
        (lambda t: plans.push(t, "push", np.ones(10), 0, 10), True),
        (lambda t: declared(t, "rows_dot", {"rows_a": [0], "rows_b": [1]}), False),
        (lambda t: declared(t, "rows_axpy", {"rows_y": [0], "rows_x": [1], "alphas": [1.0]}), True),
        (lambda t: map_partitions(t, len, False), True),
        (lambda t: map_partitions(t, len, False, read_only=True), False),
    ],
)
def test_plan_when_made_then_it_says_whether_it_changes_data(plan, mutates):
    assert plan(a_target()).mutates == mutates


def test_plan_when_reading_columns_then_operations_state_counts():
    plan = plans.pull_columns(a_target(), [9, 0, 1, 5])
    assert [(op.partition, op.reply_bytes) for op in plan.operations] == [(0, 8), (1, 4), (2, 4)]


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda t: declared(t, "adamm", {}), NotFoundError, "no operation 'adamm'"),
        (lambda t: declared(t, "fill", {}), ConfigError, "'value': required"),
        (lambda t: declared(t, "fill", {"x": 1}), ConfigError, "no parameter 'x'; it has: value"),
        (lambda t: declared(t, "dot", {}), ShapeError, "takes 2 vectors"),
        (lambda t: plans.push(t, "push", np.ones(9), 0, 10), ShapeError, r"expected shape \(10,\), got \(9,\)"),
        (lambda t: plans.push_columns(t, "scatter", [1, 2], [3]), ShapeError, r"expected shape \(1,\), got \(2,\)"),
        (lambda t: plans.pull_columns(t, [10]), OutOfRangeError, "index 10"),
        (lambda t: plans.rows_pull(t, [3], None), OutOfRangeError, r"rows: row 3 \(at position 0\)"),
        (
            lambda t: declared(t, "rows_dot", {"rows_a": [0], "rows_b": [0, 1]}),
            UsageError,
            "rows_b: expected 1 along 'pair' as rows_a has, got 2",
        ),
        (
            lambda t: declared(t, "rows_axpy", {"rows_y": [0], "rows_x": [0, 1], "alphas": [1]}),
            UsageError,
            "rows_x: expected 1 along 'pair' as rows_y has, got 2",
        ),
        (
            lambda t: declared(t, "rows_axpy", {"rows_y": [0], "rows_x": [1], "alphas": [1, 2]}),
            ShapeError,
            "alphas: expected 1 along 'pair' as rows_y has, got 2",
        ),
        (lambda t: map_partitions(t, 3, False), UsageError, "expected a function, got 3"),
    ],
)
def test_plan_when_the_call_cannot_work_then_the_error_says_why(make, error, said):
    with pytest.raises(error, match=said):
        make(a_target())


def test_plan_when_operation_rejects_dtype_then_dtype_error():
    with pytest.raises(DTypeError, match=r"push_div.*float32 or float64, got int64"):
        plans.push(a_target(dtype="int64"), "push_div", np.ones(10, np.int64), 0, 10)


@pytest.mark.parametrize(
    "make", [lambda t: plans.rows_pull(t, [0], None), lambda t: plans.rows_push(t, "rows_push", [0], [[1]])]
)
def test_rows_when_sparse_without_columns_then_usage_error(make):
    with pytest.raises(UsageError, match="name the columns"):
        make(a_target(kind="sparse"))


def test_map_when_function_cannot_be_pickled_then_usage_error():
    import threading

    lock = threading.Lock()
    with pytest.raises(UsageError, match=r"cannot be pickled: .*lock"):
        map_partitions(a_target(), lambda row: lock, False)
