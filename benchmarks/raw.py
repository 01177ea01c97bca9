"""What the machine does without PS2: bare sockets and bare gRPC, each with its peer in a process of its own.

A pull is best as one ``sendall`` into one MSG_WAITALL; adding is best in blocks of 1 MiB, which are still in the cache
when they are added. Buffers of 1 MiB were as good as any over TCP, and the best over Unix sockets.
"""

from __future__ import annotations

import multiprocessing
import socket
import struct
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Literal

import grpc
import numpy as np

Family = Literal["tcp", "unix"]
BLOCK_BYTES = 1 << 20
BUFFER_BYTES = 1 << 20
# What to do, bytes there, bytes back.
HEADER = struct.Struct("<cQQ")
MOVE, ADD = b"m", b"a"
# As many as a PS2 server has.
GRPC_THREADS = 16
START_TIMEOUT_S = 60.0


@contextmanager
def process(serve: Callable[..., None], *args: Any) -> Iterator[Connection]:
    """Run ``serve(connection, *args)`` in a fresh process and yield the other end of the connection."""
    spawn = multiprocessing.get_context("spawn")
    mine, its = spawn.Pipe()
    child = spawn.Process(target=serve, args=(its, *args), daemon=True)
    child.start()
    its.close()
    try:
        yield mine
    finally:
        child.terminate()
        child.join()
        mine.close()


def receive(connection: Connection) -> Any:
    """Return what a process says; raise if it says nothing for long."""
    if not connection.poll(START_TIMEOUT_S):
        raise TimeoutError(f"a process of the benchmark said nothing for {START_TIMEOUT_S:.0f} s")
    return connection.recv()


class RawSocket:
    """The client's end of a socket to a peer that holds one float32 array."""

    def __init__(self, family: Family, address: Any) -> None:
        self._socket = _socket(family)
        self._socket.connect(address)
        _no_delay(self._socket, family)
        self._answer = memoryview(bytearray(1))

    def pull(self, out: np.ndarray) -> None:
        """Receive as many bytes of the peer's array as ``out`` holds."""
        self.move((), out)

    def add(self, values: np.ndarray) -> None:
        """Send values, and wait until the peer has added them to its array."""
        self._socket.sendall(HEADER.pack(ADD, values.nbytes, len(self._answer)))
        self._socket.sendall(_bytes_of(values))
        _fill(self._socket, self._answer)

    def move(self, there: tuple[np.ndarray, ...], back: np.ndarray | None = None) -> None:
        """Send arrays that nothing is done with, and receive ``back`` bytes, or one."""
        into = self._answer if back is None else _bytes_of(back)
        self._socket.sendall(HEADER.pack(MOVE, sum(array.nbytes for array in there), len(into)))
        for array in there:
            self._socket.sendall(_bytes_of(array))
        _fill(self._socket, into)


@contextmanager
def raw_socket(family: Family, items: int, longest_bytes: int = 0) -> Iterator[RawSocket]:
    """Yield a socket to a peer in a process of its own.

    Args:
        family: over what.
        items: float32 elements of the peer's array.
        longest_bytes: most that one ``move`` will send there.
    """
    with process(_serve_socket, family, items, longest_bytes) as peer:
        yield RawSocket(family, receive(peer))


def _serve_socket(connection: Connection, family: Family, items: int, longest_bytes: int) -> None:
    listener = _socket(family)
    listener.bind(("127.0.0.1", 0) if family == "tcp" else f"\0ps2-bench-{uuid.uuid4().hex}")
    listener.listen()
    connection.send(listener.getsockname())
    client, _ = listener.accept()
    _no_delay(client, family)
    array = np.ones(items, np.float32)
    block = np.ones(BLOCK_BYTES // array.itemsize, np.float32)
    sink = memoryview(bytearray(b"\1") * longest_bytes)
    header = memoryview(bytearray(HEADER.size))
    while True:
        _fill(client, header)
        what, there, back = HEADER.unpack(header)
        if what == ADD:
            _receive_and_add(client, array[: there // array.itemsize], block)
        else:
            _fill(client, sink[:there])
        client.sendall(_bytes_of(array)[:back])


def _receive_and_add(client: socket.socket, array: np.ndarray, block: np.ndarray) -> None:
    for start in range(0, array.size, block.size):
        target = array[start : start + block.size]
        values = block[: target.size]
        _fill(client, _bytes_of(values))
        np.add(target, values, out=target)


def _socket(family: Family) -> socket.socket:
    created = socket.socket(socket.AF_INET if family == "tcp" else socket.AF_UNIX)
    created.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    created.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    return created


def _no_delay(connected: socket.socket, family: Family) -> None:
    if family == "tcp":
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _fill(connected: socket.socket, into: memoryview) -> None:
    got = 0
    while got < len(into):
        # Usually one call; a signal, or more than the kernel moves at once, makes it several.
        count = connected.recv_into(into[got:], len(into) - got, socket.MSG_WAITALL)
        if not count:
            raise EOFError("the other end of the benchmark's socket is gone")
        got += count


def _bytes_of(array: np.ndarray) -> memoryview:
    return array.data.cast("B")


class RawGrpc:
    """The client's end of a gRPC channel without protobuf."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)  # it closes with its last reference
        self._empty: Any = self._channel.unary_unary("/bench/empty")

    def round_trip(self) -> None:
        """Make an empty call."""
        self._empty(b"")


@contextmanager
def raw_grpc() -> Iterator[RawGrpc]:
    """Yield a channel to a gRPC server in a process of its own."""
    with process(_serve_grpc) as peer:
        yield RawGrpc(receive(peer))


def _serve_grpc(connection: Connection) -> None:
    handlers: dict[str, Any] = {"empty": grpc.unary_unary_rpc_method_handler(lambda request, context: b"")}
    server = grpc.server(ThreadPoolExecutor(GRPC_THREADS))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    connection.send(f"127.0.0.1:{port}")
    server.wait_for_termination()
