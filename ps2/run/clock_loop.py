"""A worker's loop over clocks: it flushes updates, waits for the driver before each clock, and handles rollbacks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ps2.client.fleet import FleetRef
from ps2.errors import PS2Error, RolledBack, UsageError
from ps2.logs import TEXT, LogFormat
from ps2.protocol.plain_data import decode
from ps2.rpc.run_control import ClockEntry, ClockTimes, JoinReply, Logged, Report, RunControl
from ps2.run.prefetch import Freshness, Prefetches, ProgressPoller
from ps2.run.rotation import IDLE
from ps2.run.turns import Turn

if TYPE_CHECKING:
    from ps2.client.session import Session
    from ps2.client.task import RunIds


@dataclass(frozen=True)
class RunRef:
    """The run to which a task belongs. It is pickled in the task's closure, and contains no secret.

    Attributes:
        address: the address of the run's server in the driver.
        number: the number of the run in its fleet.
        staleness: the run's staleness; None for ASP.
        first: the run's first clock.
        seed: the seed of the workers' random generators and of rotations.
        takes_reports: True if ``onClock`` is a function of (clock, reports).
        retries: True if Spark restarts a failed task.
        log_format: the format of the driver's log, which the workers use, too.
    """

    fleet: FleetRef
    address: str
    number: int
    staleness: int | None
    first: int
    seed: int
    takes_reports: bool = False
    retries: bool = True
    log_format: LogFormat = TEXT

    @property
    def series(self) -> str:
        """The common part of the mutation ids of all runs in this fleet."""
        return run_series(self.fleet)


def run_series(fleet: FleetRef) -> str:
    """Return the common part of the mutation ids of all runs in a fleet."""
    return f"{fleet.id}/runs"


log = logging.getLogger(__name__)

FOREVER = float("inf")
# If the worker's last message to the driver is older, logged values are sent at once instead of with the next message.
LOG_INTERVAL_S = 1.0
# The maximum number of a clock in a message.
MAX_CLOCKS = 1 << 62


class Inbox:
    """The messages that ``onClock`` had returned when the worker entered its clock; ``count`` is their number.

    The newest message arrives with the clock; ``take`` fetches older messages from the driver.
    """

    def __init__(self, control: RunControl) -> None:
        self._control = control
        self.count = 0
        self.newest: Any = None
        self._num_returned = 0  # the number of messages that ``take`` has returned

    def enter(self, entry: ClockEntry) -> None:
        """Record the newest message and the count that arrived with a clock."""
        if entry.message:
            self.newest = decode(entry.message)
        elif not entry.messages:
            self.newest = None
        self.count = entry.messages

    def restart(self) -> None:
        """Let the next ``take`` return all messages, from the run's first one on."""
        self._num_returned = 0

    def take(self) -> list[Any]:
        """Return the messages that ``take`` has not returned before, the oldest first."""
        num_new = self.count - self._num_returned
        messages = [self.newest] if num_new == 1 else []
        if num_new > 1:
            messages = [decode(message) for message in self._control.messages(self._num_returned, self.count)]
        self._num_returned = self.count
        return messages


class ClockLoop:
    """The clocks of one attempt of a worker.

    Attributes:
        clock: the clock that the worker is in; outside of loops, the next clock.
        is_inside: True if the worker is in the body of a loop over clocks.
        restarts: the number of times that the worker's function was called again after a rollback.
        turn: the rotation's turn in this clock, if any; the turn's times are sent with the clock's times.
    """

    def __init__(
        self, ref: RunRef, rank: int, joined: JoinReply, control: RunControl, session: Session, ids: RunIds
    ) -> None:
        self.ref = ref
        self.rank = rank
        self.workers = joined.workers
        self.control = control
        self.session = session
        self.ids = ids
        self.prefetches = Prefetches(session, self._initial_freshness(joined))
        # Only under SSP can a read be sent before its clock is entered.
        self._poller = ProgressPoller(control, session.async_writer, self.prefetches) if ref.staleness else None
        self.inbox = Inbox(control)
        self.metrics: list[Logged] = []
        # The time of the join by this process's clock, and in seconds since the run began.
        self.last_message_s = self._joined_s = time.monotonic()
        self._joined_run_s = joined.run_s
        self._began_s = self._joined_s  # of the current lap
        session.stopwatch.reset()
        self.restarts = 0
        ids.epoch = ids.seen = joined.epoch
        self._prepare(joined, 0, 0)

    def _prepare(self, joined: JoinReply, mutations: int, points: int) -> None:
        """Prepare for the loop that enters the clock ``joined.clock``.

        ``mutations`` and ``points``: the numbers of mutations and synchronisation points before the run's first clock.
        """
        self.clock = self.ref.first
        self.is_inside = False
        self._resume_clock = joined.clock  # the first clock that no earlier attempt has finished
        self._left_in_clock = False  # the worker left a loop inside a clock, and has not entered another clock
        self._budget_end_s = FOREVER  # the time at which the clock's budget is spent
        # The first clock whose updates were not all on the servers when it ended; None: all updates are.
        self._first_unapplied: int | None = None
        self.turn: Turn | None = None
        self._num_points = points  # the number of synchronisation points that the worker has reached in this phase
        self.reports: list[Report] = []
        self._loop_end = 0  # the loop ends before this clock
        self._run_end = FOREVER  # the run ends before this clock
        self.inbox.restart()
        self.ids.settled = 2 * joined.clock
        self.ids.enter(2 * self.ref.first, mutations)

    def _initial_freshness(self, joined: JoinReply) -> Freshness:
        first, staleness = self.ref.first, self.ref.staleness
        return Freshness(first, first if staleness is None else first + staleness, joined.epoch)

    @property
    def time_left_s(self) -> float:
        """The seconds left of the clock's budget."""
        return max(0.0, self._budget_end_s - time.monotonic())

    @contextmanager
    def prefetching(self) -> Iterator[None]:
        """Allow prefetches in the with-block; at its end, wait for all background reads."""
        try:
            yield
        finally:
            if self._poller is not None:
                self._poller.close()
            self.prefetches.close()

    def run_with_rollbacks(self, work: Callable[[], None]) -> None:
        """Run the worker's function; run it again from its beginning if a rollback made it fail.

        A loop over clocks handles rollbacks to one of its own clocks itself. After a rollback, work outside of a loop
        fails, and so does work that has read some values before the rollback and others after it.
        """
        mutations, points = self.ids.number, self._num_points
        while True:
            epoch = self.ids.epoch
            try:
                return work()
            except Exception as error:
                failure = error
            try:
                joined = self.control.join_again()
            except PS2Error:
                raise failure from None  # the run is over, or the driver has ended
            if joined.epoch == epoch or joined.done:
                raise failure
            log.warning("rank %d rolls back to clock %d with the fleet: %s", self.rank, joined.clock, failure)
            del failure
            self.restarts += 1
            if self._poller is not None:
                self._poller.close()
            self.session.resume(joined.epoch)
            self.session.async_writer.discard()
            self.prefetches.restart(self._initial_freshness(joined))
            self._prepare(joined, mutations, points)

    def clocks(self, n: int, budget_s: float | None = FOREVER) -> Generator[int, None, None]:
        """Yield the clocks below ``n``, each when other workers allow it. ``budget_s`` None: the run sets it."""
        if self.is_inside:
            raise UsageError("clocks: loops over clocks do not nest")
        if self.clock >= min(n, self._run_end):
            return
        if self._resume_clock > n:  # an earlier attempt has finished this loop
            self.clock = n
            self._begin(2 * n)
            return
        begin, restarts = self.clock, self.restarts
        self._loop_end = min(n, MAX_CLOCKS)
        target = max(begin, self._resume_clock)
        self._flush_for(target, is_last=False)
        times = self.lap()
        while True:
            entry = self._enter(target, times)
            if entry.clock != target and not begin <= entry.clock <= n:
                raise RolledBack(
                    f"the fleet rolled back to clock {entry.clock}, which is not in this loop: the worker's next "
                    "attempt resumes from there",
                    entry.clock,
                )
            self.clock = entry.clock
            if entry.clock >= min(n, self._run_end):
                break
            self._begin(2 * entry.clock + 1)
            self._budget_end_s = time.monotonic() + (entry.budget_s if budget_s is None else budget_s)
            self.is_inside = True
            try:
                yield entry.clock
            except GeneratorExit:
                # After a restart, the previous call's generator can be closed late, and must not change the state.
                self._left_in_clock = self._left_in_clock or restarts == self.restarts
                raise
            finally:
                if restarts == self.restarts:
                    self.is_inside = False
                    self._budget_end_s = FOREVER
            target = entry.clock + 1
            self._flush_for(target, is_last=target >= min(n, self._run_end))
            times = self.lap()
        if self.clock < n:  # the run has ended before ``n``, which ``_flush_for`` did not know
            self._flush_for(self.clock, is_last=True)
        self._begin(2 * self.clock)

    def poll_progress(self, clock: int) -> None:
        """Start reads for the next clock as soon as the other workers let this worker enter it."""
        if self._poller is not None:
            self._poller.enter(clock, self.ids.epoch)

    def stop_polling(self) -> None:
        if self._poller is not None:
            self._poller.leave()

    def flush(self) -> None:
        """Wait until all changes are on the servers."""
        with self.session.stopwatch.running("push"):
            self.session.dispatch.flush()

    def lap(self) -> ClockTimes:
        """Return the times since the last lap. The wait before a clock is part of the clock's times."""
        seconds, now_s = self.session.stopwatch.seconds, time.monotonic()
        self.session.stopwatch.reset()
        began_s, self._began_s = self._began_s, now_s
        turn, self.turn = self.turn, None
        return ClockTimes(
            self.clock,
            began=self._joined_run_s + began_s - self._joined_s,
            compute=max(0.0, now_s - began_s - sum(seconds.values())),
            **seconds,
            outside=self.ids.phase % 2 == 0,
            block=IDLE if turn is None else turn.block,
            left=0.0 if turn is None else turn.left,
            work=0.0 if turn is None else turn.workS,
            transfer=self.session.async_writer.transfers.take(),
        )

    def next_point(self) -> tuple[int, int]:
        """Return the phase and the number of the worker's next synchronisation point."""
        self._num_points += 1
        return self.ids.phase, self._num_points - 1

    def take_metrics(self) -> list[Logged]:
        """Return the values that were logged since the last message to the driver."""
        self.last_message_s = time.monotonic()
        metrics, self.metrics = self.metrics, []
        return metrics

    def _enter(self, clock: int, times: ClockTimes) -> ClockEntry:
        """Wait until a clock may be entered. Before, ``_flush_for`` must have sent the updates that the clock needs."""
        applied = clock if self._first_unapplied is None else min(clock, self._first_unapplied)
        epoch = self.ids.epoch
        reports = [report for report in self.reports if report.clock < clock]
        with self.session.stopwatch.running("wait"):
            entry = self.control.arrive(
                *(clock, applied, epoch, times, self.take_metrics()), self.inbox.count, reports, self._loop_end
            )
        self.reports = [report for report in self.reports if report.clock >= clock]
        self._split_wait(entry)
        self.session.resume(entry.epoch)
        if entry.epoch != epoch:
            self._resume_clock = applied = entry.clock
            self._left_in_clock = False
            self.reports = []
            self.inbox.restart()
        self.inbox.enter(entry)
        self._run_end = FOREVER if entry.end is None else entry.end
        self.ids.settled = 2 * min(applied, entry.clock)
        self.prefetches.enter(entry.clock, entry.horizon, entry.epoch)
        return entry

    def _split_wait(self, entry: ClockEntry) -> None:
        """Divide the wait for a clock into waits for other workers, ``onClock``, checkpoints and the coordinator."""
        stopwatch = self.session.stopwatch
        stopwatch.move(entry.on_clock, "wait", to="on_clock")
        stopwatch.move(entry.checkpoint, "wait", to="checkpoint")
        stopwatch.move(max(0.0, stopwatch.seconds["wait"] - entry.others), "wait", to="coordinator")

    def _begin(self, phase: int) -> None:
        """Begin a phase: 2 t before clock t, and 2 t + 1 in it."""
        if not (self._left_in_clock and phase == self.ids.phase):  # else the numbering in the clock continues
            self.ids.enter(phase)
            self._num_points = 0
        self._left_in_clock = False

    def _flush_for(self, target: int, is_last: bool) -> None:
        """Wait until the servers have the changes that clock ``target`` needs; ``is_last``: all changes."""
        if is_last:
            self.flush()
            self._first_unapplied = None
            return
        staleness = self.ref.staleness
        with self.session.stopwatch.running("push"):
            self._first_unapplied = self.session.async_writer.flush_below(
                0 if staleness is None else target - staleness
            )
