"""A server that was stopped for longer than its lease, and wakes up, changes and acknowledges nothing."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from ps2.config import WireConfig, write_token
from ps2.errors import StaleRouteError, UnavailableError
from ps2.matrix.partition import MatrixSpec, Partition
from ps2.protocol.messages import Request, RequestId
from ps2.protocol.pb import master_pb2
from ps2.rpc.control import Activation, ServerControl
from ps2.rpc.serving import RpcServer
from tests.contract.servers import TOKEN, connected, op, send

COORDINATOR = "the coordinator"
LEASE_S = 1.0
HEARTBEAT_S = 0.1
MATRIX = 1
# Of requests: the server takes one with a number that it knows for a repetition.
NUMBERS = itertools.count()


class Master:
    """A coordinator's face as servers see it; it answers heartbeats while ``answers`` is set."""

    def __init__(self):
        self.registered = threading.Event()
        self.answers = threading.Event()
        self.answers.set()
        self.beats = 0
        self.address = ""

    def Register(self, request):
        self.address = request.address
        self.registered.set()
        return master_pb2.RegisterReply(heartbeat_interval_s=HEARTBEAT_S)

    def Heartbeat(self, request):
        if not self.answers.is_set():
            raise UnavailableError("busy with something else")
        self.beats += 1
        return master_pb2.HeartbeatReply()

    def NewMatrix(self, request):
        raise NotImplementedError

    TakeRows = FreeRows = GetMatrix = FindVector = NewMatrix


@pytest.fixture(scope="module")
def master():
    servicer = Master()
    service = master_pb2.DESCRIPTOR.services_by_name["Master"]
    rpc = RpcServer(service, servicer, "127.0.0.1:0", TOKEN, 4, WireConfig())
    servicer.listens = rpc.address
    yield servicer
    rpc.stop(0)


class Sleeper:
    """A server process that can be stopped and woken."""

    def __init__(self, pid, until):
        self._pid = pid
        self._until = until

    def stop(self):
        os.kill(self._pid, signal.SIGSTOP)
        tasks = list(Path(f"/proc/{self._pid}/task").glob("*/stat"))
        self._until(
            lambda: all(s.read_text().rpartition(") ")[2].startswith("T") for s in tasks), "the process stopped"
        )

    def wake(self):
        os.kill(self._pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def sleeper(master, tmp_path_factory, until, forked):
    """An activated server of that master, in a process of its own, with one matrix; each test leaves it at work."""
    folder = tmp_path_factory.mktemp("server")
    write_token(folder / "token", TOKEN)
    process = forked(["server", "--master", master.listens, "--token-file", folder / "token"], folder / "log")
    try:
        until(lambda: master.registered.is_set() or process.poll() is not None, "the server registered", 60)
        assert master.registered.is_set(), (folder / "log").read_text()
        yield Sleeper(process.process.pid, until)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def transport():
    # A server that sleeps must not be given up, or what is sent to it would be cut off.
    with connected("unix", keepalive_s=60, keepalive_timeout_s=60) as created:
        yield created


@pytest.fixture(scope="module")
def control(master, sleeper, transport):
    created = ServerControl(transport)
    created.route_version = 1
    created.activate(master.address, Activation(COORDINATOR, LEASE_S))
    created.create_matrix(master.address, MATRIX, MatrixSpec(10, 2, dtype="float64"), [Partition(0, 0, 10)])
    return created


def add(route_version=1):
    return Request((op("add_scalar", 0, value=1),), RequestId("client", next(NUMBERS)), route_version=route_version)


def total(transport, address):
    return send(transport, address, Request((op("sum", 0),), route_version=1)).results[0].scalar


def outcome_of(fn, results):
    try:
        results.append(fn())
    except Exception as error:
        results.append(error)


def test_server_when_it_slept_past_lease_then_refuses_writes(master, sleeper, transport, control, until):
    send(transport, master.address, add())
    sleeper.stop()
    master.answers.clear()
    results = []
    waiting = threading.Thread(target=outcome_of, args=(lambda: send(transport, master.address, add()), results))
    waiting.start()  # over the connection that is open already: it stays in the socket's buffer
    waiting.join(LEASE_S + 0.5)
    assert waiting.is_alive()
    sleeper.wake()
    waiting.join(30)
    assert isinstance(results[0], StaleRouteError)
    with pytest.raises(StaleRouteError, match="no answer from its coordinator"):
        send(transport, master.address, add())
    # That somebody calls it tells nothing of when the call was sent.
    control.hello(master.address, COORDINATOR)
    with pytest.raises(StaleRouteError, match="no answer from its coordinator"):
        send(transport, master.address, add())
    master.answers.set()
    beats = master.beats
    until(lambda: master.beats >= beats + 2, "heartbeats are answered again")
    send(transport, master.address, add())
    assert total(transport, master.address) == 2 * 10


def test_server_when_it_slept_at_old_version_then_refuses_newer(master, sleeper, transport, control):
    send(transport, master.address, add())
    sleeper.stop()
    sleeper.wake()
    with pytest.raises(StaleRouteError, match="at route version 1, got route version 2"):
        send(transport, master.address, add(route_version=2))


def test_server_when_coordinator_is_silent_then_lease_refuses(master, transport, control, until):
    send(transport, master.address, add())
    master.answers.clear()

    def is_refused():
        results = []
        outcome_of(lambda: send(transport, master.address, add()), results)
        return isinstance(results[0], StaleRouteError)

    until(is_refused, "writes are refused")
    master.answers.set()
    until(lambda: not is_refused(), "writes are taken again")
    assert np.isfinite(total(transport, master.address))
