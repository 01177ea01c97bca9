"""The error for a peer that this process has never reached."""

from __future__ import annotations

import socket

from ps2.config import is_loopback, split_address
from ps2.errors import UnreachableError


def unreachable(what: str, address: str, why: object) -> UnreachableError:
    """Return an error that names the peer, this host and the settings to check.

    Args:
        what: the process that should listen at the address.
        address: ``host:port``.
        why: why the attempt failed.
    """
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
    return UnreachableError(f"{what} at {address} was never reached from {socket.gethostname()}: {why}; {hint}")
