"""A server's numbers as Prometheus reads them: names by its convention, in base units. See docs/metrics.md."""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator
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
from ps2.server.engine import Engine
from ps2.server.metrics import BUCKETS_S, Counts
from ps2.wire.sockets import hang_up, resolve

# Prometheus itself waits so long for a scrape.
SCRAPE_TIMEOUT_S = 10.0
MAX_SCRAPES = 32

LIMITS = [*map(floatToGoString, BUCKETS_S), "+Inf"]


class ServerCollector(Collector):
    """Reads the counts of one server whenever it is asked."""

    def __init__(self, engine: Engine, connections: Callable[[], int], info: dict[str, str]) -> None:
        """Args:
        connections: tells how many there are.
        info: labels of ``ps2_server_info``.
        """
        self._engine = engine
        self._connections = connections
        self._info = info

    def collect(self) -> Iterator[Metric]:
        counts = self._engine.meter.read()
        yield InfoMetricFamily("ps2_server", "Which server this is", value=self._info)
        yield from _requests(counts)
        yield from _operations(counts)
        yield from self._held()

    def _held(self) -> Iterator[Metric]:
        keys, memory, matrices = self._engine.keys, self._engine.memory, self._engine.matrices()
        yield _counter("ps2_key_cache_hits", "Key sets named by their hash that were remembered", keys.hits)
        yield _counter("ps2_key_cache_misses", "Key sets named by their hash that were not remembered", keys.misses)
        yield _gauge("ps2_key_cache_bytes", "Memory taken by key sets that are remembered", keys.nbytes)
        yield _gauge("ps2_memory_bytes", "Memory taken by shards and requests under way", memory.taken_bytes)
        yield _gauge("ps2_memory_limit_bytes", "Most memory that may be taken", memory.limit_bytes)
        yield _gauge("ps2_matrices", "Matrices that this server holds a part of", len(matrices))
        active = sum(matrix.active_keys for matrix in matrices)
        yield _gauge("ps2_active_keys", "Keys of sparse matrices on this server", active)
        yield _gauge("ps2_connections", "Open data connections", self._connections())
        shards = self._engine.shards().values()
        copies = sum(shard.nbytes for shard in shards if shard.copy)
        yield _gauge("ps2_copies_bytes", "Memory taken by copies of other servers' shards", copies)
        scopes = sum(len(shard.applied) for shard in shards)
        yield _gauge("ps2_applied_scopes", "Tasks and sessions whose ids are remembered, over all shards", scopes)
        yield _gauge(
            "ps2_route_version", "Of the coordinator that this server follows", self._engine.fence.route_version
        )


class Exposition:
    """Answers scrapes over HTTP until it is stopped; ``address`` tells where."""

    def __init__(self, collector: Collector, host: str, port: int, timeout_s: float = SCRAPE_TIMEOUT_S) -> None:
        """Bind and start.

        Args:
            timeout_s: longest time for one connection, from its beginning to its end.

        Raises:
            LaunchError: the port is taken, or the host is not this machine's.
        """
        registry = CollectorRegistry()
        registry.register(collector)
        ProcessCollector(registry=registry)
        try:
            family, place = resolve(host, port)
            self._server = _HttpServer(family, place, timeout_s)
        except OSError as error:
            raise LaunchError(f"cannot serve metrics on port {port} of {host} (--metrics-port): {error}") from error
        self._server.set_app(make_wsgi_app(registry))
        self._thread = threading.Thread(target=self._server.serve_forever, name="ps2-metrics", daemon=True)
        self._thread.start()
        self.address = join_address(host, self._server.server_port)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _HttpServer(socketserver.ThreadingMixIn, WSGIServer):
    """A thread a connection, of which there are few, and none for longer than ``timeout_s``: anybody may connect."""

    daemon_threads = True

    def __init__(self, family: int, place: Any, timeout_s: float) -> None:
        self.address_family = family
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._ends_s: dict[socket.socket, float] = {}  # the oldest comes first
        super().__init__(place[:2], _Silent)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._ends_s[request] = time.monotonic() + self._timeout_s
            oldest = next(iter(self._ends_s)) if len(self._ends_s) > MAX_SCRAPES else None
        if oldest is not None:
            self._cut(oldest)
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Called twice a second."""
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
        """Clients that went away, or were cut off, are no news."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def _cut(self, request: socket.socket) -> None:
        with self._lock:
            self._ends_s.pop(request, None)
        hang_up(request)


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are no news."""


def _requests(counts: Counts) -> Iterator[Metric]:
    requests = CounterMetricFamily("ps2_requests", "Data requests answered", labels=["outcome"])
    for outcome, count in sorted(counts.outcomes.items()):
        requests.add_metric([outcome], count)
    yield requests
    yield _counter("ps2_mutations", "Data requests that changed something", counts.mutations)
    yield _gauge("ps2_requests_in_progress", "Data requests under way", counts.in_progress)
    yield _gauge("ps2_requests_waiting", "Data requests that wait for the lock of a shard", counts.waiting)
    yield _counter("ps2_received_bytes", "Arrays of requests, unpacked", counts.received_bytes)
    yield _counter("ps2_sent_bytes", "Arrays of replies, before packing", counts.sent_bytes)
    yield _counter("ps2_lock_waits", "Locks of shards that a request had to wait for", counts.lock_waits)
    yield _counter("ps2_lock_wait_seconds", "Time that requests waited for locks of shards", counts.lock_wait_s)


def _operations(counts: Counts) -> Iterator[Metric]:
    durations = HistogramMetricFamily(
        "ps2_operation_duration_seconds", "Time in an operation, without waits for locks", labels=["operation"]
    )
    failures = CounterMetricFamily("ps2_operation_failures", "Operations that raised", labels=["operation"])
    keys = CounterMetricFamily("ps2_keys", "Columns that requests named one by one", labels=["operation"])
    for done in counts.operations:
        ends = zip(LIMITS, accumulate(done.buckets), strict=True)
        durations.add_metric([done.name], buckets=list(ends), sum_value=done.seconds)
        failures.add_metric([done.name], done.failures)
        keys.add_metric([done.name], done.keys)
    yield from (durations, failures, keys)


def _counter(name: str, said: str, value: float) -> Metric:
    return CounterMetricFamily(name, said, value=value)


def _gauge(name: str, said: str, value: float) -> Metric:
    return GaugeMetricFamily(name, said, value=value)
