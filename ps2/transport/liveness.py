"""Whether a connection still carries what is sent on it, told apart from a peer that takes its time.

Both ends count the bytes of the connection, whatever lies between them: a firewall that has forgotten it, or a proxy
that takes everything and passes nothing on. How the counts move says which of the two is the case; see decision 32.
"""

from __future__ import annotations

import fcntl
import secrets
import socket
import struct
import termios
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ps2.transport.tls_connection import Connection

NAME_BYTES = 16
# Linux's ``struct tcp_info``: packets that are not acknowledged, bytes that were, bytes received, bytes not yet sent.
INFO_BYTES = 232
UNACKED_AT, ACKED_AT, RECEIVED_AT, UNSENT_AT = 24, 120, 128, 144
# Whoever connects has sent the byte that stands for "connect", too.
CONNECT_BYTES = 1


def new_name() -> bytes:
    """Return what a client calls a connection when it asks the server about it."""
    return secrets.token_bytes(NAME_BYTES)


@dataclass(frozen=True)
class Carried:
    """What one end of a connection has sent and received since its beginning, in bytes.

    Attributes:
        sent: what waits to be sent counts.
        received: what has not been read counts.
        unread: of that.
    """

    sent: int
    received: int
    unread: int


@dataclass(frozen=True)
class Look:
    """What both ends had counted at one moment; ``there`` was asked before ``here``."""

    here: Carried
    there: Carried


def carries_nothing(before: Look, now: Look) -> bool:
    """Tell whether something that was on its way at an earlier look has not moved since, though its receiver would
    have read it."""
    there, here = now.there, now.here
    is_sent_in_vain = there.received == before.there.received < before.here.sent and not there.unread
    is_awaited_in_vain = here.received == before.here.received < before.there.sent and not here.unread
    return is_sent_in_vain or is_awaited_in_vain


def carried(connection: Connection, connected: bool) -> Carried | None:
    """Count what a connection has carried; None where the system does not say, and between processes of one host.

    Args:
        connected: this end has connected; else it has accepted.

    Raises:
        OSError: it is closed.
    """
    info = _info(connection)
    if info is None:
        return None
    acked, received = struct.unpack_from("=QQ", info, ACKED_AT)
    waiting, unread = (_asked(connection, which) for which in (termios.TIOCOUTQ, termios.FIONREAD))
    return Carried(acked + waiting - connected * CONNECT_BYTES, received, unread)


def is_held_back(connection: Connection) -> bool:
    """Tell whether there is something to send and the peer's system, which is there, takes none of it for now."""
    info = _info(connection)
    if info is None:
        return False
    (unacked,), (unsent,) = (struct.unpack_from("=I", info, at) for at in (UNACKED_AT, UNSENT_AT))
    return not unacked and unsent > 0


def _info(connection: Connection) -> bytes | None:
    if connection.family == socket.AF_UNIX or not hasattr(socket, "TCP_INFO"):
        return None
    info: bytes = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
    return info if len(info) >= UNSENT_AT + 4 else None


def _asked(connection: Connection, which: int) -> int:
    return int(struct.unpack("=i", fcntl.ioctl(connection.fileno(), which, bytes(4)))[0])
