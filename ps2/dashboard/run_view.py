"""The state of a run for the live page and the metrics. Each update reads only the run's new records."""

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

# The maximum number of workers in the table and the chart: the slowest ones, and others at equal distances.
MAX_SHOWN = 32
# The maximum number of bars of one worker. If there are more clocks, consecutive clocks share a bar.
MAX_BARS = 40
# The maximum number of a worker's newest timeline rows that are read for the chart.
MAX_TAIL = 2000
# The approximate number of clocks in the chart, and the durations that it can show.
CLOCKS_SHOWN = 12
WINDOWS_S = (2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
# The maximum remaining time that is shown: 30 days.
MAX_REMAINING_S = 30 * 86400.0
# A worker is a straggler if its clocks take at least this multiple of the median.
MIN_SLOWDOWN = 1.5
# The weight of the newest clocks in the exponential moving average of the durations of clocks.
NEWEST_WEIGHT = 0.3
# Columns of a timeline's rows: clock, start (seconds since the run began), and 1 if the time is outside of clocks.
CLOCK_COLUMN, START_COLUMN, OUTSIDE_COLUMN = (COLUMNS.index(name) for name in ("clock", "began", "outside"))
# Indices of the categories in which a worker is busy, and in which it waits.
BUSY = [NAMES.index(name) for name in ("compute", "pull", "push", "kernels")]
WAITS = [NAMES.index(name) for name in ("wait", "onClock", "checkpoint", "coordinator")]

# The counts of no run.
NO_COUNTS: Float64s = np.zeros((0, 0))


@dataclass(frozen=True)
class RunFigures:
    """The metrics of a run, by rank.

    Attributes:
        staleness: the run's staleness; None for ASP.
        clocks: the current or last clock of each worker.
        counts: shape (workers, 2 + categories): number of finished clocks, lost attempts, and seconds by category.
    """

    staleness: int | None
    clocks: Sequence[int]
    counts: Float64s


@dataclass(frozen=True)
class DriverFigures:
    """The metrics of a driver.

    Attributes:
        info: the labels of the metric ``ps2_driver_info``.
        fleet: the servers.
        memory_bytes, memory_limit_bytes: sums over all servers; None: no server has reported.
        recoveries: the number of recoveries of lost servers, by the source of the data.
        rollbacks: the number of rollbacks of the whole fleet.
        checkpoints: the number of complete checkpoints.
        checkpoint: the newest checkpoint; None: there is none.
        runs: the number of runs that have begun.
        run: the current or last run; None: there is none.
        counts: ``RunFigures.counts``, summed over all runs.
        training: the current or last training; None: there is none.
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
    """Return the sum of two arrays ``RunFigures.counts``. The number of workers may differ."""
    total = np.zeros((max(len(first), len(second)), max(first.shape[1], second.shape[1])))
    for counts in (first, second):
        total[: counts.shape[0], : counts.shape[1]] += counts
    return total


@dataclass(frozen=True)
class _Reading:
    """A consistent copy of a run's state, read while its lock is held.

    Attributes:
        applied: by rank, the servers have applied the changes of the clocks before this one.
        entered: by rank, the clock that the worker has started last.
        finished: all workers have finished the clocks before this one.
        rows: by rank, the timeline's rows since the last update.
        tails: the timeline's last rows, for each rank in the chart.
        metrics: rows of logged values since the last update, with columns (rank, metric, clock, value).
        states: by rank, (state, reason, start in seconds since the run began).
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
    """Makes views of one run. It stores counts and sums between views."""

    def __init__(self, run: RunState, number: int) -> None:
        workers = run.workers
        self.run, self.number, self.rollbacks = run, number, 0
        # Numbers of logged values, and of each worker's timeline rows, that have been read.
        self._metrics_read = 0
        self._rows_read = [0] * workers
        self._shown = list(range(min(workers, MAX_SHOWN)))  # ranks in the table and the chart
        self._series: dict[str, ClockMeans] = {}
        self._totals: list[tuple[float, int]] = []  # (time, number of finished clocks) at the last views
        self._sums_s: Float64s = np.zeros((workers, len(NAMES)))  # seconds by rank and category
        self._ends_s: Float64s = np.zeros(workers)  # by rank, end of the last row in seconds since the run began
        self._clocks = np.zeros(workers, np.int64)  # number of finished clocks by rank
        # By rank, moving average of the busy seconds of a clock.
        self._busy_s: Float64s = np.full(workers, np.nan)
        self._epoch = run.epoch
        self._entered: list[int] = [run.first] * workers

    def view(self) -> RunView:
        """Return the present state of the run."""
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
        self._add_rows(reading.rows)
        self._add_metrics(reading.metrics)
        slowdowns = self._busy_s / (np.nanmedian(self._busy_s) if not np.isnan(self._busy_s).all() else np.nan)
        self._choose_shown(slowdowns)
        window_s = self._window_s()
        furthest = max(entered)
        total = int(self._clocks.sum())
        per_s = self._clocks_per_s(now_s, total)
        states: dict[str, int] = {}
        for state, _, _ in reading.states:
            states[state] = states.get(state, 0) + 1
        workers = [
            WorkerView(
                *(rank, entered[rank], furthest - entered[rank], *reading.states[rank], int(self._clocks[rank])),
                parts=_rounded(self._sums_s[rank]),
                busy_s=_none_if_nan(self._busy_s[rank]),
                slowdown=_none_if_nan(slowdowns[rank]),
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
            parts=_rounded(np.append(sums_s := self._sums_s.sum(axis=0), max(0.0, self._ends_s.sum() - sums_s.sum()))),
            window_s=window_s,
            states=states,
            shown=tuple(workers),
            stragglers=tuple(map(int, slow))[:MAX_SHOWN],
            rollbacks=self.rollbacks,
            series=tuple(series.to_series(name) for name, series in self._series.items()),
        )

    def figures(self) -> RunFigures:
        """Return the metrics of all workers at the time of the last view."""
        lost_attempts = [self.run.attempts_lost.get(rank, 0) for rank in range(self.run.workers)]
        counts = np.column_stack([self._clocks, lost_attempts, self._sums_s])
        return RunFigures(self.run.clocks.staleness, self._entered, counts)

    def _read(self, now_s: float) -> _Reading:
        """Copy the state and the new records of the run; the caller holds the run's lock."""
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
                states.append(("no task", "Spark has not started its task yet, or is restarting it", arrived_s))
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

    def _add_rows(self, by_rank: Sequence[NDArray[np.float64]]) -> None:
        """Add new rows of the timelines to the sums and averages."""
        all_rows, workers = np.concatenate(by_rank), len(by_rank)
        ranks = np.repeat(np.arange(workers), [len(rows) for rows in by_rank])
        seconds = by_category(all_rows)
        np.add.at(self._sums_s, ranks, seconds)
        np.maximum.at(self._ends_s, ranks, all_rows[:, START_COLUMN] + seconds.sum(axis=1))
        in_clock = all_rows[:, OUTSIDE_COLUMN] == 0
        seconds, ranks = seconds[in_clock], ranks[in_clock]
        counts = np.bincount(ranks, minlength=workers)
        self._clocks += counts
        has_rows = counts > 0
        busy_s = np.bincount(ranks, seconds[:, BUSY].sum(axis=1), workers)[has_rows] / counts[has_rows]
        average_s = np.where(np.isnan(self._busy_s[has_rows]), busy_s, self._busy_s[has_rows])
        self._busy_s[has_rows] = average_s + NEWEST_WEIGHT * (busy_s - average_s)

    def _add_metrics(self, rows: NDArray[np.float64]) -> None:
        for number in np.unique(rows[:, 1]) if len(rows) else ():
            metric_rows = rows[rows[:, 1] == number]
            series = self._series.setdefault(self.run.metrics.name(int(number)), ClockMeans(self.run.first))
            series.add(metric_rows[:, 2].astype(np.int64), metric_rows[:, 3])

    def _choose_shown(self, slowdowns: Float64s) -> None:
        """Choose the workers of the next view: the slowest ones, and others at equal distances."""
        if self.run.workers <= MAX_SHOWN:
            return
        slowest = np.argsort(-np.nan_to_num(slowdowns), kind="stable")[: MAX_SHOWN // 2]
        others = np.setdiff1d(np.arange(self.run.workers), slowest)
        evenly_spaced = others[np.linspace(0, len(others) - 1, MAX_SHOWN - len(slowest)).astype(int)]
        self._shown = sorted(map(int, [*slowest, *evenly_spaced]))

    def _window_s(self) -> float:
        """Return the duration that the chart shows: about ``CLOCKS_SHOWN`` clocks of the slowest worker."""
        busy_s = self._busy_s[~np.isnan(self._busy_s)]
        waits_s = self._sums_s[:, WAITS].sum() / max(1, self._clocks.sum())
        span_s = CLOCKS_SHOWN * (float(busy_s.max()) + float(waits_s)) if len(busy_s) else 0.0
        return next((window_s for window_s in WINDOWS_S if window_s >= span_s), WINDOWS_S[-1])

    def _remaining_s(self, applied: Sequence[int], per_s: float) -> float | None:
        """Estimate the seconds until all workers' loops end; None: unknown, such as if ``STOP`` ends the loops."""
        clocks = sum(max(0, self.run.until - clock) for clock in applied)
        if not clocks or clocks > MAX_REMAINING_S * per_s:
            return None
        return clocks / per_s

    def _clocks_per_s(self, now_s: float, total: int) -> float:
        """Return the number of clocks per second since the sixth last view; ``total``: the number until now."""
        self._totals = [*self._totals[-5:], (now_s, total)]
        first_s, first_total = self._totals[0]
        return (total - first_total) / (now_s - first_s) if now_s > first_s else 0.0


def _bars(rows: NDArray[np.float64], from_s: float) -> tuple[Bar, ...]:
    """Return a worker's bars after ``from_s``: one for each clock, or for each group of consecutive clocks."""
    ends_s = rows[:, START_COLUMN] + rows[:, ROW_PARTS].sum(axis=1)
    rows = rows[ends_s >= from_s]
    if not len(rows):
        return ()
    clocks_per_bar = -(-len(rows) // MAX_BARS)
    starts = np.arange(0, len(rows), clocks_per_bar)
    parts = np.round(np.add.reduceat(rows[:, ROW_PARTS], starts, axis=0), 5).tolist()
    last_rows = np.append(starts[1:], len(rows)) - 1
    starts_s, clocks = (
        np.round(rows[starts, START_COLUMN], 4).tolist(),
        rows[last_rows, CLOCK_COLUMN].astype(int).tolist(),
    )
    counts, outside = (last_rows - starts + 1).tolist(), (rows[starts, OUTSIDE_COLUMN] != 0).tolist()
    return tuple(
        Bar(start_s, clock, count, tuple(seconds), is_outside)
        for start_s, clock, count, seconds, is_outside in zip(starts_s, clocks, counts, parts, outside, strict=True)
    )


def _rounded(seconds: Sequence[float] | Float64s) -> tuple[float, ...]:
    return tuple(np.round(seconds, 5).tolist())


def _none_if_nan(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 5)
