"""The size of a reply is estimated from the request alone, and the estimate is never too small."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.matrix.partition import HASH_SPACE, MatrixSpec, Partition
from ps2.ops.all import TABLE, lookup
from ps2.protocol import binary
from ps2.protocol.messages import Keys, Operation, Request, RequestId, key_digest, nbytes
from ps2.server import key_operations
from ps2.server.engine import Engine
from ps2.server.key_operations import reply_bytes

D, S = 1, 2  # a dense matrix of 50 columns, and a sparse one with 40 keys; both of 3 rows
INTS = 3
COLUMNS, KEYS = np.arange(5, 45, 2), np.arange(0, 4000, 100)
ROWS = np.array([0, 2, 2])


@pytest.fixture(scope="module")
def engine():
    engine = Engine(1 << 30, allow_udf=True)
    engine.create_matrix(D, MatrixSpec(50, 3, dtype="float32"), [Partition(0, 0, 50)])
    engine.create_matrix(S, MatrixSpec(2**40, 3, dtype="float64", kind="sparse"), [Partition(0, 0, HASH_SPACE)])
    fill = Operation("scatter", S, 0, (0,), arrays=(KEYS, np.ones(KEYS.size)))
    engine.execute(Request((fill,), RequestId("test", 0)))
    return engine


def op(name, *arrays, matrix=D, rows=(), keys=None, wire=None, **params):
    keys = None if keys is None else Keys(keys.size, keys, key_digest(keys))
    return Operation(name, matrix, 0, rows, params, tuple(arrays), keys, wire)


def told(engine, *operations, copies=0):
    header, _ = binary.request_parts(Request(operations))
    return reply_bytes(binary.open_request(header, 1 << 30), engine._shards, copies)


def taken(engine, *operations):
    return sum(nbytes(result.arrays) for result in engine.execute(Request(operations)).results)


@pytest.mark.parametrize(
    "operation",
    [
        op("pull", rows=(0,), start=10, stop=30),
        op("pull", rows=(0,)),
        op("pull", rows=(0,), matrix=S),
        op("pull", rows=(0,), matrix=S, start=3, stop=7),
        op("keys", matrix=S),
        op("keys", matrix=S, start=3, stop=7),
        op("gather", COLUMNS, rows=(0,)),
        op("gather", rows=(0,), keys=COLUMNS),
        op("gather", rows=(0,), matrix=S, keys=KEYS[::3]),
        op("rows_pull", ROWS),
        op("rows_pull", ROWS, matrix=S),
        op("rows_gather", ROWS, COLUMNS),
        op("rows_gather", ROWS, keys=COLUMNS),
        op("sum", rows=(0,)),
        op("push", np.zeros(3, np.float32), rows=(0,), start=0),
    ],
    ids=lambda operation: f"{operation.name} of {'sparse' if operation.matrix == S else 'dense'}",
)
def test_reply_when_size_is_predicted_then_takes_exactly_that(engine, operation):
    if changes(operation):
        assert told(engine, operation) == 0
    else:
        assert told(engine, operation) == taken(engine, operation)


def changes(operation):
    return operation.name != "keys" and bool(lookup(operation.name).writes)


@pytest.mark.parametrize("name", ["rows_dot", "gram"])
def test_reply_when_inner_products_then_stays_within_prediction(engine, name):
    for count in (1, 3, 200):
        rows = np.zeros(count, np.int64)
        assert taken(engine, op(name, rows, rows)) <= told(engine, op(name, rows, rows)) <= 8 * max(count**2, 1 << 16)


def test_reply_when_pairs_are_many_then_it_is_not_their_square(engine):
    rows = np.zeros(1 << 20, np.int64)
    assert told(engine, op("rows_dot", rows, rows)) <= 16 << 20


def test_reply_when_operations_are_several_then_it_is_their_sum(engine):
    both = op("pull", rows=(0,)), op("gather", COLUMNS, rows=(0,))
    assert told(engine, *both) == sum(told(engine, operation) for operation in both)


def test_reply_when_narrowed_or_framed_then_size_includes_copies(engine):
    whole = op("pull", rows=(0,))
    short = op("pull", rows=(0,), wire="float16")
    assert [told(engine, whole), told(engine, whole, copies=1)] == [4 * 50, 8 * 50]
    assert [told(engine, short), told(engine, short, copies=1)] == [6 * 50, 8 * 50]


def test_reply_when_integers_may_narrow_then_size_includes_half(engine):
    engine.create_matrix(INTS, MatrixSpec(1024, 1, "int64"), [Partition(0, 0, 1024)])
    few, many = (op("pull", rows=(0,), matrix=INTS, stop=stop) for stop in (10, 1024))
    assert [told(engine, few), told(engine, many)] == [8 * 10, 12 * 1024]


@pytest.mark.parametrize(
    "operation",
    [
        op("nothing"),
        op("pull", rows=(0,), matrix=99),
        op("pull", rows=(0,), start=-(2**60), stop=2**60),
        op("pull", rows=(0,), start=40, stop=2),
        op("pull", rows=(0,), start=float("nan"), stop=float("inf")),
    ],
)
def test_reply_when_request_is_invalid_then_is_at_most_a_row(engine, operation):
    assert 0 <= told(engine, operation) <= 4 * 50


def test_operations_when_returning_arrays_then_all_are_counted():
    own = {name: op for name, op in TABLE.items() if op.module.startswith("ps2.ops.")}
    bringing = {name for name, op in own.items() if "Array" in str(op.fn.__annotations__["return"])}
    products = {name for name, op in own.items() if "Float64s" in str(op.fn.__annotations__["return"])}
    told = {name for name in (*own, "keys", "map", "nothing") if name in key_operations.ARRAY_OPERATIONS}
    assert told == bringing | products | {"keys"}


def test_reserve_when_a_message_is_held_too_then_it_is_counted(engine):
    """gRPC holds the message of ``Execute`` while its arrays are here."""
    request = Request((op("push", np.ones(50, np.float32), rows=(0,)),), RequestId("test", 1))
    draft = binary.open_request(binary.request_parts(request)[0], 1 << 30)
    sizes = []
    for copies in (0, 1):
        sizes.append(engine.reserve(draft, copies))
        engine.release(sizes[-1])
    assert sizes == [200, 400]
