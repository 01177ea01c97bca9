"""The state of one run: rank leases, clocks, synchronisation points, messages and reports. Thread-safe.

No thread waits in this module. A worker's request (``requests``) is a coroutine, which yields while it has to wait. The
server resumes the coroutine after a call of its ``wake`` function.
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
from ps2.rpc.run_control import ClockEntry, ClockTimes, Logged, LogLines, Report
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

# A worker's request, whose result is the answer. The server runs it with the run's lock held. If it yields None, it
# waits until it is woken; if it yields a time (of ``time.monotonic``), it waits until that time at the latest.
Coroutine = Generator[float | None, None, T]

# Errors that every later attempt would raise again.
FATAL: dict[str, type[PS2Error]] = {"InputError": InputError, "LimitError": LimitError}


class Listener(Protocol):
    """Receives the events of a run. The run's lock is held during a call, so a method must only record the event."""

    def clock_due(self) -> None: ...
    def logged(self, rank: int, metric: Logged) -> None: ...
    def failed(self) -> None: ...


@dataclass(eq=False)
class RunState:
    """The driver's state of a run.

    A worker sends its ``epoch`` with each request. A worker that does not know of the last rollback finishes its clock,
    but it does not synchronise with other workers, and its changes are dropped.

    Attributes:
        first: the run's first clock.
        epoch: the number of the fleet's rollbacks to a checkpoint.
        calls_end: True if ``onEnd`` is called when all workers have returned, before their tasks may end.
        failures: the last error of each rank, as (clock, traceback).
        results: the pickled result of each rank that has returned.
        journal: the return values of ``onClock``.
        number: the number of the run in its fleet.
        began_s: the time at which the run began (``time.monotonic``).
        until: the first clock after the longest loop that a worker has announced.
        lock: the lock that the server holds while a coroutine runs.
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
        self.log_urls: dict[int, str] = {}  # rank -> URL of its executor's log, if Spark knows it
        self.turn_budget = TurnBudget(self.workers)
        self.cuts = CutLog()
        self.entries: dict[int, ClockEntry] = {}  # rank -> the clock that it may enter, until its request returns it
        self.polling: dict[Wake, int] = {}  # the ``wake`` function of a progress request -> rank
        self.blocked: dict[int, str] = {}  # rank -> why it waits at a synchronisation point
        self._recorded: dict[int, int] = {}  # attempt -> the number of its last recorded message
        self.arrived_s: dict[int, float] = {}  # rank -> the time at which it asked to enter its clock
        self.released_s: dict[int, float] = {}  # rank -> the time at which it was allowed to enter its clock
        # The newest attempts that ended without a result, as (Unix time, rank, clock, reason).
        self.lost_attempts: deque[tuple[float, int, int, str]] = deque(maxlen=MAX_LOST_ATTEMPTS)
        self.attempts_lost: dict[int, int] = {}  # rank -> the number of its lost attempts
        # clock -> the time at which all workers had finished all lower clocks; dropped when onClock has returned.
        self._finished_s: dict[int, float] = {}
        self._due_announced: int | None = None  # the last clock for which the listener got ``clock_due``
        self._calling: int | None = None  # the clock for which onClock runs
        self._caller = 0  # the thread that calls onClock
        # Path and step of the checkpoints that this call has requested.
        self._requested: list[tuple[str | None, int | None]] = []
        self._num_holding = 0  # the number of open ``holding_calls`` blocks
        self.is_at_cut = False  # True: the running call of ``onClock`` is complete, but for checkpoints after it
        self._end_announced = self._end_called = False
        self.error: PS2Error | None = None  # the error that has ended the run, if any
        self.is_paused = False
        self.journal_before = self.journal  # the journal of the previous epoch

    def resume(self, journal: Journal) -> None:
        """Resume, before any event, from the journal of an earlier driver or an earlier run.

        If earlier workers had finished clocks for which ``onClock`` was not called, these calls are made now.
        """
        self.journal, pending = journal.before(self.first), journal.pending
        if pending is not None and pending.finished == self.first:
            self.clocks.call_from(pending.called)
            self.report_log.resume(pending)

    # -- events of workers -----------------------------------------------------------------------------------------

    def release_rank(self, lease: RankLease) -> None:
        """Revoke the lease of an attempt whose connection has ended."""
        with self.lock:
            had_rank = self.leases.revoke(lease)
            self._wake_polling(lease.rank)
            if not had_rank:
                return
            self.entries.pop(lease.rank, None)
            self.blocked.pop(lease.rank, None)
            self.points.lose_attempt(lease.rank)
            self.spans.record_loss(lease.rank, time.monotonic() - self.began_s)
            if self.clocks.has_returned(rank := lease.rank):
                return
            if self.error is None:
                _, traceback = self.failures.get(rank, (0, "its connection has ended"))
                reason = traceback.strip().splitlines()[-1]
                self.lost_attempts.append((time.time(), rank, self.clocks.applied[rank], reason))
                self.attempts_lost[rank] = self.attempts_lost.get(rank, 0) + 1
            self.clocks.lose_attempt(rank)

    def fail_attempt(self, lease: RankLease, clock: int, traceback: str, fatal: bool) -> None:
        """Record the error of an attempt. If it is fatal, ``traceback`` is "class: message", and the run ends."""
        with self.lock:
            self.mark_leaving(lease)
            self.failures[lease.rank] = clock, traceback
            if fatal:
                name, _, message = traceback.partition(": ")
                self.fail(FATAL.get(name, WorkerError)(message))

    def record(
        self,
        lease: RankLease,
        number: int,
        metrics: Sequence[Logged],
        times: ClockTimes | None,
        lines: LogLines = NO_LINES,
    ) -> None:
        """Record the metrics, log lines and times in a worker's message, unless message ``number`` was recorded."""
        with self.lock:
            if number <= self._recorded.get(lease.attempt, 0):
                return
            self._recorded[lease.attempt] = number
            self.lines.add(lease.rank, lines)
            for metric in metrics:
                self.metrics.append(lease.rank, metric)
                self.listener.logged(lease.rank, metric)
            if times is not None:
                self.timeline[lease.rank].append(times)
                if times.block != IDLE:
                    other_s = max(0.0, times.pull + times.push + times.compute - times.work)
                    self.turn_budget.add(lease.rank, times.work, times.left, other_s, times.transfer)

    # -- the driver's side -----------------------------------------------------------------------------------------

    def call_due(self) -> tuple[int, int] | None:
        """Return the clock for which ``onClock`` must be called now, and the epoch; see ``called_back``."""
        with self.lock:
            may_call = self.error is None and not self.is_paused and not self._num_holding
            self._calling = self.clocks.due() if may_call else None
            self._caller, self._requested = get_ident(), []
            return None if self._calling is None else (self._calling, self.epoch)

    @contextmanager
    def holding_calls(self) -> Iterator[bool]:
        """Let no call of ``onClock`` begin in the with-block. Yield False if a call is running; it continues."""
        with self.lock:
            self._num_holding += 1
            is_idle = self._calling is None
        try:
            yield is_idle
        finally:
            with self.lock:
                self._num_holding -= 1
                if not self._num_holding and self._calling is None and self.clocks.due() is not None:
                    self.listener.clock_due()

    @property
    def is_between_calls(self) -> bool:
        """True if no call of ``onClock`` is running whose changes a checkpoint could contain in part."""
        return self._calling is None or self.is_at_cut or self.error is not None

    def request_checkpoint(self, path: str | None, step: int | None) -> bool:
        """Record a checkpoint that ``onClock`` requests; return False if this thread does not run ``onClock``."""
        with self.lock:
            if self._calling is None or self._caller != get_ident():
                return False
            self._requested.append((path, step))
            return True

    def take_requested(self) -> list[tuple[str | None, int | None]]:
        """Return path and step of the checkpoints that the last call of ``onClock`` has requested."""
        with self.lock:
            requested, self._requested = self._requested, []
            return requested

    def record_call(self, call: Call, began_s: float) -> None:
        """Record a call in the driver between two clocks, which began at ``began_s`` (``time.monotonic``)."""
        with self.lock:
            self.spans.record_call(call, began_s - self.began_s, time.monotonic() - self.began_s)

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
        """Record the return value of ``onClock`` in the journal, before the caller calls ``called_back``.

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
        """Return the epoch if ``onEnd`` must be called now; ``end_called`` records its return."""
        with self.lock:
            is_due = self._all_returned() and not self.is_over and self.error is None and not self.is_paused
            return self.epoch if is_due else None

    def end_called(self, epoch: int) -> None:
        """Record that ``onEnd`` has returned. A call that began before a rollback does not count."""
        with self.lock:
            if epoch == self.epoch and not self.is_paused and self._all_returned():
                self._end_called = True
                self._release_all()

    def fail(self, error: PS2Error) -> None:
        """End the run. All waiting workers and all later requests get the error."""
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
        with self.lock:
            return self.leases.count

    def pause(self) -> None:
        """Let all waiting and arriving workers wait until ``roll_back``, unless the run is over."""
        with self.lock:
            self.is_paused = not self.is_over

    def applied(self) -> list[int]:
        """Return, by rank, the first clock whose changes are not all on the servers."""
        with self.lock:
            return list(self.clocks.applied)

    def cut(self) -> Cut:
        """Return the present state of the clocks; a running call of ``onClock`` counts as finished."""
        with self.lock:
            called = self.clocks.called if self._calling is None else self._calling + 1
            return Cut(tuple(self.clocks.applied), called, self.journal, self.report_log.since(called))

    def add_cut(self, checkpoint: str, cut: Cut) -> None:
        with self.lock:
            self.cuts.add(checkpoint, cut)

    def roll_back(self, epoch: int, checkpoint: str) -> bool:
        """Roll back to a checkpoint with the fleet; return False if the run has ended, or cannot resume from it."""
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

    # -- internal, with the lock held ------------------------------------------------------------------------------

    def _all_returned(self) -> bool:
        """Return True if all workers and all calls of ``onClock`` have returned."""
        return len(self.results) == self.workers and self.clocks.due() is None

    def apply(self, event: Callable[[], Sequence[Release]]) -> None:
        """Apply an event to the clocks, and wake the workers that it releases."""
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
            # Until this time, the worker has waited for other workers; since then, for the driver.
            others_arrived_s = max(arrived_s, self._finished_s.get(self.clocks.needed(release.clock), now_s))
            on_clock_s, checkpoint_s = self.spans.calls_within(others_arrived_s - self.began_s, now_s - self.began_s)
            stopped = self.journal.stopped
            self.entries[release.rank] = ClockEntry(
                *(release.clock, release.horizon, self.epoch, on_clock_s),
                *(self.journal.count, self.journal.newest, None if stopped is None else stopped.end),
                budget_s=self.turn_budget.seconds,
                checkpoint=checkpoint_s,
                others=others_arrived_s - arrived_s,
            )
            self.released_s[release.rank] = now_s
            self.leases.wake(release.rank)
        self.points.forget(self.clocks.finished)
        due = self.clocks.due()
        if due is not None and due != self._due_announced:
            self._due_announced = due
            self.listener.clock_due()
        if self.is_over:
            self._release_all()
        elif self._all_returned() and not self._end_announced:
            self._end_announced = True
            self.listener.clock_due()
        self._check_deadlock()

    def _release_all(self) -> None:
        if self.spans.over_s is None:
            self.spans.over_s = time.monotonic() - self.began_s
        self._wake_all()

    @contextmanager
    def failing(self) -> Iterator[None]:
        """End the run if the with-block raises WorkerError."""
        try:
            yield
        except WorkerError as error:
            self.fail(error)
            raise

    def block(self, lease: RankLease, reason: str) -> Coroutine[None]:
        """Wait until ``unblock``; ``reason`` says for what, after "waits"."""
        self.blocked[lease.rank] = reason
        self._check_deadlock()
        yield from self.wait(lease, lambda: lease.rank not in self.blocked)

    def unblock(self, ranks: Collection[int]) -> None:
        # At once, not when the ranks resume: a released rank must not count as waiting.
        for rank in ranks:
            self.blocked.pop(rank, None)
            self.leases.wake(rank)

    def wait(self, lease: RankLease, until: Callable[[], bool]) -> Coroutine[None]:
        """Wait until a condition holds and the run is not paused; raise an error if the attempt cannot continue."""
        while True:
            if self.error is not None:
                raise RunEndedError(f"the run has ended: {self.error}")
            if lease.revoked:
                raise StoppedError(f"this attempt of rank {lease.rank} has lost its rank: its connection has ended")
            if until() and not self.is_paused:
                return
            yield None

    def check(self, lease: RankLease) -> Coroutine[None]:
        """Raise StoppedError unless the attempt holds its rank."""
        yield from self.wait(lease, lambda: True)
        if self.leases.holder(lease.rank) is not lease:
            raise StoppedError(f"another attempt holds rank {lease.rank}")

    def mark_leaving(self, lease: RankLease) -> None:
        lease.leaving = True
        self._wake_polling(lease.rank)

    def _wake_polling(self, rank: int | None = None) -> None:
        """Wake the progress requests of one rank, or of all ranks."""
        for wake, polling_rank in self.polling.items():
            if rank is None or polling_rank == rank:
                wake()

    def _wake_all(self) -> None:
        self._wake_polling()
        self.leases.wake_all()

    def _check_deadlock(self) -> None:
        """End the run if all workers wait for each other, or a worker waits for one that has returned."""
        waiting, unfinished = self.clocks.waiting, self.clocks.unfinished
        if self.error is not None or not self.blocked:
            return
        all_wait = len(waiting) + len(self.blocked) == unfinished and self.clocks.due() is None
        if all_wait or (self.points.open_barriers and unfinished < self.workers):
            waits = {rank: f"before clock {clock}" for rank, clock in waiting.items()} | self.blocked
            reasons = "; ".join(f"rank {rank} waits {waits[rank]}" for rank in sorted(waits))
            reasons += f"; ranks {self.clocks.returned} have returned" if self.clocks.returned else ""
            self.fail(WorkerError(f"workers wait for each other forever: {reasons}"))
