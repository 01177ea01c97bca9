"""What both ends of a data connection do with their sockets."""

from __future__ import annotations

import errno
import resource
import socket
import struct
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, TypeVar

import psutil

from ps2.config import LOOPBACK, WireConfig, is_loopback, is_wildcard
from ps2.interrupts import POLL_S, SHIELD, check
from ps2.protocol.binary import Handles
from ps2.transport.liveness import new_name

if TYPE_CHECKING:
    from ps2.transport.tls_connection import Connection

# Buffers of one sendmsg call (IOV_MAX is 1024).
MAX_VIEWS = 512
UNIX_BUFFER_BYTES = 1 << 20
# Where there is no limit.
MANY_FILES = 1 << 20
# 0 would mean not to wait at all.
MIN_TIMEOUT_S = 0.001

KEEPALIVE_PROBES = 3

T = TypeVar("T")


def open_files() -> int:
    """Return how many files and connections this process may have open: as many as the system lets it have at all.

    What a shell begins with (1,024 mostly) is for programs that know of no more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # some systems have a limit that no process may have
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return MANY_FILES if soft == resource.RLIM_INFINITY else soft


def tune(connection: socket.socket, wire: WireConfig) -> None:
    """Set what both ends of a data connection want of it."""
    if connection.family == socket.AF_UNIX:
        # With what the system gives, a block takes twenty turns of writer and reader.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_BUFFER_BYTES)
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # A peer whose system acknowledges nothing for ``keepalive_s``, neither data nor probes, is gone.
    interval_s = max(1, int(wire.keepalive_s / (2 * KEEPALIVE_PROBES)))
    for name, value in (
        ("TCP_KEEPIDLE", max(1, int(wire.keepalive_s / 2))),
        ("TCP_KEEPINTVL", interval_s),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    give_up_unanswered(connection, wire.keepalive_s)


def give_up_unanswered(connection: Connection, after_s: float) -> None:
    """Have the system end a connection when what was sent is not acknowledged for so long; 0: as long as it likes.

    It also ends one then whose peer acknowledges, and has no room for more.
    """
    if connection.family != socket.AF_UNIX and hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * after_s))


def abstract(name: str) -> str:
    """Return the address of a Unix socket in the abstract namespace: no file, and gone with its process."""
    return f"\0ps2/{name}"


def wait_at_most(connection: Connection, timeout_s: float) -> None:
    """Let reading that waits raise BlockingIOError, or return what has come, after so long."""
    whole_s = int(timeout_s)
    timeval = struct.pack("@ll", whole_s, int(1e6 * (timeout_s - whole_s)))
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)


def wait_until(connection: Connection, deadline_s: float) -> None:
    """Let the next call wait until then; in the main thread only for a moment, as signals' handlers wait, too."""
    left_s = max(MIN_TIMEOUT_S, deadline_s - time.monotonic())
    connection.settimeout(min(left_s, POLL_S) if SHIELD.is_up else left_s)


def send_some(connection: Connection, views: list[memoryview], flags: int = 0) -> None:
    """Send what the socket takes of views of memory, without joining them first, and drop it from the list."""
    sent = connection.sendmsg(views[:MAX_VIEWS], (), flags)
    while views and sent >= len(views[0]):
        sent -= len(views.pop(0))
    if sent:
        views[0] = views[0][sent:]


def send_all(connection: Connection, views: list[memoryview]) -> None:
    """Send views of memory one after the other; the socket blocks."""
    while views:
        send_some(connection, views)


def receive(connection: Connection, reading: Generator[memoryview, None, T], deadline_s: float | None = None) -> T:
    """Read one message; the socket blocks.

    Args:
        reading: of ``framing``.
        deadline_s: by which all of it is to have come, however it comes; leaves a timeout at the socket.

    Raises:
        EOFError: the peer has closed the connection before it.
        OSError: the connection broke within it, or it was not there by the deadline.
    """
    begun = False
    try:
        view = next(reading)
        while True:
            while len(view):
                if deadline_s is not None:
                    wait_until(connection, deadline_s)
                try:
                    got = connection.recv_into(view, 0, socket.MSG_WAITALL)
                except TimeoutError:
                    check()
                    if deadline_s is None or time.monotonic() > deadline_s:
                        raise
                    continue
                if not got and not begun:
                    raise EOFError
                if not got:
                    raise ConnectionResetError(0, "the peer closed the connection within a message")
                begun = True
                view = view[got:]
            view = next(reading)
    except StopIteration as done:
        message: T = done.value
        return message


class PlainSocket(socket.socket):
    """The client's end of a data connection.

    Attributes:
        name: that the server knows it by.
        handles: that the server has given on it.
        forms: of requests that are written on it again and again (``quick``).
        patience_s: how long a reply may take until the peer is asked whether it is there.
    """

    def __init__(self, family: int) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self.name = new_name()
        self.handles: Handles = {}
        self.forms: dict[object, Any] = {}
        self.patience_s = 0.0


def connect(family: int, address: Any, timeout_s: float) -> PlainSocket:
    """Connect a socket; raises OSError.

    Args:
        family: AF_UNIX; else ``address`` is a host and a port, and all addresses of the host are tried, for so long
            together.
    """
    if family == socket.AF_UNIX:
        return _connect(family, address, timeout_s)
    host, port = address
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    last: OSError | None = None
    for family, *_, place in found:
        try:
            return _connect(family, place, timeout_s / len(found))
        except OSError as error:
            last = last or error
    raise last or OSError(f"{host} has no address")


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


def listening_socket(host: str, ports: Sequence[int], backlog: int) -> socket.socket:
    """Return a socket that listens on the first of the ports that is free; raises OSError."""
    family, (place, _, *rest) = resolve(host, ports[0])
    for port in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if is_wildcard(place) and family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind((place, port, *rest))
            listener.listen(backlog)
            return listener
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE or port == ports[-1]:
                raise
    raise OSError(errno.EADDRINUSE, "no port was given")


def resolve(host: str, port: int) -> tuple[int, Any]:
    """Return family and address to listen at: of a name, the first address that is one of this host; raises OSError.

    ``::`` stands for all addresses of both families, on a host without IPv6 for those of IPv4.
    """
    if is_wildcard(host) and ":" in host and not has_ipv6():
        host = "0.0.0.0"
    first: OSError | None = None
    for family, *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind((address[0], 0, *address[2:]))
        except OSError as error:
            first = first or error
        else:
            return family, address
    raise first or OSError(f"{host} has no address")


def is_free(family: int, address: Any) -> bool:
    """Tell whether nobody listens at an address of this host; who tries to at this moment is not disturbed."""
    with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        return True
    return False


def has_ipv6() -> bool:
    """Tell whether processes of this host can meet over IPv6."""
    return _is_own("::1")


def loopback_host() -> str:
    """Return the address by which a process of this host reaches another."""
    return LOOPBACK if _is_own(LOOPBACK) or not has_ipv6() else "::1"


def reachable_host() -> str:
    """Return what other hosts can reach this one by: its name, if that stands for more than loopback, or an address.

    A host that nothing but loopback leads to has no other.
    """
    name = socket.gethostname()
    with suppress(OSError):
        if any(
            _is_own(str(place[0])) and not is_loopback(str(place[0])) for *_, place in socket.getaddrinfo(name, None)
        ):
            return name
    return next(_own_addresses(), loopback_host())


def _own_addresses() -> Iterator[str]:
    """Yield addresses of this host that others may reach, first those from which it reaches others."""
    for family, elsewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))  # nothing is sent
            yield str(probe.getsockname()[0])
    is_up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    for name, found in psutil.net_if_addrs().items():
        for each in found:
            if name in is_up and each.family in (socket.AF_INET, socket.AF_INET6):
                address = ip_address(each.address)
                if not address.is_loopback and not address.is_link_local:
                    yield each.address


def _is_own(address: str) -> bool:
    """Tell whether an address is one of this host's."""
    with suppress(OSError), socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return True
    return False


def hang_up(connection: Connection) -> None:
    """End a connection for whoever waits on it; they close it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def close(connection: Connection) -> None:
    """Close a socket, waking whoever waits on it."""
    hang_up(connection)
    connection.close()
