"""Connections on which nothing happens: they take no thread, and are served again when they ask."""

import socket
import threading

import pytest

from ps2.client.network import FleetNetwork
from ps2.config import WireConfig
from ps2.transport.acceptor import AuthenticatedPeer
from ps2.transport.idle_connections import IdleConnectionPoller
from tests.certificates import write
from tests.contract.servers import TOKEN, an_engine, changing, op, send, serving

CLIENTS = 40


@pytest.fixture(params=["tcp", "tls"])
def wire(request, tmp_path):
    return WireConfig(unix_sockets=False, tls=write(tmp_path) if request.param == "tls" else None)


def data_threads():
    return [thread for thread in threading.enumerate() if thread.name == "ps2-data"]


@pytest.fixture
def clients(wire):
    """Some clients, each of which has asked something."""
    with serving(an_engine(), wire=wire) as server:
        created = [FleetNetwork(TOKEN, wire) for _ in range(CLIENTS)]
        for client in created:
            send(client, server.address, changing(op("fill", 1, value=2.0)))
        yield server, created
        for client in created:
            client.close()


def test_connections_when_idle_then_hold_no_thread(clients, until):
    server, created = clients
    until(lambda: not data_threads(), "all threads have ended")
    assert server.data.connections == CLIENTS
    for client in created:
        send(client, server.address, changing(op("fill", 1, value=3.0)))
    assert server.data.connections == CLIENTS


def test_connections_when_clients_leave_idle_then_forgotten(clients, until):
    server, created = clients
    until(lambda: not data_threads(), "all threads have ended")
    for client in created[1:]:
        client.close()
    until(lambda: server.data.connections == 1, "one is left")
    send(created[0], server.address, changing(op("fill", 1, value=3.0)))


def test_server_when_stopped_while_idle_then_closes_connections(clients, until):
    server, _ = clients
    until(lambda: not data_threads(), "all threads have ended")
    server.stop()
    until(lambda: not server.data.connections, "no connection is left")


def test_poller_when_stopped_twice_then_nothing_happens():
    poller = IdleConnectionPoller(lambda peer: None)
    poller.stop()
    poller.stop()
    assert len(poller) == 0


def test_thread_when_its_connection_is_idle_then_takes_another(until):
    attended = []
    poller = IdleConnectionPoller(lambda peer: attended.append(threading.get_ident()))
    pairs = [socket.socketpair() for _ in range(3)]
    for count, (ours, theirs) in enumerate(pairs, 1):
        poller.park(AuthenticatedPeer(ours, ours, None, b""))
        theirs.sendall(b"request")
        until(lambda count=count: len(attended) == count and poller._spare_threads == 1, "one is attended to")
    poller.stop()
    for end in (end for pair in pairs for end in pair):
        end.close()
    assert len(set(attended)) == 1
