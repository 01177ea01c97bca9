"""A server that is stopped (SIGSTOP) and wakes up when another one has its place: it may not change anything then."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
from faults import processes

from ps2 import DCV, PS2Conf, PS2Context
from ps2.config import WireConfig, split_address
from ps2.coordinator.launchers.local import LocalLauncher
from ps2.coordinator.launchers.processes.child import end
from ps2.errors import UnavailableError
from ps2.protocol import binary, framing
from ps2.protocol.messages import PROTOCOL_VERSION, Operation, Request, RequestId
from ps2.protocol.pb import server_pb2 as pb
from ps2.transport.handshake import handshake
from tests.messages import header_of

DIM = 1000

pytestmark = pytest.mark.usefixtures("leaves_nothing")


class CannotKill(LocalLauncher):
    """Starts another server in the place of a lost one, which lives on: another host's, say."""

    def __init__(self, *args):
        super().__init__(*args)
        self._left = []

    def start(self, index, master):
        if index in self._children:
            self._left.append(self._children.pop(index))
        super().start(index, master)

    def stop(self):
        end(self._left)
        super().stop()


@pytest.fixture
def ps(monkeypatch):
    monkeypatch.setattr(LocalLauncher, "of", CannotKill.of)
    # The call that waits for the stopped server gives it up sooner.
    quick = partial(WireConfig, keepalive_s=2.0, keepalive_timeout_s=1.0)
    monkeypatch.setattr("ps2.coordinator.coordinator.WireConfig", quick)
    with PS2Context.getOrCreate(servers=2, replicas=1, conf=PS2Conf(heartbeatS=0.2, lostAfterS=1.0)) as ps:
        yield ps


def dialled(ps, address):
    """An open data connection to a server."""
    hello = ps._coordinator.fleet.control._transport.call(
        address, "Server/Hello", pb.HelloRequest(protocol=PROTOCOL_VERSION), pb.HelloReply, timeout_s=5
    )
    host, _ = split_address(address)
    connection = socket.create_connection((host, hello.data_port), timeout=20)
    handshake(connection, ps._coordinator.token, hello.server_id, time.monotonic() + 20)
    return connection


def error_of(connection):
    """Return the type of the error that a server answers with; "": it ends without an answer."""
    with connection.makefile("rb") as file, suppress(ConnectionError):
        if head := file.read(framing.HEAD.size):
            length, size = framing.HEAD.unpack(head)
            assert size == 0
            return header_of(file.read(length)).error.type
    return ""


def writing(total, number, version):
    """The bytes of a request that adds 1000 to the first columns."""
    add = Operation("add", total._matrix, 0, (total._row,), {"start": 0}, (np.full(DIM // 2, 1000),))
    return b"".join(framing.message_views(binary.request_parts(Request((add,), RequestId("late", number), version))))


def test_stopped_server_when_resumed_then_accepts_no_writes(ps):
    total = DCV.dense(DIM, dtype="int64")
    total.add(np.ones(DIM, np.int64))
    old, pid = ps.servers[0], processes.servers_of(ps)[0]
    version = ps._coordinator.fleet.control.status(old).route_version
    with dialled(ps, old) as connection:
        connection.sendall(writing(total, 0, version)[:10])
        with processes.stopped(pid):
            total.add(np.ones(DIM, np.int64))  # waits until another server is there
            assert ps.servers[0] != old
            connection.sendall(writing(total, 0, version)[10:])  # read at once when it wakes up
        # A server that wakes up may first notice that another one has its place, and end.
        assert error_of(connection) in ("StaleRouteError", "")
    assert np.unique(total.pull()).tolist() == [2]
    assert [recovery.servers for recovery in ps.recoveries] == [(0,)]


def test_servers_when_heartbeats_are_blocked_then_keep_serving(ps, monkeypatch, until):
    def unheard(index, server_id, mutations):
        raise UnavailableError("a network that lets only one side call the other")

    total, began_s, count = DCV.dense(DIM, dtype="int64"), time.monotonic(), 0
    servers = processes.servers_of(ps)
    monkeypatch.setattr(ps._coordinator.fleet.master.registry, "heartbeat", unheard)
    while time.monotonic() - began_s < 4 * ps._coordinator.fleet.master.config.lost_after_s:
        total.add(np.ones(DIM, np.int64))
        count += 1
    assert processes.servers_of(ps) == servers
    assert np.unique(total.pull()).tolist() == [count]
