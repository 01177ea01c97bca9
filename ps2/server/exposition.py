"""A server's metrics for Prometheus, with its naming conventions and base units. See docs/metrics.md."""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ps2.config import join_address
from ps2.errors import LaunchError
from ps2.rpc.server_status import OperationStatus, ServerStatus, metrics_of
from ps2.server.metrics import BUCKETS_S
from ps2.transport.sockets import hang_up, listening_socket

# The default scrape timeout of Prometheus.
SCRAPE_TIMEOUT_S = 10.0
MAX_SCRAPES = 32
PAUSE_S = 0.1
BACKLOG = 32
# Path of readiness probes, such as a kubelet's.
READY_PATH = "/ready"
NOT_READY = b"no driver has given this server its shards yet\n"

FAMILIES: Mapping[str, Callable[..., Metric]] = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
LIMITS = [*map(floatToGoString, BUCKETS_S), "+Inf"]


class ServerCollector(Collector):
    """Reads the status of one server at each scrape."""

    def __init__(self, read: Callable[[], ServerStatus], info: dict[str, str]) -> None:
        """Collect what ``read`` returns; ``info`` holds the labels of ``ps2_server_info``."""
        self._read = read
        self._info = info

    def collect(self) -> Iterator[Metric]:
        status = self._read()
        yield InfoMetricFamily("ps2_server", "Which server this is", value=self._info)
        requests = CounterMetricFamily("ps2_requests", "Data requests answered", labels=["outcome"])
        for outcome, count in sorted(status.outcomes.items()):
            requests.add_metric([outcome], count)
        yield requests
        for metric, value in metrics_of(status):
            yield FAMILIES[metric.kind](metric.name, metric.help, value=value)
        yield from _operations(status.operations)


class Exposition:
    """An HTTP server for scrapes and for probes of ``/ready``; ``address`` is its host and port."""

    def __init__(
        self,
        collector: Collector,
        host: str,
        port: int,
        ready: Callable[[], bool],
        timeout_s: float = SCRAPE_TIMEOUT_S,
    ) -> None:
        """Bind and start.

        Args:
            ready: returns True once clients find their shards on this server.
            timeout_s: longest time for one connection, from its beginning to its end.

        Raises:
            LaunchError: the port is taken, or the host is not this machine's.
        """
        registry = CollectorRegistry()
        registry.register(collector)
        ProcessCollector(registry=registry)
        try:
            self._server = _HttpServer(listening_socket(host, [port], BACKLOG), timeout_s)
        except OSError as error:
            raise LaunchError(f"cannot serve metrics on port {port} of {host} (--metrics-port): {error}") from error
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
        self._ends_s: dict[socket.socket, float] = {}  # oldest first
        place = listener.getsockname()[:2]
        super().__init__(place, _Silent, bind_and_activate=False)
        self.socket.close()
        self.socket, self.server_address = listener, place
        # ``server_bind`` would look up this host's name, which can take seconds.
        self.server_name, self.server_port = place
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
            self._ends_s[request] = time.monotonic() + self._timeout_s
            oldest = next(iter(self._ends_s)) if len(self._ends_s) > MAX_SCRAPES else None
        if oldest is not None:
            self._cut(oldest)
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Cut off connections that last too long; ``serve_forever`` calls this twice a second."""
        now_s = time.monotonic()
        with self._lock:
            late = [request for request, end_s in self._ends_s.items() if end_s < now_s]
        for request in late:
            self._cut(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._ends_s.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnected or were cut off."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def _cut(self, request: socket.socket) -> None:
        with self._lock:
            self._ends_s.pop(request, None)
        hang_up(request)


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Do not log scrapes."""


def _with_ready(scrape: Callable[..., Any], ready: Callable[[], bool]) -> Callable[..., Any]:
    """Return a WSGI application that answers readiness probes, and passes other requests to ``scrape``."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if environ.get("PATH_INFO") != READY_PATH:
            return scrape(environ, start_response)
        status, text = ("200 OK", b"ready\n") if ready() else ("503 Service Unavailable", NOT_READY)
        start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(text)))])
        return [text]

    return answer


def _operations(operations: Sequence[OperationStatus]) -> Iterator[Metric]:
    durations = HistogramMetricFamily(
        "ps2_operation_duration_seconds", "Time in an operation, without waits for locks", labels=["operation"]
    )
    failures = CounterMetricFamily("ps2_operation_failures", "Operations that raised", labels=["operation"])
    keys = CounterMetricFamily("ps2_keys", "Columns that requests named one by one", labels=["operation"])
    for done in operations:
        ends = zip(LIMITS, accumulate(done.buckets), strict=True)
        durations.add_metric([done.name], buckets=list(ends), sum_value=done.seconds)
        failures.add_metric([done.name], done.failures)
        keys.add_metric([done.name], done.keys)
    yield from (durations, failures, keys)
