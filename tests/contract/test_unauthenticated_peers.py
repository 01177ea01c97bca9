"""Unauthenticated peers of a server shut no client out; one that poses as a server learns and changes nothing."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import cloudpickle
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ps2.client.network import FleetNetwork
from ps2.errors import AuthError, PS2Error, UnavailableError
from ps2.protocol.pb import auth_pb2
from ps2.protocol.pb import server_pb2 as pb
from ps2.rpc import serving as serving_module
from ps2.rpc.channel import CALL_KEY, CHALLENGE, NONCE_KEY, Trust
from ps2.rpc.control import ServerControl
from ps2.rpc.status import DETAIL_KEY
from ps2.transport import acceptor, proof
from tests.contract.servers import (
    DIM,
    SOCKETS,
    TOKEN,
    a_channel,
    changing,
    connected,
    count,
    dialled,
    hear,
    op,
    outcomes,
    serving,
)

# The server under test has 4 threads for calls.
UNAUTHENTICATED = 40
HELLO = "/ps2.v1.Server/Hello"
CHECK = "/grpc.health.v1.Health/Check"
on_sockets = pytest.mark.parametrize("carrier", SOCKETS)


@contextmanager
def idle_calls(address, method, metadata=(), count=UNAUTHENTICATED):
    """Calls on which no message ever comes; yields them."""
    gone = threading.Event()

    def nothing():
        gone.wait(60)
        yield from ()

    with grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(20)  # otherwise a later connection may come before this one
        calls = [channel.stream_stream(method)(nothing(), metadata=metadata) for _ in range(count)]
        try:
            yield calls
        finally:
            gone.set()
            for call in calls:
                call.cancel()


# -- calls without a message -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "metadata"),
    [
        (HELLO, ()),
        ("/ps2.v1.Server/Execute", ()),
        (HELLO, (("authorization", f"Bearer {TOKEN}"),)),
        (HELLO, ((CALL_KEY, b"\xff"),)),
        (HELLO, ((CALL_KEY, auth_pb2.CallProof(number=1).SerializeToString()),)),
    ],
    ids=["nothing", "a request", "the token itself", "garbage", "no proof"],
)
def test_call_when_from_peer_then_refused_before_reading(address, method, metadata):
    with idle_calls(address, method, metadata) as calls:
        assert {call.code() for call in calls} == {grpc.StatusCode.UNAUTHENTICATED}


@pytest.mark.parametrize("method", [CHECK, CHALLENGE])
def test_call_when_public_then_answered_before_reading(address, method):
    with idle_calls(address, method, ((NONCE_KEY, bytes(32)),)) as calls:
        assert all(next(call) for call in calls)


def test_health_when_it_is_to_be_watched_then_unimplemented(address):
    """Clients accept that from a healthy server; an unauthenticated peer would keep an endless stream for ever."""
    with grpc.insecure_channel(address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert watch.code() == grpc.StatusCode.UNIMPLEMENTED


def test_clients_when_peers_hold_all_call_kinds_then_served(address, carrier):
    """Unauthenticated peers' calls that stay: they take the answer, and do not end their side."""
    with ExitStack() as held, connected(carrier) as transport:
        for method in (HELLO, CHECK, CHALLENGE, "/ps2.v1.Server/Execute", "/no.such/Method"):
            held.enter_context(idle_calls(address, method))
        assert count(transport, address) == DIM
        assert ServerControl(transport).hello(address)


def test_messages_when_from_peers_then_are_not_read(address):
    """Each would be whole in memory, 64 MiB at most, before anybody looks at who sent it."""
    with grpc.insecure_channel(address, [("grpc.max_send_message_length", -1)]) as channel:
        for _ in range(4):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary("/ps2.v1.Server/Execute")(bytes(32 << 20))
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        # Of one that is read, gRPC says that it is too large, or what it comes to.
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/ps2.v1.Server/Execute")(bytes(100 << 20))
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_connection_when_nothing_arrives_then_closed_in_time(engine, monkeypatch):
    monkeypatch.setattr(serving_module, "HANDSHAKE_TIMEOUT_S", 0.3)
    with serving(engine) as server:
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port)), timeout=10) as silent:
            while silent.recv(100):  # its settings
                pass


def test_connections_when_over_limit_then_existing_ones_live_on(engine, monkeypatch):
    monkeypatch.setattr(serving_module, "MAX_CONNECTIONS", 2)
    with serving(engine) as server, connected("tcp") as transport:
        count(transport, server.address)
        with idle_calls(server.address, CHECK, count=1), connected("tcp", keepalive_timeout_s=1.5) as another:
            with pytest.raises(UnavailableError):
                ServerControl(another).hello(server.address, timeout_s=1)
            assert count(transport, server.address) == DIM


# -- data connections ------------------------------------------------------------------------------------------------


@on_sockets
def test_data_port_when_peers_hold_all_slots_client_gets_one(server, address, carrier):
    before = server.data.connections
    with ExitStack() as peers, connected(carrier) as transport:
        for _ in range(acceptor.MAX_UNAUTHENTICATED + 20):
            peers.enter_context(dialled(server, carrier, b"PS2D"))
        assert count(transport, address) == DIM
        assert server.data.connections == before + 1


@on_sockets
def test_data_connection_when_greeting_trickles_then_cut_in_time(server, carrier, monkeypatch, until):
    monkeypatch.setattr(acceptor, "GREETING_TIMEOUT_S", 0.3)
    greeting = iter(b"PS2D" + (4000).to_bytes(4, "little") + bytes(4000))
    with dialled(server, carrier, b"") as connection:

        def cut_off():
            try:
                connection.sendall(bytes([next(greeting)]))
            except OSError:
                return True
            return False

        until(cut_off, "it is cut off", 5)


@on_sockets
def test_data_connection_when_not_proven_in_time_then_cut(server, carrier, monkeypatch):
    monkeypatch.setattr(acceptor, "GREETING_TIMEOUT_S", 0.3)
    with dialled(server, carrier, b"PS2D") as connection:
        assert hear(connection) is None


# -- somebody else in a server's place -------------------------------------------------------------------------------


class Impostor(grpc.GenericRpcHandler):
    """Listens where a server was, notes all that comes, and answers anything with ``answers``: by method, else b"".

    Attributes:
        heard: methods, metadata and messages.
    """

    def __init__(self, address, answers=None, fail=None):
        self.heard = []
        self._answers = answers or {}
        self._fail = fail
        self._server = grpc.server(ThreadPoolExecutor(4), (self,), options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((self,))
        port = self._server.add_insecure_port(address)
        self.address = f"127.0.0.1:{port}"
        self._server.start()

    def intercept_service(self, continuation, details):
        return continuation(details)

    def service(self, details):
        self.heard.append((details.method, dict(details.invocation_metadata)))

        def answer(messages, context):
            for message in messages:
                self.heard.append(message)
                if self._fail is not None and details.method != CHALLENGE:
                    context.set_trailing_metadata(((DETAIL_KEY, self._fail.SerializeToString()),))
                    context.abort(grpc.StatusCode.NOT_FOUND, "no")
                created = self._answers.get(details.method, b"")
                yield created(dict(details.invocation_metadata)) if callable(created) else created

        return grpc.stream_stream_rpc_method_handler(answer)

    def stop(self):
        self._server.stop(0).wait()


@contextmanager
def in_place_of(address="127.0.0.1:0", **kwargs):
    impostor = Impostor(address, **kwargs)
    try:
        yield impostor
    finally:
        impostor.stop()


def a_challenge_of(token):
    """An answer to a challenge, with that token."""

    def answer(metadata):
        nonce = bytes(32)
        shown = proof.server_proof(token, metadata[NONCE_KEY], nonce)
        return auth_pb2.ChallengeReply(nonce=nonce, proof=shown).SerializeToString()

    return answer


@pytest.mark.parametrize("carrier", SOCKETS)
def test_impostor_when_met_first_then_auth_error_and_no_leak(carrier):
    answers = {CHALLENGE: a_challenge_of("another-token-entirely")}
    with in_place_of(answers=answers) as impostor, connected(carrier) as transport:
        got = outcomes(transport, impostor.address, changing(op("fill", 0, value=1.0)))
        with pytest.raises(AuthError, match="not the fleet's token"):
            ServerControl(transport).hello(impostor.address)
        methods = {received[0] for received in impostor.heard if isinstance(received, tuple)}
    assert isinstance(got[0], AuthError)
    assert methods == {CHALLENGE}
    assert TOKEN not in str(impostor.heard)


@pytest.mark.parametrize("answers", [{}, {CHALLENGE: a_challenge_of("another-token-entirely")}])
@pytest.mark.parametrize("carrier", SOCKETS)
def test_impostor_when_it_replaces_server_then_unavailable(engine, carrier, answers, until):
    """The coordinator may be bringing it back; and nothing says that the token is wrong."""
    with connected(carrier) as transport:
        with serving(engine) as server:
            assert count(transport, server.address) == DIM
        with in_place_of(server.address, answers=answers) as impostor:
            until(lambda: impostor_is_met(transport, impostor), "gRPC is connected to the impostor")
            got = outcomes(transport, server.address, changing(op("fill", 0, value=1.0)))
            assert isinstance(got[0], UnavailableError)
            assert TOKEN not in str(impostor.heard)
        with serving(engine, server.address):
            until(lambda: not isinstance(outcomes(transport, server.address, changing())[0], PS2Error), "it is back")


def impostor_is_met(transport, impostor):
    with pytest.raises(UnavailableError):
        ServerControl(transport).hello(impostor.address)
    return impostor.heard


def test_impostor_when_it_says_call_failed_then_is_not_believed(engine, until):
    """NotFoundError from the master, say, would tell a server to end."""
    message = pb.ErrorDetail(type="NotFoundError", message="end yourself")
    with connected("tcp") as transport:
        with serving(engine) as server:
            ServerControl(transport).hello(server.address)
        with in_place_of(server.address, fail=message) as impostor:
            until(lambda: impostor_is_met(transport, impostor), "gRPC is connected to the impostor")


def test_impostor_when_token_is_known_right_then_unavailable():
    """A task that starts while a server is replaced has met no other one yet."""
    transport = FleetNetwork(TOKEN, has_addresses_of_driver=True)
    with in_place_of(answers={CHALLENGE: a_challenge_of("another-token-entirely")}) as impostor:
        try:
            with pytest.raises(UnavailableError, match="a process that does not know the fleet's token"):
                ServerControl(transport).hello(impostor.address)
        finally:
            transport.close()


class Fatal:
    def __reduce__(self):
        return pytest.fail, ("what an unauthenticated peer sent was unpickled",)


def test_impostor_when_it_answers_with_pickle_then_is_not_parsed(engine, until):
    result = cloudpickle.dumps(Fatal())
    answers = dict.fromkeys(("/ps2.v1.Server/Execute", HELLO), result)
    with connected("tcp") as transport:
        with serving(engine) as server:
            count(transport, server.address)
        with in_place_of(server.address, answers=answers) as impostor:
            until(lambda: impostor_is_met(transport, impostor), "gRPC is connected to the impostor")
            assert isinstance(outcomes(transport, server.address, changing(op("sum", 0)))[0], UnavailableError)


def test_impostor_when_it_relays_calls_then_is_detected(server, address):
    """It proves itself with that one's proof: two addresses, and one server behind them."""
    with grpc.insecure_channel(address) as behind:

        def passed_on(metadata):
            return behind.unary_unary(CHALLENGE)(b"", metadata=((NONCE_KEY, metadata[NONCE_KEY]),))

        with in_place_of(answers={CHALLENGE: passed_on}) as impostor, connected("tcp") as transport:
            ServerControl(transport).hello(address)
            with pytest.raises(UnavailableError, match=f"got the server of {address}"):
                ServerControl(transport).hello(impostor.address)


def test_trust_when_address_changes_process_then_new_one_holds():
    trust = Trust()
    assert [trust.record("a", b"1"), trust.record("a", b"2"), trust.record("b", b"1"), trust.record("b", b"2")] == [
        None,
        None,
        None,
        "a",
    ]


# -- who has listened ------------------------------------------------------------------------------------------------


def test_call_when_proof_is_reused_then_refused(address):
    with a_channel(address) as known, grpc.insecure_channel(address) as peer:
        known.call("Server/Status", b"", 10)
        metadata = known._metadata(known._session, "/ps2.v1.Server/Status", 7, b"")
        status = peer.unary_unary("/ps2.v1.Server/Status")
        assert pb.StatusReply.FromString(status(b"", metadata=metadata)).server_id
        with pytest.raises(grpc.RpcError) as caught:
            status(b"", metadata=metadata)
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_call_when_its_message_was_changed_then_auth_error(address):
    with a_channel(address) as known, grpc.insecure_channel(address) as peer:
        known.call("Server/Status", b"", 10)
        metadata = known._metadata(known._session, "/ps2.v1.Server/Stop", 7, b"")
        with pytest.raises(grpc.RpcError) as caught:
            peer.unary_unary("/ps2.v1.Server/Stop")(b"\x08\x01", metadata=metadata)
    assert "differs from the message that the caller's proof covers" in caught.value.details()


def test_client_with_token_when_server_has_none_then_auth_error(engine):
    error = pytest.raises(AuthError, match="a server without a token")
    with serving(engine, token=None) as server, connected("tcp") as transport, error:
        ServerControl(transport).hello(server.address)
