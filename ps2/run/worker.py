"""``Worker``: the first argument of a function that ``ps.run`` runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, SupportsFloat, TypeVar

import numpy as np

from ps2.errors import LimitError, UsageError
from ps2.protocol.plain_data import LIMIT_BYTES
from ps2.rpc.run_control import Logged
from ps2.run.clock_loop import FOREVER, ClockLoop
from ps2.run.prefetch import Prefetch
from ps2.run.reports import report
from ps2.run.rotation import RotationSchedule
from ps2.run.turns import Fetch, Rotations, Turn, check_staleness

if TYPE_CHECKING:
    from ps2.client.dcv import DCV
    from ps2.client.matrix import DCVMatrix

T = TypeVar("T")

# Logged numbers go with the worker's next message to the driver, or in a message of their own if the last one is this
# old.
LOG_INTERVAL_S = 1.0


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

    def __init__(self, loop: ClockLoop) -> None:
        """Not for users: ``ps.run`` makes workers."""
        self.rank = loop.rank
        self.workers = loop.workers
        self._loop = loop

    @property
    def clock(self) -> int:
        """The clock that the worker is in; before the first one, or between two loops, the next one."""
        return self._loop.clock

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
        return self._loop.clocks(int(n), _budget("clocks", budgetS))

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
        schedule = RotationSchedule(self.workers, blocks, slices)
        if isinstance(rotations, bool) or not isinstance(rotations, (int, np.integer)) or rotations < 0:
            raise UsageError(f"rotate: rotations: expected a number that is not negative, got {rotations!r}")
        if fetch is not None and not callable(fetch):
            raise UsageError(f"rotate: fetch: expected a function of a block's number, got {fetch!r}")
        check_staleness(self._loop.ref.staleness, schedule.slices)
        return self._rotate(schedule, int(rotations), _budget("rotate", budgetS), fetch)

    def _rotate(
        self, schedule: RotationSchedule, rotations: int, budget_s: float, fetch: Fetch | None
    ) -> Iterator[Turn]:
        loop = self._loop
        if loop.is_inside:
            raise UsageError("rotate: loops over clocks do not nest")
        mine = (int(schedule.blocks), rotations, int(schedule.slices), budget_s)
        first = self.once(lambda: mine)
        if mine != first:
            raise UsageError(
                "rotate: expected what another worker called it with, as all must agree who has which block: (blocks, "
                f"rotations, slices, budgetS) = {first}, got {mine}"
            )
        self.barrier()
        beginning = loop.beginnings
        turns = Rotations(self, schedule, loop.ref.seed, rotations, fetch)
        with closing(loop.clocks(turns.clocks, budget_s)) as clocks:
            try:
                for clock in clocks:
                    turn = turns.turn(clock)
                    loop.poll_progress(clock)
                    if turn is not None:
                        loop.turn = turn
                        yield turn
            finally:
                if beginning == loop.beginnings:
                    loop.stop_polling()

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
        return self._loop.ids.epoch

    @property
    def goesBack(self) -> bool:
        """Whether this clock will be done again, or an earlier one, as the fleet has gone back to a checkpoint.

        What was read is of that checkpoint then, and what is changed is dropped.
        """
        return self._loop.ids.seen > self._loop.ids.epoch

    @property
    def timeLeft(self) -> float:
        """Seconds left of this clock's budget, 0 when it is spent; infinite without one."""
        return self._loop.time_left_s

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
        return self._loop.prefetches.begin(source, indices, ahead, columns)

    def barrier(self) -> None:
        """Wait until all workers that have not returned have come here, and what they changed is on the servers.

        Raises:
            StoppedError: the run has ended, because a worker failed or they wait for each other for ever.
        """
        loop = self._loop
        loop.flush()
        with loop.session.stopwatch.running("wait"):
            loop.control.barrier(*loop.next_point(), loop.take_metrics())
        loop.prefetches.note_sync()

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
        loop = self._loop
        phase, number = loop.next_point()
        loop.flush()
        with loop.session.stopwatch.running("wait"):
            value = loop.control.once(phase, number, loop.take_metrics())
        if value is None:
            made = fn()
            try:
                value = cloudpickle.dumps(made)
            except Exception as error:  # it may hold anything, and each thing fails in its own way
                raise UsageError(f"once: {fn!r} returned what cannot be pickled: {made!r}: {error}") from error
            with loop.session.stopwatch.running("push"):
                loop.session.flush()
                value = loop.control.once_made(phase, number, value)
        loop.prefetches.note_sync()
        result: T = cloudpickle.loads(value)
        return result

    def rng(self, *key: int) -> np.random.Generator:
        """Return a random generator seeded by (seed of the run, rank, clock) and ``key``: equal in every attempt.

        The same call in the same clock begins with the same numbers again; ``key`` tells several generators of one
        clock apart.

        Args:
            key: integers that are not negative.
        """
        sequence = np.random.SeedSequence(self._loop.ref.seed, spawn_key=(self.rank, self.clock, *key))
        return np.random.Generator(np.random.Philox(sequence))

    def log(self, **metrics: float) -> None:
        """Tell the driver numbers by name: ``worker.log(loss=0.3)``. They reach it while the job runs (``onLog``).

        They travel with the worker's next message to the driver: at the end of the clock, or at once if the last one is
        a second ago. ``RunResult.metrics`` has them afterwards.

        Raises:
            UsageError: a value is not a number.
        """
        self._loop.session.check_process()
        self._loop.metrics += [Logged(name, _number(name, value), self.clock) for name, value in metrics.items()]
        if self._loop.metrics and time.monotonic() - self._loop.told_s > LOG_INTERVAL_S:
            self._loop.control.note(self._loop.take_metrics())

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
        self._loop.session.check_process()
        if not self._loop.ref.takes_reports:
            raise UsageError("report: this run has no onClock(clock, reports) that would take it")
        if not self._loop.is_inside:
            raise UsageError("report: call it in a clock, within a loop over worker.clocks or worker.rotate")
        reports = [*self._loop.reports, report(self.clock, value, merge)]
        if (size := sum(len(one.value) for one in reports)) > LIMIT_BYTES:
            raise LimitError(
                f"report: the reports of clock {self.clock} take {size:,} bytes, and may take {LIMIT_BYTES:,}: what is "
                "large belongs into vectors"
            )
        self._loop.reports = reports

    @property
    def message(self) -> Any:
        """The newest message that ``onClock`` had returned when this clock was entered; None: there was none.

        In clock t of a run with staleness s it is of clock t - s - 1 or a later one; under BSP, of the clock before.
        It is plain data, and its arrays cannot be written to.
        """
        return self._loop.inbox.newest

    @property
    def messages(self) -> list[Any]:
        """All messages up to ``message`` that this property has not returned before, the oldest first.

        In the first use of an attempt, and in the first after ``epoch`` has grown, these are all messages of the run.
        """
        self._loop.session.check_process()
        return self._loop.inbox.take()


def _budget(call: str, given: object) -> float:
    """Return a budget in seconds, checked; infinite for None."""
    if given is None:
        return FOREVER
    if isinstance(given, bool) or not isinstance(given, (int, float, np.number)) or not given > 0:
        raise UsageError(f"{call}: budgetS: expected a positive number of seconds, got {given!r}")
    return float(given)


def _number(name: str, value: object) -> float:
    """Return a metric's value; scalars and arrays without dimensions of NumPy and its like are numbers, too."""
    if not isinstance(value, SupportsFloat) or isinstance(value, np.complexfloating) or getattr(value, "ndim", None):
        raise UsageError(f"log: {name}: expected a number, got {value!r}")
    return float(value)
