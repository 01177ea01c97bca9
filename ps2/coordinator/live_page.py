"""The live page of a context: what the coordinator knows, made into one snapshot a second while somebody looks."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from ps2.config import is_loopback, read_token, split_listen
from ps2.coordinator.application import driver_secret
from ps2.coordinator.checkpoints import Checkpoint
from ps2.coordinator.conf import PS2Conf
from ps2.coordinator.fleet import Fleet
from ps2.coordinator.recovery import Recovery
from ps2.coordinator.recovery_log import RecoveryLog
from ps2.dashboard.browser_sessions import BrowserSessions
from ps2.dashboard.encoding import to_json
from ps2.dashboard.event_log import EventLog
from ps2.dashboard.fleet_view import CatalogMatrix, ServerHealth, fleet_of, operations_of, vectors_of
from ps2.dashboard.page_server import PageServer
from ps2.dashboard.run_view import RunWatcher
from ps2.dashboard.server_reports import ServerReport
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
from ps2.logs import JSON, log_format
from ps2.run.host import ActiveRun
from ps2.run.state import RunState
from ps2.run.timeline import count
from ps2.transport.at_once import at_once
from ps2.version import __version__

T = TypeVar("T")

log = logging.getLogger(__name__)

MAX_EVENTS_SHOWN = 100
MAX_HISTORY = 200
MAX_HISTORY_SHOWN = 50
MAX_CHECKPOINTS_SHOWN = 10
ASK_TIMEOUT_S = 2.0


class LivePage:
    """The page, and the logs that it shows, which grow whether it is open or not."""

    def __init__(self, conf: PS2Conf, fleet: Fleet, active: ActiveRun, recoveries: RecoveryLog) -> None:
        """Start the page, if the settings want one, and print its link."""
        self._fleet, self._recoveries, self._replicas = fleet, recoveries, conf.replicas
        self._silent_after_s = conf.lostAfterS / 2  # the coordinator asks it then
        self._events = EventLog()
        self._lock = threading.Lock()  # one snapshot at a time
        self._watcher: RunWatcher | None = None
        self._last: RunView | None = None
        self._runs = 0
        self._history: deque[HistoryView] = deque(maxlen=MAX_HISTORY)
        self._current: list[HistoryView] = []  # of runs under way
        self._guarded = GuardedLoop("live page")
        self._page: PageServer | None = None
        if not conf.dashboard:
            return
        active.on_begin, active.on_end = self._run_begins, self._run_ends
        fixed = None if conf.dashboardTokenFile is None else read_token(conf.dashboardTokenFile).split()[0]
        sessions = BrowserSessions(driver_secret() if fixed is None else fixed, fixed)
        listen = split_listen(conf.dashboardListen, "dashboardListen")
        self._page = PageServer(self._snapshot, self._vectors, sessions, listen)
        self._events.open()
        fleet.master.registry.on_lost = self._server_lost
        taken = "" if self._page.is_first else f" (port {listen[1][0]} is taken)"
        open_ = "" if is_loopback(listen[0]) else "; what it shows travels unencrypted"
        said = f"live page at {self._page.url}{taken}{open_}"
        if log_format() == JSON:
            log.info("%s", said)
        else:
            print(f"PS2: {said}", file=sys.stderr)

    @property
    def url(self) -> str | None:
        """The link of the page; None: there is none."""
        return None if self._page is None else self._page.url

    def describe(self, servers: list[str]) -> str:
        """Return servers and link, for a context's ``repr``."""
        return ", ".join(servers) + ("" if self.url is None else f"; live page at {self.url}")

    def stop(self) -> None:
        self._events.close()
        if self._page is not None:
            self._page.stop()

    def record_run(self, call: Callable[[], T], worker_fn: Callable[..., object]) -> T:
        """Call what runs these workers; record in the history how it ends, even if no worker started."""
        fit = TRAININGS.under_way
        name = f"workers of {fit}" if fit else getattr(worker_fn, "__qualname__", type(worker_fn).__qualname__)
        current = HistoryView("run", name, time.time(), None, "", "")
        began_s, runs_before = time.monotonic(), self._runs
        self._current.append(current)  # a second run at once is refused, but is a line of the history as well
        outcome = "interrupted"
        try:
            result = call()
            outcome = "done"
            return result
        except Exception as error:
            outcome = failure_outcome(error)
            raise
        finally:
            last = self._last if self._runs > runs_before else None
            detail = (
                "no worker started"
                if last is None
                else f"{count(last.workers, 'worker')}, {last.discipline}, {count(last.finished - last.first, 'clock')}"
            )
            seconds = time.monotonic() - began_s
            self._history.append(replace(current, seconds=seconds, outcome=outcome, detail=detail))
            self._current.remove(current)

    # -- snapshots -------------------------------------------------------------------------------------------------

    def _snapshot(self) -> bytes:
        with self._lock:
            return to_json(self.snapshot())

    def _vectors(self, begin: int, find: str) -> bytes:
        return to_json(self._vectors_of(self._fleet.master.reports.all(), begin, find))

    def snapshot(self) -> Snapshot:
        """Return what the page shows now. Servers report with their heartbeats while somebody looks."""
        began_s = time.monotonic()
        master = self._fleet.master
        master.reports.request()
        health = master.registry.health()
        if self._fleet.is_attached:  # these have no heartbeats: the coordinator asks them how they are
            self._ask(health)
        reports = master.reports.all()
        now_s = time.monotonic()
        operations, left_out = operations_of(
            report for index, report in reports.items() if now_s - report.at_s < ASK_TIMEOUT_S * 4
        )
        run = self._run_view()
        events, dropped = self._events.newest(MAX_EVENTS_SHOWN)
        history = sorted([*self._history, *self._current, *TRAININGS.history()], key=lambda one: -one.at_s)
        return Snapshot(
            fleet_id=master.id,
            at_s=time.time(),
            version=__version__,
            where=f"{socket.gethostname()}, process {os.getpid()}",
            fleet=fleet_of(health, reports, now_s, self._silent_after_s),
            vectors=self._vectors_of(reports),
            operations=operations,
            operations_left_out=left_out,
            replicas=self._replicas,
            checkpoints=tuple(_checkpoint(*made) for made in reversed(list(self._fleet.checkpoints.made)))[
                :MAX_CHECKPOINTS_SHOWN
            ],
            recoveries=tuple(map(_recovery, reversed(self._recoveries.all()[-MAX_CHECKPOINTS_SHOWN:]))),
            run=run,
            training=TRAININGS.current(),
            history=tuple(history[:MAX_HISTORY_SHOWN]),
            events=events,
            dropped_events=dropped,
            took_s=round(time.monotonic() - began_s, 4),
        )

    def _ask(self, health: list[ServerHealth]) -> None:
        def ask(server: ServerHealth) -> None:
            try:
                master = self._fleet.master
                master.reports.note(server.index, self._fleet.control.status(server.address))
            except TransientError:
                pass  # the coordinator notices by itself that a server is silent

        at_once([server for server in health if server.why is None], ask)

    def _vectors_of(self, reports: dict[int, ServerReport], begin: int = 0, find: str = "") -> VectorsView:
        master = self._fleet.master
        names: dict[int, list[str]] = {}
        for name, (matrix, _) in master.names().items():
            names.setdefault(matrix, []).append(name)
        held = [
            CatalogMatrix(entry.id, entry.spec, len(entry.used), entry.owners, names.get(entry.id, ()))
            for entry in master.entries()
        ]
        return vectors_of(held, len(master.registry.addresses()), reports, begin, find)

    def _server_lost(self, index: int, why: str) -> None:
        said = why.splitlines()[0].removesuffix("; its log ends:") if why else "it has ended"
        self._events.note("lost", f"server {index} is lost: {said}")

    # -- runs ------------------------------------------------------------------------------------------------------

    def _run_begins(self, run: RunState) -> None:
        self._watcher = RunWatcher(run, self._runs)
        self._runs += 1

    def _run_ends(self, run: RunState) -> None:
        def keep() -> None:
            with self._lock:
                if self._watcher is not None:
                    self._note_retries(run)
                    self._last, self._watcher = self._watcher.view(), None

        self._guarded.run_once(keep)

    def _run_view(self) -> RunView | None:
        watcher = self._watcher
        if watcher is None:
            return self._last
        self._note_retries(watcher.run)
        return watcher.view()

    def _note_retries(self, run: RunState) -> None:
        while run.lost_attempts:
            at_s, rank, clock, why = run.lost_attempts.popleft()
            self._events.note("retry", f"an attempt of rank {rank} was lost in clock {clock}: {why}", at_s)


def _checkpoint(at_s: float, made: Checkpoint) -> CheckpointView:
    return CheckpointView(made.path, made.number, made.step, made.nbytes, made.pauseS, made.seconds, at_s)


def _recovery(done: Recovery) -> RecoveryView:
    return RecoveryView(done.servers, done.source, done.rolledBack, done.seconds, done.nbytes, str(done))
