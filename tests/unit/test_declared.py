"""Any operation is cut, called and merged as its declaration says: against NumPy on the whole matrix."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import numpy as np
import pytest

from ps2.client import plans
from ps2.client.declared import declared
from ps2.client.plans import Target
from ps2.errors import ConfigError, DTypeError, ShapeError, UsageError
from ps2.matrix.partition import MatrixSpec
from ps2.ops import table
from ps2.ops.all import TABLE
from ps2.ops.kernels import Float64s, Int64s
from ps2.ops.operands import along
from ps2.ops.table import families, op
from tests.fakes import FleetInProcess, session_over

DIM, ROWS = 23, 4
SlotValues = Annotated[table.Values, along("slots")]


@pytest.fixture(scope="module", autouse=True)
def operations():
    """Operations of these tests alone, beside all of ours."""
    for family in families().values():
        import_module(family)
    before = dict(TABLE)

    @op(writes=("u",))
    def number_columns(u: table.Row, partition: table.Partition, *, first: int) -> None:
        """Set each column to its number in the matrix, plus ``first``."""
        u[:] = np.arange(partition.begin, partition.end) + first

    @op(reduce="best")
    def largest(
        u: table.Row, partition: table.Partition
    ) -> tuple[Annotated[Float64s, along(1)], Annotated[Int64s, along(1)]]:
        """Return the largest element and its column."""
        at = int(np.argmax(u))
        return np.array([u[at]], np.float64), np.array([partition.begin + at])

    @op(reduce="best")
    def largest_of_rows(m: table.Block, rows: table.RowIds) -> Annotated[Float64s, along("rows", 2)]:
        """Return of each row the largest element, and its negative."""
        top = m[rows].max(axis=1).astype(np.float64)
        return np.stack([top, -top], axis=1)

    @op(reduce="concat")
    def above(u: table.Row, partition: table.Partition, *, value: float) -> Annotated[Int64s, along("")]:
        """Return the columns that are above a value."""
        return np.flatnonzero(u > value) + partition.begin

    @op(reduce="list")
    def widths(u: table.Row) -> Annotated[Int64s, along(1)]:
        """Return the width of the shard."""
        return np.array([u.size])

    @op(blocks="n")
    def between(
        m: table.Block, rows: Annotated[table.RowIds, along("n")], slots: table.Slots, by: SlotValues
    ) -> Annotated[table.Array, along("slots", "n")]:
        """Return rows at slots times a value each, turned round."""
        return (m[rows][:, slots] * by).T.copy()

    @op(writes=("m",))
    def add_columns(
        m: table.Block, rows: table.RowIds, values: Annotated[table.Values, along("columns", "rows")]
    ) -> Annotated[table.Array, along("columns")]:
        """Add values of all columns to rows; return the sums of columns."""
        m[rows] += values.T
        return m.sum(axis=0)

    @op(reduce="sum")
    def ragged(
        u: table.Row,
        slots: table.Slots,
        counts: Annotated[table.Unsigned, along("slots")],
        x: Annotated[table.Values, along("slots", by="counts")],
    ) -> Annotated[table.Array, along(1)]:
        """Return the sum of all x, each times the element at its slot."""
        return np.array([np.repeat(u[slots], counts) @ x], u.dtype)

    yield
    TABLE.clear()
    TABLE.update(before)


@pytest.fixture(params=[1, 3])
def world(request):
    """Four rows of 23 columns as a target, what runs a plan on them, and a NumPy model."""
    over = session_over(FleetInProcess(servers=request.param))
    info = over.new_matrix(MatrixSpec(DIM, ROWS, dtype="float64"))
    over.take_rows(info.id, ROWS - 1)
    model = np.random.default_rng(0).standard_normal((ROWS, DIM))
    target = Target(info.id, info.spec, info.route, (0,))

    def call(name, **given):
        return over.dispatch.run([declared(target, name, given)])[0]

    over.dispatch.run([plans.rows_push(target, "rows_push", range(ROWS), model)])
    return call, model, info.route


@pytest.fixture(params=[None, 16, 100])
def block_bytes(request, monkeypatch):
    """Blocks of two numbers, of some, or as they are."""
    if request.param is not None:
        monkeypatch.setattr(plans, "BLOCK_BYTES", request.param)


def test_partition_when_operation_takes_it_then_global_columns(world):
    call, _, _ = world
    assert call("number_columns", first=5) is None
    assert call("above", value=-1).tolist() == list(range(DIM))
    assert call("largest")[1].tolist() == [DIM - 1]


def test_best_when_arrays_are_several_then_the_first_decides(world):
    call, model, _ = world
    value, column = call("largest")
    assert (value[0], column[0]) == (model[0].max(), model[0].argmax())


def test_best_when_one_array_then_first_column_decides_per_row(world):
    call, model, _ = world
    top = model[[2, 0, 1]].max(axis=1)
    assert call("largest_of_rows", rows=[2, 0, 1]).tolist() == np.stack([top, -top], axis=1).tolist()


def test_concat_when_parts_answer_then_keeps_partition_order(world):
    call, model, _ = world
    assert call("above", value=0.2).tolist() == np.flatnonzero(model[0] > 0.2).tolist()


def test_list_when_parts_answer_then_has_one_answer_a_partition(world):
    call, _, route = world
    assert [int(width[0]) for width in call("widths")] == [p.width for p in route.partitions]


@pytest.mark.parametrize("columns", [[3], [0, 5, 22], [22, 0, 11, 7], [7, 7, 3, 22, 7, 3], []])
def test_slots_when_arrays_follow_them_then_answers_keep_order(world, block_bytes, columns):
    call, model, _ = world
    by, rows = np.arange(1.0, len(columns) + 1), [3, 0, 3]
    result = call("between", rows=rows, slots=columns, by=by)
    np.testing.assert_array_equal(result, (model[rows][:, columns] * by).T)


def test_columns_when_arrays_follow_them_then_each_part_gets_own(world):
    call, model, _ = world
    values = np.random.default_rng(1).standard_normal((DIM, 2))
    sums = call("add_columns", rows=[1, 2], values=values)
    model[[1, 2]] += values.T
    np.testing.assert_array_equal(sums, model.sum(axis=0))


@pytest.mark.parametrize("columns", [[0, 5, 22], [22, 0, 11, 7], [7, 7, 3, 22, 7, 3]])
def test_ragged_arrays_when_cut_then_entries_stay_with_slots(world, block_bytes, columns):
    call, model, _ = world
    rng = np.random.default_rng(2)
    counts = rng.integers(0, 4, len(columns)).astype(np.uint8)
    x = rng.standard_normal(counts.sum())
    expected = np.repeat(model[0, columns], counts) @ x
    np.testing.assert_allclose(call("ragged", slots=columns, counts=counts, x=x), [expected])


def test_call_when_longer_than_block_then_operations_are_split():
    spec = MatrixSpec(1 << 20, 2)
    route = session_over(FleetInProcess(servers=2)).new_matrix(spec).route
    rows = np.zeros(1 << 20, np.int64)
    plan = declared(Target(7, spec, route), "rows_dot", {"rows_a": rows, "rows_b": rows})
    assert max(operation.nbytes for operation in plan.operations) <= plans.BLOCK_BYTES
    assert len(plan.operations) == 2 * 7


@pytest.mark.parametrize(
    ("name", "given", "error", "message"),
    [
        ("largest_of_rows", {}, ConfigError, "'largest_of_rows': rows: this argument is required"),
        ("largest_of_rows", {"rows": [0], "x": 1}, ConfigError, "no parameter 'x'; it has: none"),
        (
            "between",
            {"rows": [0], "slots": [1, 2], "by": [1.0]},
            ShapeError,
            "by: expected 2 along 'slots' as slots has",
        ),
        (
            "add_columns",
            {"rows": [0], "values": np.ones((9, 1))},
            ShapeError,
            "expected 23 along 'columns' as the call",
        ),
        ("ragged", {"slots": [1], "counts": [1.5], "x": [1.0]}, DTypeError, "counts: expected unsigned integers"),
    ],
)
def test_call_when_arguments_do_not_fit_then_the_error_says_why(world, name, given, error, message):
    call, _, _ = world
    with pytest.raises(error, match=message):
        call(name, **given)


def test_column_call_when_matrix_is_sparse_then_error_says_why():
    spec = MatrixSpec(100, 2, kind="sparse")
    route = session_over(FleetInProcess(servers=2)).new_matrix(spec).route
    with pytest.raises(UsageError, match="needs a dense matrix"):
        declared(Target(7, spec, route), "add_columns", {"rows": [0], "values": np.ones((100, 1))})


# What is not there for nothing: sentences without where they begin, edges' weights in integers, counts without priors,
# an output without its slope, bins of forests without channels.
REFUSED = {
    *(f"skipgrams.{name}" for name in ("find_products", "learn_from_products", "put_aliases", "train_sentences")),
    *(f"embeddings.{name}_weighted_neighbours" for name in ("add", "draw")),
    *("topics.look", "trees.clear", "trees.purest_splits", "linear.center_gradient", "deep.step_of_gradient"),
}
# Nobody knows the columns of sparse rows.
ALONG_COLUMNS = {
    "rows_pull",
    "trees.add_rows",
    "trees.best_splits",
    "sgd_step",
    "momentum_step",
    "adagrad_step",
    "adam_step",
}
NUMBERS = {"slots": "int64", "row_ids": "int64", "integers": "int64", "floats": "float64", "unsigned": "uint16"}


def nothing_for(each, dtype):
    """Arrays of length 0 along all that a call itself may choose, and scalars that are allowed."""
    known = {"columns": DIM, "block": ROWS}
    arrays = {
        name: np.zeros(
            [axis if isinstance(axis, int) else known.get(axis, 0) for axis in message.axes], NUMBERS.get(kind, dtype)
        )
        for name, kind, message in each.request_operands
    }
    half = 0.5 if dtype.startswith("float") else 1
    return arrays | {param.name: half if param.type is float else 1 for param in each.params.values() if param.required}


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("servers", [1, 3])
def test_operations_when_given_nothing_then_answer_nothing(servers, kind):
    over, refused = session_over(FleetInProcess(servers=servers)), set()
    for each in [each for each in TABLE.values() if each.request_operands and each.module.startswith("ps2.")]:
        dtype, layout = each.dtypes[-1], "column" if "blocks" in each.operands else "row"
        dim = DIM if kind == "dense" else 2**60
        info = over.new_matrix(MatrixSpec(dim, ROWS, dtype=dtype, kind=kind, layout=layout))
        if layout == "row":
            over.take_rows(info.id, ROWS - 1)
        target = Target(info.id, info.spec, info.route, tuple(range(each.rows)))
        try:
            result = over.dispatch.run([declared(target, each.name, nothing_for(each, dtype))])[0]
        except UsageError:
            refused.add(each.name)
            continue
        arrays = result if isinstance(result, tuple) else (result,)
        assert [array.dtype for array in arrays if each.answers] == [
            answer.dtype or dtype for answer in each.answers
        ], each
    assert refused <= REFUSED | (ALONG_COLUMNS if kind == "sparse" else set())
