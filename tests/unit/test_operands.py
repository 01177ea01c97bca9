"""What an operation declares of its arrays is what it is given, and what is counted of its answers."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import pytest

from ps2.errors import DTypeError, ProtocolError, ShapeError
from ps2.matrix.partition import MatrixSpec, Partition
from ps2.ops import table
from ps2.ops.all import TABLE
from ps2.ops.kernels import Int64s
from ps2.ops.operands import along, operand_axes, read_answers
from ps2.ops.table import op
from ps2.protocol import binary
from ps2.protocol.messages import Operation, Request
from ps2.server.engine import Engine
from ps2.server.key_operations import reply_bytes
from tests import messages

PARTITION = Partition(0, 10, 16)


@pytest.fixture(scope="module")
def engine():
    before = dict(TABLE)

    @op(reduce="list")
    def where_am_i(partition: table.Partition, u: table.Row, *, of: int) -> table.Array:
        """Return the bounds of the partition, as the row's dtype."""
        return np.array([partition.begin, partition.end, of], u.dtype)

    @op(reduce="best", blocks="n")
    def echo(
        u: table.Row,
        table_: Annotated[table.Values, along("n", "k")],
        numbers: Annotated[table.Integers, along("n")],
    ) -> tuple[Annotated[table.Array, along("n", "k")], Annotated[Int64s, along("n")]]:
        """Return what it was given."""
        return table_.copy(), numbers.copy()

    engine = Engine(1 << 30, allow_udf=False)
    engine.create_matrix(1, MatrixSpec(20, 3, dtype="float32"), [PARTITION])
    yield engine
    TABLE.clear()
    TABLE.update(before)


def run(engine, name, *arrays, **params):
    request = Request((Operation(name, 1, 0, (0,), params, tuple(arrays)),))
    header, _ = binary.request_parts(request)
    came = messages.request_of(messages.request_bytes(request))
    reply = engine.execute(came)
    (result,) = messages.reply_of(messages.reply_bytes(reply, came), request).results
    return result.arrays, reply_bytes(binary.open_request(header, 1 << 30), engine._shards)


def test_partition_when_declared_then_is_that_of_the_shard(engine):
    (result,), _ = run(engine, "where_am_i", of=3)
    assert result.tolist() == [10, 16, 3]


def test_tables_and_integers_when_declared_then_keep_shapes(engine):
    inputs, numbers = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([-5, 2**62])
    (table_, same), _ = run(engine, "echo", inputs, numbers)
    np.testing.assert_array_equal(table_, inputs)
    np.testing.assert_array_equal(same, numbers)


@pytest.mark.parametrize("rows", [0, 2, 100])
def test_answers_when_several_then_all_are_counted_before_made(engine, rows):
    result, reported = run(engine, "echo", np.zeros((rows, 3), np.float32), np.zeros(rows, np.int64))
    assert reported == sum(array.nbytes for array in result)


@pytest.mark.parametrize(
    ("arrays", "error", "message"),
    [
        ((np.zeros(6, np.float32), np.zeros(2, np.int64)), ShapeError, r"table_: expected shape \(n, k\), got \(6,\)"),
        (
            (np.zeros((2, 3), np.float32), np.zeros(3, np.int64)),
            ShapeError,
            "numbers: expected 2 along 'n' as table_ has, got 3",
        ),
        ((np.zeros((2, 3), np.float32), np.zeros(2)), DTypeError, "expected integers of int64, got float64"),
    ],
)
def test_call_when_arrays_do_not_fit_each_other_then_raises(engine, arrays, error, message):
    with pytest.raises(error, match=message):
        run(engine, "echo", *arrays)


def test_shape_when_element_count_differs_then_reads_nothing():
    header, _ = binary.request_parts(Request((Operation("echo", 1, 0, arrays=(np.zeros((2, 3)),)),)))
    at = binary.TAIL_OFFSET + binary.ARRAY.size + binary.WORD.size
    header = header[:at] + binary.WORD.pack(4) + header[at + binary.WORD.size :]
    with pytest.raises(ProtocolError, match=r"an array of 6 elements cannot have shape \(2, 4\)"):
        binary.open_request(header, 1 << 30)


def test_axes_when_nothing_is_said_then_array_has_its_own_length():
    assert operand_axes("counts", ("unsigned",)).axes == ("counts",)
    assert operand_axes("keys", ("slots",)).axes == ("slots",)


def test_answers_when_they_are_numbers_then_there_are_no_arrays():
    assert read_answers(float) == read_answers(type(None)) == ()
