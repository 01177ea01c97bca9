"""A driver's metrics for Prometheus, from the data of the live page. See docs/metrics.md.

Values of labels are ranks or words of fixed lists, never names that users choose: their number is bounded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from ps2.dashboard.run_view import DriverFigures
from ps2.dashboard.snapshot import TrainingView
from ps2.run.timeline import CATEGORIES

# The number of ranks with their own label. The metrics of all further ranks are merged under one label.
MAX_RANKS = 512
OTHERS = "others"
# The values of labels. Prometheus gets a sample for each of them, also for 0.
SERVER_STATES = ("running", "silent", "recovering", "lost")
WORKER_STATES = ("working", "wait", "onClock", "no task", "returned")
EVENTS = ("lost", "recovery", "retry", "checkpoint", "warning", "worker")
SOURCES = ("replica", "handover", "checkpoint")


class DriverCollector(Collector):
    """Reads a driver's figures at each scrape."""

    def __init__(self, read: Callable[[], DriverFigures]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        figures = self._read()
        yield InfoMetricFamily("ps2_driver", "The driver's identity", value=dict(figures.info))
        yield from _fleet_metrics(figures)
        yield from _run_metrics(figures)
        yield from _rank_metrics(figures)
        yield from _training_metrics(figures.training)


def category_metric(category: str) -> str:
    """Return the name of a category's counter without "_total": ``ps2_run_on_clock_seconds`` for "onClock"."""
    return f"ps2_run_{re.sub('([A-Z])', lambda match: '_' + match[1].lower(), category)}_seconds"


def _fleet_metrics(figures: DriverFigures) -> Iterator[Metric]:
    servers = GaugeMetricFamily("ps2_fleet_servers", "Servers by state", labels=["state"])
    yield _labelled(servers, SERVER_STATES, figures.fleet.states)
    yield _gauge("ps2_fleet_memory_bytes", "Memory used on all servers", figures.memory_bytes)
    yield _gauge("ps2_fleet_memory_limit_bytes", "Memory limit of all servers", figures.memory_limit_bytes)
    recoveries = CounterMetricFamily("ps2_fleet_recoveries", "Recoveries of lost servers", labels=["source"])
    yield _labelled(recoveries, SOURCES, figures.recoveries)
    yield CounterMetricFamily("ps2_fleet_rollbacks", "Rollbacks of the whole fleet", figures.rollbacks)
    yield CounterMetricFamily("ps2_checkpoints", "Complete checkpoints", figures.checkpoints)
    for name, text, field in (
        ("timestamp_seconds", "Time at which the newest checkpoint was complete", "at_s"),
        ("duration_seconds", "Time that the newest checkpoint took", "seconds"),
        ("pause_seconds", "Maximum time for which a server delayed requests", "pause_s"),
        ("size_bytes", "Size of the newest checkpoint", "bytes"),
    ):
        yield _gauge(f"ps2_checkpoint_{name}", text, getattr(figures.checkpoint, field, None))
    yield _labelled(CounterMetricFamily("ps2_events", "Events by kind", labels=["kind"]), EVENTS, figures.events)


def _run_metrics(figures: DriverFigures) -> Iterator[Metric]:
    yield CounterMetricFamily("ps2_runs", "Runs that have begun", figures.runs)
    run, rank_figures = figures.run or (None, None)
    yield GaugeMetricFamily("ps2_run_active", "1 while a run is active", int(run is not None and not run.is_over))
    workers = GaugeMetricFamily("ps2_run_workers", "Workers of the run by state", labels=["state"])
    yield _labelled(workers, WORKER_STATES, {} if run is None else run.states)
    spread = limit = num_stragglers = seconds = None
    if run is not None and rank_figures is not None:
        spread = max(rank_figures.clocks) - min(rank_figures.clocks)
        limit = math.inf if rank_figures.staleness is None else rank_figures.staleness
        num_stragglers, seconds = len(run.stragglers), run.seconds
    yield _gauge("ps2_run_staleness", "Clocks between the first and the last worker", spread)
    yield _gauge("ps2_run_staleness_limit", "Clocks that a worker may be ahead of the last one", limit)
    yield _gauge("ps2_run_stragglers", "Workers whose clocks take much longer than the median", num_stragglers)
    yield _gauge("ps2_run_duration_seconds", "Time since the run began", seconds)


def _rank_metrics(figures: DriverFigures) -> Iterator[Metric]:
    clocks = [] if figures.run is None else figures.run[1].clocks
    yield _by_rank(GaugeMetricFamily("ps2_run_clock", "Current clock of a worker", labels=["rank"]), clocks, min)
    counters = [
        ("ps2_run_clocks", "Clocks that a worker has finished"),
        ("ps2_run_lost_attempts", "Lost attempts of a worker"),
        *((category_metric(category.name), f"Time of a worker: {category.meaning}") for category in CATEGORIES),
    ]
    for column, (name, text) in enumerate(counters):
        values = figures.counts[:, column].tolist() if len(figures.counts) else []
        yield _by_rank(CounterMetricFamily(name, text, labels=["rank"]), values, sum)


def _training_metrics(training: TrainingView | None) -> Iterator[Metric]:
    for name, text, field in (
        ("step", "Number of the training's last step", "step"),
        ("steps", "Maximum number of steps", "steps"),
        ("loss", "Objective that is minimised", "value"),
        ("validation", "Objective on the rows for validation", "validation"),
        ("duration_seconds", "Time since the training began", "seconds"),
        ("step_duration_seconds", "Time of the last step", "step_s"),
        ("remaining_seconds", "Estimated time until the last step", "left_s"),
        ("rows_per_second", "Rows per second", "rows_per_s"),
    ):
        yield _gauge(f"ps2_training_{name}", text, getattr(training, field, None))


def _gauge(name: str, text: str, value: float | None) -> Metric:
    """Return a gauge. It has no sample if ``value`` is None."""
    gauge = GaugeMetricFamily(name, text, labels=[])
    if value is not None:
        gauge.add_metric([], value)
    return gauge


def _labelled(
    family: CounterMetricFamily | GaugeMetricFamily, words: Sequence[str], values: Mapping[str, float]
) -> Metric:
    """Return a metric with one sample for each word; 0 if ``values`` lacks the word."""
    for word in words:
        family.add_metric([word.replace(" ", "_")], values.get(word, 0))
    return family


def _by_rank(
    family: CounterMetricFamily | GaugeMetricFamily,
    values: Sequence[float],
    merge: Callable[[Sequence[float]], float],
) -> Metric:
    """Return a metric with one sample for each rank; ``merge`` combines the ranks from ``MAX_RANKS`` on."""
    for rank, value in enumerate(values[:MAX_RANKS]):
        family.add_metric([str(rank)], value)
    if len(values) > MAX_RANKS:
        family.add_metric([OTHERS], merge(values[MAX_RANKS:]))
    return family
