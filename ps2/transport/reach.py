"""What a process of a cluster says when it has never reached what it is to connect to."""

from __future__ import annotations

import socket

from ps2.config import is_loopback, split_address
from ps2.errors import UnreachableError


def unreachable(what: str, address: str, why: object) -> UnreachableError:
    """Return the error that names what was not reached, from where, and the settings that decide about it.

    Args:
        what: listens there.
        why: the attempt failed.
    """
    host, _ = split_address(address)
    if is_loopback(host):
        hint = (
            f"{host} is each host itself, so nothing on another one is reached by it: give PS2Context.getOrCreate a "
            "bindAddress (host of the driver's machine to listen at) that this host reaches, or let it be Spark's own "
            "(spark.driver.host); servers that run already: ps2 server --listen, ps2 launch --host"
        )
    else:
        hint = (
            f"{host} has to be what this host knows that machine by (advertiseAddress, or --advertise of servers that "
            "run already), and a firewall has to let the port through (ports='40000-40020' of the driver, --data-port)"
        )
    return UnreachableError(f"{what} at {address} was never reached from {socket.gethostname()}: {why}; {hint}")
