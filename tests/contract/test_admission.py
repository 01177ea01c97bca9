"""Who is let in, and what an unauthenticated peer is told."""

from __future__ import annotations

import socket

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ps2.config import WireConfig
from ps2.errors import AuthError, ConfigError, LaunchError, ProtocolError
from ps2.listening import resolve
from ps2.protocol import framing
from ps2.protocol.messages import PROTOCOL_VERSION
from ps2.protocol.pb import server_pb2 as pb
from ps2.rpc.control import ServerControl
from ps2.transport import proof
from ps2.transport.data_server import DataServer
from tests.contract.servers import (
    DIM,
    SOCKETS,
    TOKEN,
    an_engine,
    changing,
    connected,
    count,
    dialled,
    hear,
    op,
    outcomes,
    serving,
    spoken,
)

WRONG = "another-token-entirely"
on_sockets = pytest.mark.parametrize("carrier", SOCKETS)


def greeting(server, **fields):
    """A greeting of which some fields are not what they should be."""
    good = {"protocol": PROTOCOL_VERSION, "nonce": bytes(32), "server_id": server.id}
    return framing.greeting_bytes(pb.Greeting(**(good | fields)))


# -- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("token", "said"), [(WRONG, "not the fleet's token"), (None, "no token given")])
def test_request_when_token_is_wrong_or_missing_then_auth_error(address, carrier, token, said):
    fill = changing(op("fill", 0, value=666.0))
    with connected(carrier, token) as transport:
        got = outcomes(transport, address, fill, fill)
        with pytest.raises(AuthError, match=said):
            ServerControl(transport).hello(address)
    assert [type(outcome) for outcome in got] == [AuthError] * 2
    assert said in str(got[0])
    assert TOKEN not in str(got[0])
    assert WRONG not in str(got[0])


@pytest.mark.parametrize("carrier", ["tcp", "unix"])
def test_request_when_token_was_wrong_then_nothing_was_applied(carrier):
    engine = an_engine()
    with serving(engine) as server, connected(carrier, WRONG) as transport:
        outcomes(transport, server.address, changing(op("fill", 0, value=666.0)))
    assert engine.meter.read().requests == 0


@on_sockets
@pytest.mark.parametrize("token", [WRONG, "", TOKEN[:-1], TOKEN + "x", "ü" * 16])
def test_greeting_when_token_is_wrong_then_auth_error_and_close(server, carrier, token):
    """Though the server's port and id are known."""
    with dialled(server, carrier, greeting(server)) as connection:
        theirs = hear(connection).challenge
        mine = proof.greeting_proof(token, "client", bytes(32), theirs.nonce, server.id)
        connection.sendall(framing.greeting_bytes(pb.GreetingProof(proof=mine)))
        error = hear(connection).error
        assert (error.type, hear(connection)) == ("AuthError", None)
        assert TOKEN not in error.message


@on_sockets
def test_greeting_when_proof_is_replayed_then_auth_error(server, carrier):
    """Who has listened to a client knows all of it."""
    with dialled(server, carrier, greeting(server)) as connection:
        theirs = hear(connection).challenge
        proven = pb.GreetingProof(proof=proof.greeting_proof(TOKEN, "client", bytes(32), theirs.nonce, server.id))
        connection.sendall(framing.greeting_bytes(proven))
        assert hear(connection) == pb.ReplyHeader()
    with dialled(server, carrier, greeting(server) + framing.greeting_bytes(proven)) as connection:
        assert [hear(connection).error.type for _ in range(2)] == ["", "AuthError"]


@on_sockets
def test_request_when_sent_before_wrong_proof_then_is_not_run(server, carrier):
    before = server.engine.meter.read().requests
    wrong = framing.greeting_bytes(pb.GreetingProof(proof=bytes(32)))
    first = greeting(server) + wrong + spoken(changing(op("fill", 0, value=666.0)))
    with dialled(server, carrier, first) as connection:
        assert hear(connection).HasField("challenge")
        assert (hear(connection).error.type, hear(connection)) == ("AuthError", None)
    assert server.engine.meter.read().requests == before


def test_server_when_it_has_no_token_then_loopback_is_open(engine, carrier):
    with serving(engine, token=None) as server, connected(carrier, None) as transport:
        assert ServerControl(transport).hello(server.address).server_id == server.id
        assert count(transport, server.address) == DIM


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "10.0.0.1:0"])
def test_server_when_tokenless_then_refuses_beyond_loopback(engine, listen):
    with pytest.raises(ConfigError, match="not loopback, so a token is required"), serving(engine, listen, token=None):
        pass


def test_health_when_asked_without_a_token_then_serving(address):
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "ps2.v1.Server"):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


# -- greetings -------------------------------------------------------------------------------------------------------


def test_hello_when_protocol_differs_then_error_names_both(address):
    message = rf"speaks protocol {PROTOCOL_VERSION} .*the peer 99"
    with connected("tcp") as transport, pytest.raises(ProtocolError, match=message):
        transport.call(address, "Server/Hello", pb.HelloRequest(protocol=99), pb.HelloReply, 5)


@on_sockets
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"protocol": 99}, f"this server speaks protocol {PROTOCOL_VERSION}, the peer 99"),
        ({"protocol": 0, "nonce": b""}, f"this server speaks protocol {PROTOCOL_VERSION}, the peer 0"),
        ({"server_id": "another-id"}, "the peer wants to reach another server"),
        ({"server_id": ""}, "the peer wants to reach another server"),
    ],
)
def test_greeting_when_for_another_service_then_protocol_error(server, carrier, fields, said):
    with dialled(server, carrier, greeting(server, **fields)) as connection:
        error = hear(connection).error
        assert (error.type, error.message, hear(connection)) == ("ProtocolError", said, None)


@on_sockets
@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\nHost: server\r\n\r\n",
        framing.GREETING.pack(framing.MAGIC, 2**32 - 1),
        framing.GREETING.pack(framing.MAGIC, 3) + b"\xff\xff\xff",
        bytes(1 << 20),
    ],
    ids=["http", "endless", "garbage", "zeros"],
)
def test_greeting_when_invalid_then_protocol_error_and_close(server, carrier, first):
    with dialled(server, carrier, first) as connection:
        assert (hear(connection).error.type, hear(connection)) == ("ProtocolError", None)


@on_sockets
def test_greeting_when_peer_leaves_midway_then_others_get_in(server, address, carrier):
    with dialled(server, carrier, greeting(server)[:9]):
        pass
    with connected(carrier) as transport:
        assert count(transport, address) == DIM


@on_sockets
def test_greeting_when_peer_is_silent_then_others_are_admitted(server, address, carrier):
    with dialled(server, carrier, b"PS2D"), connected(carrier) as transport:
        assert count(transport, address) == DIM


# -- ports -----------------------------------------------------------------------------------------------------------


def test_port_when_in_use_then_launch_error_names_it(address, engine):
    with pytest.raises(LaunchError, match=f"cannot listen on {address}"), serving(engine, address):
        pass


def test_port_when_taken_at_resolved_address_then_launch_error(engine):
    family, position = resolve("localhost", 0)
    with socket.socket(family) as another:
        another.bind(position)
        another.listen()
        address = f"localhost:{another.getsockname()[1]}"
        with pytest.raises(LaunchError, match=f"cannot listen on {address}"), serving(engine, address):
            pass


def test_data_port_when_in_use_then_launch_error_names_it(server):
    with pytest.raises(LaunchError, match=f"port {server.data.port} of 127.0.0.1"):
        DataServer(server.engine, "127.0.0.1", [server.data.port], TOKEN, "id", WireConfig())
