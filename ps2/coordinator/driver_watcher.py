"""Collects the state of the driver's fleet and runs, for the live page and the metrics."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from ps2.coordinator.checkpoints import Checkpoint
from ps2.coordinator.fleet import Fleet
from ps2.coordinator.recovery import Recovery, RecoveryLog
from ps2.dashboard.event_log import EventLog
from ps2.dashboard.fleet_view import (
    CatalogMatrix,
    ServerHealth,
    ServerReport,
    fleet_view,
    operation_views,
    vectors_view,
)
from ps2.dashboard.run_view import NO_COUNTS, DriverFigures, RunFigures, RunWatcher, sum_counts
from ps2.dashboard.snapshot import (
    CheckpointView,
    HistoryView,
    RecoveryView,
    RunView,
    Snapshot,
    VectorsView,
)
from ps2.dashboard.training_log import TRAININGS, failure_outcome
from ps2.errors import TransientError
from ps2.guarded_loop import GuardedLoop
from ps2.run.host import ActiveRuns
from ps2.run.state import RunState
from ps2.run.timeline import count
from ps2.transport.concurrent_calls import call_concurrently
from ps2.version import __version__

T = TypeVar("T")

# Limits of the page's lists, and of the stored history of runs.
MAX_EVENTS_SHOWN = 100
MAX_HISTORY = 200
MAX_HISTORY_SHOWN = 50
MAX_CHECKPOINTS_SHOWN = 10
# The page shows the operations of reports that are at most this old. Servers report with each heartbeat.
MAX_OPERATIONS_AGE_S = 8.0
# The metrics use reports that are at most this old. Servers report once after each scrape.
MAX_REPORT_AGE_S = 300.0


class _ThisThread(threading.local):
    view: RunView | None = None  # the last run of the thread within ``record_run``


class DriverWatcher:
    """Makes snapshots of a driver's fleet and run on request. After ``open``, it also records events and runs."""

    def __init__(self, fleet: Fleet, active: ActiveRuns, recoveries: RecoveryLog, silent_after_s: float) -> None:
        """A server is shown as silent ``silent_after_s`` seconds after its last heartbeat."""
        self._fleet, self._active, self._recoveries = fleet, active, recoveries
        self._silent_after_s = silent_after_s
        self._events = EventLog()
        self._lock = threading.Lock()  # excludes concurrent snapshots
        self._watchers: dict[RunState, RunWatcher] = {}  # of the active runs, oldest first
        self._this_thread = _ThisThread()
        self._starting = threading.Lock()  # excludes concurrent starts of runs
        # The page's and the metrics' data of the last finished run; None: no run has finished.
        self._last_view: RunView | None = None
        self._last_figures: RunFigures | None = None
        self._counts = NO_COUNTS  # sums over all finished runs
        self._num_runs = 0  # number of runs that have started
        self._history: deque[HistoryView] = deque(maxlen=MAX_HISTORY)
        self._current: list[HistoryView] = []  # the runs in progress
        self._guarded = GuardedLoop("watcher of the driver")

    def open(self) -> None:
        """Start to record runs, log messages and losses of servers."""
        self._active.listen(self._start_run, self._end_run)
        self._events.open()
        self._fleet.master.registry.on_lost = self._server_lost

    def close(self) -> None:
        self._events.close()

    def record_run(self, call: Callable[[], T], worker_fn: Callable[..., object]) -> T:
        """Run workers by ``call``; record the outcome in the history, even if no worker started."""
        fit = TRAININGS.active_name
        name = f"workers of {fit}" if fit else getattr(worker_fn, "__qualname__", type(worker_fn).__qualname__)
        current = HistoryView("run", name, time.time(), None, "", "")
        start_s, self._this_thread.view = time.monotonic(), None
        self._current.append(current)
        outcome = "interrupted"
        try:
            result = call()
            outcome = "done"
            return result
        except Exception as error:
            outcome = failure_outcome(error)
            raise
        finally:
            last = self._this_thread.view
            detail = (
                "no worker started"
                if last is None
                else f"{count(last.workers, 'worker')}, {last.discipline}, {count(last.finished - last.first, 'clock')}"
            )
            seconds = time.monotonic() - start_s
            self._history.append(replace(current, seconds=seconds, outcome=outcome, detail=detail))
            self._current.remove(current)

    def snapshot(self) -> Snapshot:
        """Return the page's content, and ask the servers for reports with their next heartbeats."""
        with self._lock:
            return self._snapshot()

    def vectors(self, begin: int, find: str) -> VectorsView:
        """Return the matrices from index ``begin`` on whose names contain ``find``; see ``vectors_view``."""
        return self._vectors_view(self._fleet.master.reports.all(), begin, find)

    def figures(self) -> DriverFigures:
        """Return the metrics' content. The memory of servers is read from their last reports."""
        with self._lock:
            return self._figures()

    def _snapshot(self) -> Snapshot:
        start_s = time.monotonic()
        master = self._fleet.master
        master.reports.request()
        health = master.registry.health()
        if self._fleet.is_attached:  # attached servers send no heartbeats: ask for their status
            self._ask(health)
        reports = master.reports.all()
        now_s = time.monotonic()
        operations, left_out = operation_views(
            report for index, report in reports.items() if now_s - report.arrived_s < MAX_OPERATIONS_AGE_S
        )
        run = self._run_view()
        events, dropped = self._events.newest(MAX_EVENTS_SHOWN)
        history = sorted([*self._history, *self._current, *TRAININGS.history()], key=lambda entry: -entry.at_s)
        return Snapshot(
            fleet_id=master.id,
            at_s=time.time(),
            version=__version__,
            where=f"{socket.gethostname()}, process {os.getpid()}",
            fleet=fleet_view(health, reports, now_s, self._silent_after_s),
            vectors=self._vectors_view(reports),
            operations=operations,
            operations_left_out=left_out,
            replicas=self._fleet.replicas,
            checkpoints=tuple(
                _checkpoint_view(*checkpoint) for checkpoint in reversed(list(self._fleet.checkpoints.recent))
            )[:MAX_CHECKPOINTS_SHOWN],
            recoveries=tuple(map(_recovery_view, reversed(self._recoveries.all()[-MAX_CHECKPOINTS_SHOWN:]))),
            run=run,
            training=TRAININGS.current(),
            history=tuple(history[:MAX_HISTORY_SHOWN]),
            events=events,
            dropped_events=dropped,
            took_s=round(time.monotonic() - start_s, 4),
        )

    def _figures(self) -> DriverFigures:
        master, checkpoints = self._fleet.master, self._fleet.checkpoints
        watchers = list(self._watchers.values())
        views = [self._look(watcher) for watcher in watchers]
        current = [watcher.figures() for watcher in watchers]  # as of the views
        view = views[-1] if views else self._last_view
        figures = current[-1] if current else self._last_figures
        counts = self._counts
        for active in current:
            counts = sum_counts(counts, active.counts)
        statuses = []
        if not self._fleet.is_attached:  # attached servers expose their own metrics
            now_s, reports = time.monotonic(), master.reports.all().values()
            statuses = [report.status for report in reports if now_s - report.arrived_s < MAX_REPORT_AGE_S]
            master.reports.request()  # for the next scrape
        return DriverFigures(
            info={"version": __version__, "fleet": master.id},
            fleet=fleet_view(master.registry.health(), {}, time.monotonic(), self._silent_after_s),
            memory_bytes=sum(status.memory_bytes for status in statuses) if statuses else None,
            memory_limit_bytes=sum(status.memory_limit_bytes for status in statuses) if statuses else None,
            recoveries=Counter(recovery.source for recovery in self._recoveries.all()),
            rollbacks=master.epoch,
            checkpoints=checkpoints.count,
            checkpoint=_checkpoint_view(*checkpoints.recent[-1]) if checkpoints.recent else None,
            runs=self._num_runs,
            run=None if view is None or figures is None else (view, figures),
            counts=counts,
            training=TRAININGS.current(),
            events=self._events.counts(),
        )

    def _ask(self, health: list[ServerHealth]) -> None:
        """Ask all servers that are not lost for reports."""

        def ask(server: ServerHealth) -> None:
            with suppress(TransientError):  # the supervisor handles servers that do not answer
                self._fleet.master.reports.add(server.index, self._fleet.control.status(server.address))

        call_concurrently([server for server in health if server.why is None], ask)

    def _vectors_view(self, reports: dict[int, ServerReport], begin: int = 0, find: str = "") -> VectorsView:
        master = self._fleet.master
        rows = master.rows_by_name()
        matrices = [
            CatalogMatrix(entry.id, entry.spec, len(entry.used), entry.owners, [*rows.get(entry.id, ())])
            for entry in master.entries()
        ]
        return vectors_view(matrices, len(master.registry.addresses()), reports, begin, find)

    def _server_lost(self, index: int, details: str) -> None:
        reason = details.splitlines()[0].removesuffix("; its log ends:") if details else "it has ended"
        self._events.add("lost", f"server {index} is lost: {reason}")

    def _start_run(self, run: RunState) -> None:
        with self._starting:
            self._watchers[run] = RunWatcher(run, self._num_runs)
            self._num_runs += 1

    def _end_run(self, run: RunState) -> None:
        def record() -> None:
            with self._lock:
                if (watcher := self._watchers.pop(run, None)) is not None:
                    self._log_retries(run)
                    self._last_view = self._this_thread.view = watcher.view()
                    self._last_figures = watcher.figures()
                    self._counts = sum_counts(self._counts, self._last_figures.counts)

        self._guarded.run_once(record)

    def _run_view(self) -> RunView | None:
        """Return the newest active run; if none is active, the last one that has ended."""
        views = [self._look(watcher) for watcher in list(self._watchers.values())]
        return views[-1] if views else self._last_view

    def _look(self, watcher: RunWatcher) -> RunView:
        self._log_retries(watcher.run)
        return watcher.view()

    def _log_retries(self, run: RunState) -> None:
        while run.lost_attempts:
            at_s, rank, clock, reason = run.lost_attempts.popleft()
            self._events.add("retry", f"an attempt of rank {rank} was lost in clock {clock}: {reason}", at_s)


def _checkpoint_view(at_s: float, checkpoint: Checkpoint) -> CheckpointView:
    return CheckpointView(
        *(checkpoint.path, checkpoint.number, checkpoint.step, checkpoint.nbytes),
        *(checkpoint.pauseS, checkpoint.seconds, at_s),
    )


def _recovery_view(recovery: Recovery) -> RecoveryView:
    return RecoveryView(
        recovery.servers, recovery.source, recovery.rolledBack, recovery.seconds, recovery.nbytes, str(recovery)
    )
