"""Hosts of their own on one machine: network namespaces, each with a link of a given rate to one switch; needs root."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.frame import SkippedError
from ps2.config import new_token, write_token

NEEDED = "ip", "tc"
# What a link lets through at once before its rate counts, and how long it lets a packet wait.
BURST, WAIT = "256kb", "50ms"
SUBNET = "10.77.0"
PORT = 7070
FOLDER = Path("/var/run/netns")
# Of setns(2).
CLONE_NEWNET = 0x40000000


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
        SkippedError: they cannot be made.
    """
    if os.geteuid():
        raise SkippedError("network namespaces need root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # hosts go then, too
    prefix = f"ps2-{os.getpid()}"
    with ExitStack() as created:
        switch = _made(created, f"{prefix}-switch")
        _run(*_in(switch), "ip", "link", "add", "bridge", "type", "bridge")
        _run(*_in(switch), "ip", "link", "set", "bridge", "up")
        result = []
        for number in range(count):
            host = Host(_made(created, f"{prefix}-{number}"), f"{SUBNET}.{number + 1}")
            _link(switch, host, f"port{number}", rate)
            result.append(host)
        yield result


@contextmanager
def served(machines: Sequence[Host]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Run a server for each item, a host; yield their addresses, and the file of their token."""
    with ExitStack() as ending, tempfile.TemporaryDirectory() as folder:
        token_file = Path(folder) / "token"
        write_token(token_file, new_token())
        program = str(Path(sys.executable).with_name("ps2"))
        addresses = tuple(f"{host.address}:{PORT + number}" for number, host in enumerate(machines))
        for host, listen in zip(machines, addresses, strict=True):
            server = subprocess.Popen(
                host.command(program, "server", "--listen", listen, "--token-file", str(token_file))
            )
            ending.callback(server.wait)
            ending.callback(server.terminate)
        yield addresses, str(token_file)


def enter_free(names: Sequence[str]) -> socket.socket:
    """Move this process, which must have one thread, to the first of some hosts that no other process has moved to.

    Returns:
        What keeps others away from the host until it is closed: names of abstract sockets are unique in a namespace.

    Raises:
        SkippedError: all hosts are taken, or cannot be entered.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for name in names:
        with (FOLDER / name).open() as namespace:
            if libc.setns(namespace.fileno(), CLONE_NEWNET):
                raise SkippedError(f"{name}: {os.strerror(ctypes.get_errno())}")
        taken = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            taken.bind("\0ps2-worker")
        except OSError:
            taken.close()
        else:
            return taken
    raise SkippedError(f"all {len(names)} hosts of workers are taken")


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
        finished = subprocess.run(arguments, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise SkippedError(f"{' and '.join(NEEDED)} (iproute2) are needed: {error}") from error
    if finished.returncode:
        raise SkippedError(f"{' '.join(arguments)}: {finished.stderr.strip()}")
