"""OpenTelemetry traces: spans of fits, runs, clocks, checkpoints and recoveries.

A worker measures the times of each clock even without tracing, so tracing costs workers nothing. The program's own
``TracerProvider`` exports the spans.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from ps2.coordinator.fleet import Fleet
from ps2.coordinator.recovery import RecoveryLog
from ps2.dashboard.run_view import CLOCK_COLUMN, OUTSIDE_COLUMN, START_COLUMN
from ps2.dashboard.training_log import TRAININGS
from ps2.errors import ConfigError
from ps2.guarded_loop import GuardedLoop
from ps2.run.host import ActiveRuns
from ps2.run.state import RunState
from ps2.run.timeline import ROW_ORDER, ROW_PARTS, discipline
from ps2.version import __version__

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

log = logging.getLogger(__name__)

T = TypeVar("T")

# Seconds between two reports of finished spans.
PERIOD_S = 1.0
# Maximum time that ``stop`` waits for the last report.
JOIN_S = 5.0
Attributes = Mapping[str, str | int | float | bool]


class Tracing:
    """Reports the spans of one context in its own thread."""

    def __init__(self, fleet: Fleet, active: ActiveRuns, recoveries: RecoveryLog) -> None:
        """Start tracing."""
        try:
            from opentelemetry import trace
        except ImportError as error:
            raise ConfigError("tracing: OpenTelemetry is missing: pip install 'ps2-spark[tracing]'") from error
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            log.warning(
                "tracing: this program has set no TracerProvider (opentelemetry.trace), so its spans are dropped"
            )
        self._fleet, self._recoveries = fleet, recoveries
        self._common: Attributes = {"ps2.fleet": fleet.master.id}
        self._tracer: Tracer = trace.get_tracer("ps2", __version__)
        self._current_span, self._in_context = trace.get_current_span, trace.set_span_in_context
        self._lock = threading.Lock()
        self._runs: dict[RunState, _RunSpans] = {}  # report the active runs, oldest first
        # Numbers of checkpoints and recoveries that have been reported, or are older than the tracing.
        self._num_checkpoints, self._num_recoveries = fleet.checkpoints.count, len(recoveries.all())
        self._guarded = GuardedLoop("tracing of runs")
        self._closing = threading.Event()
        # A failure of tracing must not end a run.
        active.listen(
            lambda run: self._guarded.run_once(lambda: self._start_run(run)),
            lambda run: self._guarded.run_once(lambda: self._end_run(run)),
        )
        TRAININGS.fit_context = self._fit
        self._thread = threading.Thread(target=self._report, name="ps2-tracing", daemon=True)
        self._thread.start()

    def run(self, call: Callable[[], T]) -> T:
        """Make a call that runs workers, within a new span."""
        with self._tracer.start_as_current_span("ps2.run", attributes=self._common):
            return call()

    def stop(self) -> None:
        """Report the remaining spans, and stop tracing."""
        TRAININGS.fit_context = None
        self._closing.set()
        self._thread.join(JOIN_S)

    @contextmanager
    def _fit(self, name: str, steps: int) -> Iterator[None]:
        attributes = {**self._common, "ps2.estimator": name, "ps2.steps": steps}
        with self._tracer.start_as_current_span(f"ps2.fit {name}", attributes=attributes):
            yield

    def _start_run(self, run: RunState) -> None:
        span = self._current_span()  # the span of ``run``: the same thread calls this method
        if not span.is_recording():
            return
        run_attributes = {"ps2.run": run.number}
        span.set_attributes(
            {**run_attributes, "ps2.workers": run.workers, "ps2.staleness": discipline(run.clocks.staleness)}
        )
        with self._lock:
            attributes: Attributes = {**self._common, **run_attributes}
            self._runs[run] = _RunSpans(run, self._tracer, self._in_context(span), attributes)

    def _end_run(self, run: RunState) -> None:
        self._report_once()
        with self._lock:
            self._runs.pop(run, None)

    def _report(self) -> None:
        loop = GuardedLoop("ps2-tracing")
        while not self._closing.wait(PERIOD_S):
            loop.run_once(self._report_once)
        loop.run_once(self._report_once)

    def _report_once(self) -> None:
        with self._lock:
            context = None
            for run in self._runs.values():
                context = run.context  # checkpoints and recoveries belong to all runs: show them in the newest one
                run.report()
            self._report_checkpoints(context)
            self._report_recoveries(context)

    def _report_checkpoints(self, context: Context | None) -> None:
        num_reported, self._num_checkpoints = self._num_checkpoints, self._fleet.checkpoints.count
        recent = list(self._fleet.checkpoints.recent)
        for end_s, checkpoint in recent[max(0, len(recent) - (self._num_checkpoints - num_reported)) :]:
            attributes: Attributes = {
                "ps2.checkpoint": checkpoint.path,
                "ps2.bytes": checkpoint.nbytes,
                "ps2.pause_s": checkpoint.pauseS,
            }
            self._add_span("ps2.checkpoint", context, end_s - checkpoint.seconds, end_s, attributes)

    def _report_recoveries(self, context: Context | None) -> None:
        recovered = self._recoveries.timed()[self._num_recoveries :]
        self._num_recoveries += len(recovered)
        for end_s, recovery in recovered:
            attributes: Attributes = {
                "ps2.servers": ",".join(map(str, recovery.servers)),
                "ps2.source": recovery.source,
                "ps2.rolled_back": recovery.rolledBack,
            }
            self._add_span("ps2.recovery", context, end_s - recovery.seconds, end_s, attributes)

    def _add_span(self, name: str, context: Context | None, from_s: float, to_s: float, attributes: Attributes) -> None:
        all_attributes = {**self._common, **attributes}
        span = self._tracer.start_span(name, context, start_time=_ns(from_s), attributes=all_attributes)
        span.end(_ns(to_s))


class _RunSpans:
    """Reports the finished clocks of one run as spans."""

    def __init__(self, run: RunState, tracer: Tracer, context: Context, attributes: Attributes) -> None:
        from opentelemetry.trace import set_span_in_context

        self.context = context
        self._in_context = set_span_in_context
        self._run = run
        self._tracer = tracer
        self._attributes = attributes
        self._counts = [0] * run.workers  # number of reported timeline rows of each worker
        # Start of the run in seconds since 1970. Timelines have seconds since this moment.
        self._start_s = time.time() - (time.monotonic() - run.began_s)

    def report(self) -> None:
        """Report the spans of the clocks that have ended since the last call."""
        with self._run.lock:
            rows = [timeline.since(number) for timeline, number in zip(self._run.timeline, self._counts, strict=True)]
            self._counts = [timeline.added for timeline in self._run.timeline]
        for rank, rank_rows in enumerate(rows):
            for row in rank_rows.tolist():
                self._report_clock(rank, row)

    def _report_clock(self, rank: int, row: list[float]) -> None:
        """Report a clock's span, with a child span for each category of its time, such as computing or waiting."""
        boundary_s = self._start_s + row[START_COLUMN]
        durations = [(name, row[column]) for name, column in zip(ROW_ORDER, ROW_PARTS, strict=True) if row[column] > 0]
        attributes = {**self._attributes, "ps2.rank": rank, "ps2.clock": int(row[CLOCK_COLUMN])}
        name = "ps2.outside" if row[OUTSIDE_COLUMN] else "ps2.clock"
        span = self._tracer.start_span(name, self.context, start_time=_ns(boundary_s), attributes=attributes)
        child_context = self._in_context(span)
        for category, seconds in durations:
            name = f"ps2.worker.{category}"
            child = self._tracer.start_span(name, child_context, start_time=_ns(boundary_s), attributes=attributes)
            boundary_s += seconds
            child.end(_ns(boundary_s))
        span.end(_ns(boundary_s))


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
