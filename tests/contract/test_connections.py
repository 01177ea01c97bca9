"""What becomes of calls when connections, servers or clients go away, stop or were never there."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from faults import flows

from ps2.client.network import FleetNetwork
from ps2.config import WireConfig
from ps2.errors import (
    DeadlineError,
    PS2Error,
    StaleRouteError,
    StoppedError,
    TransientError,
    UnavailableError,
    UnreachableError,
)
from ps2.protocol.pb import server_pb2 as pb
from ps2.rpc.control import ServerControl
from ps2.rpc.serving import RpcServer
from ps2.server.engine import Engine
from ps2.server.namespaces import Namespaces
from ps2.server.servicer import ServerServicer
from tests.certificates import write
from tests.contract.servers import (
    BLOCK,
    DIM,
    SERVICE,
    SOCKETS,
    TOKEN,
    Waits,
    an_engine,
    changing,
    connected,
    count,
    cut_by_proxy,
    dialled,
    nothing_under_way,
    op,
    outcomes,
    reading,
    row,
    send,
    serving,
    spoken,
)
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
on_sockets = pytest.mark.parametrize("carrier", SOCKETS)
on_sockets = pytest.mark.parametrize("carrier", SOCKETS)


# -- servers that come and go ----------------------------------------------------------------------------------------


def test_server_when_not_listening_then_unavailable_quickly(transport):
    nobody = f"127.0.0.1:{free_port()}"
    started_s = time.monotonic()
    with pytest.raises(UnavailableError, match=nobody):
        count(transport, nobody)
    with pytest.raises(UnavailableError, match=nobody):
        ServerControl(transport).hello(nobody)
    assert time.monotonic() - started_s < 5


def test_server_when_replaced_at_address_then_transport_works(transport, engine, until):
    with serving(engine) as server:
        assert count(transport, server.address) == DIM
    with pytest.raises(UnavailableError):
        count(transport, server.address)

    def answers():
        try:
            return count(transport, server.address)
        except UnavailableError:
            return None

    with serving(engine, server.address):
        until(answers, "the server is reached again")


@on_sockets
def test_server_when_replaced_between_calls_then_new_one_answers(engine, carrier, until):
    """The idle connection to the one before is found to be closed, and nothing is sent on it."""
    with connected(carrier) as transport:
        with serving(engine) as old:
            count(transport, old.address)
        with serving(an_engine(), old.address) as new:
            transport._channel(old.address)._channel.subscribe(lambda state: None, try_to_connect=True)
            until(lambda: hello(transport, old.address) == new.id, "gRPC is connected to the new one")
            assert count(transport, old.address) == DIM


def hello(transport, address):
    try:
        return ServerControl(transport).hello(address).server_id
    except UnavailableError:
        return None


# -- data ports that are of no use -----------------------------------------------------------------------------------


@contextmanager
def a_port(answer):
    """A data port that is not the server's: what the server tells of it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if answer is not None:
            listener.listen()
            threading.Thread(target=_answer, args=(listener, answer), daemon=True).start()
        yield lambda data: (listener.getsockname()[1], "no-such-socket")
        with socket.socket() as last:
            last.connect_ex(listener.getsockname())


def _answer(listener, answer):
    connection, _ = listener.accept()
    with connection:
        connection.recv(100)
        connection.sendall(answer)


@pytest.mark.parametrize("answer", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["refused", "closed", "http"])
@on_sockets
def test_data_port_when_unusable_then_unreachable_names_it(engine, carrier, answer):
    with a_port(answer) as positions, serving(engine, places=positions) as server, connected(carrier) as transport:
        with pytest.raises(UnreachableError, match=r"data port \d+: .*a firewall.*|data port \d+: .*bindAddress"):
            count(transport, server.address)
        assert ServerControl(transport).hello(server.address)


@on_sockets
def test_data_port_when_of_other_server_then_gets_no_request(engine, carrier):
    error = pytest.raises(UnreachableError, match="the peer wants to reach another server")
    with serving(Engine(1 << 20, False)) as other:
        positions = other.data.port, other.data.unix_name
        with serving(engine, places=lambda data: positions) as server, connected(carrier) as transport, error:
            count(transport, server.address)
        assert other.engine.meter.read().requests == 0


# -- connections that are cut ----------------------------------------------------------------------------------------


def block(number, value):
    return op("push", 0, arrays=[np.full(BLOCK // 4, value)], start=number * BLOCK // 4)


@on_sockets
@pytest.mark.parametrize("up", [0, 50, 1 << 20, 3 << 20])
def test_connection_when_cut_in_request_then_all_or_nothing(carrier, up, until):
    engine = an_engine()
    with cut_by_proxy(carrier, engine) as (address, proxy), connected(carrier) as transport:
        count(transport, address)
        proxy.arm(up=up)
        got = outcomes(transport, address, *(changing(block(number, 7.0)) for number in range(8)))
        until(lambda: nothing_under_way(engine), "memory given back")
    assert isinstance(got[-1], UnavailableError)
    values = row(engine, 0).reshape(8, -1)
    written = [set(part.tolist()) for part in values]
    assert all(part in ({0.0}, {7.0}) for part in written)
    assert written[-1] == {0.0}
    assert all(part == {7.0} for part, outcome in zip(written, got, strict=True) if not isinstance(outcome, PS2Error))


@on_sockets
@pytest.mark.parametrize("down", [0, 50, 3 << 20])
def test_connection_when_cut_in_reply_then_earlier_ones_arrived(carrier, down):
    with cut_by_proxy(carrier, an_engine()) as (address, proxy), connected(carrier) as transport:
        count(transport, address)
        proxy.arm(down=down)
        got = outcomes(transport, address, *[reading(op("pull", 0, start=0, stop=BLOCK // 2))] * 8)
    came = [not isinstance(outcome, PS2Error) for outcome in got]
    assert came == sorted(came, reverse=True)
    assert {type(outcome) for outcome, fine in zip(got, came, strict=True) if not fine} == {UnavailableError}
    assert sum(came) * (BLOCK // 2) * 8 <= max(down, 1)


@on_sockets
def test_connection_when_cut_then_next_call_opens_new_one(carrier, until):
    with cut_by_proxy(carrier, an_engine()) as (address, proxy), connected(carrier) as transport:
        count(transport, address)
        proxy.arm(up=0)
        with pytest.raises(UnavailableError):
            count(transport, address)
        proxy.arm()
        until(lambda: not isinstance(outcomes(transport, address, reading())[0], PS2Error), "it is reached again")


@on_sockets
def test_client_when_it_vanishes_in_request_then_not_applied(server, carrier, until):
    engine = server.engine
    message = spoken(changing(op("fill", 1, value=5.0), op("push", 1, arrays=[np.full(BLOCK, 5.0)], start=0)))
    before = row(engine, 1)
    with dialled(server, carrier) as connection:
        connection.sendall(message[: len(message) // 2])
        until(lambda: not nothing_under_way(engine), "the request is under way")
    until(lambda: nothing_under_way(engine), "its memory is given back")
    assert np.array_equal(row(engine, 1), before)


# -- servers that take their time ------------------------------------------------------------------------------------


@pytest.fixture
def hanging():
    engine = Waits(1 << 24, False)
    with serving(engine) as server:
        try:
            yield server
        finally:
            engine.go_on.set()


@on_sockets
def test_request_when_too_slow_then_deadline_error_names_server(hanging, carrier, until):
    started_s = time.monotonic()
    with connected(carrier, request_timeout_s=0.3) as transport:
        got = outcomes(transport, hanging.address, *[changing(op("push", 0, arrays=[np.zeros(9)]))] * 2)
    assert [type(outcome) for outcome in got] == [DeadlineError] * 2
    assert hanging.address in str(got[0])
    assert time.monotonic() - started_s < 5
    hanging.engine.go_on.set()
    until(lambda: nothing_under_way(hanging.engine), "its memory is given back")


@on_sockets
def test_request_when_longer_than_keepalive_then_is_awaited(hanging, carrier):
    """A server that answers pings is alive, however long a function runs."""
    with connected(carrier, keepalive_s=0.1, keepalive_timeout_s=5) as transport:
        timer = threading.Timer(0.6, hanging.engine.go_on.set)
        timer.start()
        (outcome,) = outcomes(transport, hanging.address, reading(op("sum", 0)))
        timer.join()
    assert isinstance(outcome, StaleRouteError)


def test_request_when_longer_than_keepalive_then_tls_waits(tmp_path, monkeypatch):
    """The counts are those of what is encrypted, at both ends."""
    engine, looks = Waits(1 << 24, False), []
    quick = WireConfig(unix_sockets=False, tls=write(tmp_path), keepalive_s=0.4, keepalive_timeout_s=5.0)
    with serving(engine, wire=quick) as server:
        transport = FleetNetwork(TOKEN, quick)
        look = transport._byte_counts
        monkeypatch.setattr(transport, "_byte_counts", lambda *of: looks.append(look(*of)) or looks[-1])
        timer = threading.Timer(1.5, engine.go_on.set)
        timer.start()
        (outcome,) = outcomes(transport, server.address, reading(op("sum", 0)))
        timer.join()
        transport.close()
    assert isinstance(outcome, StaleRouteError)
    here, there = looks[-1].local, looks[-1].remote
    assert (here.sent, here.received) == (there.received, there.sent)


class TakesItsTime(ServerServicer):
    """Answers ``Status`` when ``go_on`` is set."""

    def __init__(self):
        super().__init__(Namespaces(Engine(1 << 20, False)), "slow", WireConfig(), lambda: None)
        self.go_on = threading.Event()

    def Status(self, request):
        assert self.go_on.wait(20)
        return super().Status(request)


def test_call_when_it_outlasts_many_pings_then_is_answered():
    """A gRPC server has its own idea of how often they may come, and ends the connection: too_many_pings."""
    servicer, wire = TakesItsTime(), WireConfig(keepalive_s=1.0)
    server = RpcServer(SERVICE, servicer, "127.0.0.1:0", TOKEN, 2, wire)
    timer = threading.Timer(7.0, servicer.go_on.set)
    try:
        with connected("tcp", keepalive_s=1.0) as transport:
            timer.start()
            message = pb.StatusRequest()
            assert transport.call(server.address, "Server/Status", message, pb.StatusReply, 20).server_id == "slow"
    finally:
        timer.cancel()
        servicer.go_on.set()
        server.stop(0)


@on_sockets
def test_transport_when_closed_with_requests_then_stopped_error(hanging, carrier):
    caught = []

    def ask(transport):
        try:
            outcomes(transport, hanging.address, *[reading(op("sum", 0))] * 3)
        except PS2Error as error:
            caught.append(type(error))

    with connected(carrier) as transport:
        threads = [threading.Thread(target=ask, args=(transport,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        assert hanging.engine.asked.wait(10)
        transport.close()
        for thread in threads:
            thread.join(10)
    assert caught == [StoppedError] * 6


@on_sockets
def test_transport_when_closed_then_stopped_error(address, carrier):
    with connected(carrier) as transport:
        count(transport, address)
        transport.close()
        with pytest.raises(StoppedError):
            send(transport, address, reading(op("sum", 0)))
        with pytest.raises(StoppedError):
            ServerControl(transport).hello(address)


# -- connections that are dropped without a word ---------------------------------------------------------------------


@pytest.mark.parametrize("dropped", [1, 2])
def test_connection_when_dropped_then_known_and_new_one_serves(server, address, dropped):
    """What is sent on it vanishes, one way or both, and new ones work."""
    with connected("tcp", keepalive_s=1.0, keepalive_timeout_s=1.0, request_timeout_s=30.0) as transport:
        count(transport, address)
        assert flows.drop(os.getpid(), port=server.data.port, most=dropped) == dropped
        with pytest.raises(UnavailableError):
            count(transport, address)
        assert count(transport, address) == DIM


def test_connection_when_a_proxy_swallows_all_then_that_is_known():
    """Both ends have a peer that acknowledges everything: only who counts what has come finds out."""
    quick = {"keepalive_s": 1.0, "keepalive_timeout_s": 1.0, "request_timeout_s": 30.0}
    with cut_by_proxy("tcp", an_engine()) as (address, proxy), connected("tcp", **quick) as transport:
        count(transport, address)
        proxy.swallow()
        with pytest.raises(UnavailableError):
            count(transport, address)
        assert count(transport, address) == DIM


def test_requests_when_server_reads_none_for_long_then_wait(hanging):
    """It runs the first, and the system has room for a part of the others alone."""
    with connected("tcp", keepalive_s=1.0, keepalive_timeout_s=5.0, request_timeout_s=60.0) as transport:
        timer = threading.Timer(4.0, hanging.engine.go_on.set)
        timer.start()
        pushes = [changing(op("push", 0, arrays=[np.zeros(BLOCK)], start=0)) for _ in range(8)]
        got = outcomes(transport, hanging.address, *pushes)
        timer.join()
    assert [type(outcome) for outcome in got] == [StaleRouteError] * 8


def test_call_when_its_connection_dropped_then_next_gets_new_one(server, address):
    """gRPC alone would wait for the end of the connection, longer than a coordinator waits for a server."""
    with connected("tcp") as transport:
        control = ServerControl(transport)
        control.hello(address)
        assert flows.drop(os.getpid(), port=int(address.rpartition(":")[2]))
        with pytest.raises(DeadlineError):
            control.hello(address, timeout_s=0.3)
        assert control.hello(address, timeout_s=5.0).server_id == server.id


SERVER = """
import sys, threading
from tests.contract.servers import an_engine, serving
with serving(an_engine(), server_id="of-another-process") as server:
    print(server.address, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def process():
    """A server in another process, which prints its address."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )

    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def another_process(process, until):
    """The address of a server in another process, and a function that stops all threads of that until the test ends."""
    running, address = process

    def stop():
        os.kill(running.pid, signal.SIGSTOP)
        stats = list(Path(f"/proc/{running.pid}/task").glob("*/stat"))
        until(lambda: all(s.read_text().rpartition(") ")[2].startswith("T") for s in stats), "the process stopped")

    yield address, stop
    os.kill(running.pid, signal.SIGCONT)


@on_sockets
@pytest.mark.parametrize("size", [10, 4 * BLOCK], ids=["small", "large"])
def test_process_when_it_was_stopped_then_keepalive_finds_out(another_process, carrier, size):
    """It keeps its connections, and its kernel takes what fits the buffers."""
    address, stop = another_process
    with connected(carrier, keepalive_s=0.5, keepalive_timeout_s=0.5) as transport:
        count(transport, address)
        stop()
        started_s = time.monotonic()
        got = outcomes(transport, address, *[changing(op("push", 0, arrays=[np.zeros(size)], start=0))] * 2)
        took_s = time.monotonic() - started_s
    assert all(isinstance(outcome, TransientError) for outcome in got)
    assert address in str(got[0])
    assert took_s < 5
