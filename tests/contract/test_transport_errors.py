"""What an error in a server becomes at the caller, by every way, and that the server goes on after it."""

from __future__ import annotations

import sys

import cloudpickle
import numpy as np
import pytest

from ps2.errors import OpError, OutOfRangeError, ProtocolError, PS2Error, StaleRouteError
from ps2.matrix.partition import MatrixSpec, Partition
from ps2.protocol import framing
from ps2.protocol.error_details import from_detail
from ps2.protocol.pb import server_pb2 as pb
from ps2.rpc.status import CODE_BY_ERROR
from ps2.server.engine import Engine
from tests.contract.servers import (
    DIM,
    SOCKETS,
    a_channel,
    changing,
    connected,
    count,
    dialled,
    hear,
    nothing_under_way,
    op,
    outcomes,
    reading,
    send,
    serving,
    spoken,
)
from tests.messages import header_bytes


def mapped(fn):
    return changing(op("map", 0, arrays=[np.frombuffer(cloudpickle.dumps(fn), np.uint8)], with_index=0))


# -- errors of operations --------------------------------------------------------------------------------------------


def test_error_when_operation_fails_then_class_and_text_arrive(transport, address):
    with pytest.raises(OutOfRangeError, match=r"^row 9 is outside \[0, 2\)$"):
        send(transport, address, reading(op("sum", 9)))


def test_error_when_the_partition_is_not_there_then_stale_route(transport, address):
    with pytest.raises(StaleRouteError, match="partition 5 of matrix 1"):
        send(transport, address, reading(op("sum", 0, partition=5)))


@pytest.mark.parametrize("letter", ["x", "漢"])
def test_error_when_traceback_is_long_then_its_end_arrives(transport, address, letter):
    def fail(row):
        raise ValueError(letter * 100_000 + " the end")

    with pytest.raises(OpError, match=r"the end$"):
        send(transport, address, mapped(fail))


def test_error_when_message_is_not_encodable_then_is_escaped(transport, address):
    def fail(row):
        raise ValueError("\udcff")

    with pytest.raises(OpError, match=r"\\udcff"):
        send(transport, address, mapped(fail))


@pytest.mark.parametrize("how", ["run", "load"])
def test_function_when_it_exits_then_op_error_and_server_goes_on(transport, address, how):
    class ExitsWhenLoaded:
        def __reduce__(self):
            return sys.exit, (1,)

    with pytest.raises(OpError, match="SystemExit: 1"):
        send(transport, address, mapped((lambda row: sys.exit(1)) if how == "run" else ExitsWhenLoaded()))
    assert count(transport, address) == DIM


# -- every class of the tree -----------------------------------------------------------------------------------------


class Raises(Engine):
    """An engine whose requests raise ``error``; those without operations succeed."""

    error: Exception

    def execute(self, request):
        if request.operations:
            raise self.error
        return super().execute(request)


@pytest.fixture(scope="module")
def raising():
    with serving(Raises(1 << 20, False)) as server:
        yield server


@pytest.mark.parametrize("cls", CODE_BY_ERROR)
def test_error_when_raised_in_a_server_then_it_is_the_callers(raising, transport, cls):
    raising.engine.error = cls("what, expected 3, got 4")
    (outcome,) = outcomes(transport, raising.address, reading(op("sum", 0)))
    assert (type(outcome), str(outcome)) == (cls, "what, expected 3, got 4")


def test_error_when_server_has_bug_then_its_traceback_arrives(raising, transport, caplog):
    raising.engine.error = KeyError("oops")
    bug, after = outcomes(transport, raising.address, reading(op("sum", 0)), reading())
    assert type(bug) is PS2Error
    assert str(bug).startswith("internal error in the server:\nTraceback")
    assert "KeyError: 'oops'" in str(bug)
    assert after.results == ()
    assert "internal error" in caplog.text


# -- messages that are none ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", [b"\xff\xff", b"\x0a\x05abc", b"\x0a\x02\x12\x05"])
def test_frame_when_it_is_garbage_then_protocol_error(address, frame):
    with a_channel(address) as channel, pytest.raises(ProtocolError):
        channel.call("Server/Execute", frame, 20)


def declaring(dtype, count):
    operation = pb.Operation(name="push", matrix=1, arrays=[pb.ArraySpec(dtype=dtype, count=count)])
    return header_bytes(pb.RequestHeader(id=pb.RequestId(scope="bad", number=0), operations=[operation]))


@pytest.mark.parametrize("carrier", SOCKETS)
@pytest.mark.parametrize(
    ("header", "size", "error"),
    [
        (b"\xff\xff", 100_000, "ProtocolError"),
        (declaring(pb.FLOAT64, 5), 39, "ProtocolError"),
        (declaring(0, 5), 5, "ProtocolError"),
        (declaring(pb.FLOAT64, 2**63), 8, "LimitError"),
    ],
)
def test_message_when_it_cannot_run_then_connection_goes_on(server, carrier, header, size, error):
    with dialled(server, carrier) as connection:
        connection.sendall(framing.HEAD.pack(len(header), size) + header + bytes(size) + spoken(reading()))
        assert [hear(connection).error.type for _ in range(2)] == [error, ""]


@pytest.mark.parametrize("carrier", SOCKETS)
@pytest.mark.parametrize(
    ("head", "error"),
    [
        (framing.HEAD.pack(2**32 - 1, 0), "ProtocolError"),
        (framing.HEAD.pack(0, 2**63), "LimitError"),
        (framing.HEAD.pack(0, (64 << 20) + 1), "LimitError"),
    ],
)
def test_message_when_next_boundary_is_unknown_then_closes(server, carrier, head, error, until):
    with dialled(server, carrier) as connection:
        connection.sendall(head + bytes(100_000))
        assert (hear(connection).error.type, hear(connection)) == (error, None)
    until(lambda: nothing_under_way(server.engine), "memory given back")


@pytest.mark.parametrize("carrier", SOCKETS)
def test_error_when_it_ends_connection_then_busy_sender_gets_it(server, carrier):
    with dialled(server, carrier) as connection:
        connection.sendall(framing.HEAD.pack(0, 65 << 20) + bytes(1 << 20))
        assert isinstance(from_detail(hear(connection).error), PS2Error)


@pytest.mark.parametrize("carrier", SOCKETS)
def test_reply_when_invalid_then_protocol_error_and_closes(carrier):
    class Lies(Engine):
        """Answers with one result too few."""

        def execute(self, request):
            reply = super().execute(request)
            if len(request.operations) == 2:
                object.__setattr__(request, "operations", request.operations[:1])
                object.__setattr__(reply, "results", reply.results[:1])
            return reply

    engine = Lies(1 << 20, False)
    engine.create_matrix(1, MatrixSpec(8, 1), [Partition(0, 0, 8)])
    with serving(engine) as server, connected(carrier) as transport:
        got = outcomes(transport, server.address, reading(op("sum", 0), op("max", 0)), reading(op("sum", 0)))
        assert [type(outcome) for outcome in got] == [ProtocolError] * 2
        assert count(transport, server.address) == 8
