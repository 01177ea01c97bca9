"""A run of workers that stay: their seats, clocks and meetings, and what they logged. Safe for threads.

No thread waits here: a question that has to wait is a generator, and whoever asks goes on with it when it is woken. All
questions of workers may come again: the connection may be cut after one was understood, and before it is answered.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import RLock
from typing import Protocol, TypeVar

from ps2.errors import InputError, LimitError, PS2Error, RecoveryError, RolledBack, StoppedError, WorkerError
from ps2.protocol.plain_data import LIMIT_BYTES
from ps2.rpc.run_control import ClockTimes, Entered, Logged, Report, Seated
from ps2.run.clocks import Clocks, Cut, Release
from ps2.run.journal import Journal
from ps2.run.meetings import Meetings, Point, where
from ps2.run.records import MAX_TIMES, Metrics, Timeline

T = TypeVar("T")

# A worker's question: it is gone on with, the run's lock held, until it returns its answer. It yields when it has to
# wait: until it is woken, or until a moment (``time.monotonic``), if it yields one.
Question = Generator[float | None, None, T]
Wake = Callable[[], None]

# Errors that another attempt would come to alike.
FATAL: dict[str, type[PS2Error]] = {"InputError": InputError, "LimitError": LimitError}

# Moments of checkpoints that are remembered; the fleet goes back to one of the newest.
CUTS = 100
# So often the fleet may go back to one checkpoint: if it never comes to the next, it does not get on.
MOST_RETURNS = 100
# After which a worker that asks how far it may go is told, however far that is.
AHEAD_S = 1.0


@dataclass(eq=False)
class Seat:
    """One attempt of one worker, on one connection.

    Attributes:
        number: in the order in which connections came.
        wake: its question may be gone on with; only takes note.
        gone: the connection has ended, or the same attempt has come back on another one.
        leaving: it has returned or failed.
    """

    rank: int
    attempt: int
    number: int
    wake: Wake = field(repr=False)
    gone: bool = False
    leaving: bool = False


class Listener(Protocol):
    """Who is told what happens in a run; called with its lock held, so it only takes note."""

    def clock_due(self) -> None: ...
    def logged(self, rank: int, metric: Logged) -> None: ...
    def failed(self) -> None: ...


@dataclass
class Run:
    """What the coordinator knows of a run.

    Workers tell their ``epoch``. One that does not know yet that the fleet has gone back to a checkpoint finishes its
    clock as if nothing had happened: it meets nobody, and what it makes there counts for nobody.

    Attributes:
        calls_end: whether something is called when all workers have returned, before they are let go.
        lock: held while a question is gone on with.
        epoch: how often the fleet has gone back to a checkpoint.
        failures: the last error of each rank, as (clock, traceback).
        results: pickled, by rank.
        journal: what ``onClock`` has returned.
        timeline: by rank.
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
        self._began_s = time.monotonic()
        self._meetings = Meetings(self.workers, self.first)
        self._numbers = itertools.count(1)
        self._seats: dict[int, Seat] = {}
        self._parked: list[Seat] = []
        self._joined: set[int] = set()
        self._entries: dict[int, Entered] = {}
        self._ahead: dict[Wake, int] = {}  # who asks how far they may go, by whom to wake: rank
        self._blocked: dict[int, str] = {}  # what those that wait wait for, beside clocks
        self._noted: dict[int, int] = {}  # attempt -> its last message whose times and metrics are noted
        self._arrived_s: dict[int, float] = {}  # rank -> when it came to stand before its clock
        # When all had finished the clocks below one, as long as onClock has not returned for all of those.
        self._finished_s: dict[int, float] = {}
        self._due_told: int | None = None
        self._calling: int | None = None
        self._end_told = self._end_called = False
        self._error: PS2Error | None = None
        self._cuts: dict[str, Cut] = {}
        self._returns: Counter[str] = Counter()  # by checkpoint: how often the fleet has gone back to it
        self._held = False
        self._journal_before = self.journal  # the one of the epoch before
        self._reports: dict[int, dict[int, Sequence[Report]]] = {}  # by clock, then by rank

    # -- the workers' questions ------------------------------------------------------------------------------------

    def seat(self, rank: int, attempt: int, wake: Wake) -> Seat:
        """Return a seat for an attempt that has come; it is to ``sit``, and to ``leave_seat`` in the end."""
        return Seat(rank, attempt, next(self._numbers), wake)

    def sit(self, seat: Seat) -> Question[Seated]:
        """Give an attempt its rank's place; wait while another attempt has it.

        The same attempt on a newer connection takes it over. Who comes after its rank has left waits for the end, too.
        """
        rank = seat.rank
        self._parked.append(seat)
        try:
            yield from self._wait(seat, lambda: self._is_over() if rank in self.results else self._is_free(seat))
        finally:
            self._parked.remove(seat)
        if rank in self.results:
            return Seated(self.workers, 0, self.epoch, 0.0, done=True)
        if rank in self._seats:
            self.leave_seat(self._seats[rank])
        self._seats[rank] = seat
        self._joined.add(rank)
        self.failures.pop(rank, None)  # it has another attempt
        clock = self.clocks.applied[rank]
        return Seated(self.workers, clock, self.epoch, time.monotonic() - self._began_s, done=False)

    def leave_seat(self, seat: Seat) -> None:
        """An attempt's connection has ended, for whatever reason."""
        with self.lock:
            seat.gone = True
            seat.wake()
            self._wake_ahead(seat.rank)
            if self._seats.get(seat.rank) is not seat:
                return
            del self._seats[seat.rank]
            self._entries.pop(seat.rank, None)
            self._blocked.pop(seat.rank, None)
            self._meetings.gone(seat.rank)
            if not self.clocks.is_done(seat.rank):
                self.clocks.gone(seat.rank)
            self._wake_parked()

    def arrive(
        self, seat: Seat, clock: int, applied: int, epoch: int, reports: Sequence[Report] = ()
    ) -> Question[Entered]:
        """Let a worker into a clock, when it is time."""
        yield from self._check(seat)
        if epoch != self.epoch:  # what it did since is not there any more
            clock = applied = self.clocks.applied[seat.rank]
        else:
            self._note_reports(seat.rank, reports)
        self._entries.pop(seat.rank, None)
        self._arrived_s[seat.rank] = time.monotonic()
        self._tell_clocks(lambda: self.clocks.arrive(seat.rank, clock, applied))
        yield from self._wait(seat, lambda: seat.rank in self._entries)
        return self._entries.pop(seat.rank)

    def ahead(
        self, rank: int, attempt: int, applied: int, clock: int, epoch: int, wake: Wake
    ) -> Question[tuple[int, int]]:
        """Take note of what a worker has applied in the clock that it is in; tell how far it may go, and the epoch.

        Waits until that is the clock that it asks for, but not for long, and not for one that leaves.

        Raises:
            StoppedError: another attempt has its place, or nobody.
        """
        seat = self._seats.get(rank)
        if seat is None or seat.attempt != attempt:
            raise StoppedError(f"attempt {attempt} of rank {rank} has not its place")
        if epoch == self.epoch:
            self._tell_clocks(lambda: self.clocks.progress(rank, applied))
        end_s = time.monotonic() + AHEAD_S
        self._ahead[wake] = rank
        try:
            while not (
                self._error is not None
                or seat.gone
                or seat.leaving
                or epoch != self.epoch
                or (self.clocks.horizon(rank) >= clock and not self._held)
                or time.monotonic() >= end_s
            ):
                yield end_s
        finally:
            del self._ahead[wake]
        return self.clocks.horizon(rank), self.epoch

    def messages(self, seat: Seat, begin: int, end: int, epoch: int) -> Question[list[bytes]]:
        """Return the driver's messages by their numbers, as many as fit one answer; none if they are not there."""
        yield from self._check(seat)
        size = 0
        fitting: list[bytes] = []
        for message in (self.journal if epoch == self.epoch else self._journal_before).messages(begin, end):
            size += len(message)
            if fitting and size > LIMIT_BYTES:
                break
            fitting.append(message)
        return fitting

    def barrier(self, seat: Seat, point: Point, epoch: int) -> Question[None]:
        """Let a worker wait for all others at a point."""
        yield from self._check(seat)
        if epoch != self.epoch:
            return
        with self._failing():
            passing = self._meetings.come(seat.rank, point)
        self._unblock(passing)
        if seat.rank not in passing:
            yield from self._block(seat, f"at a barrier {where(point)}")

    def once(self, seat: Seat, point: Point, epoch: int) -> Question[bytes | None]:
        """Return the value of a point; None if this worker is to make it."""
        yield from self._check(seat)
        if epoch == self.epoch:
            with self._failing():
                known = self._meetings.ask(seat.rank, point)
            if not known:
                yield from self._block(seat, f"for what another one makes {where(point)}")
        return self._meetings.value(point) if epoch == self.epoch else None

    def once_made(self, seat: Seat, point: Point, value: bytes, epoch: int) -> Question[bytes]:
        """Take the value of a point; return the one that counts."""
        yield from self._check(seat)
        if epoch != self.epoch:
            return value
        self._unblock(self._meetings.made(point, value))
        return self._meetings.value(point) or b""

    def leave(self, seat: Seat, clock: int, result: bytes, epoch: int) -> Question[bool]:
        """A worker has returned, from a clock; let it go when all have, and all calls have been made.

        Its task could not go on once it has ended, and until then the fleet may go back to a checkpoint: return False
        if it has, so that the worker's next attempt does again what is lost.
        """
        yield from self._check(seat)
        if epoch != self.epoch:
            return False
        self.results.setdefault(seat.rank, result)
        self._note_leaving(seat)
        self._tell_clocks(lambda: self.clocks.leave(seat.rank, clock))
        yield from self._wait(seat, lambda: self._is_over() or seat.rank not in self.results)
        return seat.rank in self.results

    def fail_attempt(self, seat: Seat, clock: int, traceback: str, fatal: bool) -> None:
        """An attempt has raised; Spark starts another one, or gives up.

        Args:
            traceback: if it is fatal, the error's name and message.
        """
        with self.lock:
            self._note_leaving(seat)
            self.failures[seat.rank] = clock, traceback
            if fatal:
                name, _, message = traceback.partition(": ")
                self.fail(FATAL.get(name, WorkerError)(message))

    def note(self, seat: Seat, number: int, metrics: Sequence[Logged], times: ClockTimes | None) -> None:
        """Keep what a worker logged, and how long its clock took.

        Args:
            number: of the attempt's message; what comes again is not noted again.
        """
        with self.lock:
            if number <= self._noted.get(seat.attempt, 0):
                return
            self._noted[seat.attempt] = number
            for metric in metrics:
                self.metrics.append(seat.rank, metric)
                self.listener.logged(seat.rank, metric)
            if times is not None:
                self.timeline[seat.rank].append(times)

    # -- the driver's side -----------------------------------------------------------------------------------------

    def call_due(self) -> tuple[int, int] | None:
        """Return the clock that ``onClock`` is to be called for now, if any, and the epoch.

        Say ``called_back`` when it has returned.
        """
        with self.lock:
            self._calling = self.clocks.due() if self._error is None and not self._held else None
            return None if self._calling is None else (self._calling, self.epoch)

    def called_back(self, clock: int) -> None:
        """``onClock`` has returned; what it did before the fleet went back to a checkpoint does not count."""
        with self.lock:
            if clock == self._calling:
                self._calling = None
                self._reports.pop(clock, None)
                self._tell_clocks(lambda: self.clocks.called_back(clock))
                self._finished_s.pop(clock + 1, None)

    def reports(self, clock: int) -> dict[int, Sequence[Report]]:
        """Return what the workers reported in a clock that ``onClock`` is called for, by rank."""
        with self.lock:
            return dict(self._reports.get(clock, {}))

    def tell(self, clock: int, epoch: int, message: bytes | None, stop: bool = False) -> None:
        """Note what ``onClock`` has returned, before ``called_back``.

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
        """Return the epoch if the call at the end is to be made now; say ``end_called`` when it has returned."""
        with self.lock:
            is_due = self._all_returned() and not self._is_over() and self._error is None and not self._held
            return self.epoch if is_due else None

    def end_called(self, epoch: int) -> None:
        """The call at the end has returned; made before the fleet went back, or while it does, it does not count."""
        with self.lock:
            if epoch == self.epoch and not self._held and self._all_returned():
                self._end_called = True
                self._wake_all()

    def fail(self, error: PS2Error) -> None:
        """End the run: whoever waits, or asks, is told why."""
        with self.lock:
            if self._error is None:
                self._error = error
                self.listener.failed()
                self._wake_all()

    @property
    def is_over(self) -> bool:
        """Whether all workers have returned, and all calls have been made."""
        with self.lock:
            return self._is_over()

    @property
    def error(self) -> PS2Error | None:
        return self._error

    def missing(self) -> list[int]:
        """Return the ranks that nobody has ever taken."""
        with self.lock:
            return [rank for rank in range(self.workers) if rank not in self._joined]

    def absent(self) -> list[int]:
        """Return the ranks that have no attempt now, and no result."""
        with self.lock:
            return [rank for rank in range(self.workers) if rank not in self._seats and rank not in self.results]

    @property
    def attempts(self) -> int:
        """How many attempts there are now, those that wait for another one's place among them."""
        with self.lock:
            return len(self._seats) + len(self._parked)

    @property
    def is_held(self) -> bool:
        return self._held

    def hold(self) -> None:
        """Let nobody go on until ``roll_back``: some may know already that the fleet goes back, and do nothing more."""
        with self.lock:
            self._held = not self._is_over()

    def applied(self) -> list[int]:
        """Return how many clocks of each rank are on the servers."""
        with self.lock:
            return list(self.clocks.applied)

    def cut(self) -> Cut:
        """Return where the clocks stand, for a checkpoint that is made now; a call under way counts as done."""
        with self.lock:
            called = self.clocks.called if self._calling is None else self._calling + 1
            reports = {clock: dict(mine) for clock, mine in self._reports.items() if clock >= called}
            return Cut(tuple(self.clocks.applied), called, self.journal, reports)

    def note_cut(self, checkpoint: str, cut: Cut) -> None:
        """Note what ``cut`` told before a checkpoint was made."""
        with self.lock:
            self._cuts[checkpoint] = cut
            if len(self._cuts) > CUTS:
                del self._cuts[next(iter(self._cuts))]

    def has_cut(self, checkpoint: str) -> bool:
        """Tell whether it is known where the clocks stood at a checkpoint."""
        with self.lock:
            return checkpoint in self._cuts

    def roll_back(self, epoch: int, checkpoint: str) -> bool:
        """The fleet went back to a checkpoint; one from before this run is the end of it.

        Returns:
            Whether the run goes on from there.
        """
        with self.lock:
            if self._error is not None or self._is_over():
                return False
            self.epoch, self._held = epoch, False
            self._calling = self._due_told = None
            self._end_told = False
            self._finished_s.clear()
            cut = self._cuts.get(checkpoint)
            if cut is None:
                self.fail(RolledBack(f"the fleet went back to a checkpoint from before this run: {checkpoint}"))
                return False
            self._returns[checkpoint] += 1
            if self._returns[checkpoint] > MOST_RETURNS:
                self.fail(
                    RecoveryError(
                        f"run: servers were lost again and again: the fleet went back {self._returns[checkpoint]} "
                        f"times to checkpoint {checkpoint} (clock {min(cut.applied)}), and the run never came to the "
                        f"next one; it goes on from the same one {MOST_RETURNS} times at most"
                    )
                )
                return False
            self.results.clear()
            self._journal_before, self.journal = self.journal, cut.journal
            self._reports = {clock: dict(mine) for clock, mine in cut.reports.items()}
            self._unblock(self._meetings.roll_back(min(cut.applied), max(cut.applied)))
            self._tell_clocks(lambda: self.clocks.roll_back(cut))
            self._wake_all()
            return True

    # -- within ----------------------------------------------------------------------------------------------------

    def _is_free(self, seat: Seat) -> bool:
        there = self._seats.get(seat.rank)
        return there is None or (there.attempt == seat.attempt and there.number < seat.number)

    def _all_returned(self) -> bool:
        """Whether all workers have, and the calls for all clocks."""
        return len(self.results) == self.workers and self.clocks.due() is None

    def _is_over(self) -> bool:
        return self._all_returned() and (self._end_called or not self.calls_end)

    def _tell_clocks(self, event: Callable[[], Sequence[Release]]) -> None:
        """Apply an event to the clocks, and do what follows from it."""
        finished, bound = self.clocks.finished, self.clocks.bound
        with self._failing():
            releases = event()
        if self.clocks.bound != bound:
            self._wake_ahead()
        now_s = time.monotonic()
        if self.clocks.due() is not None:
            self._finished_s.update(dict.fromkeys(range(finished + 1, self.clocks.finished + 1), now_s))
        for release in releases:
            waits_s = max(self._arrived_s[release.rank], self._finished_s.get(self.clocks.needed(release.clock), now_s))
            stopped = self.journal.stopped
            self._entries[release.rank] = Entered(
                *(release.clock, release.horizon, self.epoch, now_s - waits_s),
                *(self.journal.count, self.journal.newest, None if stopped is None else stopped.end),
            )
            self._wake(release.rank)
        self._meetings.forget(self.clocks.finished)
        due = self.clocks.due()
        if due is not None and due != self._due_told:
            self._due_told = due
            self.listener.clock_due()
        if self._is_over():
            self._wake_all()
        elif self._all_returned() and not self._end_told:
            self._end_told = True
            self.listener.clock_due()
        self._check_not_stuck()

    def _note_reports(self, rank: int, reports: Sequence[Report]) -> None:
        """Keep what a worker reported; an attempt that does a clock again reports it again."""
        by_clock: dict[int, list[Report]] = {}
        for report in reports:
            by_clock.setdefault(report.clock, []).append(report)
        for clock, mine in by_clock.items():
            if clock >= self.clocks.called:
                self._reports.setdefault(clock, {})[rank] = mine

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """End the run with what a worker does wrong."""
        try:
            yield
        except WorkerError as error:
            self.fail(error)
            raise

    def _block(self, seat: Seat, why: str) -> Question[None]:
        """Wait until ``_unblock``."""
        self._blocked[seat.rank] = why
        self._check_not_stuck()
        yield from self._wait(seat, lambda: seat.rank not in self._blocked)

    def _unblock(self, ranks: Collection[int]) -> None:
        # Here, not when they go on: until then, nobody must think that they wait.
        for rank in ranks:
            self._blocked.pop(rank, None)
            self._wake(rank)

    def _wait(self, seat: Seat, until: Callable[[], bool]) -> Question[None]:
        while True:
            if self._error is not None:
                raise StoppedError(f"the run has ended: {self._error}")
            if seat.gone:
                raise StoppedError(f"this attempt of rank {seat.rank} has lost its place: its connection was cut")
            if until() and not self._held:
                return
            yield None

    def _check(self, seat: Seat) -> Question[None]:
        """Raise StoppedError unless an attempt may ask."""
        yield from self._wait(seat, lambda: True)
        if self._seats.get(seat.rank) is not seat:
            raise StoppedError(f"another attempt has taken the place of rank {seat.rank}")

    def _note_leaving(self, seat: Seat) -> None:
        seat.leaving = True
        self._wake_ahead(seat.rank)

    def _wake(self, rank: int) -> None:
        if rank in self._seats:
            self._seats[rank].wake()

    def _wake_parked(self) -> None:
        for seat in self._parked:
            seat.wake()

    def _wake_ahead(self, of: int | None = None) -> None:
        """Wake those who ask how far they may go: one rank's, or all."""
        for wake, rank in self._ahead.items():
            if of is None or rank == of:
                wake()

    def _wake_all(self) -> None:
        self._wake_ahead()
        for seat in self._seats.values():
            seat.wake()
        self._wake_parked()

    def _check_not_stuck(self) -> None:
        """End a run in which everybody waits for somebody else, or somebody for one that has returned."""
        waiting, unfinished = self.clocks.waiting, self.clocks.unfinished
        if self._error is not None or not self._blocked:
            return
        all_wait = len(waiting) + len(self._blocked) == unfinished and self.clocks.due() is None
        if all_wait or (self._meetings.open_barriers and unfinished < self.workers):
            waits = {rank: f"before clock {clock}" for rank, clock in waiting.items()} | self._blocked
            told = "; ".join(f"rank {rank} waits {waits[rank]}" for rank in sorted(waits))
            told += f"; ranks {self.clocks.done} have returned" if self.clocks.done else ""
            self.fail(WorkerError(f"workers wait for each other for ever: {told}"))
