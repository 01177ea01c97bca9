"""Real servers in this process, every way to reach them, and a proxy that cuts connections."""

from __future__ import annotations

import select
import socket
import threading
import time
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import numpy as np

from ps2.client.network import FleetNetwork
from ps2.config import ANY_PORT, LOOPBACK, WireConfig
from ps2.errors import PS2Error
from ps2.matrix.partition import HASH_SPACE, MatrixSpec, Partition
from ps2.protocol import framing
from ps2.protocol.messages import Operation, Request, RequestId
from ps2.protocol.pb import server_pb2 as pb
from ps2.rpc.channel import Channel, Trust
from ps2.rpc.serving import RpcServer
from ps2.server.engine import Engine
from ps2.server.namespaces import Namespaces
from ps2.server.servicer import ServerServicer
from ps2.transport.data_server import DataServer
from ps2.transport.handshake import handshake
from ps2.transport.sockets import abstract_address
from tests.messages import header_of, reply_from, request_bytes, request_frame

TOKEN = "a-token-of-the-fleet"
SERVER_ID = "the-id"
SERVICE = pb.DESCRIPTOR.services_by_name["Server"]
DIM = 1 << 20  # of float64: 8 MiB, two blocks
BLOCK = 1 << 19
CARRIERS = ("execute", "tcp", "unix")
SOCKETS = CARRIERS[1:]


def an_engine(cls=Engine):
    engine = cls(1 << 30, allow_udf=True)
    engine.create_matrix(1, MatrixSpec(DIM, 2, dtype="float64"), [Partition(0, 0, DIM)])
    engine.create_matrix(2, MatrixSpec(2**63, 1, dtype="float64", kind="sparse"), [Partition(0, 0, HASH_SPACE)])
    return engine


class Waits(Engine):
    """Requests with operations wait until ``go_on`` is set; ``asked`` says that one does."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.asked, self.go_on = threading.Event(), threading.Event()

    def execute(self, request):
        if request.operations:
            self.asked.set()
            assert self.go_on.wait(20)
        return super().execute(request)


class Served:
    """A server of that engine; ``places`` are the data port and Unix socket that it tells clients of."""

    def __init__(
        self, engine, listen="127.0.0.1:0", token=TOKEN, places=None, server_id=None, wire=None, host=LOOPBACK
    ):
        wire = wire or WireConfig()
        self.engine = engine
        engine.fast_paths.load()
        # A Unix socket is named after its server.
        self.id = server_id or f"{SERVER_ID}-{id(self)}"
        self.namespaces = Namespaces(engine, lambda: FleetNetwork(token, wire), wire)
        self.data = DataServer(self.namespaces, host, ANY_PORT, token, self.id, wire)
        try:
            port, unix_name = places(self.data) if places else (self.data.port, self.data.unix_name)
            messages = SimpleNamespace(port=port, unix_name=unix_name, connections=0, byte_counts=self.data.byte_counts)
            self.servicer = ServerServicer(self.namespaces, self.id, wire, lambda: None, messages)
            self.rpc = RpcServer(SERVICE, self.servicer, listen, token, 4, wire)
        except PS2Error:
            self.data.stop(0)
            raise
        self.address = self.rpc.address

    def stop(self, grace_s=0):
        self.data.stop(grace_s)
        self.rpc.stop(grace_s)
        self.servicer.close()


@contextmanager
def serving(engine, *args, **kwargs):
    server = Served(engine, *args, **kwargs)
    try:
        yield server
    finally:
        server.stop()


class Execute:
    """What a client does that sends each request by itself over gRPC."""

    def __init__(self, token):
        self._transport = FleetNetwork(token)

    def exchange(self, requests):
        return {address: [self._execute(address, request) for request in mine] for address, mine in requests.items()}

    def take(self, address):
        return None

    def call(self, *args):
        return self._transport.call(*args)

    def close(self):
        self._transport.close()

    def _execute(self, address, request):
        try:
            frame = request_frame(request)
            return reply_from(self._transport._channel(address).call("Server/Execute", frame, 60), request)
        except PS2Error as error:
            return error


@contextmanager
def connected(carrier, token=TOKEN, **wire):
    """A transport that takes this way; ``wire`` are fields of its WireConfig."""
    if carrier == "execute":
        transport = Execute(token)
    else:
        transport = FleetNetwork(token, WireConfig(unix_sockets=carrier == "unix", **wire))
    try:
        yield transport
    finally:
        transport.close()


@contextmanager
def a_channel(address, token=TOKEN):
    """Calls and streams of bytes to a server, without a transport."""
    channel = Channel(address, token, WireConfig(), Trust())
    try:
        yield channel
    finally:
        channel.close()


class Counter:
    """Fresh ids of mutations."""

    number = -1

    @classmethod
    def next(cls):
        cls.number += 1
        return RequestId("test", cls.number)


def op(name, *rows, matrix=1, partition=0, arrays=(), keys=None, wire=None, into=None, **params):
    arrays = tuple(np.asarray(array) for array in arrays)
    return Operation(name, matrix, partition, rows, params, arrays, keys, wire, 0, into)


def reading(*operations):
    return Request(operations)


def changing(*operations):
    return Request(operations, Counter.next())


def outcomes(transport, address, *requests):
    return transport.exchange({address: requests})[address]


def send(transport, address, request):
    """Send one request; return its reply, or raise its error."""
    (outcome,) = outcomes(transport, address, request)
    if isinstance(outcome, PS2Error):
        raise outcome
    return outcome


def count(transport, address):
    """Return the number of columns, as the simplest sign that a server serves."""
    return send(transport, address, reading(op("count", 0))).results[0].scalar


def nothing_under_way(engine):
    """Whether all memory that is counted is that of shards, of key sets to remember, and of fast_paths."""
    lasting = sum(status.bytes for status in engine.matrices()) + engine.fast_paths.nbytes
    return engine.memory.used_bytes == lasting + engine.keys.nbytes


def row(engine, number):
    """Return a row as the server holds it."""
    pull = op("pull", number, start=0, stop=DIM)
    return engine.execute(Request((pull,))).results[0].arrays[0]


# -- a data connection by hand ---------------------------------------------------------------------------------------


@contextmanager
def dialled(server, carrier, first=None):
    """A data connection that has been let in, unless ``first`` says what is sent first."""
    family, position = place_of(server, carrier)
    with socket.socket(family) as connection:
        connection.settimeout(10)
        connection.connect(position)
        if first is None:
            handshake(connection, TOKEN, server.id, time.monotonic() + 10)
            connection.settimeout(10)
        else:
            connection.sendall(first)
        yield connection


def place_of(server, carrier):
    if carrier == "unix":
        return socket.AF_UNIX, abstract_address(server.data.unix_name)
    return socket.AF_INET, ("127.0.0.1", server.data.port)


def spoken(request):
    """The bytes of a request on a data connection."""
    return request_bytes(request)


def hear(connection):
    """Read the header of a reply, as the contract would have it, without its results, and pass over its data; None at
    the end of the connection."""
    head = hear_bytes(connection, framing.HEAD.size)
    if head is None:
        return None
    length, size = framing.HEAD.unpack(head)
    header = hear_bytes(connection, length)
    hear_bytes(connection, size)
    return header_of(header)


def hear_bytes(connection, size):
    data = bytearray()
    while len(data) < size:
        with suppress(ConnectionResetError):
            if piece := connection.recv(min(size - len(data), 1 << 20)):
                data += piece
                continue
        return None
    return bytes(data)


# -- connections that are cut ----------------------------------------------------------------------------------------


class Proxy:
    """Passes connections on to ``target`` until so many bytes have gone up or down; then it cuts that connection.

    ``up`` and ``down`` count from the moment that ``arm`` is called; before, everything passes. ``swallow``: on the
    connections that it has, it takes everything, passes nothing on, and closes nothing.
    """

    def __init__(self, family, target, name=""):
        self._family, self._target = family, target
        self._left = None
        self._swallowing = set()
        self._clients = set()
        self._listener = socket.socket(family)
        self._listener.bind(abstract_address(name) if family == socket.AF_UNIX else ("127.0.0.1", 0))
        self._listener.listen()
        self.place = self._listener.getsockname()
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def arm(self, up=1 << 60, down=1 << 60):
        self._left = [up, down]

    def swallow(self):
        self._swallowing |= self._clients

    def close(self):
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self):
        while not self._ended.is_set():
            if select.select([self._listener], [], [], 0.02)[0]:
                client, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._pass_on, args=(client,)))
                self._threads[-1].start()

    def _pass_on(self, client):
        with client, socket.socket(self._family) as server, suppress(OSError):
            server.connect(self._target)
            self._clients.add(client)
            ends = {client: (server, 0), server: (client, 1)}
            while not self._ended.is_set():
                for end in select.select(list(ends), [], [], 0.02)[0]:
                    other, variant = ends[end]
                    data = end.recv(1 << 16)
                    if self._left is not None:
                        self._left[variant] -= len(data)
                    if not data or (self._left is not None and self._left[variant] < 0):
                        return
                    if client not in self._swallowing:
                        other.sendall(data)


@contextmanager
def cut_by_proxy(carrier, engine):
    """A server that this carrier reaches through a proxy: the address to call, and the proxy."""
    proxies = []

    def places(data):
        if carrier == "tcp":
            proxies.append(Proxy(socket.AF_INET, ("127.0.0.1", data.port)))
            return proxies[0].place[1], ""
        if carrier == "unix":
            proxies.append(Proxy(socket.AF_UNIX, abstract_address(data.unix_name), f"proxy-{data.port}"))
            return 0, f"proxy-{data.port}"
        raise ValueError(carrier)

    with serving(engine, places=places) as server:
        try:
            yield server.address, proxies[0]
        finally:
            proxies[0].close()
