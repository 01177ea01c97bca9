"""Unauthenticated peers hold whatever they can of every port of a fleet: all goes on as if they were not there."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import grpc
import numpy as np
import pytest

from ps2 import DCV, PS2Conf, PS2Context
from ps2.client.network import FleetNetwork
from ps2.config import split_address
from ps2.protocol.messages import PROTOCOL_VERSION, Operation, Request
from ps2.protocol.pb import server_pb2 as pb
from ps2.rpc.control import ServerControl
from ps2.transport.acceptor import MAX_UNAUTHENTICATED

DIM = 1000
IDLE_CALLS = 40  # of each kind, on each gRPC port: more than there are threads
SILENT_CONNECTIONS = 20
DRIPPING_CONNECTIONS = MAX_UNAUTHENTICATED + 20
DRIP_PAUSE_S = 0.1
CALLS = (
    "/ps2.v1.Server/Execute",
    "/ps2.v1.Server/Execute",
    "/ps2.v1.Master/Heartbeat",
    "/ps2.v1.Auth/Challenge",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
)

pytestmark = pytest.mark.usefixtures("leaves_nothing")


@pytest.fixture
def ps():
    """A fleet that replaces a server after two seconds without a sign of life."""
    with PS2Context.getOrCreate(servers=2, replicas=1, conf=PS2Conf(heartbeatS=0.2, lostAfterS=2.0)) as ps:
        yield ps


@pytest.mark.parametrize("seconds", [5, pytest.param(30, marks=pytest.mark.nightly)])
def test_fleet_when_peers_hold_ports_then_updates_stay_exact(ps, seconds):
    total, adds = DCV.dense(DIM, dtype="int64"), 0
    hellos = [hello(ps._coordinator.fleet.control._transport, address) for address in ps.servers]
    with ExitStack() as peers:
        for address in (ps._coordinator.fleet.master_server.address, *ps.servers):
            peers.enter_context(idle_calls(address))
            peers.enter_context(silent_connections(address))
        for address, met in zip(ps.servers, hellos, strict=True):
            peers.enter_context(dripping_connections(split_address(address)[0], met.data_port))
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            total.add(np.ones(DIM, np.int64))
            adds += 1
            assert a_new_client_sums(ps, total) == DIM // 2 * adds
    assert np.unique(total.pull()).tolist() == [adds]
    assert ps.recoveries == []


def hello(transport, address):
    return transport.call(address, "Server/Hello", pb.HelloRequest(protocol=PROTOCOL_VERSION), pb.HelloReply, 5)


def a_new_client_sums(ps, vector):
    """Return the sum of the half of a vector that the first server holds, as somebody who has just come finds it."""
    transport, address = FleetNetwork(ps._coordinator.token), ps.servers[0]
    try:
        version = ServerControl(transport).status(address).route_version
        ask = Request((Operation("sum", vector._matrix, 0, (vector._row,)),), route_version=version)
        (reply,) = transport.exchange({address: [ask]})[address]
        return reply.results[0].scalar
    finally:
        transport.close()


@contextmanager
def idle_calls(address):
    """Calls without a message, of every kind."""
    gone = threading.Event()

    def nothing():
        gone.wait(300)
        yield from ()

    with grpc.insecure_channel(address) as channel:
        calls = [channel.stream_stream(method)(nothing()) for method in CALLS for _ in range(IDLE_CALLS)]
        try:
            yield
        finally:
            gone.set()
            for call in calls:
                call.cancel()


@contextmanager
def silent_connections(address):
    with ExitStack() as created:
        for _ in range(SILENT_CONNECTIONS):
            created.enter_context(socket.create_connection(split_address(address), timeout=10))
        yield


@contextmanager
def dripping_connections(host, port):
    """Data connections on which a greeting comes byte by byte; those that the server ends are opened again."""
    ended = threading.Event()

    def drip():
        held = [None] * DRIPPING_CONNECTIONS
        with ExitStack() as created:
            while not ended.wait(DRIP_PAUSE_S):
                for index, connection in enumerate(held):
                    with suppress(OSError):
                        if connection is None:
                            held[index] = created.enter_context(socket.create_connection((host, port), timeout=10))
                            held[index].sendall(b"PS2D\xff\x0f\x00\x00")
                        else:
                            held[index] = None  # unless it still takes a byte
                            connection.sendall(b"\x08")
                            held[index] = connection

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
