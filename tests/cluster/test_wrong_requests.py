"""Requests that follow the contract and make no sense: refused as what they are, and the connection goes on."""

from __future__ import annotations

from functools import cache

import pytest

from ps2 import PS2Context
from ps2.protocol import framing
from ps2.protocol.binary import MAX_HEADER_BYTES, OPERATION, REQUEST
from ps2.protocol.drafts import MAX_OPERATIONS
from ps2.protocol.messages import Request
from ps2.protocol.pb import server_pb2 as pb
from tests.cluster.victim import DIM, NUMBERS, REFUSED, WAYS, ask, attacked, message, unharmed
from tests.messages import header_bytes

DENSE, SPARSE = 1, 2
SOCKETS = WAYS[1:]


@pytest.fixture(scope="module")
def victim(leaves_nothing):
    """A server of no other module: an attack may leave traces."""
    with PS2Context.getOrCreate(servers=1) as ps, attacked(ps) as created:
        yield created


def header(*operations, **id):
    named = pb.RequestId(**{"scope": "wrong", "number": next(NUMBERS)} | id)
    return pb.RequestHeader(id=named, operations=operations)


def operation(name, rows=(0,), specs=(), matrix=DENSE, **fields):
    arrays = [pb.ArraySpec(dtype=dtype, count=count) for dtype, count in specs]
    return pb.Operation(name=name, rows=rows, arrays=arrays, matrix=matrix, **fields)


def keyed(count, first=0, dtype=None, steps=0, hash=b"", matrix=SPARSE, specs=()):
    deltas = dtype and pb.ArraySpec(dtype=dtype, count=steps)
    return operation(
        "gather", specs=specs, matrix=matrix, keys=pb.Keys(count=count, first=first, deltas=deltas, hash=hash)
    )


F32, F64, I64, U8, U64 = pb.FLOAT32, pb.FLOAT64, pb.INT64, pb.UINT8, pb.UINT64
MANY = 100_000
# name: (header, data, what is said). Matrices are told by DENSE and SPARSE, and put right before they are sent.
WRONG = {
    "values of another dtype": (header(operation("push", specs=[(I64, 9)])), bytes(72), "DTypeError"),
    "values of an unsigned dtype": (header(operation("push", specs=[(U64, 9)])), bytes(72), "DTypeError"),
    "slots of another dtype": (header(operation("gather", specs=[(F64, 9)])), bytes(72), "DTypeError"),
    "a column beyond the end": (header(operation("gather", specs=[(I64, 1)])), bytes([DIM, *bytes(7)]), "OutOfRange"),
    "a negative column": (header(operation("gather", specs=[(I64, 1)])), b"\xff" * 8, "OutOfRange"),
    "a key beyond dim": (
        header(operation("scatter_add", specs=[(I64, 1), (F32, 1)], matrix=SPARSE)), b"\xff" * 7 + b"\x7f" + bytes(4),
        "OutOfRange",
    ),
    "a negative key": (
        header(operation("scatter_add", specs=[(I64, 1), (F32, 1)], matrix=SPARSE)), b"\xff" * 8 + bytes(4),
        "OutOfRange",
    ),
    "factors whose samples are signed": (
        header(operation("add_factors", specs=[(I64, 1), (U8, 1), (I64, 1), (F64, 1), (F64, 1)],
                         params=[pb.Param(name="width", whole=1)])),
        bytes(33), "DTypeError",
    ),
    "factors that add to nothing": (
        header(operation("add_factors", specs=[(I64, 2), (U64, 2), (U8, 0), (F64, 0), (F64, 1)],
                         params=[pb.Param(name="width", whole=1)])),
        bytes(16) + (b"\x00" * 7 + b"\x80") * 2 + bytes(8), "ShapeError",
    ),
    "more values than columns": (header(operation("push", specs=[(F64, DIM + 1)])), bytes(808), "ShapeError"),
    "a row that is not there": (header(operation("sum", (9,))), b"", "OutOfRange"),
    "the last row that can be said": (header(operation("sum", (2**32 - 1,))), b"", "OutOfRange"),
    "rows that are not there": (header(operation("rows_pull", (), [(I64, 1)])), b"\xff" * 8, "OutOfRange"),
    "too many rows": (header(operation("sum", (0,) * 100_000)), b"", "ShapeError"),
    "no rows": (header(operation("sum", ())), b"", "ShapeError"),
    "an operation that does not exist": (header(operation("no_such")), b"", "NotFound"),
    "a partition that is not there": (header(operation("sum", partition=2**32 - 1)), b"", "StaleRoute"),
    "a parameter of another operation": (
        header(operation("sum", params=[pb.Param(name="x", real=1)])), b"", "ConfigError"
    ),
    "a parameter that is no number": (
        header(operation("fill", params=[pb.Param(name="value", real=float("nan"))])), b"", None
    ),
    "a start at the far end": (
        header(operation("push", specs=[(F64, 1)], params=[pb.Param(name="start", whole=2**63 - 1)])), bytes(8),
        "OutOfRange",
    ),
    "one vector twice": (header(operation("adam", (0, 0, 0, 0))), b"", "ConfigError"),
    "no id": (pb.RequestHeader(operations=[operation("copy", (0, 1))]), b"", "Protocol"),
    "no function": (header(operation("map", specs=[(U8, 0)])), b"", None),
    "a function that is none": (header(operation("map", specs=[(F64, 1)])), bytes(8), "Protocol"),
    "a count of 2**63": (header(operation("push", specs=[(F64, 2**63)])), b"", "LimitError"),
    "counts whose sum is 2**64": (header(operation("push", specs=[(U8, 2**63)] * 2)), b"", "LimitError"),
    "65 MiB that do not come": (header(operation("push", specs=[(U8, 65 << 20)])), b"", "LimitError"),
    "data that are not declared": (header(operation("sum")), b"123", "Protocol"),
    "an unknown dtype": (header(operation("push", specs=[(99, 1)])), bytes(8), "Protocol"),
    "a reply as int64": (header(operation("pull", reply_dtype=I64)), b"", "Protocol"),
    "rows by the square of what asks": (
        header(operation("rows_gather", (), [(I64, MANY), (I64, MANY)])), bytes(16 * MANY), "LimitError"
    ),
    "keys that nobody told": (header(keyed(3, hash=b"x" * 16)), b"", "KeyMiss"),
    "keys of nothing before": (header(keyed(3)), b"", "Protocol"),
    "keys of another count before": (header(keyed(2, 0, U8, 1), keyed(3)), b"\x01", "Protocol"),
    "keys of another matrix before": (header(keyed(2, 0, U8, 1), keyed(2, matrix=DENSE)), b"\x01", "Protocol"),
    "keys whose hash is another": (header(keyed(2, 0, U8, 1, b"x" * 16)), b"\x01", "Protocol"),
    "keys with a short hash": (header(keyed(2, 0, U8, 1, b"x" * 15)), b"\x01", "Protocol"),
    "keys with steps of floats": (header(keyed(2, 0, F64, 1)), bytes(8), "Protocol"),
    "keys with a step of 0": (header(keyed(2, 0, U8, 1)), b"\x00", "Protocol"),
    "keys beyond 2**63": (header(keyed(2, 5, U64, 1)), b"\xff" * 7 + b"\x7f", "Protocol"),
    "no keys": (header(keyed(0)), b"", "Protocol"),
    "2**64 keys without steps": (header(keyed(2**64 - 1, hash=b"x" * 16)), b"", "LimitError"),
    "2**63 keys": (header(keyed(2**63, 0, U8, 2**63 - 1)), b"", "LimitError"),
    "keys and slots": (header(keyed(2, 0, U8, 1, specs=[(I64, 1)])), b"\x01" + bytes(8), "ShapeError"),
    "keys in a dense vector, beyond its end": (header(keyed(2, 0, U8, 1, matrix=DENSE)), b"\xff", "OutOfRange"),
}  # fmt: skip


# What the binary form has no place for.
ONLY_OF_PROTOBUF = ("keys with a short hash",)


@pytest.mark.parametrize(
    ("what", "way"), [(what, way) for what in WRONG for way in WAYS if way == "execute" or what not in ONLY_OF_PROTOBUF]
)
def test_request_when_invalid_then_refused_and_connection_stays(victim, until, way, what):
    header, data, text = WRONG[what]
    with unharmed(victim, until) as matrix:
        sent = pb.RequestHeader.FromString(header.SerializeToString())
        for operation in sent.operations:
            operation.matrix += matrix - DENSE
        if way == "execute":
            (answer, *_) = ask(victim, way, pb.RequestFrame(header=sent, data=data).SerializeToString())
        else:
            parts = header_bytes(sent)
            after = message(way, Request(()))
            answer, good = ask(victim, way, framing.HEAD.pack(len(parts), len(data)) + parts + data + after)
            assert good == pb.ReplyHeader()
    if text is not None:
        assert isinstance(answer, REFUSED), repr(answer)
        assert text in type(answer).__name__
    else:
        assert "internal error" not in str(answer)


@cache
def a_million(what):
    """Return a header with so many parts; it takes seconds to make one."""
    parts = {"operations": MAX_OPERATIONS + 1, "arrays": 1}
    arrays = {"operations": 0, "arrays": MAX_OPERATIONS + 1}
    one = operation("push", specs=[(U8, 0)] * arrays[what])
    return pb.RequestHeader(operations=[one] * parts[what])


@pytest.mark.parametrize("what", ["operations", pytest.param("arrays", marks=pytest.mark.nightly)])
def test_request_when_a_million_parts_then_memory_is_bounded(victim, until, what):
    """Protobuf makes an object of each; the system keeps some of what they took for the next."""
    data = pb.RequestFrame(header=a_million(what)).SerializeToString()
    with unharmed(victim, until, rss_growth_bytes=400 << 20):
        assert type(ask(victim, "execute", data)[0]).__name__ == "ProtocolError"


@pytest.mark.parametrize("way", SOCKETS)
@pytest.mark.parametrize("size", [MAX_HEADER_BYTES, MAX_HEADER_BYTES + 8])
def test_header_when_at_maximum_length_then_memory_is_bounded(victim, until, way, size):
    """As many operations as there is room for, and one that has more arrays than may be."""
    count = (size - REQUEST.size) // OPERATION.size
    header = header_bytes(pb.RequestHeader(operations=[pb.Operation()] * count)).ljust(size, b"\0")
    with unharmed(victim, until, rss_growth_bytes=100 << 20):
        answer, *_ = ask(victim, way, framing.HEAD.pack(len(header), 0) + header)
        assert isinstance(answer, REFUSED)
