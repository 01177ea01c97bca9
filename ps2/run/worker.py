"""What a function that ``ps.run`` runs is given: its clock, and its ways to meet the other workers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsFloat, TypeVar

import numpy as np

from ps2.client.fleet import FleetRef
from ps2.errors import LimitError, PS2Error, RolledBack, UsageError
from ps2.protocol.plain_data import LIMIT_BYTES
from ps2.rpc.run_control import ClockTimes, Entered, Logged, Report, RunControl, Seated
from ps2.run.inbox import Inbox
from ps2.run.lookout import Lookout
from ps2.run.prefetch import Freshness, Prefetch, Prefetches
from ps2.run.reports import report
from ps2.run.rotating import Fetch, Rotations, Turn, check_staleness
from ps2.run.rotation import IDLE, Ring

if TYPE_CHECKING:
    from ps2.client.dcv import DCV
    from ps2.client.matrix import DCVMatrix
    from ps2.client.session import Session
    from ps2.client.task import RunIds

log = logging.getLogger(__name__)

T = TypeVar("T")

# What is logged goes with the next message to the coordinator; with one of its own if the last was so long ago.
LOG_INTERVAL_S = 1.0
# Asynchronous workers never wait for their updates; what has waited for so many clocks leaves first.
LATE_CLOCKS = 8


@dataclass(frozen=True)
class RunRef:
    """Which run a task works for; travels in its closure and holds no secret.

    Attributes:
        address: ``host:port`` of the run's face.
        number: of the run, in its fleet.
        staleness: None for ASP.
        first: the clock that the run begins with.
        seed: of ``worker.rng``.
        priority: "magnitude": large updates leave first.
        bandwidth: bytes a second that updates under way may take; None is no limit.
        takes_reports: whether ``onClock`` takes what workers report.
    """

    fleet: FleetRef
    address: str
    number: int
    staleness: int | None
    first: int
    seed: int
    priority: str | None = None
    bandwidth: float | None = None
    takes_reports: bool = False

    @property
    def series(self) -> str:
        """What the ids of mutations in this fleet's runs have in common."""
        return f"{self.fleet.id}/runs"


class Worker:
    """One worker of a run: the first argument of ``worker_fn``.

    It belongs to the thread that ``worker_fn`` is called in. DCVs work here as everywhere; what a worker changes counts
    once, however often its task is started again, as long as all attempts make the same calls in the same order: draw
    random numbers from ``rng``, and let nothing depend on the time of day.

    Attributes:
        rank: which one, from 0; also the number of the rdd_partition whose rows it has.
        workers: how many there are.
        clock: the clock that it is in; before the first one, or between two loops, the next.
    """

    def __init__(
        self, ref: RunRef, rank: int, place: Seated, control: RunControl, session: Session, ids: RunIds
    ) -> None:
        """Not for users: ``ps.run`` makes them."""
        self.rank = rank
        self.workers = place.workers
        self._ref = ref
        self._control = control
        self._session = session
        self._ids = ids
        self._prefetches = Prefetches(session, self._first_view(place))
        # With SSP alone reads may be sent before the clock that they are for is entered.
        self._lookout = Lookout(control, session.async_writer, self._prefetches) if ref.staleness else None
        self._inbox = Inbox(control)
        self._metrics: list[Logged] = []
        self._told_s = self._joined_s = time.monotonic()
        self._offset_s = place.run_s
        self._began_s = self._joined_s
        session.stopwatch.reset()
        self._beginnings = 0
        ids.epoch = ids.seen = place.epoch
        self._begin_at(place, 0, 0)

    def _begin_at(self, place: Seated, mutations: int, meetings: int) -> None:
        """Stand before the first clock, to go on with the one that the coordinator has told.

        Args:
            mutations, meetings: so many have been there before the first clock.
        """
        self.clock = self._ref.first
        self._resume = place.clock
        self._inside = False
        self._left = False  # the loop was left within the clock that this still is in
        self._ends_s = float("inf")  # of the clock's budget
        # The first clock whose updates are not all on the servers, as of its end; None: all are.
        self._open: int | None = None
        self._turn: Turn | None = None
        self._number = meetings  # in this phase
        self._reports: list[Report] = []
        self._end = float("inf")  # the run ends before this clock
        self._inbox.begin_again()
        self._ids.settled = 2 * place.clock
        self._ids.enter(2 * self._ref.first, mutations)

    def _first_view(self, place: Seated) -> Freshness:
        first, staleness = self._ref.first, self._ref.staleness
        return Freshness(first, first if staleness is None else first + staleness, place.epoch)

    def _again(self, work: Callable[[], None]) -> None:
        """Do work, from before the first clock to its end; do it anew as often as it fails, and the fleet has gone back
        to a checkpoint since it began.

        A loop over clocks goes back by itself as far as it reaches. What fails then is what stands beyond it, or has
        seen a part of what there was before.
        """
        mutations, meetings = self._ids.number, self._number
        while True:
            epoch = self._ids.epoch
            try:
                return work()
            except Exception as error:
                failure = error
            try:
                place = self._control.join_again()
            except PS2Error:
                raise failure from None  # the run is over, or the driver gone
            if place.epoch == epoch or place.done:
                raise failure
            log.warning("rank %d goes back to clock %d with the fleet: %s", self.rank, place.clock, failure)
            del failure
            self._beginnings += 1
            if self._lookout is not None:
                self._lookout.close()
            self._session.go_on(place.epoch)
            self._session.async_writer.discard()
            self._prefetches.begin_again(self._first_view(place))
            self._begin_at(place, mutations, meetings)

    def clocks(self, n: int, budgetS: float | None = None) -> Iterator[int]:
        """Yield the clocks up to ``n``, this one not included, each when the others allow it (``staleness``).

        When a clock ends, all that the body has changed is on the servers; what it added with ``wait=False`` may take
        ``staleness`` clocks more (without staleness: any number), but not beyond the end of the loop. A loop after this
        one goes on where it ended: clocks count from the beginning of the run. When the task is started again, it goes
        on with the first clock that it had not finished; when the fleet goes back to a checkpoint, with the first one
        that is not in it.

        Args:
            n: the same for all workers.
            budgetS: seconds for the body of a clock, which ``within`` and ``timeLeft`` keep to: a slow machine does
                less, instead of making the others wait (time control; Zhang et al., "Parallelizing Big Data Machine
                Learning Algorithms with Model Rotation", section IV.D).

        Raises:
            UsageError: loops nest, ``n`` is not an integer, or ``budgetS`` not a positive number.
            PS2Error: what was added with ``wait=False`` failed; at the end of the clock at the latest.
        """
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
            raise UsageError(f"clocks: expected an integer, the number of clocks, got {n!r}")
        if n < 0:
            raise UsageError(f"clocks: expected a number of clocks that is not negative, got {n}")
        return self._clocks(int(n), _budget("clocks", budgetS))

    def _clocks(self, n: int, budget_s: float) -> Generator[int, None, None]:
        if self._inside:
            raise UsageError("clocks: loops over clocks do not nest")
        if self.clock >= min(n, self._end):
            return
        if self._resume > n:  # an attempt before this one has been through, and is not waited for here any more
            self.clock = n
            self._begin(2 * n)
            return
        begin, beginning = self.clock, self._beginnings
        target = max(begin, self._resume)
        self._bring(target, is_last=False)
        times = self._lap()
        while True:
            entry = self._enter(target, times)
            if entry.clock != target and not begin <= entry.clock <= n:
                raise RolledBack(
                    f"the fleet went back to clock {entry.clock}, which is not of this loop: the worker's next attempt "
                    "goes on from there",
                    entry.clock,
                )
            self.clock = entry.clock
            if entry.clock >= min(n, self._end):
                break
            self._begin(2 * entry.clock + 1)
            self._ends_s = time.monotonic() + budget_s
            self._inside = True
            try:
                yield entry.clock
            except GeneratorExit:
                # It may be a loop of before the work was begun anew, whose frame went later.
                self._left = self._left or beginning == self._beginnings
                raise
            finally:
                if beginning == self._beginnings:
                    self._inside = False
                    self._ends_s = float("inf")
            target = entry.clock + 1
            self._bring(target, is_last=target >= min(n, self._end))
            times = self._lap()
        if self.clock < n:  # the run ends here, which ``_bring`` did not know
            self._bring(self.clock, is_last=True)
        self._begin(2 * self.clock)

    def rotate(
        self,
        blocks: int,
        rotations: int = 1,
        slices: int = 2,
        budgetS: float | None = None,
        fetch: Fetch | None = None,
    ) -> Iterator[Turn]:
        """Yield turns: in each, this worker alone has one block of a model, in each rotation every block once.

        Model rotation (Zhang et al., "Parallelizing Big Data Machine Learning Algorithms with Model Rotation"). What a
        block is, is the caller's: a turn changes its block, and nobody else's. What its last owner had changed is
        applied before a block can be read here. A turn is a clock; which block it has follows from the run's seed and
        the clock, so a task that is started again goes on with the turn that it had not finished.

        Example::

            def fetch(block):
                return worker.prefetch(table, columns=columns[block])

            for turn in worker.rotate(2 * worker.workers, rotations=100, fetch=fetch):
                values = turn.pull()
                table.add(columns=columns[turn.block], values=..., wait=False)

        All workers must call it alike, and at the same point; it waits for all of them once, as ``barrier`` does.

        Args:
            blocks: how many; ``slices * worker.workers`` leave nobody idle. Numbered from 0; block b is of slice
                b mod ``slices``.
            rotations: how many times every worker has every block.
            slices: groups of blocks that take turns. The run needs ``staleness=slices - 1`` or less: with 2 and a
                staleness of 1, what a turn added with ``wait=False`` travels, and the next block comes, while another
                one is worked on.
            budgetS: seconds for each turn: ``turn.parts`` and ``turn.expired`` keep to it (section IV.D).
            fetch: called with the number of a block, one turn ahead; returns what ``worker.prefetch`` returns, or
                several of these, for ``turn.pull()``.

        Raises:
            UsageError: arguments are wrong, or not what the others called it with; the run's staleness is too large;
                loops over clocks nest.
        """
        ring = Ring(self.workers, blocks, slices)
        if isinstance(rotations, bool) or not isinstance(rotations, (int, np.integer)) or rotations < 0:
            raise UsageError(f"rotate: rotations: expected a number that is not negative, got {rotations!r}")
        if fetch is not None and not callable(fetch):
            raise UsageError(f"rotate: fetch: expected a function of a block's number, got {fetch!r}")
        check_staleness(self._ref.staleness, ring.slices)
        return self._rotate(ring, int(rotations), _budget("rotate", budgetS), fetch)

    def _rotate(self, ring: Ring, rotations: int, budget_s: float, fetch: Fetch | None) -> Iterator[Turn]:
        if self._inside:
            raise UsageError("rotate: loops over clocks do not nest")
        mine = (int(ring.blocks), rotations, int(ring.slices), budget_s)
        first = self.once(lambda: mine)
        if mine != first:
            raise UsageError(
                "rotate: expected what another worker called it with, as all must agree who has which block: (blocks, "
                f"rotations, slices, budgetS) = {first}, got {mine}"
            )
        self.barrier()
        beginning = self._beginnings
        turns = Rotations(self, ring, self._ref.seed, rotations, fetch)
        with closing(self._clocks(turns.clocks, budget_s)) as clocks:
            try:
                for clock in clocks:
                    turn = turns.turn(clock)
                    if self._lookout is not None:
                        self._lookout.enter(clock, self._ids.epoch)
                    if turn is not None:
                        self._turn = turn
                        yield turn
            finally:
                if self._lookout is not None and beginning == self._beginnings:
                    self._lookout.leave()

    def within(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items until the clock's budget is spent: at least one, and none that is not worked on.

        How much a worker got done is for the caller to weigh, for example by dividing the sum of all workers' gradients
        by the number of rows that they all took.

        Args:
            items: such as batches of rows; without ``budgetS`` all are yielded.
        """
        if not isinstance(items, Iterable):
            raise UsageError(f"within: expected what can be looped over, got {items!r}")
        return self._within(items)

    def _within(self, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            yield item
            if self.timeLeft <= 0:
                return

    @property
    def epoch(self) -> int:
        """How often the fleet had gone back to a checkpoint when this clock was entered.

        When it has grown, the model is as it was at that checkpoint; what a worker keeps of its own is not.
        """
        return self._ids.epoch

    @property
    def goesBack(self) -> bool:
        """Whether this clock will be done again, or an earlier one, as the fleet has gone back to a checkpoint.

        What was read is of that checkpoint then, and what is changed is dropped.
        """
        return self._ids.seen > self._ids.epoch

    @property
    def timeLeft(self) -> float:
        """Seconds left of this clock's budget, 0 when it is spent; infinite without one."""
        return max(0.0, self._ends_s - time.monotonic())

    def prefetch(self, source: DCV | DCVMatrix, indices: Any = None, ahead: int = 1, columns: Any = None) -> Prefetch:
        """Begin to read in the background; ``.result()`` of what this returns is what ``source.pull`` would return.

        Example::

            batch = worker.prefetch(weight, keys_of(0))
            for t in worker.clocks(100):
                w, batch = batch.result(), worker.prefetch(weight, keys_of(t + 1))
                gradient.add(..., wait=False)

        It is never staler than a pull may be: it is sent at once if all that a pull in that clock must hold is on the
        servers, else as soon as that clock is entered. So it helps where workers may be ahead (SSP, ASP); under BSP it
        costs what a pull costs, but for ``ahead=0``. All that this worker has changed itself is in it.

        Args:
            source: a vector, of which a sparse one needs indices, or a matrix.
            indices: as for ``pull``; of a matrix, rows.
            columns: of a matrix, as for ``pull``.
            ahead: for which clock: 0 is this one, 1 the next. It may be used in earlier ones, too.

        Raises:
            UsageError, OutOfRangeError: it cannot be read so.
        """
        return self._prefetches.begin(source, indices, ahead, columns)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Not for users: wait for what was prefetched in the end."""
        try:
            yield
        finally:
            if self._lookout is not None:
                self._lookout.close()
            self._prefetches.close()

    def barrier(self) -> None:
        """Wait until all workers that have not returned have come here, and what they changed is on the servers.

        Raises:
            StoppedError: the run has ended, because a worker failed or they wait for each other for ever.
        """
        self._flush()
        with self._session.stopwatch.running("wait"):
            self._control.barrier(self._ids.phase, self._next_number(), self._take_metrics())
        self._prefetches.meet()

    def once(self, fn: Callable[[], T]) -> T:
        """Let one worker call a function; return to all of them what it returned.

        The first to come calls it; all must come by, in the same order. Example: ``weight = worker.once(make_weight)``.

        Args:
            fn: what it returns is pickled, such as numbers, arrays and DCVs that it made. When its worker dies, that
                worker's next attempt calls it.

        Raises:
            StoppedError: the run has ended.
        """
        import cloudpickle

        if not callable(fn):
            raise UsageError(f"once: expected a function without arguments, got {fn!r}")
        phase, number = self._ids.phase, self._next_number()
        self._flush()
        with self._session.stopwatch.running("wait"):
            value = self._control.once(phase, number, self._take_metrics())
        if value is None:
            made = fn()
            try:
                value = cloudpickle.dumps(made)
            except Exception as error:  # it may hold anything, and each thing fails in its own way
                raise UsageError(f"once: {fn!r} returned what cannot be pickled: {made!r}: {error}") from error
            with self._session.stopwatch.running("push"):
                self._session.flush()
                value = self._control.once_made(phase, number, value)
        self._prefetches.meet()
        result: T = cloudpickle.loads(value)
        return result

    def rng(self, *key: int) -> np.random.Generator:
        """Return a random generator seeded by (seed of the run, rank, clock) and ``key``: equal in every attempt.

        The same call in the same clock begins with the same numbers again; ``key`` tells several generators of one
        clock apart.

        Args:
            key: integers that are not negative.
        """
        sequence = np.random.SeedSequence(self._ref.seed, spawn_key=(self.rank, self.clock, *key))
        return np.random.Generator(np.random.Philox(sequence))

    def log(self, **metrics: float) -> None:
        """Tell the driver numbers by name: ``worker.log(loss=0.3)``. They reach it while the job runs (``onLog``).

        They travel with the worker's next message to the driver: at the end of the clock, or at once if the last one is
        a second ago. ``RunResult.metrics`` has them afterwards.

        Raises:
            UsageError: a value is not a number.
        """
        self._session.check_process()
        self._metrics += [Logged(name, _number(name, value), self.clock) for name, value in metrics.items()]
        if self._metrics and time.monotonic() - self._told_s > LOG_INTERVAL_S:
            self._control.note(self._take_metrics())

    def report(self, value: Any, merge: str = "sum") -> None:
        """Give ``onClock(clock, reports)`` a small result of this clock.

        It travels with the worker's arrival at the next clock. ``reports`` is a list: the workers' first reports of the
        clock, merged in the order of the ranks, then their second ones, and so on. A clock that a worker leaves before
        its end has no reports.

        Args:
            value: a number or a NumPy array, or a dict of these that are merged by key.
            merge: "sum": numbers, or arrays of equal shape (floats are added in float64, integers exactly in 64 bits);
                "max": likewise, the largest; "concat": arrays along their first axis, lists as one list, and numbers
                become a list.

        Raises:
            UsageError: the value cannot be merged so, the worker is in no clock, or ``onClock`` takes no reports.
            LimitError: what the worker reports in this clock takes more than 64 MB.
        """
        self._session.check_process()
        if not self._ref.takes_reports:
            raise UsageError("report: this run has no onClock(clock, reports) that would take it")
        if not self._inside:
            raise UsageError("report: call it in a clock, within a loop over worker.clocks or worker.rotate")
        reports = [*self._reports, report(self.clock, value, merge)]
        if (size := sum(len(one.value) for one in reports)) > LIMIT_BYTES:
            raise LimitError(
                f"report: the reports of clock {self.clock} take {size:,} bytes, and may take {LIMIT_BYTES:,}: what is "
                "large belongs into vectors"
            )
        self._reports = reports

    @property
    def message(self) -> Any:
        """The newest message that ``onClock`` had returned when this clock was entered; None: there was none.

        In clock t of a run with staleness s it is of clock t - s - 1 or a later one; under BSP, of the clock before.
        It is plain data, and its arrays cannot be written to.
        """
        return self._inbox.newest

    @property
    def messages(self) -> list[Any]:
        """All messages up to ``message`` that this property has not returned before, the oldest first.

        In the first use of an attempt, and in the first after ``epoch`` has grown, these are all messages of the run.
        """
        self._session.check_process()
        return self._inbox.take()

    def _enter(self, clock: int, times: ClockTimes) -> Entered:
        """Wait until a clock may be entered; what was changed before, and may not be late, is on the servers then."""
        applied = clock if self._open is None else min(clock, self._open)
        known = self._ids.epoch
        reports = [one for one in self._reports if one.clock < clock]
        with self._session.stopwatch.running("wait"):
            entry = self._control.arrive(
                *(clock, applied, known, times, self._take_metrics()), self._inbox.count, reports
            )
        self._reports = [one for one in self._reports if one.clock >= clock]
        self._session.stopwatch.move(entry.on_clock, "wait", to="on_clock")
        self._session.go_on(entry.epoch)
        if entry.epoch != known:
            self._resume = applied = entry.clock
            self._left = False
            self._reports = []
            self._inbox.begin_again()
        self._inbox.enter(entry)
        self._end = float("inf") if entry.end is None else entry.end
        self._ids.settled = 2 * min(applied, entry.clock)
        self._session.async_writer.set_due(entry.clock - self._lateness + 1)
        self._prefetches.enter(entry.clock, entry.horizon, entry.epoch)
        return entry

    @property
    def _lateness(self) -> int:
        """For how many clocks after its own an update may wait before all others leave after it."""
        return LATE_CLOCKS if self._ref.staleness is None else self._ref.staleness

    def _begin(self, phase: int) -> None:
        if not (self._left and phase == self._ids.phase):  # what goes on in a clock goes on counting
            self._ids.enter(phase)
            self._number = 0
        self._left = False

    def _bring(self, target: int, is_last: bool) -> None:
        """Bring to the servers what must be there before a clock; ``is_last``: all that there is."""
        if is_last:
            self._flush()
            self._open = None
            return
        staleness = self._ref.staleness
        with self._session.stopwatch.running("push"):
            self._open = self._session.async_writer.flush_below(0 if staleness is None else target - staleness)

    def _flush(self) -> None:
        """Bring what was changed to the servers."""
        with self._session.stopwatch.running("push"):
            self._session.flush()

    def _lap(self) -> ClockTimes:
        """Return where the time went since the last lap, in the clock or outside; the wait for the next one is its."""
        seconds, now_s = self._session.stopwatch.seconds, time.monotonic()
        self._session.stopwatch.reset()
        began_s, self._began_s = self._began_s, now_s
        turn, self._turn = self._turn, None
        return ClockTimes(
            self.clock,
            began=self._offset_s + began_s - self._joined_s,
            compute=max(0.0, now_s - began_s - sum(seconds.values())),
            **seconds,
            outside=self._ids.phase % 2 == 0,
            block=IDLE if turn is None else turn.block,
            left=0.0 if turn is None else turn.left,
        )

    def _next_number(self) -> int:
        self._number += 1
        return self._number - 1

    def _take_metrics(self) -> list[Logged]:
        self._told_s = time.monotonic()
        metrics, self._metrics = self._metrics, []
        return metrics


def _budget(call: str, given: object) -> float:
    """Return a budget in seconds, checked; infinite for None."""
    if given is None:
        return float("inf")
    if isinstance(given, bool) or not isinstance(given, (int, float, np.number)) or not given > 0:
        raise UsageError(f"{call}: budgetS: expected a positive number of seconds, got {given!r}")
    return float(given)


def _number(name: str, value: object) -> float:
    """Return a metric's value; scalars and arrays without dimensions of NumPy and its like are numbers, too."""
    if not isinstance(value, SupportsFloat) or isinstance(value, np.complexfloating) or getattr(value, "ndim", None):
        raise UsageError(f"log: {name}: expected a number, got {value!r}")
    return float(value)
