"""Checks that a Spark Connect server is reachable. Spark's client would retry calls to a lost one for ten minutes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ps2.config import split_address
from ps2.errors import ConfigError, StoppedError

CONNECT_S = 2.0
# The interval between two checks of the server during a call.
WATCH_S = 1.0


def is_reachable(endpoint: str) -> bool:
    """Return whether the server accepts connections; True for an endpoint that is not HOST:PORT."""
    try:
        address = split_address(endpoint, "remote")
    except ConfigError:
        return True
    with suppress(OSError), socket.create_connection(address, CONNECT_S):
        return True
    return False


def local_address(endpoint: str) -> str:
    """Return the local address of a connection from this host to the server; "localhost" if it is unknown."""
    try:
        with socket.create_connection(split_address(endpoint, "remote"), CONNECT_S) as connection:
            return str(connection.getsockname()[0])
    except (ConfigError, OSError):
        return "localhost"


class CallWatch:
    """Checks in a thread, while calls run, that the server is reachable."""

    def __init__(self, check: Callable[[], None]) -> None:
        """If the server is lost, ``check`` has to end all calls and raise StoppedError."""
        self._check = check
        self._lock = threading.Lock()
        self._calls = 0
        self._stopped = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Check the server every ``WATCH_S`` until the with-block ends."""
        with self._lock:
            self._calls += 1
            if self._calls == 1:
                self._stopped = threading.Event()
                threading.Thread(target=self._run, args=(self._stopped,), name="ps2-connect", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                if self._calls == 0:
                    self._stopped.set()

    def _run(self, stopped: threading.Event) -> None:
        with suppress(StoppedError):
            while not stopped.wait(WATCH_S):
                self._check()
