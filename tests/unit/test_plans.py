"""A call is cut into one operation a partition, and the results are put together again, whatever the partitioning."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps2.client import plans
from ps2.client.plans import Target, split
from ps2.errors import ConfigError, DTypeError, NotFoundError, OutOfRangeError, ShapeError, UsageError
from ps2.partition import MatrixSpec, partition_bounds, partition_of, place
from ps2.route import Route
from tests.fakes import FleetInProcess, session_over

dense = st.builds(MatrixSpec, dim=st.integers(1, 60), rows=st.just(3), align=st.integers(1, 7))
servers = st.integers(1, 5)


def routed(spec, count):
    bounds = partition_bounds(spec, count)
    return Route(1, bounds, tuple(f"s{owner}" for owner in place(len(bounds) - 1, count)))


def a_target(dim=10, count=3, rows=(0,), **fields):
    spec = MatrixSpec(dim, 3, **fields)
    return Target(7, spec, routed(spec, count), rows)


def columns_of(data, dim):
    return np.array(data.draw(st.lists(st.integers(0, dim - 1), max_size=30)), dtype=np.int64)


# -- split -----------------------------------------------------------------------------------------------------------


@given(dense | st.just(MatrixSpec(60, 3, kind="sparse")), servers, st.booleans(), st.data())
def test_split_when_grouped_then_each_group_is_of_one_partition_in_the_order_given(spec, count, ascending, data):
    columns = columns_of(data, spec.dim)
    columns = np.sort(columns) if ascending else columns
    route = routed(spec, count)
    owners = partition_of(spec, route.bounds, columns)
    parts = split(spec, route, columns)
    assert [lo for _, lo, _ in parts.groups] == [0, *(hi for *_, hi in parts.groups)][: len(parts.groups)]
    assert [owner for owner, *_ in parts.groups] == sorted(set(owners.tolist()))
    for owner, lo, hi in parts.groups:
        assert parts.columns[lo:hi].tolist() == columns[owners == owner].tolist()


@given(dense, servers, st.data())
def test_split_when_values_are_sorted_and_unsorted_then_they_are_as_they_came(spec, count, data):
    columns = columns_of(data, spec.dim)
    parts = split(spec, routed(spec, count), columns)
    values = np.arange(2 * columns.size).reshape(2, -1)
    assert parts.sorted(columns).tolist() == parts.columns.tolist()
    assert parts.unsorted(parts.sorted(values)).tolist() == values.tolist()


def test_split_when_columns_ascend_then_nothing_is_copied():
    columns = np.arange(10)
    parts = split(a_target().spec, a_target().route, columns)
    assert parts.order is None
    assert np.shares_memory(parts.columns, columns)


@pytest.mark.parametrize("count", [1, 3])
def test_split_when_there_are_no_columns_then_there_are_no_groups(count):
    assert split(a_target().spec, a_target(count=count).route, np.empty(0, np.int64)).groups == ()


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
        return over.run([plan])[0]

    run(plans.rows_push(target, "rows_push", [0, 1, 2], model))
    return target, run, model


@pytest.mark.parametrize(("start", "stop"), [(0, 23), (3, 4), (7, 20), (5, 5)])
def test_pull_when_given_an_interval_then_it_is_that_of_the_model(world, start, stop):
    target, run, model = world
    assert run(plans.pull(target, start, stop)).tolist() == model[0, start:stop].tolist()


@pytest.mark.parametrize("columns", [[], [22, 0, 0, 11], list(range(23))])
def test_pull_columns_when_in_any_order_then_the_answer_is_in_that_order(world, columns):
    target, run, model = world
    assert run(plans.pull_columns(target, columns)).tolist() == model[0, columns].tolist()


@pytest.mark.parametrize("columns", [None, [], [22, 0, 0, 11]])
@pytest.mark.parametrize("rows", [[], [2], [1, 0, 1]])
def test_rows_pull_when_rows_come_in_any_order_then_so_does_the_answer(world, rows, columns):
    target, run, model = world
    expected = model[rows] if columns is None else model[rows][:, columns]
    answer = run(plans.rows_pull(target, rows, columns))
    assert answer.shape == expected.shape
    assert answer.tolist() == expected.tolist()


def test_rows_dot_when_given_pairs_then_their_inner_products(world):
    target, run, model = world
    expected = [model[0] @ model[1], model[2] @ model[2]]
    assert np.allclose(run(plans.rows_dot(target, [0, 2], [1, 2])), expected)


@pytest.mark.parametrize(("name", "of"), [("sum", np.sum), ("max", np.max), ("min", np.min), ("nnz", np.count_nonzero)])
def test_call_when_it_reduces_then_partitions_are_reduced_alike(world, name, of):
    target, run, model = world
    assert np.isclose(run(plans.call(target, name, {})), of(model[0]))


def test_then_when_given_a_function_then_the_answer_goes_through_it(world):
    target, run, model = world
    assert run(plans.call(target, "norm2_squared", {}).then(np.sqrt)) == pytest.approx(np.linalg.norm(model[0]))


def test_writes_when_run_one_after_the_other_then_all_rows_are_those_of_the_model(world):
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
    run(plans.rows_axpy(target, [1, 0], [2, 1], 2))
    found = run(plans.rows_pull(target, [0, 1, 2], None))
    run(plans.rows_push(target, "rows_push", [0, 1, 2], model))
    assert np.allclose(found, expected)


def test_pull_active_when_sparse_then_keys_are_sorted_with_their_values():
    over = session_over(FleetInProcess(servers=3))
    info = over.new_matrix(MatrixSpec(2**63, 1, dtype="int64", kind="sparse"))
    target = Target(info.id, info.spec, info.route, (0,))
    model = {2**63 - 1: 1, 0: 2, 12345: 3, 77: 4}
    over.run([plans.push_columns(target, "scatter", list(model.values()), list(model))])
    keys, values = over.run([plans.pull_active(target)])[0]
    assert dict(zip(keys.tolist(), values.tolist(), strict=True)) == model
    assert keys.tolist() == sorted(model)


def test_map_when_asked_for_the_index_then_the_partition_comes_first():
    over = session_over(FleetInProcess(servers=3))
    info = over.new_matrix(MatrixSpec(10, 2))
    target = Target(info.id, info.spec, info.route, (0,))
    plan = plans.map_partitions(target, lambda p, row: (p.index, p.begin, p.end, row.size), with_index=True)
    assert over.run([plan])[0].collect() == [(0, 0, 3, 3), (1, 3, 6, 3), (2, 6, 10, 4)]


# -- what is checked before anything is sent -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "mutates"),
    [
        (lambda t: plans.pull(t, 0, 10), False),
        (lambda t: plans.call(t, "sum", {}), False),
        (lambda t: plans.call(t, "fill", {"value": 1}), True),
        (lambda t: plans.push(t, "push", np.ones(10), 0, 10), True),
        (lambda t: plans.rows_dot(t, [0], [1]), False),
        (lambda t: plans.rows_axpy(t, [0], [1], 1.0), True),
        (lambda t: plans.map_partitions(t, len, False), True),
    ],
)
def test_plan_when_made_then_it_says_whether_it_changes_data(plan, mutates):
    assert plan(a_target()).mutates == mutates


def test_plan_when_it_reads_columns_then_each_operation_says_how_many_it_expects():
    plan = plans.pull_columns(a_target(), [9, 0, 1, 5])
    assert [(op.partition, op.reply_count) for op in plan.operations] == [(0, 2), (1, 1), (2, 1)]


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda t: plans.call(t, "adamm", {}), NotFoundError, "no operation 'adamm'"),
        (lambda t: plans.call(t, "fill", {}), ConfigError, "'value': required"),
        (lambda t: plans.call(t, "fill", {"x": 1}), ConfigError, "no parameter 'x'; it has: value"),
        (lambda t: plans.call(t, "dot", {}), ShapeError, "takes 2 vectors"),
        (lambda t: plans.push(t, "push", np.ones(9), 0, 10), ShapeError, r"expected shape \(10,\), got \(9,\)"),
        (lambda t: plans.push_columns(t, "scatter", [1, 2], [3]), ShapeError, r"expected shape \(1,\), got \(2,\)"),
        (lambda t: plans.pull_columns(t, [10]), OutOfRangeError, "index 10"),
        (lambda t: plans.rows_pull(t, [3], None), OutOfRangeError, r"rows: row 3 \(at position 0\)"),
        (lambda t: plans.rows_dot(t, [0], [0, 1]), UsageError, "rows_b: expected 1 rows, got 2"),
        (lambda t: plans.rows_axpy(t, [0], [0, 1], 1), UsageError, "rows_x: expected 1 rows, got 2"),
        (lambda t: plans.rows_axpy(t, [0], [1], [1, 2]), ShapeError, r"expected shape \(1,\), got \(2,\)"),
        (lambda t: plans.map_partitions(t, 3, False), UsageError, "expected a function, got 3"),
    ],
)
def test_plan_when_the_call_cannot_work_then_the_error_says_why(make, error, said):
    with pytest.raises(error, match=said):
        make(a_target())


def test_plan_when_an_operation_does_not_take_the_dtype_then_dtype_error():
    with pytest.raises(DTypeError, match=r"push_div.*float32 or float64, got int64"):
        plans.push(a_target(dtype="int64"), "push_div", np.ones(10, np.int64), 0, 10)


@pytest.mark.parametrize(
    "make", [lambda t: plans.rows_pull(t, [0], None), lambda t: plans.rows_push(t, "rows_push", [0], [[1]])]
)
def test_rows_when_whole_rows_of_a_sparse_matrix_then_usage_error_says_to_name_columns(make):
    with pytest.raises(UsageError, match="name the columns"):
        make(a_target(kind="sparse"))


def test_map_when_the_function_cannot_be_pickled_then_usage_error_says_why():
    import threading

    lock = threading.Lock()
    with pytest.raises(UsageError, match=r"cannot be pickled: .*lock"):
        plans.map_partitions(a_target(), lambda row: lock, False)
