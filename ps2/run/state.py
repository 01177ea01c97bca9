"""The state of one run: rank leases, clocks, synchronisation points, messages and reports. Thread-safe.

No thread waits here. What a worker asks (``requests``) is a coroutine: it yields while it has to wait, and the server
resumes it when it is woken.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import RLock, get_ident
from typing import Protocol, TypeVar

from ps2.errors import InputError, LimitError, PS2Error, RunEndedError, StoppedError, WorkerError
from ps2.rpc.run_control import ClockTimes, Entered, Logged, LogLines, Report
from ps2.run.clocks import Clocks, Cut, CutLog, Release
from ps2.run.journal import Journal
from ps2.run.rank_leases import RankLease, RankLeases, Wake
from ps2.run.records import MAX_TIMES, Metrics, Timeline
from ps2.run.reports import ReportLog
from ps2.run.rotation import IDLE, TurnBudget
from ps2.run.spans import Call, Spans
from ps2.run.sync_points import SyncPoints
from ps2.run.worker_log import RunLines

T = TypeVar("T")

MAX_LOST_ATTEMPTS = 100
NO_LINES = LogLines()

# A worker's request. The server resumes it, holding the run's lock, until it returns the answer. It yields to wait
# until it is woken, or until a moment (``time.monotonic``) if it yields one.
Coroutine = Generator[float | None, None, T]

# Errors that every attempt would meet again.
FATAL: dict[str, type[PS2Error]] = {"InputError": InputError, "LimitError": LimitError}


class Listener(Protocol):
    """Receives the events of a run. It is called with the run's lock held, so it only records events."""

    def clock_due(self) -> None: ...
    def logged(self, rank: int, metric: Logged) -> None: ...
    def failed(self) -> None: ...


@dataclass
class RunState:
    """The driver's record of a run.

    A worker sends its ``epoch`` with each request. A worker that does not know of a rollback yet finishes its clock as
    usual, but it synchronises with no other worker, and its changes are dropped.

    Attributes:
        epoch: the number of the fleet's rollbacks to a checkpoint.
        calls_end: True if ``onEnd`` is called when all workers have returned, before their tasks may end.
        failures: the last error of each rank, as (clock, traceback).
        journal: the return values of ``onClock``.
        began_s: the time at which the run began (``time.monotonic``).
        lock: the lock that is held while a coroutine runs.
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
    number: int = 0
    began_s: float = field(default_factory=lambda: time.monotonic())  # noqa: PLW0108 - tests replace the clock
    spans: Spans = field(default_factory=Spans)
    until: int = 0

    def __post_init__(self) -> None:
        self.timeline = tuple(Timeline(MAX_TIMES // self.workers) for _ in range(self.workers))
        self.lock = RLock()
        self.points = SyncPoints(self.workers, self.first)
        self.leases = RankLeases(self.workers)
        self.report_log = ReportLog()
        self.lines = RunLines()
        self.log_urls: dict[int, str] = {}  # rank -> log of its executor, if Spark knows the URL
        self.turn_budget = TurnBudget(self.workers)
        self.cuts = CutLog()
        self.entries: dict[int, Entered] = {}
        self.polling: dict[Wake, int] = {}  # rank by the wake of its progress request
        self.blocked: dict[int, str] = {}  # rank -> what it waits for, other than a clock
        self._noted: dict[int, int] = {}  # attempt -> its last message whose times and metrics are noted
        self.arrived_s: dict[int, float] = {}  # rank -> when it asked to enter its clock
        self.released_s: dict[int, float] = {}  # rank -> when it was let into its clock
        # The newest attempts that have ended without a result, as (time since the epoch, rank, clock, why).
        self.lost_attempts: deque[tuple[float, int, int, str]] = deque(maxlen=MAX_LOST_ATTEMPTS)
        self.attempts_lost: dict[int, int] = {}  # their number, by rank
        # clock -> when all workers had finished the clocks below it; dropped once onClock has returned for those.
        self._finished_s: dict[int, float] = {}
        self._due_announced: int | None = None
        self._calling: int | None = None
        self._caller = 0  # the thread of this call
        self._requested: list[tuple[str | None, int | None]] = []  # checkpoints that this call has asked for
        self._holding = 0
        self._end_announced = self._end_called = False
        self.error: PS2Error | None = None  # the reason of the run's end
        self.is_paused = False
        self.journal_before = self.journal  # the journal of the previous epoch

    def resume(self, journal: Journal) -> None:
        """Continue, before any event, from the journal of an earlier driver, or of an earlier run.

        The earlier workers may have finished clocks for which ``onClock`` was not called. It is called for them now.
        """
        self.journal, pending = journal.before(self.first), journal.pending
        if pending is not None and pending.finished == self.first:
            self.clocks.call_from(pending.called)
            self.report_log.resume(pending)

    # -- of the workers --------------------------------------------------------------------------------------------

    def release_rank(self, lease: RankLease) -> None:
        """Revoke the lease of an attempt whose connection has ended."""
        with self.lock:
            held_rank = self.leases.revoke(lease)
            self._wake_polling(lease.rank)
            if not held_rank:
                return
            self.entries.pop(lease.rank, None)
            self.blocked.pop(lease.rank, None)
            self.points.lose_attempt(lease.rank)
            self.spans.released(lease.rank, time.monotonic() - self.began_s)
            if self.clocks.has_returned(rank := lease.rank):
                return
            if self.error is None:
                _, traceback = self.failures.get(rank, (0, "its connection has ended"))
                reason = traceback.strip().splitlines()[-1]
                self.lost_attempts.append((time.time(), rank, self.clocks.applied[rank], reason))
                self.attempts_lost[rank] = self.attempts_lost.get(rank, 0) + 1
            self.clocks.lose_attempt(rank)

    def fail_attempt(self, lease: RankLease, clock: int, traceback: str, fatal: bool) -> None:
        """Record the error of an attempt; ``traceback`` of a fatal error is "name: message"."""
        with self.lock:
            self.note_leaving(lease)
            self.failures[lease.rank] = clock, traceback
            if fatal:
                name, _, message = traceback.partition(": ")
                self.fail(FATAL.get(name, WorkerError)(message))

    def note(
        self,
        lease: RankLease,
        number: int,
        metrics: Sequence[Logged],
        times: ClockTimes | None,
        lines: LogLines = NO_LINES,
    ) -> None:
        """Record the numbers, lines and clock's times of a worker's message, unless its ``number`` was recorded."""
        with self.lock:
            if number <= self._noted.get(lease.attempt, 0):
                return
            self._noted[lease.attempt] = number
            self.lines.add(lease.rank, lines)
            for metric in metrics:
                self.metrics.append(lease.rank, metric)
                self.listener.logged(lease.rank, metric)
            if times is not None:
                self.timeline[lease.rank].append(times)
                if times.block != IDLE:
                    other_s = max(0.0, times.pull + times.push + times.compute - times.work)
                    self.turn_budget.note(lease.rank, times.work, times.left, other_s, times.transfer)

    # -- the driver's side -----------------------------------------------------------------------------------------

    def call_due(self) -> tuple[int, int] | None:
        """Return the clock for which ``onClock`` must be called now, and the epoch; ``called_back`` ends the call."""
        with self.lock:
            may_call = self.error is None and not self.is_paused and not self._holding
            self._calling = self.clocks.due() if may_call else None
            self._caller, self._requested = get_ident(), []
            return None if self._calling is None else (self._calling, self.epoch)

    @contextmanager
    def holding_calls(self) -> Iterator[bool]:
        """Let no call of ``onClock`` begin in the with-block; yield False if one is running, which goes on."""
        with self.lock:
            self._holding += 1
            is_free = self._calling is None
        try:
            yield is_free
        finally:
            with self.lock:
                self._holding -= 1
                if not self._holding and self._calling is None and self.clocks.due() is not None:
                    self.listener.clock_due()

    def request_checkpoint(self, path: str | None, step: int | None) -> bool:
        """Note a checkpoint that the running ``onClock`` asks for; return False if this thread is not in it."""
        with self.lock:
            if self._calling is None or self._caller != get_ident():
                return False
            self._requested.append((path, step))
            return True

    def take_requested(self) -> list[tuple[str | None, int | None]]:
        """Return path and step of the checkpoints that the last call of ``onClock`` has asked for."""
        with self.lock:
            requested, self._requested = self._requested, []
            return requested

    def note_call(self, call: Call, began_s: float) -> None:
        """Record a call in the driver between two clocks, which began at ``began_s`` (``time.monotonic``)."""
        with self.lock:
            self.spans.called(call, began_s - self.began_s, time.monotonic() - self.began_s)

    def called_back(self, clock: int) -> None:
        """Record that ``onClock`` has returned. A call that began before a rollback does not count."""
        with self.lock:
            if clock == self._calling:
                self._calling = None
                self.report_log.drop(clock)
                self.apply(lambda: self.clocks.called_back(clock))
                self._finished_s.pop(clock + 1, None)

    def reports(self, clock: int) -> dict[int, Sequence[Report]]:
        """Return the workers' reports of the clock for which ``onClock`` is called, by rank."""
        with self.lock:
            return self.report_log.clock_reports(clock)

    def publish(self, clock: int, epoch: int, message: bytes | None, stop: bool = False) -> None:
        """Record the return value of ``onClock`` in the journal. The caller calls ``called_back`` afterwards.

        STOP ends the run: all workers' loops end before the first clock that no worker has entered.
        """
        with self.lock:
            if clock != self._calling or epoch != self.epoch:
                return
            if message is not None:
                self.journal = self.journal.with_message(clock, message)
            if stop:
                self.journal = self.journal.with_stop(clock, max(clock, self.clocks.furthest) + 1)

    def end_due(self) -> int | None:
        """Return the epoch if ``onEnd`` must be called now. The caller calls ``end_called`` afterwards."""
        with self.lock:
            is_due = self._all_returned() and not self.is_over and self.error is None and not self.is_paused
            return self.epoch if is_due else None

    def end_called(self, epoch: int) -> None:
        """Record that ``onEnd`` has returned. A call that began before a rollback does not count."""
        with self.lock:
            if epoch == self.epoch and not self.is_paused and self._all_returned():
                self._end_called = True
                self._let_go()

    def fail(self, error: PS2Error) -> None:
        """End the run. Every waiting worker gets the error, and so does each later request."""
        with self.lock:
            if self.error is None:
                self.error = error
                self.listener.failed()
                self._wake_all()

    @property
    def is_over(self) -> bool:
        """True if all workers and all calls of ``onClock`` and ``onEnd`` have returned."""
        with self.lock:
            return self._all_returned() and (self._end_called or not self.calls_end)

    def absent(self) -> list[int]:
        """Return the ranks without a running attempt and without a result."""
        with self.lock:
            return [rank for rank in self.leases.absent() if rank not in self.results]

    @property
    def attempts(self) -> int:
        """Number of running attempts, including those that wait for a rank."""
        with self.lock:
            return self.leases.count

    def pause(self) -> None:
        """Hold all workers until ``roll_back``. Some may already know of the rollback, and have stopped working."""
        with self.lock:
            self.is_paused = not self.is_over

    def applied(self) -> list[int]:
        """Return, by rank, the number of clocks whose changes are all on the servers."""
        with self.lock:
            return list(self.clocks.applied)

    def cut(self) -> Cut:
        """Return the state of the clocks at this moment; a call of ``onClock`` that ends now counts as finished."""
        with self.lock:
            called = self.clocks.called if self._calling is None else self._calling + 1
            return Cut(tuple(self.clocks.applied), called, self.journal, self.report_log.since(called))

    def note_cut(self, checkpoint: str, cut: Cut) -> None:
        """Record the cut that belongs to a checkpoint."""
        with self.lock:
            self.cuts.note(checkpoint, cut)

    def roll_back(self, epoch: int, checkpoint: str) -> bool:
        """Go back to a checkpoint with the fleet. One from before this run ends the run; return False then."""
        with self.lock:
            if self.error is not None or self.is_over:
                return False
            self.epoch, self.is_paused = epoch, False
            self._calling = self._due_announced = None
            self._end_announced = False
            self._finished_s.clear()
            cut = self.cuts.roll_back(checkpoint)
            if isinstance(cut, PS2Error):
                self.fail(cut)
                return False
            self.results.clear()
            self.spans.roll_back()
            self.journal_before, self.journal = self.journal, cut.journal
            self.report_log.restore(cut.reports)
            self.unblock(self.points.roll_back(min(cut.applied), max(cut.applied)))
            self.apply(lambda: self.clocks.roll_back(cut))
            self._wake_all()
            return True

    # -- within ----------------------------------------------------------------------------------------------------

    def _all_returned(self) -> bool:
        """Return True if all workers and all calls of ``onClock`` have returned."""
        return len(self.results) == self.workers and self.clocks.due() is None

    def apply(self, event: Callable[[], Sequence[Release]]) -> None:
        """Apply an event to the clocks, and wake everything that it releases."""
        finished, bound = self.clocks.finished, self.clocks.bound
        with self.failing():
            releases = event()
        if self.clocks.bound != bound:
            self._wake_polling()
        now_s = time.monotonic()
        if self.clocks.due() is not None:
            self._finished_s.update(dict.fromkeys(range(finished + 1, self.clocks.finished + 1), now_s))
        for release in releases:
            arrived_s = self.arrived_s[release.rank]
            waits_s = max(arrived_s, self._finished_s.get(self.clocks.needed(release.clock), now_s))
            on_clock_s, checkpoint_s = self.spans.calls_within(waits_s - self.began_s, now_s - self.began_s)
            stopped = self.journal.stopped
            self.entries[release.rank] = Entered(
                *(release.clock, release.horizon, self.epoch, on_clock_s),
                *(self.journal.count, self.journal.newest, None if stopped is None else stopped.end),
                budget_s=self.turn_budget.seconds,
                checkpoint=checkpoint_s,
                others=waits_s - arrived_s,
            )
            self.released_s[release.rank] = now_s
            self.leases.wake(release.rank)
        self.points.forget(self.clocks.finished)
        due = self.clocks.due()
        if due is not None and due != self._due_announced:
            self._due_announced = due
            self.listener.clock_due()
        if self.is_over:
            self._let_go()
        elif self._all_returned() and not self._end_announced:
            self._end_announced = True
            self.listener.clock_due()
        self._check_deadlock()

    def _let_go(self) -> None:
        if self.spans.over_s is None:
            self.spans.over_s = time.monotonic() - self.began_s
        self._wake_all()

    @contextmanager
    def failing(self) -> Iterator[None]:
        """End the run if a worker makes a wrong call."""
        try:
            yield
        except WorkerError as error:
            self.fail(error)
            raise

    def block(self, lease: RankLease, reason: str) -> Coroutine[None]:
        """Wait until ``unblock``."""
        self.blocked[lease.rank] = reason
        self._check_deadlock()
        yield from self.wait(lease, lambda: lease.rank not in self.blocked)

    def unblock(self, ranks: Collection[int]) -> None:
        # Not when the ranks resume: a released rank must not look as if it still waited.
        for rank in ranks:
            self.blocked.pop(rank, None)
            self.leases.wake(rank)

    def wait(self, lease: RankLease, until: Callable[[], bool]) -> Coroutine[None]:
        while True:
            if self.error is not None:
                raise RunEndedError(f"the run has ended: {self.error}")
            if lease.revoked:
                raise StoppedError(f"this attempt of rank {lease.rank} has lost its rank: its connection was cut")
            if until() and not self.is_paused:
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
        for wake, polling_rank in self.polling.items():
            if rank is None or polling_rank == rank:
                wake()

    def _wake_all(self) -> None:
        self._wake_polling()
        self.leases.wake_all()

    def _check_deadlock(self) -> None:
        """End a run in which all workers wait for each other, or one waits for a worker that has returned."""
        waiting, unfinished = self.clocks.waiting, self.clocks.unfinished
        if self.error is not None or not self.blocked:
            return
        all_wait = len(waiting) + len(self.blocked) == unfinished and self.clocks.due() is None
        if all_wait or (self.points.open_barriers and unfinished < self.workers):
            waits = {rank: f"before clock {clock}" for rank, clock in waiting.items()} | self.blocked
            reasons = "; ".join(f"rank {rank} waits {waits[rank]}" for rank in sorted(waits))
            reasons += f"; ranks {self.clocks.returned} have returned" if self.clocks.returned else ""
            self.fail(WorkerError(f"workers wait for each other forever: {reasons}"))
