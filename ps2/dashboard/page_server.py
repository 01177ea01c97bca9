"""The server of the live page: its socket and thread. The HTTP server is imported at the first request."""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from ps2.config import is_loopback, is_wildcard, join_address
from ps2.dashboard.browser_sessions import BrowserSessions
from ps2.dashboard.publisher import SnapshotPublisher
from ps2.errors import LaunchError
from ps2.listening import listening_socket

if TYPE_CHECKING:
    from ps2.http_server import HttpServer

log = logging.getLogger(__name__)

DEFAULT_LISTEN = "127.0.0.1:4070-4169"
# The maximum number of connections that the operating system queues.
BACKLOG = 128
# The maximum number of connections, including open streams.
MAX_CONNECTIONS = 400
# The maximum time that ``stop`` waits for the thread.
STOP_TIMEOUT_S = 5.0


class PageServer:
    """Serves the live page on this host.

    Attributes:
        port: the port on which the page listens.
    """

    def __init__(
        self,
        snapshot: Callable[[], bytes],
        vectors: Callable[[int, str], bytes],
        sessions: BrowserSessions,
        listen: tuple[str, range],
    ) -> None:
        """Start to listen, and answer requests in a thread.

        Args:
            snapshot: function that returns the newest snapshot as JSON; called once a second while there are viewers.
            vectors: function that returns a page of the table of vectors as JSON, given (first index, search text).
            sessions: checks tokens and cookies.
            listen: host and ports. The server listens on the first free port, or on any port if none is free.

        Raises:
            LaunchError: the host is not an address of this machine.
        """
        self._sessions = sessions
        self._vectors = vectors
        self._publisher = SnapshotPublisher(snapshot)
        self._host, self._ports = listen
        self._listener = _listener(self._host, self._ports)
        self.port: int = self._listener.getsockname()[1]
        self._server: HttpServer | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        # A byte in this pair of sockets ends a thread that waits for the first connection.
        self._stop_writer, self._stop_reader = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="ps2-dashboard", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """A link to the page, for one browser."""
        return f"http://{self.address}/?token={self._sessions.token}"

    @property
    def description(self) -> str:
        """The message that the driver prints, with the page's link."""
        first = self._ports[0]
        port_warning = "" if first in (self.port, 0) else f" (port {first} is in use)"
        warning = "" if is_loopback(self._host) else "; its data are not encrypted"
        return f"live page at {self.url}{port_warning}{warning}"

    @property
    def address(self) -> str:
        """The page's ``host:port``."""
        host = socket.gethostname() if is_wildcard(self._host) else self._host
        return join_address(host, self.port)

    def stop(self) -> None:
        """End all streams and the thread, and close the port."""
        with self._lock:
            self._stopping.set()
            if self._server is not None:
                self._server.should_exit = True
        self._publisher.close()
        with contextlib.suppress(OSError):
            self._stop_writer.send(b"x")
        self._thread.join(STOP_TIMEOUT_S)
        for open_socket in (self._stop_writer, self._stop_reader, self._listener):
            open_socket.close()

    def _run(self) -> None:
        """Wait for the first connection, and then run the HTTP server."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._stop_reader, selectors.EVENT_READ)
            selector.select()
        if self._stopping.is_set():
            return
        try:
            import uvicorn

            from ps2.dashboard.http import PageResources, application
            from ps2.http_server import HttpServer
        except ImportError as error:
            log.warning("the live page needs starlette and uvicorn: %s", error)
            return
        hostnames = () if is_loopback(self._host) else (socket.gethostname().lower(),)
        hosts = frozenset({"localhost", self._host.lower(), *hostnames})
        site = PageResources(self._publisher, self._sessions, self._vectors, hosts, self.port)
        config = uvicorn.Config(
            application(site),
            log_config=None,  # do not change the program's logging
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        with self._lock:
            if self._stopping.is_set():
                return
            self._server = HttpServer(config, MAX_CONNECTIONS)
        self._server.run(sockets=[self._listener])


def _listener(host: str, ports: range) -> socket.socket:
    try:
        return listening_socket(host, [*ports, 0], BACKLOG)
    except OSError as error:
        raise LaunchError(f"the live page cannot listen at {host}: {error}") from error
