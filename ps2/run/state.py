"""The state of one run: rank leases, clocks, synchronisation points, messages and reports. Thread-safe.

No thread waits here. What a worker asks (``requests``) is a coroutine: it yields while it has to wait, and the server
resumes it when it is woken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import RLock
from typing import Protocol, TypeVar

from ps2.errors import InputError, LimitError, PS2Error, StoppedError, WorkerError
from ps2.rpc.run_control import ClockTimes, Entered, Logged, Report
from ps2.run.clocks import Clocks, Cut, Release
from ps2.run.cuts import CutLog
from ps2.run.journal import Journal
from ps2.run.rank_leases import RankLease, RankLeases, Wake
from ps2.run.records import MAX_TIMES, Metrics, Timeline
from ps2.run.reports import ReportLog
from ps2.run.rotation import IDLE
from ps2.run.sync_points import SyncPoints
from ps2.run.turn_budget import TurnBudget

T = TypeVar("T")

# A worker's request. The server resumes it, holding the run's lock, until it returns the answer. It yields to wait
# until it is woken, or until a moment (``time.monotonic``) if it yields one.
Coroutine = Generator[float | None, None, T]

# Errors that every attempt would meet again.
FATAL: dict[str, type[PS2Error]] = {"InputError": InputError, "LimitError": LimitError}


class Listener(Protocol):
    """Is told what happens in a run, while its lock is held: it only takes note."""

    def clock_due(self) -> None: ...
    def logged(self, rank: int, metric: Logged) -> None: ...
    def failed(self) -> None: ...


@dataclass
class RunState:
    """What the driver knows of a run.

    A worker sends its ``epoch`` with each request. A worker that does not know yet that the fleet has gone back to a
    checkpoint finishes its clock as if nothing had happened: it synchronises with no other worker, and what it makes
    there counts for none.

    Attributes:
        first: the run's first clock.
        epoch: how often the fleet has gone back to a checkpoint.
        calls_end: ``onEnd`` is called when all workers have returned, before they are let go.
        failures: the last error of each rank, as (clock, traceback).
        results: pickled, by rank.
        journal: what ``onClock`` has returned.
        timeline: by rank.
        lock: held while a coroutine runs.
    """

    workers: int
    clocks: Clocks
    listener: Listener
    first: int = 0
    epoch: int = 0
    calls_end: bool = False
    failures: dict[int, tuple[int, str]] = field(default_factory=dict)
    results: dict[int, bytes] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=Metrics)
    journal: Journal = field(default_factory=Journal)

    def __post_init__(self) -> None:
        self.timeline = tuple(Timeline(MAX_TIMES // self.workers) for _ in range(self.workers))
        self.lock = RLock()
        self.began_s = time.monotonic()
        self.points = SyncPoints(self.workers, self.first)
        self.leases = RankLeases(self.workers)
        self.report_log = ReportLog()
        self.turn_budget = TurnBudget(self.workers)
        self._cuts = CutLog()
        self.entries: dict[int, Entered] = {}
        self.polling: dict[Wake, int] = {}  # rank by the wake of its progress request
        self.blocked: dict[int, str] = {}  # rank -> what it waits for, other than a clock
        self._noted: dict[int, int] = {}  # attempt -> its last message whose times and metrics are noted
        self.arrived_s: dict[int, float] = {}  # rank -> when it came to stand before its clock
        # When all had finished the clocks below one, until onClock has returned for all of those.
        self._finished_s: dict[int, float] = {}
        self._due_told: int | None = None
        self._calling: int | None = None
        self._end_told = self._end_called = False
        self._error: PS2Error | None = None
        self._paused = False
        self.journal_before = self.journal  # the one of the epoch before

    def go_on(self, journal: Journal) -> None:
        """Go on, before any event, from the journal of an earlier driver, or of an earlier run.

        If that driver's workers had finished clocks that its ``onClock`` was not called for, it is called for them now.
        """
        self.journal, pending = journal.before(self.first), journal.pending
        if pending is not None and pending.finished == self.first:
            self.clocks.call_from(pending.called)
            self.report_log.go_on(pending)

    # -- of the workers --------------------------------------------------------------------------------------------

    def new_lease(self, rank: int, attempt: int, wake: Wake) -> RankLease:
        """Return a lease for an attempt that has connected: for ``acquire_rank``, and ``release_rank`` in the end."""
        return self.leases.new(rank, attempt, wake)

    def release_rank(self, lease: RankLease) -> None:
        """An attempt's connection has ended, for whatever reason."""
        with self.lock:
            held = self.leases.revoke(lease)
            self._wake_polling(lease.rank)
            if not held:
                return
            self.entries.pop(lease.rank, None)
            self.blocked.pop(lease.rank, None)
            self.points.gone(lease.rank)
            if not self.clocks.is_done(lease.rank):
                self.clocks.gone(lease.rank)

    def fail_attempt(self, lease: RankLease, clock: int, traceback: str, fatal: bool) -> None:
        """An attempt has raised. Spark starts another one, or gives up.

        Args:
            traceback: of a fatal error, its name and message.
        """
        with self.lock:
            self.note_leaving(lease)
            self.failures[lease.rank] = clock, traceback
            if fatal:
                name, _, message = traceback.partition(": ")
                self.fail(FATAL.get(name, WorkerError)(message))

    def note(self, lease: RankLease, number: int, metrics: Sequence[Logged], times: ClockTimes | None) -> None:
        """Keep what a worker logged, and the times of its clock.

        Args:
            number: of the attempt's message; a message that comes again is not noted again.
        """
        with self.lock:
            if number <= self._noted.get(lease.attempt, 0):
                return
            self._noted[lease.attempt] = number
            for metric in metrics:
                self.metrics.append(lease.rank, metric)
                self.listener.logged(lease.rank, metric)
            if times is not None:
                self.timeline[lease.rank].append(times)
                if times.block != IDLE:
                    rest_s = max(0.0, times.pull + times.push + times.compute - times.work)
                    self.turn_budget.note(lease.rank, times.work, times.left, rest_s, times.transfer)

    # -- the driver's side -----------------------------------------------------------------------------------------

    def call_due(self) -> tuple[int, int] | None:
        """Return the clock that ``onClock`` is to be called for now, if any, and the epoch.

        ``called_back`` follows when it has returned.
        """
        with self.lock:
            self._calling = self.clocks.due() if self._error is None and not self._paused else None
            return None if self._calling is None else (self._calling, self.epoch)

    def called_back(self, clock: int) -> None:
        """``onClock`` has returned. A call from before the fleet went back to a checkpoint does not count."""
        with self.lock:
            if clock == self._calling:
                self._calling = None
                self.report_log.drop(clock)
                self.apply(lambda: self.clocks.called_back(clock))
                self._finished_s.pop(clock + 1, None)

    def reports(self, clock: int) -> dict[int, Sequence[Report]]:
        """Return, by rank, what the workers reported in a clock that ``onClock`` is called for."""
        with self.lock:
            return self.report_log.of(clock)

    def publish(self, clock: int, epoch: int, message: bytes | None, stop: bool = False) -> None:
        """Journal what ``onClock`` has returned, before ``called_back``.

        STOP ends the run before the first clock that no worker has entered: all workers' loops end there.
        """
        with self.lock:
            if clock != self._calling or epoch != self.epoch:
                return
            if message is not None:
                self.journal = self.journal.with_message(clock, message)
            if stop:
                self.journal = self.journal.with_stop(clock, max(clock, self.clocks.furthest) + 1)

    def end_due(self) -> int | None:
        """Return the epoch if ``onEnd`` is to be called now. ``end_called`` follows when it has returned."""
        with self.lock:
            is_due = self._all_returned() and not self._is_over() and self._error is None and not self._paused
            return self.epoch if is_due else None

    def end_called(self, epoch: int) -> None:
        """``onEnd`` has returned. A call from before the fleet went back, or while it goes back, does not count."""
        with self.lock:
            if epoch == self.epoch and not self._paused and self._all_returned():
                self._end_called = True
                self._wake_all()

    def fail(self, error: PS2Error) -> None:
        """End the run: every worker that waits, or asks, is told why."""
        with self.lock:
            if self._error is None:
                self._error = error
                self.listener.failed()
                self._wake_all()

    @property
    def is_over(self) -> bool:
        """Whether all workers have returned, and all calls were made."""
        with self.lock:
            return self._is_over()

    @property
    def error(self) -> PS2Error | None:
        return self._error

    def absent(self) -> list[int]:
        """Return the ranks that have neither an attempt now nor a result."""
        with self.lock:
            return [rank for rank in self.leases.absent() if rank not in self.results]

    @property
    def attempts(self) -> int:
        """How many attempts there are now, those included that wait for a rank."""
        with self.lock:
            return self.leases.count

    @property
    def is_paused(self) -> bool:
        return self._paused

    def pause(self) -> None:
        """Let no worker go on until ``roll_back``: some may know already that the fleet goes back, and stop working."""
        with self.lock:
            self._paused = not self._is_over()

    def applied(self) -> list[int]:
        """Return for each rank how many clocks are on the servers."""
        with self.lock:
            return list(self.clocks.applied)

    def cut(self) -> Cut:
        """Return where the clocks stand, for a checkpoint that is made now. A call under way counts as done."""
        with self.lock:
            called = self.clocks.called if self._calling is None else self._calling + 1
            return Cut(tuple(self.clocks.applied), called, self.journal, self.report_log.since(called))

    def note_cut(self, checkpoint: str, cut: Cut) -> None:
        """Note what ``cut`` returned before a checkpoint was made."""
        with self.lock:
            self._cuts.note(checkpoint, cut)

    def has_cut(self, checkpoint: str) -> bool:
        """Return whether it is known where the clocks stood at a checkpoint."""
        with self.lock:
            return checkpoint in self._cuts

    def roll_back(self, epoch: int, checkpoint: str) -> bool:
        """The fleet went back to a checkpoint. One from before this run ends it.

        Returns:
            Whether the run goes on from there.
        """
        with self.lock:
            if self._error is not None or self._is_over():
                return False
            self.epoch, self._paused = epoch, False
            self._calling = self._due_told = None
            self._end_told = False
            self._finished_s.clear()
            cut = self._cuts.go_back(checkpoint)
            if isinstance(cut, PS2Error):
                self.fail(cut)
                return False
            self.results.clear()
            self.journal_before, self.journal = self.journal, cut.journal
            self.report_log.restore(cut.reports)
            self.unblock(self.points.roll_back(min(cut.applied), max(cut.applied)))
            self.apply(lambda: self.clocks.roll_back(cut))
            self._wake_all()
            return True

    # -- within ----------------------------------------------------------------------------------------------------

    def _all_returned(self) -> bool:
        """Return whether all workers have, and all calls of ``onClock``."""
        return len(self.results) == self.workers and self.clocks.due() is None

    def _is_over(self) -> bool:
        return self._all_returned() and (self._end_called or not self.calls_end)

    def apply(self, event: Callable[[], Sequence[Release]]) -> None:
        """Apply an event to the clocks, and do what follows from it."""
        finished, bound = self.clocks.finished, self.clocks.bound
        with self.failing():
            releases = event()
        if self.clocks.bound != bound:
            self._wake_polling()
        now_s = time.monotonic()
        if self.clocks.due() is not None:
            self._finished_s.update(dict.fromkeys(range(finished + 1, self.clocks.finished + 1), now_s))
        for release in releases:
            waits_s = max(self.arrived_s[release.rank], self._finished_s.get(self.clocks.needed(release.clock), now_s))
            stopped = self.journal.stopped
            self.entries[release.rank] = Entered(
                *(release.clock, release.horizon, self.epoch, now_s - waits_s),
                *(self.journal.count, self.journal.newest, None if stopped is None else stopped.end),
                budget_s=self.turn_budget.seconds,
            )
            self.leases.wake(release.rank)
        self.points.forget(self.clocks.finished)
        due = self.clocks.due()
        if due is not None and due != self._due_told:
            self._due_told = due
            self.listener.clock_due()
        if self._is_over():
            self._wake_all()
        elif self._all_returned() and not self._end_told:
            self._end_told = True
            self.listener.clock_due()
        self._check_deadlock()

    @contextmanager
    def failing(self) -> Iterator[None]:
        """End the run with what a worker does wrong."""
        try:
            yield
        except WorkerError as error:
            self.fail(error)
            raise

    def block(self, lease: RankLease, why: str) -> Coroutine[None]:
        """Wait until ``_unblock``."""
        self.blocked[lease.rank] = why
        self._check_deadlock()
        yield from self.wait(lease, lambda: lease.rank not in self.blocked)

    def unblock(self, ranks: Collection[int]) -> None:
        # Here, not when they resume: a rank that was let go must not look as if it still waited.
        for rank in ranks:
            self.blocked.pop(rank, None)
            self.leases.wake(rank)

    def wait(self, lease: RankLease, until: Callable[[], bool]) -> Coroutine[None]:
        while True:
            if self._error is not None:
                raise StoppedError(f"the run has ended: {self._error}")
            if lease.revoked:
                raise StoppedError(f"this attempt of rank {lease.rank} has lost its rank: its connection was cut")
            if until() and not self._paused:
                return
            yield None

    def check(self, lease: RankLease) -> Coroutine[None]:
        """Raise StoppedError unless the attempt holds its rank."""
        yield from self.wait(lease, lambda: True)
        if self.leases.holder(lease.rank) is not lease:
            raise StoppedError(f"another attempt holds rank {lease.rank}")

    def note_leaving(self, lease: RankLease) -> None:
        lease.leaving = True
        self._wake_polling(lease.rank)

    def _wake_polling(self, rank: int | None = None) -> None:
        """Wake the progress requests of one rank, or of all."""
        for wake, of in self.polling.items():
            if rank is None or of == rank:
                wake()

    def _wake_all(self) -> None:
        self._wake_polling()
        self.leases.wake_all()

    def _check_deadlock(self) -> None:
        """End a run in which all workers wait for each other, or one waits for a worker that has returned."""
        waiting, unfinished = self.clocks.waiting, self.clocks.unfinished
        if self._error is not None or not self.blocked:
            return
        all_wait = len(waiting) + len(self.blocked) == unfinished and self.clocks.due() is None
        if all_wait or (self.points.open_barriers and unfinished < self.workers):
            waits = {rank: f"before clock {clock}" for rank, clock in waiting.items()} | self.blocked
            reasons = "; ".join(f"rank {rank} waits {waits[rank]}" for rank in sorted(waits))
            reasons += f"; ranks {self.clocks.done} have returned" if self.clocks.done else ""
            self.fail(WorkerError(f"workers wait for each other forever: {reasons}"))
