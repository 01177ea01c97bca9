"""Socket functions for both ends of data connections."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Generator
from contextlib import suppress
from typing import Any, TypeVar

from ps2.config import WireConfig
from ps2.interrupts import POLL_S, SHIELD, check
from ps2.protocol.binary import Handles
from ps2.transport.connection import Connection, new_name

# Maximum number of buffers in one sendmsg call (IOV_MAX is 1024).
MAX_VIEWS = 512
# Send buffer of a Unix socket. With the system's default, 4 MiB of values would take about twenty rounds of writing and
# reading.
UNIX_BUFFER_BYTES = 1 << 20
# A timeout of 0 would make the socket non-blocking.
MIN_TIMEOUT_S = 0.001
# Unanswered TCP keepalive probes until the system ends a connection.
KEEPALIVE_PROBES = 3

T = TypeVar("T")


def tune(connection: socket.socket, wire: WireConfig) -> None:
    """Set the socket options that both ends of a data connection need."""
    if connection.family == socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_BUFFER_BYTES)
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # The system ends the connection if the peer acknowledges neither data nor probes for ``keepalive_s``.
    interval_s = max(1, int(wire.keepalive_s / (2 * KEEPALIVE_PROBES)))
    for name, value in (
        ("TCP_KEEPIDLE", max(1, int(wire.keepalive_s / 2))),
        ("TCP_KEEPINTVL", interval_s),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    limit_unacknowledged(connection, wire.keepalive_s)


def limit_unacknowledged(connection: Connection, after_s: float) -> None:
    """Let the system end a connection if the peer does not acknowledge data for ``after_s``; 0: the system's default.

    With ``after_s`` above 0, the system also ends a connection if the peer's receive buffer stays full for this long.
    """
    if connection.family != socket.AF_UNIX and hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * after_s))


def abstract_address(name: str) -> str:
    """Return a Unix socket's address in the abstract namespace: it has no file, and is free when its process ends."""
    return f"\0ps2/{name}"


def set_read_timeout(connection: Connection, timeout_s: float) -> None:
    """Limit how long a read blocks. After ``timeout_s`` a read returns partial input, or raises BlockingIOError."""
    seconds = int(timeout_s)
    timeval = struct.pack("@ll", seconds, int(1e6 * (timeout_s - seconds)))
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)


def set_timeout(connection: Connection, deadline_s: float) -> None:
    """Set the timeout of the next call; in the main thread it is short, because signal handlers must run."""
    remaining_s = max(MIN_TIMEOUT_S, deadline_s - time.monotonic())
    connection.settimeout(min(remaining_s, POLL_S) if SHIELD.is_active else remaining_s)


def send_some(connection: Connection, views: list[memoryview], flags: int = 0) -> None:
    """Send as much of the views as the socket accepts, without joining them; remove the sent bytes from the list."""
    sent_bytes = connection.sendmsg(views[:MAX_VIEWS], (), flags)
    while views and sent_bytes >= len(views[0]):
        sent_bytes -= len(views.pop(0))
    if sent_bytes:
        views[0] = views[0][sent_bytes:]


def send_all(connection: Connection, views: list[memoryview]) -> None:
    """Send all views in order on a blocking socket."""
    while views:
        send_some(connection, views)


def receive(connection: Connection, reader: Generator[memoryview, None, T], deadline_s: float | None = None) -> T:
    """Read one message from a blocking socket, with a reader of ``protocol.framing``.

    Raises EOFError if the peer closed the connection before the message, and OSError if it did so within the message or
    the deadline passed.
    """
    has_begun = False
    try:
        view = next(reader)
        while True:
            while len(view):
                if deadline_s is not None:
                    set_timeout(connection, deadline_s)
                try:
                    received_bytes = connection.recv_into(view, 0, socket.MSG_WAITALL)
                except TimeoutError:
                    check()
                    if deadline_s is None or time.monotonic() > deadline_s:
                        raise
                    continue
                if not received_bytes and not has_begun:
                    raise EOFError
                if not received_bytes:
                    raise ConnectionResetError(0, "the peer closed the connection in the middle of a message")
                has_begun = True
                view = view[received_bytes:]
            view = next(reader)
    except StopIteration as stop:
        message: T = stop.value
        return message


class PlainSocket(socket.socket):
    """The client's end of a data connection.

    Attributes:
        name: the name by which the server knows the connection.
        handles: the handles that the server has assigned, by request shape.
        headers: prepared headers of repeated requests, by the request's fixed fields (``direct.prepare``).
        max_silence_s: time to wait for a reply before the client checks that the peer is alive.
    """

    def __init__(self, family: int) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self.name = new_name()
        self.handles: Handles = {}
        self.headers: dict[object, Any] = {}
        self.max_silence_s = 0.0


def connect(family: int, address: Any, timeout_s: float) -> PlainSocket:
    """Connect a socket; raises OSError.

    ``family``: AF_UNIX, or AF_UNSPEC for a host and port. All addresses of the host are tried in order.
    """
    if family == socket.AF_UNIX:
        return _connect(family, address, timeout_s)
    host, port = address
    candidates = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    first_error: OSError | None = None
    for family, *_, candidate in candidates:
        try:
            return _connect(family, candidate, timeout_s / len(candidates))
        except OSError as error:
            first_error = first_error or error
    raise first_error or OSError(f"{host} has no address")


def _connect(family: int, address: Any, timeout_s: float) -> PlainSocket:
    connection = PlainSocket(family)
    try:
        connection.settimeout(timeout_s)
        connection.connect(address)
    except BaseException:
        with suppress(OSError):
            connection.close()
        raise
    return connection


def hang_up(connection: Connection) -> None:
    """Shut a connection down; threads that wait for it wake up and close it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def close(connection: Connection) -> None:
    """Close a socket and wake the threads that wait for it."""
    hang_up(connection)
    connection.close()
