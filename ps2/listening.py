"""Listening sockets, and the addresses of this host."""

from __future__ import annotations

import errno
import resource
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

import psutil

from ps2.config import LOOPBACK, is_loopback, is_wildcard

# The result of ``raise_file_limit`` if the system has no limit.
ASSUMED_FILE_LIMIT = 1 << 20


def raise_file_limit() -> int:
    """Raise this process's limit of open files and connections to the maximum, and return it.

    The default (usually 1,024) is for programs that use ``select``, which supports no more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # some systems report a limit that they do not allow
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return ASSUMED_FILE_LIMIT if soft == resource.RLIM_INFINITY else soft


def listening_socket(host: str, ports: Sequence[int], backlog: int) -> socket.socket:
    """Return a socket that listens on the first free port of ``ports``; raises OSError.

    Its accepted connections send small messages without delay (TCP_NODELAY).
    """
    family, (address, _, *rest) = resolve(host, ports[0])
    for port in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if is_wildcard(address) and family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind((address, port, *rest))
            listener.listen(backlog)
            return listener
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE or port == ports[-1]:
                raise
    raise OSError(errno.EADDRINUSE, "no port was given")


def resolve(host: str, port: int) -> tuple[int, Any]:
    """Return the family and the address to listen on; raise OSError if ``host`` has no address of this machine.

    A name stands for the first of its addresses that this machine has. ``::`` means all IPv4 and IPv6
    addresses; without IPv6, all IPv4 addresses.
    """
    if is_wildcard(host) and ":" in host and not has_ipv6():
        host = "0.0.0.0"
    first_error: OSError | None = None
    for family, *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind((address[0], 0, *address[2:]))
        except OSError as error:
            first_error = first_error or error
        else:
            return family, address
    raise first_error or OSError(f"{host} has no address")


def is_free(family: int, address: Any) -> bool:
    """Return True if no process listens on an address of this host, without disturbing processes that connect to it."""
    with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        return True
    return False


def has_ipv6() -> bool:
    """Return True if IPv6 works between processes of this host."""
    return _is_own("::1")


def loopback_host() -> str:
    """Return the address by which processes of this host reach each other."""
    return LOOPBACK if _is_own(LOOPBACK) or not has_ipv6() else "::1"


def reachable_host() -> str:
    """Return the host's name, or an address that other hosts can reach if the name has only loopback addresses.

    If the host has only loopback addresses, return one of them.
    """
    name = socket.gethostname()
    with suppress(OSError):
        hosts = [str(address[0]) for *_, address in socket.getaddrinfo(name, None)]
        if any(_is_own(host) and not is_loopback(host) for host in hosts):
            return name
    return next(_own_addresses(), loopback_host())


def _own_addresses() -> Iterator[str]:
    """Yield addresses that other hosts can probably reach, first the source addresses of outgoing connections."""
    for family, host in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # connecting a UDP socket sends nothing; any remote address serves
            yield str(probe.getsockname()[0])
    active_interfaces = {name for name, state in psutil.net_if_stats().items() if state.isup}
    for name, addresses in psutil.net_if_addrs().items():
        for entry in addresses:
            if name in active_interfaces and entry.family in (socket.AF_INET, socket.AF_INET6):
                ip = ip_address(entry.address)
                if not ip.is_loopback and not ip.is_link_local:
                    yield entry.address


def _is_own(address: str) -> bool:
    """Return True if an address belongs to this host."""
    with suppress(OSError), socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return True
    return False
