"""A server's metrics for Prometheus, with its naming conventions and base units. See docs/metrics.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ps2.rpc.server_status import OperationStatus, ServerStatus, metrics
from ps2.server.metrics import BUCKETS_S

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
        for metric, value in metrics(status):
            yield FAMILIES[metric.kind](metric.name, metric.help, value=value)
        yield from _operations(status.operations)


def _operations(operations: Sequence[OperationStatus]) -> Iterator[Metric]:
    durations = HistogramMetricFamily(
        "ps2_operation_duration_seconds", "Time in an operation, without waits for locks", labels=["operation"]
    )
    failures = CounterMetricFamily("ps2_operation_failures", "Operations that raised", labels=["operation"])
    keys = CounterMetricFamily("ps2_keys", "Columns that requests named one by one", labels=["operation"])
    for operation in operations:
        ends = zip(LIMITS, accumulate(operation.buckets), strict=True)
        durations.add_metric([operation.name], buckets=list(ends), sum_value=operation.seconds)
        failures.add_metric([operation.name], operation.failures)
        keys.add_metric([operation.name], operation.keys)
    yield from (durations, failures, keys)
