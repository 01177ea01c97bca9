"""Hosts of their own on one machine: network namespaces, each with a link of a given rate to one switch; needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

NEEDED = "ip", "tc"
# What a link lets through at once before its rate counts, and how long it lets a packet wait.
BURST, WAIT = "256kb", "50ms"
SUBNET = "10.77.0"


class NoNamespacesError(Exception):
    """This machine, or this user, cannot have them."""


@dataclass(frozen=True)
class Host:
    """One namespace.

    Attributes:
        name: of the namespace.
        address: in the network of all hosts.
    """

    name: str
    address: str

    def command(self, *arguments: str) -> list[str]:
        """Return a command line that runs there."""
        return ["ip", "netns", "exec", self.name, *arguments]


@contextmanager
def hosts(count: int, rate: str) -> Iterator[list[Host]]:
    """Make hosts; all go with the end of the context.

    Args:
        rate: of each one's link, either way, as ``tc`` writes it: "1gbit".

    Raises:
        NoNamespacesError: they cannot be made.
    """
    if os.geteuid():
        raise NoNamespacesError("network namespaces need root")
    prefix = f"ps2-{os.getpid()}"
    with ExitStack() as made:
        switch = _made(made, f"{prefix}-switch")
        _run(*_in(switch), "ip", "link", "add", "bridge", "type", "bridge")
        _run(*_in(switch), "ip", "link", "set", "bridge", "up")
        found = []
        for number in range(count):
            host = Host(_made(made, f"{prefix}-{number}"), f"{SUBNET}.{number + 1}")
            _link(switch, host, f"port{number}", rate)
            found.append(host)
        yield found


def _made(made: ExitStack, name: str) -> str:
    _run("ip", "netns", "add", name)
    made.callback(partial(_run, "ip", "netns", "delete", name))
    _run(*_in(name), "ip", "link", "set", "lo", "up")
    return name


def _link(switch: str, host: Host, port: str, rate: str) -> None:
    _run("ip", "link", "add", port, "netns", switch, "type", "veth", "peer", "name", "eth0", "netns", host.name)
    _run(*_in(switch), "ip", "link", "set", port, "master", "bridge", "up")
    _run(*_in(host.name), "ip", "address", "add", f"{host.address}/24", "dev", "eth0")
    _run(*_in(host.name), "ip", "link", "set", "eth0", "up")
    shaped = ("root", "tbf", "rate", rate, "burst", BURST, "latency", WAIT)
    for namespace, device in ((switch, port), (host.name, "eth0")):
        _run(*_in(namespace), "tc", "qdisc", "add", "dev", device, *shaped)


def _in(name: str) -> Sequence[str]:
    return "ip", "netns", "exec", name


def _run(*arguments: str) -> None:
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise NoNamespacesError(f"{' and '.join(NEEDED)} (iproute2) are needed: {error}") from error
    if done.returncode:
        raise NoNamespacesError(f"{' '.join(arguments)}: {done.stderr.strip()}")
