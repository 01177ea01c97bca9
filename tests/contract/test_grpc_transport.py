"""The transport over real gRPC on loopback: what arrives, what an error becomes, who is let in."""

from __future__ import annotations

import socket
import sys
import threading
import time
from contextlib import contextmanager

import cloudpickle
import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ps2.config import WireConfig
from ps2.errors import (
    AuthError,
    ConfigError,
    DeadlineError,
    LaunchError,
    OpError,
    OutOfRangeError,
    ProtocolError,
    PS2Error,
    StaleRouteError,
    StoppedError,
    UnavailableError,
)
from ps2.partition import HASH_SPACE, MatrixSpec, Partition
from ps2.server.engine import Engine
from ps2.server.servicer import ServerServicer
from ps2.wire import transport as transports
from ps2.wire.control import ServerControl
from ps2.wire.messages import Operation, Request, RequestId
from ps2.wire.pb import server_pb2 as pb
from ps2.wire.serving import RpcServer
from ps2.wire.status import STATUS
from ps2.wire.transport import GrpcTransport

TOKEN = "a-token-of-the-fleet"
SERVICE = pb.DESCRIPTOR.services_by_name["Server"]
DIM = 3_000_000  # of float64: 24 MB, a dozen chunks

# Nothing is small, or everything is.
STREAM = WireConfig(unary_bytes=-1)
UNARY = WireConfig(unary_bytes=1 << 30)


def an_engine():
    engine = Engine(1 << 30, allow_udf=True)
    engine.create_matrix(1, MatrixSpec(DIM, 2, dtype="float64"), [Partition(0, 0, DIM)])
    engine.create_matrix(2, MatrixSpec(2**63, 1, dtype="float64", kind="sparse"), [Partition(0, 0, HASH_SPACE)])
    return engine


@contextmanager
def serving(engine, listen="127.0.0.1:0", token=TOKEN, servicer=None):
    """A server of that engine."""
    servicer = servicer or ServerServicer(engine, "the-id", WireConfig(), lambda: None)
    server = RpcServer(SERVICE, servicer, listen, token, 4, WireConfig())
    try:
        yield server
    finally:
        server.stop(0)


@contextmanager
def connected(token=TOKEN, wire=None):
    transport = GrpcTransport(token, wire)
    try:
        yield transport
    finally:
        transport.close()


@pytest.fixture(scope="module")
def engine():
    return an_engine()


@pytest.fixture(scope="module")
def address(engine):
    with serving(engine) as server:
        yield server.address


@pytest.fixture(scope="module", params=["unary", "stream"])
def wire(request):
    return {"unary": UNARY, "stream": STREAM}[request.param]


@pytest.fixture(scope="module")
def transport(address, wire):
    with connected(wire=wire) as made:
        yield made


class Counter:
    """Fresh ids of mutations."""

    number = -1

    @classmethod
    def next(cls):
        cls.number += 1
        return RequestId("test", cls.number)


def op(name, *rows, matrix=1, partition=0, arrays=(), reply_count=0, into=None, **params):
    arrays = tuple(np.asarray(array) for array in arrays)
    return Operation(name, matrix, partition, rows, params, arrays, reply_count, into)


def send(transport, address, *operations, change=False):
    return transport.execute(address, Request(operations, Counter.next() if change else None)).result()


def mapped(fn):
    return op("map", 0, arrays=[np.frombuffer(cloudpickle.dumps(fn), np.uint8)], reply_count=None, with_index=0)


# -- requests --------------------------------------------------------------------------------------------------------


def test_arrays_when_large_then_they_come_back_equal_and_in_place(transport, address):
    values = np.random.default_rng(0).standard_normal(DIM)
    out = np.empty(DIM)
    send(transport, address, op("push", 0, arrays=[values], start=0), change=True)
    send(transport, address, op("pull", 0, start=0, stop=DIM, reply_count=DIM, into=out))
    assert np.array_equal(out, values)


def test_operations_when_in_one_request_then_each_has_its_result_in_order(transport, address):
    reply = send(
        transport,
        address,
        op("fill", 0, value=2.0),
        op("sum", 0),
        op("gather", 0, arrays=[np.array([5, 5])], reply_count=2),
        op("max", 0),
        change=True,
    )
    assert [result.scalar for result in reply.results] == [None, 2.0 * DIM, None, 2.0]
    assert reply.results[2].arrays[0].tolist() == [2, 2]


def test_request_when_its_id_comes_again_then_the_reply_says_that_it_was_replayed(transport, address):
    request = Request((op("fill", 0, value=1.0),), Counter.next())
    replies = [transport.execute(address, request).result() for _ in range(2)]
    assert [reply.replayed for reply in replies] == [False, True]


def test_requests_when_in_flight_together_then_each_gets_its_own_reply(transport, address):
    send(transport, address, op("push", 0, arrays=[np.arange(100.0)], start=0), change=True)
    asked = [op("gather", 0, arrays=[np.array([k])], reply_count=1) for k in range(100)]
    pending = [transport.execute(address, Request((operation,))) for operation in asked]
    assert [reply.result().results[0].arrays[0].tolist() for reply in pending] == [[k] for k in range(100)]


def test_reply_when_larger_than_foretold_then_it_comes_all_the_same(address):
    """Over the unary path it travels as one frame."""
    with connected() as transport:
        reply = send(transport, address, op("pull", 0, start=0, stop=DIM, reply_count=0))
    assert reply.results[0].arrays[0].size == DIM


@pytest.mark.parametrize(
    ("operation", "small"),
    [
        (op("sum", 0), True),
        (op("pull", 0, reply_count=100), True),
        (op("pull", 0, reply_count=101), False),
        (op("pull", 0, reply_count=None), False),
        (op("push", 0, arrays=[np.zeros(100)]), True),
        (op("push", 0, arrays=[np.zeros(101)]), False),
    ],
)
def test_path_when_request_or_reply_is_large_then_it_is_a_stream(operation, small):
    with connected(wire=WireConfig(unary_bytes=800)) as transport:
        assert transport._is_small(Request((operation,))) == small


# -- errors ----------------------------------------------------------------------------------------------------------


def test_error_when_an_operation_fails_then_its_class_and_text_come(transport, address):
    with pytest.raises(OutOfRangeError, match=r"^a row of 9..9 is outside \[0, 2\)$"):
        send(transport, address, op("sum", 9))


def test_error_when_the_partition_is_not_there_then_stale_route(transport, address):
    with pytest.raises(StaleRouteError, match="partition 5 of matrix 1"):
        send(transport, address, op("sum", 0, partition=5))


@pytest.mark.parametrize("letter", ["x", "漢"])
def test_error_when_a_function_fails_with_a_long_traceback_then_its_end_comes(transport, address, letter):
    def fail(row):
        raise ValueError(letter * 100_000 + " the end")

    with pytest.raises(OpError, match=r"the end$"):
        send(transport, address, mapped(fail), change=True)


def test_error_when_a_function_is_not_encodable_then_it_comes_escaped(transport, address):
    def fail(row):
        raise ValueError("\udcff")

    with pytest.raises(OpError, match=r"\\udcff"):
        send(transport, address, mapped(fail), change=True)


@pytest.mark.parametrize("how", ["run", "load"])
def test_function_when_it_exits_then_op_error_and_the_server_goes_on(transport, address, how):
    class ExitsWhenLoaded:
        def __reduce__(self):
            return sys.exit, (1,)

    with pytest.raises(OpError, match="SystemExit: 1"):
        send(transport, address, mapped((lambda row: sys.exit(1)) if how == "run" else ExitsWhenLoaded()), change=True)
    assert send(transport, address, op("count", 0)).results[0].scalar == DIM


@pytest.mark.parametrize("cls", STATUS)
def test_error_when_raised_in_a_server_then_it_is_raised_by_the_caller(raising, cls):
    """Every class of the tree, over both paths."""
    transport, address, servicer = raising
    servicer.error = cls("what, expected 3, got 4")
    for operation in (op("sum", 0), op("sum", 0, reply_count=None)):
        with pytest.raises(cls, match=r"^what, expected 3, got 4$") as caught:
            send(transport, address, operation)
        assert type(caught.value) is cls


@pytest.fixture(scope="module")
def raising():
    """A server whose data requests raise ``servicer.error``."""

    class Raises(ServerServicer):
        error: Exception

        def Execute(self, frame):
            raise self.error

        def Stream(self, frames):
            raise self.error
            yield b""

    servicer = Raises(Engine(1, False), "id", WireConfig(), lambda: None)
    with serving(None, servicer=servicer) as server, connected() as transport:
        yield transport, server.address, servicer


@pytest.mark.parametrize("reply_count", [0, None])
def test_error_when_it_is_a_bug_in_the_server_then_internal_error_with_its_traceback(raising, reply_count, caplog):
    transport, address, servicer = raising
    servicer.error = KeyError("oops")
    with pytest.raises(PS2Error, match=r"(?s)internal error in the server:.*KeyError: 'oops'"):
        send(transport, address, op("sum", 0, reply_count=reply_count))
    assert "internal error" in caplog.text


def execute(channel, frame):
    return channel.unary_unary("/ps2.v1.Server/Execute")(frame, metadata=bearer(TOKEN))


def stream(channel, frame):
    return list(channel.stream_stream("/ps2.v1.Server/Stream")(iter([frame]), metadata=bearer(TOKEN)))


@pytest.mark.parametrize("ask", [execute, stream])
def test_frames_when_they_are_garbage_then_invalid_argument(address, ask):
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
        ask(channel, b"\xff\xff")
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_request_when_it_declares_more_than_the_limit_then_limit_error_and_no_memory_stays_counted(address, engine):
    header = pb.RequestHeader(
        operations=[pb.Operation(name="push", matrix=1, arrays=[pb.ArraySpec(dtype=pb.FLOAT64, count=2**40)])]
    )
    taken = engine.memory.taken_bytes
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
        execute(channel, pb.RequestFrame(header=header).SerializeToString())
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert engine.memory.taken_bytes == taken


def test_stream_when_the_client_goes_away_half_way_then_nothing_is_applied_and_no_memory_stays_counted(
    address, engine, until
):
    header = pb.RequestHeader(
        id=pb.RequestId(scope="half", number=0),
        operations=[pb.Operation(name="push", matrix=1, rows=[1], arrays=[pb.ArraySpec(dtype=pb.FLOAT64, count=DIM)])],
    )
    taken, gone = engine.memory.taken_bytes, threading.Event()

    def frames():
        yield pb.RequestFrame(header=header, data=bytes(8 * 1000)).SerializeToString()
        gone.wait(10)

    with grpc.insecure_channel(address) as channel:
        call = channel.stream_stream("/ps2.v1.Server/Stream")(frames(), metadata=bearer(TOKEN))
        until(lambda: engine.memory.taken_bytes > taken, "the request is under way")
        call.cancel()
    gone.set()
    until(lambda: engine.memory.taken_bytes == taken, "its memory is given back")


# -- who is let in ---------------------------------------------------------------------------------------------------


def bearer(token):
    return (("authorization", f"Bearer {token}"),)


@pytest.mark.parametrize("wire", [UNARY, STREAM], ids=["unary", "stream"])
@pytest.mark.parametrize(
    ("token", "said"), [("another-token-entirely", "not the fleet's token"), (None, "no token given")]
)
def test_request_when_the_token_is_wrong_or_missing_then_auth_error(address, token, said, wire):
    values = np.zeros(DIM)
    with connected(token, wire) as transport:
        with pytest.raises(AuthError, match=said):
            send(transport, address, op("push", 0, arrays=[values], start=0), change=True)
        with pytest.raises(AuthError, match=said):
            ServerControl(transport).hello(address)


def test_error_when_the_token_is_wrong_then_neither_token_is_in_it(address):
    with connected("another-token-entirely") as transport, pytest.raises(AuthError) as caught:
        ServerControl(transport).hello(address)
    assert TOKEN not in str(caught.value)
    assert "another-token-entirely" not in str(caught.value)


def test_health_when_asked_without_a_token_then_serving(address):
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "ps2.v1.Server"):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_server_when_it_has_no_token_then_on_loopback_anybody_is_let_in(engine):
    with serving(engine, token=None) as server, connected(None) as transport:
        assert ServerControl(transport).hello(server.address) == "the-id"


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "10.0.0.1:0"])
def test_server_when_it_has_no_token_then_it_refuses_to_listen_beyond_loopback(listen):
    with pytest.raises(ConfigError, match="not loopback, so a token is required"), serving(None, listen, token=None):
        pass


# -- connections -----------------------------------------------------------------------------------------------------


def test_port_when_in_use_then_launch_error_names_it(address):
    with pytest.raises(LaunchError, match=f"cannot listen on {address}"), serving(None, address):
        pass


def test_hello_when_the_protocol_differs_then_protocol_error_names_both(address):
    with connected() as transport, pytest.raises(ProtocolError, match=r"speaks protocol 1 .*the peer 99"):
        transport.call(address, "Server/Hello", pb.HelloRequest(protocol=99), pb.HelloReply, 5)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("wire", [UNARY, STREAM], ids=["unary", "stream"])
def test_server_when_nobody_listens_then_unavailable_names_it_quickly(wire):
    nobody = f"127.0.0.1:{free_port()}"
    started_s = time.monotonic()
    with connected(wire=wire) as transport:
        with pytest.raises(UnavailableError, match=nobody):
            send(transport, nobody, op("sum", 0))
        with pytest.raises(UnavailableError, match=nobody):
            ServerControl(transport).hello(nobody)
    assert time.monotonic() - started_s < 5


def test_server_when_it_comes_back_on_its_port_then_the_same_transport_reaches_it(engine, until):
    with connected() as transport:
        with serving(engine) as server:
            assert send(transport, server.address, op("count", 0)).results[0].scalar == DIM
        with pytest.raises(UnavailableError):
            send(transport, server.address, op("count", 0))

        def answers():
            try:
                return send(transport, server.address, op("count", 0))
            except UnavailableError:
                return None

        with serving(engine, server.address):
            until(answers, "the server is reached again")


@contextmanager
def hanging():
    """A server that answers nothing while it is there: its address, and an event that says that it was asked."""
    asked, release = threading.Event(), threading.Event()

    class Hangs(ServerServicer):
        def Hello(self, request):
            asked.set()
            release.wait(20)
            return pb.HelloReply()

        def Execute(self, frame):
            asked.set()
            release.wait(20)
            return b""

        def Stream(self, frames):
            asked.set()
            release.wait(20)
            yield b""

    with serving(None, servicer=Hangs(Engine(1, False), "id", WireConfig(), lambda: None)) as server:
        try:
            yield server.address, asked
        finally:
            release.set()


@pytest.mark.parametrize("unary_bytes", [1 << 20, -1], ids=["unary", "stream"])
def test_request_when_it_takes_too_long_then_deadline_error_names_the_server(unary_bytes):
    wire = WireConfig(unary_bytes=unary_bytes, request_timeout_s=0.2)
    with hanging() as (address, _), connected(wire=wire) as transport:
        with pytest.raises(DeadlineError, match=address):
            send(transport, address, op("sum", 0))
        with pytest.raises(DeadlineError, match=address):
            transport.call(address, "Server/Hello", pb.HelloRequest(protocol=1), pb.HelloReply, 0.2)


@pytest.mark.parametrize("unary_bytes", [1 << 20, -1], ids=["unary", "stream"])
def test_transport_when_closed_then_stopped_error(address, unary_bytes):
    transport = GrpcTransport(TOKEN, WireConfig(unary_bytes=unary_bytes))
    transport.close()
    with pytest.raises(StoppedError):
        send(transport, address, op("sum", 0))
    with pytest.raises(StoppedError):
        ServerControl(transport).hello(address)


def test_transport_when_closed_twice_then_nothing_happens():
    transport = GrpcTransport(TOKEN)
    transport.close()
    transport.close()


@pytest.mark.parametrize("unary_bytes", [1 << 20, -1], ids=["unary", "stream"])
def test_transport_when_closed_with_requests_in_flight_then_each_ends_with_an_error_of_ours(unary_bytes, monkeypatch):
    """Those that wait for a free stream included."""
    monkeypatch.setattr(transports, "MAX_IN_FLIGHT", 2)
    with hanging() as (address, asked):
        transport = GrpcTransport(TOKEN, WireConfig(unary_bytes=unary_bytes))
        pending = [transport.execute(address, Request((op("sum", 0),))) for _ in range(6)]
        assert asked.wait(10)
        transport.close()
        for reply in pending:
            with pytest.raises((StoppedError, UnavailableError)):
                reply.result()


def test_call_when_the_transport_is_closed_under_it_then_stopped_error():
    caught = []

    def ask(transport, address):
        try:
            ServerControl(transport).hello(address)
        except PS2Error as error:
            caught.append(error)

    with hanging() as (address, asked):
        transport = GrpcTransport(TOKEN)
        thread = threading.Thread(target=ask, args=(transport, address))
        thread.start()
        assert asked.wait(10)
        transport.close()
        thread.join(10)
    assert [type(error) for error in caught] == [StoppedError]
