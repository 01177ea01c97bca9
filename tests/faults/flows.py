"""Connections that are dropped silently: what is sent on them vanishes, as at a firewall that has forgotten them."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

SYS_PIDFD_GETFD = 438
SO_ATTACH_FILTER = 26
# A program for packets that lets none pass: one instruction, "return 0 bytes".
NOTHING = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))


def drop(*pids: int, port: int | None = None, most: int = 1 << 20) -> int:
    """Let nothing arrive any more on the TCP connections that processes have with each other now; new ones are as ever.

    Neither end is told. Connections with others, such as a driver's with its JVM, stay. Needs root, or processes of
    one's own that may be traced.

    Args:
        port: of those connections only that have it at one of their ends.
        most: at so many of their ends; the other ends get what is sent to them.

    Returns:
        How many ends of connections that was.
    """
    own = {end.getsockname() for pid in pids for end in _ends(pid)}
    ends = (end for pid in pids for end in _ends(pid) if end.getpeername() in own)
    return sum(_drop(end) for end in islice((end for end in ends if port is None or port in _ports(end)), most))


def _drop(end: socket.socket) -> bool:
    end.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(NOTHING)))
    return True


def _ports(end: socket.socket) -> tuple[int, int]:
    return end.getsockname()[1], end.getpeername()[1]


def _ends(pid: int) -> Iterator[socket.socket]:
    """Yield the connected TCP sockets of a process."""
    pidfd = os.pidfd_open(pid)
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # it is closed, or none of those
                if not os.readlink(link).startswith("socket:"):
                    continue
                with socket.socket(fileno=_fetched(pidfd, int(link.name))) as end:
                    if end.family in (socket.AF_INET, socket.AF_INET6) and end.type == socket.SOCK_STREAM:
                        end.getpeername()
                        yield end
    finally:
        os.close(pidfd)


def _fetched(pidfd: int, descriptor: int) -> int:
    """Return a duplicate of another process's descriptor; raises OSError."""
    result = ctypes.CDLL(None, use_errno=True).syscall(SYS_PIDFD_GETFD, pidfd, descriptor, 0)
    if result < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return int(result)
