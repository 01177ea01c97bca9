"""Answers Prometheus scrapes and readiness probes over HTTP. See docs/metrics.md."""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.registry import Collector

from ps2.config import join_address, ports_text
from ps2.errors import LaunchError
from ps2.listening import listening_socket
from ps2.transport.sockets import hang_up

# The default scrape timeout of Prometheus.
SCRAPE_TIMEOUT_S = 10.0
# Maximum number of connections; a further connection ends the oldest.
MAX_SCRAPES = 32
# Pause after ``accept`` has failed.
PAUSE_S = 0.1
# Connections that the kernel queues for ``accept``.
BACKLOG = 32
# Path of readiness probes, such as a kubelet's.
READY_PATH = "/ready"
SCRAPED_PATHS = ("/", "/metrics")
NOT_READY = b"no driver has given this server its shards yet\n"


class Exposition:
    """An HTTP server for scrapes and for probes of ``/ready``; ``address`` is its host and port."""

    def __init__(
        self,
        collector: Collector,
        listen: tuple[str, range],
        setting: str,
        ready: Callable[[], bool] = lambda: True,
        timeout_s: float = SCRAPE_TIMEOUT_S,
    ) -> None:
        """Bind to the first free port (0: any) and start.

        ``setting``: the user's name of the setting ``listen``, for error messages. ``ready`` returns True when clients
        can use their shards on this server. A connection lasts at most ``timeout_s``.
        """
        registry = CollectorRegistry()
        registry.register(collector)
        ProcessCollector(registry=registry)
        host, ports = listen
        try:
            self._server = _HttpServer(listening_socket(host, ports, BACKLOG), timeout_s)
        except OSError as error:
            raise LaunchError(
                f"cannot serve metrics on port {ports_text(ports)} of {host} ({setting}): {error}"
            ) from error
        self._server.set_app(_with_ready(make_wsgi_app(registry), ready))
        self._thread = threading.Thread(target=self._server.serve_forever, name="ps2-metrics", daemon=True)
        self._thread.start()
        self.address = join_address(host, self._server.server_port)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _HttpServer(socketserver.ThreadingMixIn, WSGIServer):
    """One thread per connection. Any peer may connect, so the number and the duration of connections are bounded."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._deadlines_s: dict[socket.socket, float] = {}  # oldest first
        address = listener.getsockname()[:2]
        super().__init__(address, _SilentHandler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.server_address = listener, address
        # ``server_bind`` would look up this host's name, which can take seconds.
        self.server_name, self.server_port = address
        self.setup_environ()

    def get_request(self) -> Any:
        """Accept a connection; pause after a failure, as file descriptors may have run out."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._deadlines_s[request] = time.monotonic() + self._timeout_s
            oldest = next(iter(self._deadlines_s)) if len(self._deadlines_s) > MAX_SCRAPES else None
        if oldest is not None:
            self._hang_up(oldest)
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End connections that last too long; ``serve_forever`` calls this method twice a second."""
        now_s = time.monotonic()
        with self._lock:
            overdue = [request for request, deadline_s in self._deadlines_s.items() if deadline_s < now_s]
        for request in overdue:
            self._hang_up(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._deadlines_s.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of clients that disconnected, or whose connection was ended."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def _hang_up(self, request: socket.socket) -> None:
        with self._lock:
            self._deadlines_s.pop(request, None)
        hang_up(request)


class _SilentHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Do not log scrapes."""


def _with_ready(scrape: Callable[..., Any], ready: Callable[[], bool]) -> Callable[..., Any]:
    """Return a WSGI application that answers readiness probes, and passes requests for metrics to ``scrape``."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        path = environ.get("PATH_INFO")
        if path in SCRAPED_PATHS:
            return scrape(environ, start_response)
        if path != READY_PATH:  # a probe of another path, such as /readyz, must not succeed
            status, text = "404 Not Found", b"expected /metrics or /ready\n"
        else:
            status, text = ("200 OK", b"ready\n") if ready() else ("503 Service Unavailable", NOT_READY)
        start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(text)))])
        return [text]

    return answer
