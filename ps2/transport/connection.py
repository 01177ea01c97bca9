"""The interface of data connections, plain and with TLS; detection of dead connections and of unreachable peers.

Each end counts the bytes of the connection. A comparison of the counts reveals a firewall that has dropped the
connection, and a proxy that accepts everything and forwards nothing. See docs/decisions/0032.
"""

from __future__ import annotations

import fcntl
import secrets
import socket
import struct
import termios
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ps2.config import is_loopback, split_address
from ps2.errors import UnreachableError


class Connection(Protocol):
    """The calls of ``socket.socket`` that this package uses, with their flags."""

    @property
    def family(self) -> int: ...

    def sendmsg(
        self, views: Sequence[memoryview], ancillary: Sequence[tuple[int, int, bytes]] = ..., flags: int = ..., /
    ) -> int: ...

    def recv(self, size: int, flags: int = ..., /) -> bytes: ...

    def recv_into(self, view: memoryview, size: int = ..., flags: int = ..., /) -> int: ...

    def settimeout(self, timeout_s: float | None, /) -> None: ...

    def setsockopt(self, level: int, name: int, value: int | bytes, /) -> None: ...

    def getsockopt(self, level: int, name: int, size: int, /) -> bytes: ...

    def fileno(self) -> int: ...

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...


# Length of a connection's name.
NAME_BYTES = 16
# Linux's ``struct tcp_info``: its size, and the offsets of unacknowledged packets and of acknowledged, received and
# unsent bytes.
INFO_BYTES = 232
UNACKED_OFFSET, ACKED_OFFSET, RECEIVED_OFFSET, UNSENT_OFFSET = 24, 120, 128, 144
# The kernel also counts the SYN as a byte that the connecting end has sent.
CONNECT_BYTES = 1


def new_name() -> bytes:
    """Return a new name for a connection, by which a client asks the server about it."""
    return secrets.token_bytes(NAME_BYTES)


@dataclass(frozen=True)
class ByteCounts:
    """The bytes that one end of a connection has sent and received since the connection was opened.

    ``sent`` includes bytes in the send buffer. ``received`` includes the ``unread`` bytes in the receive buffer.
    """

    sent: int
    received: int
    unread: int


@dataclass(frozen=True)
class ConnectionCounts:
    """The byte counts of both ends at about the same time: first of the ``remote`` end, then of the ``local`` end."""

    local: ByteCounts
    remote: ByteCounts


def is_stalled(before: ConnectionCounts, now: ConnectionCounts) -> bool:
    """Return True if no byte that was in flight ``before`` has arrived ``now``, although the receiver reads."""
    remote, local = now.remote, now.local
    is_sending_stuck = remote.received == before.remote.received < before.local.sent and not remote.unread
    is_receiving_stuck = local.received == before.local.received < before.remote.sent and not local.unread
    return is_sending_stuck or is_receiving_stuck


def byte_counts(connection: Connection, is_client: bool) -> ByteCounts | None:
    """Return the byte counts of this end of a connection; None for a Unix socket, or if the system does not count.

    ``is_client``: True if this end opened the connection, False if it accepted the connection.
    """
    info = _info(connection)
    if info is None:
        return None
    acked, received = struct.unpack_from("=QQ", info, ACKED_OFFSET)
    unsent, unread = (
        int(struct.unpack("=i", fcntl.ioctl(connection.fileno(), request, bytes(4)))[0])
        for request in (termios.TIOCOUTQ, termios.FIONREAD)
    )
    return ByteCounts(acked + unsent - is_client * CONNECT_BYTES, received, unread)


def is_peer_buffer_full(connection: Connection) -> bool:
    """Return True if data wait to be sent although the peer is reachable: its receive buffer is full."""
    info = _info(connection)
    if info is None:
        return False
    (unacked,), (unsent,) = (struct.unpack_from("=I", info, offset) for offset in (UNACKED_OFFSET, UNSENT_OFFSET))
    return not unacked and unsent > 0


def _info(connection: Connection) -> bytes | None:
    if connection.family == socket.AF_UNIX or not hasattr(socket, "TCP_INFO"):
        return None
    info: bytes = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
    return info if len(info) >= UNSENT_OFFSET + 4 else None


def unreachable_error(peer: str, address: str, reason: object) -> UnreachableError:
    """Return an error that names the peer, such as "a server", this host and the settings to check."""
    host, _ = split_address(address)
    if is_loopback(host):
        hint = (
            f"{host} always means the host itself, so other hosts cannot reach it: give the driver an address that "
            "this host reaches, by PS2Context.getOrCreate(driverHost=...), PS2Conf(bindAddress=...) or "
            "spark.driver.host, and servers that are started separately by ps2 server --listen or ps2 launch --host"
        )
    else:
        hint = (
            f"{host} must be a name or address by which this host reaches that machine "
            "(PS2Context.getOrCreate(driverHost=...) or PS2Conf(advertiseAddress=...); --advertise of servers that are "
            "started separately), and firewalls must allow the port (PS2Conf(ports='40000-40020') of the driver, "
            "--data-port of servers)"
        )
    return UnreachableError(f"{peer} at {address} was never reached from {socket.gethostname()}: {reason}; {hint}")
