"""The state of a run for the dashboard, and the figures of a driver for its metrics, updated from new records."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ps2.array_types import Float64s
from ps2.dashboard.series import ClockMeans
from ps2.dashboard.snapshot import Bar, CheckpointView, FleetView, RunView, TrainingView, WorkerView
from ps2.run.records import COLUMNS
from ps2.run.state import RunState
from ps2.run.timeline import NAMES, ROW_PARTS, by_category, discipline

# The maximum number of workers in the table and the chart: the busiest, and others at even distances.
MAX_SHOWN = 32
# The maximum number of bars of one worker. If there are more clocks, consecutive clocks share a bar.
MAX_BARS = 40
# The maximum number of a worker's newest rows that are read for the chart.
MAX_TAIL = 2000
# The approximate number of clocks in the chart, and the possible lengths of its window of time.
CLOCKS_SHOWN = 12
WINDOWS_S = (2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
# A longer estimate of the remaining time is not shown.
MAX_LEFT_S = 30 * 86400.0
# The minimum duration of a straggler's clocks, as a multiple of the median.
MIN_SLOWDOWN = 1.5
# The weight of the newest clocks in the moving average of clocks' durations.
NEWEST_WEIGHT = 0.3
# Columns of a timeline's rows.
CLOCK, BEGAN, OUTSIDE = (COLUMNS.index(name) for name in ("clock", "began", "outside"))
# The categories of a clock's work and of its waits.
BUSY = [NAMES.index(name) for name in ("compute", "pull", "push", "kernels")]
WAITS = [NAMES.index(name) for name in ("wait", "onClock", "checkpoint", "coordinator")]

NO_COUNTS: Float64s = np.zeros((0, 0))


@dataclass(frozen=True)
class RunFigures:
    """The figures of a run by rank.

    Attributes:
        staleness: the run's staleness; None for ASP.
        clocks: the current or last clock of each worker.
        counts: shape (workers, 2 + categories): ended clocks, lost attempts, and seconds by category.
    """

    staleness: int | None
    clocks: Sequence[int]
    counts: Float64s


@dataclass(frozen=True)
class DriverFigures:
    """The figures of a driver.

    Attributes:
        info: the labels of ``ps2_driver_info``.
        memory_bytes, memory_limit_bytes: sums over all servers; None: no server has reported.
        recoveries: the number of recoveries of lost servers, by the source of the data.
        rollbacks: the number of rollbacks of the whole fleet.
        checkpoints: the number of complete checkpoints; ``checkpoint`` is the newest.
        runs: the number of runs that have begun.
        run: the current or last run.
        counts: the ``counts`` of ``RunFigures``, summed over all runs.
        events: the number of events by kind.
    """

    info: Mapping[str, str]
    fleet: FleetView
    memory_bytes: int | None
    memory_limit_bytes: int | None
    recoveries: Mapping[str, int]
    rollbacks: int
    checkpoints: int
    checkpoint: CheckpointView | None
    runs: int
    run: tuple[RunView, RunFigures] | None
    counts: Float64s
    training: TrainingView | None
    events: Mapping[str, int]


def sum_counts(first: Float64s, second: Float64s) -> Float64s:
    """Return the sum of the counts of runs; a run with fewer workers has zeros for the others."""
    total = np.zeros((max(len(first), len(second)), max(first.shape[1], second.shape[1])))
    for counts in (first, second):
        total[: counts.shape[0], : counts.shape[1]] += counts
    return total


@dataclass(frozen=True)
class _Reading:
    """The values that are read under the run's lock.

    Attributes:
        rows: the timeline's rows since the last update, by rank.
        tails: the timeline's last rows, by rank, for the ranks in the chart.
        states: by rank, the worker's state, the reason for the state, and when it began.
    """

    applied: list[int]
    entered: list[int]
    finished: int
    rows: list[NDArray[np.float64]]
    tails: dict[int, NDArray[np.float64]]
    metrics: NDArray[np.float64]
    states: list[tuple[str, str, float]]
    is_over: bool


class RunWatcher:
    """Makes views of one run."""

    def __init__(self, run: RunState, number: int) -> None:
        workers = run.workers
        self.run, self.number, self.rollbacks = run, number, 0
        self._metrics_read = 0
        self._rows_read = [0] * workers
        self._shown = list(range(min(workers, MAX_SHOWN)))
        self._series: dict[str, ClockMeans] = {}
        self._totals: list[tuple[float, int]] = []  # the time and the number of finished clocks at the last views
        self._sums: Float64s = np.zeros((workers, len(NAMES)))
        self._ends_s: Float64s = np.zeros(workers)
        self._clocks = np.zeros(workers, np.int64)
        self._recent: Float64s = np.full(workers, np.nan)  # the moving average of the seconds of a clock
        self._epoch = run.epoch
        self._entered: list[int] = [run.first] * workers

    def view(self) -> RunView:
        """Return the run's present state."""
        run = self.run
        with run.lock:
            now_s = time.monotonic() - run.began_s
            if run.epoch != self._epoch:
                self.rollbacks, self._epoch = self.rollbacks + run.epoch - self._epoch, run.epoch
                for series in self._series.values():
                    series.roll_back(min(run.clocks.applied))
            reading = self._read(now_s)
            failures = dict(run.attempts_lost)
        self._entered = entered = reading.entered
        self._add(reading.rows)
        self._add_metrics(reading.metrics)
        slowdowns = self._recent / (np.nanmedian(self._recent) if not np.isnan(self._recent).all() else np.nan)
        self._choose(slowdowns)
        window_s = self._window()
        furthest = max(entered)
        total = int(self._clocks.sum())
        per_s = self._rate(now_s, total)
        states: dict[str, int] = {}
        for state, _, _ in reading.states:
            states[state] = states.get(state, 0) + 1
        workers = [
            WorkerView(
                *(rank, entered[rank], furthest - entered[rank], *reading.states[rank], int(self._clocks[rank])),
                parts=_rounded(self._sums[rank]),
                busy_s=_finite(self._recent[rank]),
                slowdown=_finite(slowdowns[rank]),
                failures=failures.get(rank, 0),
                bars=_bars(tail, now_s - window_s),
                log=run.log_urls.get(rank, ""),
            )
            for rank, tail in sorted(reading.tails.items())
        ]
        slow = np.flatnonzero((np.nan_to_num(slowdowns) >= MIN_SLOWDOWN) & (run.workers > 1))
        return RunView(
            *(self.number, run.workers, discipline(run.clocks.staleness), now_s, reading.is_over),
            finished=reading.finished,
            first=run.first,
            furthest=furthest,
            per_s=per_s,
            left_s=None if reading.is_over else self._remaining_s(reading.applied, per_s),
            parts=_rounded(np.append(sums := self._sums.sum(axis=0), max(0.0, self._ends_s.sum() - sums.sum()))),
            window_s=window_s,
            states=states,
            shown=tuple(workers),
            stragglers=tuple(map(int, slow))[:MAX_SHOWN],
            rollbacks=self.rollbacks,
            series=tuple(series.thinned(name) for name, series in self._series.items()),
        )

    def figures(self) -> RunFigures:
        """Return the figures of all workers at the time of the last view."""
        lost = [self.run.attempts_lost.get(rank, 0) for rank in range(self.run.workers)]
        counts = np.column_stack([self._clocks, lost, self._sums])
        return RunFigures(self.run.clocks.staleness, self._entered, counts)

    def _read(self, now_s: float) -> _Reading:
        run, clocks = self.run, self.run.clocks
        rows = [timeline.since(count) for timeline, count in zip(run.timeline, self._rows_read, strict=True)]
        self._rows_read = [timeline.added for timeline in run.timeline]
        metrics = run.metrics.since(self._metrics_read)
        self._metrics_read = run.metrics.added
        absent = set(run.leases.absent())
        states = []
        for rank in range(run.workers):
            arrived_s = run.arrived_s.get(rank, run.began_s) - run.began_s
            if clocks.has_returned(rank):
                states.append(("returned", "", now_s))
            elif rank in absent:
                states.append(("no task", "Spark has not started its task yet, or restarts it", arrived_s))
            elif rank in clocks.waiting:
                needed = clocks.needed(clocks.waiting[rank])
                is_called = clocks.finished >= needed
                reason = f"onClock of clock {clocks.called}" if is_called else f"before clock {clocks.waiting[rank]}"
                states.append(("onClock" if is_called else "wait", reason, arrived_s))
            elif rank in run.blocked:
                states.append(("wait", run.blocked[rank], now_s))
            else:
                states.append(("working", "", run.released_s.get(rank, run.began_s) - run.began_s))
        return _Reading(
            applied=list(clocks.applied),
            entered=[max(pair) for pair in zip(clocks.entered, clocks.applied, strict=True)],
            finished=clocks.finished,
            rows=rows,
            tails={rank: run.timeline[rank].tail(MAX_TAIL) for rank in self._shown},
            metrics=metrics,
            states=states,
            is_over=run.is_over or run.error is not None,
        )

    def _add(self, by_rank: Sequence[NDArray[np.float64]]) -> None:
        all_rows, workers = np.concatenate(by_rank), len(by_rank)
        ranks = np.repeat(np.arange(workers), [len(rows) for rows in by_rank])
        seconds = by_category(all_rows)
        np.add.at(self._sums, ranks, seconds)
        np.maximum.at(self._ends_s, ranks, all_rows[:, BEGAN] + seconds.sum(axis=1))
        inside = all_rows[:, OUTSIDE] == 0
        seconds, ranks = seconds[inside], ranks[inside]
        counts = np.bincount(ranks, minlength=workers)
        self._clocks += counts
        has_rows = counts > 0
        busy_s = np.bincount(ranks, seconds[:, BUSY].sum(axis=1), workers)[has_rows] / counts[has_rows]
        average_s = np.where(np.isnan(self._recent[has_rows]), busy_s, self._recent[has_rows])
        self._recent[has_rows] = average_s + NEWEST_WEIGHT * (busy_s - average_s)

    def _add_metrics(self, rows: NDArray[np.float64]) -> None:
        for number in np.unique(rows[:, 1]) if len(rows) else ():
            metric_rows = rows[rows[:, 1] == number]
            series = self._series.setdefault(self.run.metrics.name(int(number)), ClockMeans(self.run.first))
            series.add(metric_rows[:, 2].astype(np.int64), metric_rows[:, 3])

    def _choose(self, slowdowns: Float64s) -> None:
        """Choose the workers of the next view: the slowest ones, and others at even distances."""
        if self.run.workers <= MAX_SHOWN:
            return
        slowest = np.argsort(-np.nan_to_num(slowdowns), kind="stable")[: MAX_SHOWN // 2]
        others = np.setdiff1d(np.arange(self.run.workers), slowest)
        spread = others[np.linspace(0, len(others) - 1, MAX_SHOWN - len(slowest)).astype(int)]
        self._shown = sorted(map(int, [*slowest, *spread]))

    def _window(self) -> float:
        """Return the length of the chart in seconds: about ``CLOCKS_SHOWN`` clocks of the slowest worker."""
        recent_s = self._recent[~np.isnan(self._recent)]
        waits_s = self._sums[:, WAITS].sum() / max(1, self._clocks.sum())
        span_s = CLOCKS_SHOWN * (float(recent_s.max()) + float(waits_s)) if len(recent_s) else 0.0
        return next((window_s for window_s in WINDOWS_S if window_s >= span_s), WINDOWS_S[-1])

    def _remaining_s(self, applied: Sequence[int], per_s: float) -> float | None:
        """Estimate the seconds until all workers' loops end; None: unknown, for example if ``STOP`` ends the loops."""
        clocks = sum(max(0, self.run.until - clock) for clock in applied)
        if not clocks or clocks > MAX_LEFT_S * per_s:
            return None
        return clocks / per_s

    def _rate(self, now_s: float, total: int) -> float:
        """Return the number of clocks per second, over the last views."""
        self._totals = [*self._totals[-5:], (now_s, total)]
        first_s, first_total = self._totals[0]
        return (total - first_total) / (now_s - first_s) if now_s > first_s else 0.0


def _bars(rows: NDArray[np.float64], from_s: float) -> tuple[Bar, ...]:
    """Return a worker's bars: one for each clock, or for each group of equally many clocks."""
    ends_s = rows[:, BEGAN] + rows[:, ROW_PARTS].sum(axis=1)
    rows = rows[ends_s >= from_s]
    if not len(rows):
        return ()
    size = -(-len(rows) // MAX_BARS)
    starts = np.arange(0, len(rows), size)
    parts = np.round(np.add.reduceat(rows[:, ROW_PARTS], starts, axis=0), 5).tolist()
    last_rows = np.append(starts[1:], len(rows)) - 1
    began_s, clocks = np.round(rows[starts, BEGAN], 4).tolist(), rows[last_rows, CLOCK].astype(int).tolist()
    counts, outside = (last_rows - starts + 1).tolist(), (rows[starts, OUTSIDE] != 0).tolist()
    return tuple(
        Bar(bar_s, clock, count, tuple(seconds), is_outside)
        for bar_s, clock, count, seconds, is_outside in zip(began_s, clocks, counts, parts, outside, strict=True)
    )


def _rounded(numbers: Sequence[float] | Float64s) -> tuple[float, ...]:
    return tuple(np.round(numbers, 5).tolist())


def _finite(number: float) -> float | None:
    return None if np.isnan(number) else round(float(number), 5)
