"""Ports for servers that must be told theirs."""

from __future__ import annotations

import secrets
import socket
import threading

# Below the ports that systems give to connections and to servers that ask for any (Linux: from 32768), so that nobody
# else is given one between the look at it and the server's start. Runs of the tests side by side begin apart.
PORTS = range(20_000, 32_768)

_lock = threading.Lock()
_next = secrets.choice(PORTS)


def free_port(count=1):
    """Return the first of ``count`` neighbouring ports that nobody uses at any address: others each time."""
    global _next
    with _lock:
        while True:
            first = _next if _next + count <= PORTS.stop else PORTS.start
            _next = first + count
            if all(map(_is_free, range(first, _next))):
                return first


def _is_free(port):
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def is_listening(address):
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
