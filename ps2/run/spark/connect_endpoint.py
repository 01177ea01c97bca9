"""Whether a Spark Connect server is there: its client would repeat calls to one that is not for ten minutes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ps2.config import split_address
from ps2.errors import ConfigError, StoppedError

CONNECT_S = 2.0
# How often the server is looked for while a call is under way.
WATCH_S = 1.0


def is_reachable(endpoint: str) -> bool:
    """Return whether the server takes connections; True for an endpoint that is no host and port."""
    try:
        address = split_address(endpoint, "remote")
    except ConfigError:
        return True
    with suppress(OSError), socket.create_connection(address, CONNECT_S):
        return True
    return False


def local_address(endpoint: str) -> str:
    """Return the address from which this host reaches the server."""
    try:
        with socket.create_connection(split_address(endpoint, "remote"), CONNECT_S) as connection:
            return str(connection.getsockname()[0])
    except (ConfigError, OSError):
        return "localhost"


class CallWatch:
    """Checks that the server is there while calls are under way."""

    def __init__(self, check: Callable[[], None]) -> None:
        """check: raises StoppedError if the server is lost; it has ended the calls then."""
        self._check = check
        self._lock = threading.Lock()
        self._calls = 0
        self._done = threading.Event()

    @contextmanager
    def on(self) -> Iterator[None]:
        """Check until the block ends."""
        with self._lock:
            self._calls += 1
            if self._calls == 1:
                self._done = threading.Event()
                threading.Thread(target=self._run, args=(self._done,), name="ps2-connect", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                if self._calls == 0:
                    self._done.set()

    def _run(self, done: threading.Event) -> None:
        with suppress(StoppedError):
            while not done.wait(WATCH_S):
                self._check()
