"""A client that reads slowly holds back only itself, and a server that stops leaves nothing behind."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager

import psutil
import pytest

from ps2.config import WireConfig
from ps2.errors import PS2Error, UnavailableError
from ps2.transport import data_server
from ps2.transport.data_server import DataServer
from tests.contract.servers import (
    BLOCK,
    DIM,
    SERVER_ID,
    SOCKETS,
    TOKEN,
    Served,
    Waits,
    an_engine,
    changing,
    connected,
    count,
    dialled,
    hear,
    nothing_under_way,
    op,
    outcomes,
    place_of,
    reading,
    spoken,
)

on_sockets = pytest.mark.parametrize("carrier", SOCKETS)
ASKED = 40
# Replies of 4 MiB that the buffers of both ends may hold: 6 MB each, at most, as Linux comes.
BUFFERED = 6


@contextmanager
def a_greedy_client(server, carrier):
    """A client that has asked for ``ASKED`` blocks and reads none; yields what reads all of them."""
    pull = reading(op("pull", 0, start=0, stop=BLOCK))
    with dialled(server, carrier) as connection:
        connection.sendall(spoken(pull) * ASKED)
        yield lambda: [hear(connection) for _ in range(ASKED)]


def at_rest(read):
    """A condition: what ``read`` returns is not 0 any more, and has been the same for half a second."""
    seen = [(None, 0.0)]

    def condition():
        value, since_s = seen[0]
        if not (now := read()) or now != value:
            seen[0] = now, time.monotonic()
            return False
        return time.monotonic() - since_s > 0.5

    return condition


@on_sockets
def test_client_when_it_does_not_read_then_server_serves_others(server, address, carrier, until):
    """A reply is made when the one before it has been taken: what waits is one block, not all that was asked for."""
    engine, before = server.engine, server.engine.meter.read().requests

    def answered():
        return engine.meter.read().requests - before

    with a_greedy_client(server, carrier) as read_all:
        until(at_rest(answered), "the server waits for the client")
        assert answered() <= BUFFERED
        with connected(carrier) as transport:
            assert count(transport, address) == DIM
        assert len(read_all()) == ASKED
    until(lambda: nothing_under_way(engine), "memory given back")


@on_sockets
def test_client_when_it_leaves_unread_replies_then_thread_ends(server, carrier, until):
    before = data_threads()
    with a_greedy_client(server, carrier):
        until(lambda: data_threads() - before, "it is served")
    until(lambda: not data_threads() - before, "its thread has ended")


def data_threads():
    return {thread for thread in threading.enumerate() if thread.name in ("ps2-data", "ps2-accept")}


def sockets_of(server):
    """Sockets of this process at the server's data port or under its name."""
    connections = psutil.Process().net_connections("all")
    return [
        c
        for c in connections
        if (c.laddr and server.data.unix_name in str(c.laddr)) or getattr(c.laddr, "port", None) == server.data.port
    ]


# -- how a server ends -----------------------------------------------------------------------------------------------


@on_sockets
def test_server_when_stopped_then_threads_and_sockets_are_gone(carrier, until):
    before = data_threads()
    server = Served(an_engine())
    with connected(carrier) as transport, dialled(server, carrier) as idle:
        count(transport, server.address)
        with dialled(server, carrier, b"PS2"):  # one that has not greeted yet
            assert data_threads() - before
            assert sockets_of(server)
            server.stop()
            assert hear(idle) is None
    until(lambda: not data_threads() - before, "its threads have ended")
    until(lambda: not [c for c in sockets_of(server) if c.status != psutil.CONN_TIME_WAIT], "its sockets are closed")


@on_sockets
def test_server_when_stopped_then_nobody_listens_at_once(carrier):
    server = Served(an_engine())
    server.stop()
    family, position = place_of(server, carrier)
    with socket.socket(family) as connection, pytest.raises(ConnectionRefusedError):
        connection.connect(position)


def test_server_when_stopped_then_port_and_name_are_free_at_once(engine):
    first = DataServer(engine, "127.0.0.1", [0], TOKEN, SERVER_ID, WireConfig())
    first.stop(0)
    second = DataServer(engine, "127.0.0.1", [first.port], TOKEN, SERVER_ID, WireConfig())
    second.stop(0)
    assert (second.port, second.unix_name) == (first.port, SERVER_ID)


@on_sockets
def test_server_when_stopped_then_running_request_is_answered(carrier, until):
    engine = an_engine(Waits)
    server, got = Served(engine), []
    with connected(carrier) as transport:
        asking = threading.Thread(target=lambda: got.extend(outcomes(transport, server.address, reading(op("sum", 0)))))
        asking.start()
        assert engine.asked.wait(10)
        stopping = threading.Thread(target=server.stop, args=(10,))
        stopping.start()
        until(lambda: server.data._stopped, "the server is stopping")
        engine.go_on.set()
        asking.join(10)
        stopping.join(10)
    assert [outcome.results[0].scalar for outcome in got] == [0.0]


@on_sockets
def test_server_when_stopped_then_endless_request_is_cut_off(carrier):
    engine = an_engine(Waits)
    server, got = Served(engine), []
    with connected(carrier) as transport:
        asking = threading.Thread(target=lambda: got.extend(outcomes(transport, server.address, reading(op("sum", 0)))))
        asking.start()
        assert engine.asked.wait(10)
        started_s = time.monotonic()
        server.stop(0.2)
        asking.join(10)
        engine.go_on.set()
    assert isinstance(got[0], PS2Error)
    assert time.monotonic() - started_s < 5


@on_sockets
def test_server_when_stopped_with_client_not_reading_then_ends(carrier, until):
    before = data_threads()
    server = Served(an_engine())
    with a_greedy_client(server, carrier):
        until(lambda: server.engine.meter.read().requests > 0, "it is served")
        server.stop(0.1)
        until(lambda: not data_threads() - before, "its threads have ended")


# -- more connections than there may be ------------------------------------------------------------------------------


@on_sockets
def test_connections_when_too_many_then_error_and_others_live_on(monkeypatch, carrier, engine):
    monkeypatch.setattr(data_server, "MAX_CONNECTIONS", 2)
    server = Served(engine)
    try:
        with dialled(server, carrier) as one, dialled(server, carrier), connected(carrier) as transport:
            (refused,) = outcomes(transport, server.address, changing(op("fill", 1, value=2.0)))
            assert isinstance(refused, UnavailableError)
            assert "was never reached" in str(refused)
            one.sendall(spoken(reading()))
            assert hear(one).HasField("error") is False
    finally:
        server.stop()
