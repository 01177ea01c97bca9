"""Where connections come in, on every port: who comes after one that was refused, for want of threads, is served."""

from __future__ import annotations

import errno
import socket
import threading
import urllib.request
from contextlib import suppress

import pytest
from prometheus_client.core import CollectorRegistry

from ps2.config import ANY_PORT, WireConfig
from ps2.protocol.messages import PROTOCOL_VERSION
from ps2.protocol.pb import server_pb2 as pb
from ps2.rpc.control import ServerControl
from ps2.transport.acceptor import Acceptor
from ps2.transport.exposition import Exposition
from ps2.transport.handshake import send as greet
from tests.contract.servers import (
    SOCKETS,
    an_engine,
    changing,
    connected,
    dialled,
    hear,
    op,
    send,
    serving,
    spoken,
)

on_sockets = pytest.mark.parametrize("carrier", SOCKETS)


@pytest.fixture
def no_threads(monkeypatch):
    """``no_threads(word, times)``: the system refuses the next threads whose names have a word, as it does at the limit
    of a container; the answer counts those that are still to be refused."""
    start = threading.Thread.start

    def refuse(word, times):
        left = [times]

        def begin(thread):
            if word in thread.name and left[0]:
                left[0] -= 1
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", begin)
        return left

    return refuse


@on_sockets
def test_data_port_when_thread_cannot_start_then_serves_next(carrier, no_threads, until):
    with serving(an_engine()) as server:
        left = no_threads("ps2-data", 1)
        with suppress(ConnectionError), dialled(server, carrier, b"PS2D") as connection:
            assert connection.recv(1) == b""
        until(lambda: left == [0], "one was refused")
        assert not server.data._acceptor._unauthenticated
        with dialled(server, carrier) as connection:
            connection.sendall(spoken(changing(op("fill", 1, value=2.0))))
            assert hear(connection).error.type == ""


def test_idle_connection_when_no_thread_starts_then_served_later(no_threads, until):
    with serving(an_engine()) as server, connected("tcp") as transport:
        send(transport, server.address, changing(op("fill", 1, value=2.0)))
        until(lambda: len(server.data._idle_connections), "nothing happens on it")
        left = no_threads("ps2-data", 2)
        assert not send(transport, server.address, changing(op("fill", 1, value=2.0))).replayed
        assert left == [0]


class Meets(socket.socket):
    """A listening socket whose next calls of ``accept`` come to these errors."""

    errors = (errno.ECONNABORTED, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EPERM, errno.EINTR)

    def __init__(self):
        super().__init__()
        self.bind(("127.0.0.1", 0))
        self.listen()
        self._left = list(self.errors)

    def accept(self):
        if self._left:
            raise OSError(self._left.pop(0), "as told")
        return super().accept()


def test_acceptor_when_accept_fails_in_any_way_then_takes_next():
    listener, met = Meets(), threading.Event()
    position = listener.getsockname()
    acceptor = Acceptor([listener], None, "id", WireConfig(), lambda peer: (peer.plain.close(), met.set()))
    try:
        with socket.create_connection(position, 10) as connection:
            greet(connection, pb.Greeting(protocol=PROTOCOL_VERSION, server_id="id"))
            assert met.wait(10)
    finally:
        acceptor.shut()
        acceptor.join()


def test_grpc_port_when_no_thread_starts_then_calls_are_answered(no_threads):
    with serving(an_engine()) as server, connected("tcp") as transport:
        no_threads("ps2-rpc", 1 << 20)
        for _ in range(3):
            assert ServerControl(transport).hello(server.address).server_id == server.id


def test_metrics_port_when_thread_cannot_start_then_serves_next(no_threads, until, capfd):
    exposition = Exposition(CollectorRegistry(), ("127.0.0.1", ANY_PORT), "--metrics-port")
    try:
        left = no_threads("process_request_thread", 1)
        with suppress(OSError):
            urllib.request.urlopen(f"http://{exposition.address}/ready", timeout=10)
        until(lambda: left == [0], "one was refused")
        with urllib.request.urlopen(f"http://{exposition.address}/ready", timeout=10) as reply:
            assert reply.status == 200
    finally:
        exposition.stop()
