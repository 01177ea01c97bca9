"""A live server to be attacked, every way to send it anything, and the check that nothing came of it."""

from __future__ import annotations

import itertools
import socket
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np

from ps2 import DCV, errors
from ps2.client.network import FleetNetwork
from ps2.errors import PS2Error, TransientError, UsageError
from ps2.matrix.partition import HASH_SPACE, MatrixSpec, Partition
from ps2.protocol import framing
from ps2.protocol.messages import PROTOCOL_VERSION, Keys, Operation, Request, RequestId
from ps2.protocol.pb import server_pb2 as pb
from ps2.rpc.control import Activation, ServerControl
from ps2.transport.handshake import handshake
from ps2.transport.sockets import abstract_address
from tests.messages import header_of, request_bytes, request_frame

WAYS = ("execute", "tcp", "unix")
# What a caller is told of a message that makes no sense, or of one that makes sense but not here and now.
REFUSED = (UsageError, TransientError)
# Of 20,000 damaged messages, most is what the system keeps of buffers for the next.
RSS_GROWTH_BYTES = 32 << 20
DIM = 100
NUMBERS = itertools.count(10)


@dataclass
class Victim:
    """The server under attack; ``vector`` holds ``values``, and nothing that is sent names it."""

    address: str
    hello: pb.HelloReply
    transport: FleetNetwork
    token: str
    vector: DCV
    values: np.ndarray = field(repr=False)
    rss_bytes: int = 0

    @property
    def channel(self):
        return self.transport._channel(self.address)

    def status(self):
        return ServerControl(self.transport).status(self.address)


@contextmanager
def attacked(ps):
    """The one server of a fleet, warm: every way and every kind of request has been used."""
    (address,) = ps.servers
    transport = FleetNetwork(ps._coordinator.token)
    values = np.random.default_rng(0).standard_normal(1000)
    hello = transport.call(
        address, "Server/Hello", pb.HelloRequest(protocol=PROTOCOL_VERSION), pb.HelloReply, timeout_s=5
    )
    # Without a coordinator it takes messages of any route version.
    control = ServerControl(transport)
    control.route_version = control.status(address).route_version
    control.activate(address, Activation(ps._coordinator.fleet.master.id, leave=True))
    created = Victim(
        address, hello, transport, ps._coordinator.token, DCV.dense(1000, dtype="float64").push(values), values
    )
    with scratch(created) as matrix:
        for variant in WAYS:
            for request in requests(matrix):
                assert not isinstance(ask(created, variant, message(variant, request))[0], PS2Error)
    created.rss_bytes = created.status().rss_bytes
    yield created
    transport.close()


@contextmanager
def scratch(victim):
    """Two matrices to be spoiled, ``n`` and ``n + 1``: yields n."""
    control, matrix = ServerControl(victim.transport), 2 * next(NUMBERS)
    control.create_matrix(victim.address, matrix, MatrixSpec(DIM, 3, dtype="float64"), [Partition(0, 0, DIM)])
    sparse = MatrixSpec(2**40, 2, dtype="float32", kind="sparse", wire="bfloat16")
    control.create_matrix(victim.address, matrix + 1, sparse, [Partition(0, 0, HASH_SPACE)])
    try:
        yield matrix
    finally:
        for number in (matrix, matrix + 1):
            control.free_matrix(victim.address, number)


@contextmanager
def unharmed(victim, until, rss_growth_bytes=RSS_GROWTH_BYTES):
    """Two matrices to be spoiled; afterwards the server's memory and its other data are what they were."""
    memory_bytes = victim.status().memory_bytes
    with scratch(victim) as matrix:
        yield matrix
        assert np.array_equal(victim.vector.pull(), victim.values)
    until(lambda: victim.status().memory_bytes == memory_bytes, "memory_bytes is what it was")
    assert victim.status().rss_bytes - victim.rss_bytes < rss_growth_bytes


# -- good requests ---------------------------------------------------------------------------------------------------


def requests(matrix):
    """Good requests, of every form, on the matrices to be spoiled."""
    columns = np.arange(0, 5000, 9)
    id = RequestId("fuzz", next(NUMBERS))
    push = Operation("push", matrix, 0, (1,), {"start": 5}, (np.arange(20.0),))
    gather = Operation("gather", matrix, 0, (1,), keys=Keys(3, np.array([3, 50, 99])))
    rows = Operation("rows_add", matrix, 0, arrays=(np.array([0, 2]), np.ones(2 * DIM)))
    axpy = Operation("axpy", matrix, 0, (0, 1), {"alpha": 0.5})
    scatter = Operation(
        "scatter_add", matrix + 1, 0, (0,), {}, (np.ones(columns.size, np.float32),), Keys(columns.size, columns),
        "bfloat16",
    )  # fmt: skip
    again = Operation("gather", matrix + 1, 0, (1,), keys=Keys(columns.size), wire="float16")
    return [Request((push, gather, axpy), id), Request((rows,), id), Request((scatter, again), id)]


# -- sending anything ------------------------------------------------------------------------------------------------


def message(way, request):
    """The bytes of a request, as they go this way."""
    return request_frame(request) if way == "execute" else request_bytes(request)


def ask(victim, way, data):
    """Send bytes as one message; return the headers of the replies, or the errors, that they come to."""
    if way == "execute":
        return [reply_of(lambda: pb.ReplyFrame.FromString(victim.channel.call("Server/Execute", data, 20)).header)]
    with dialled(victim, way) as connection:
        with suppress(OSError):  # it may have heard enough
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        return list(heard(connection))


def reply_of(fn):
    try:
        header = fn()
    except PS2Error as error:
        return error
    return getattr(errors, header.error.type)(header.error.message) if header.HasField("error") else header


@contextmanager
def dialled(victim, way):
    positions = {"tcp": ("127.0.0.1", victim.hello.data_port), "unix": abstract_address(victim.hello.data_socket)}
    with socket.socket(socket.AF_INET if way == "tcp" else socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(positions[way])
        handshake(connection, victim.token, victim.hello.server_id, time.monotonic() + 20)
        connection.settimeout(20)
        yield connection


def heard(connection):
    """Yield what is answered, until the server closes the connection."""
    with suppress(ConnectionError), connection.makefile("rb", buffering=0) as file:
        while head := file.read(framing.HEAD.size):
            length, size = framing.HEAD.unpack(head)
            header = header_of(b"".join(pieces(file, length)))
            for _ in pieces(file, size):
                pass
            yield reply_of(lambda header=header: header)


def pieces(file, size):
    while size:
        piece = file.read(min(size, 1 << 16))
        assert piece
        size -= len(piece)
        yield piece
