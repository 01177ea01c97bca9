"""A server's numbers as Prometheus reads them: names by its convention, in base units. See docs/metrics.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
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

    def __init__(self, collector: Collector, host: str, port: int) -> None:
        """Bind and start.

        Raises:
            LaunchError: the port is taken, or the host is not this machine's.
        """
        registry = CollectorRegistry()
        registry.register(collector)
        ProcessCollector(registry=registry)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise LaunchError(f"cannot serve metrics on port {port} of {host} (--metrics-port): {error}") from error
        self.address = join_address(host, self._server.server_port)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


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
