"""``Worker``: the first argument of a function that ``ps.run`` runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat, TypeVar

import numpy as np

from ps2.errors import LimitError, UsageError
from ps2.number_checks import is_number, is_whole
from ps2.protocol.plain_data import LIMIT_BYTES
from ps2.rpc.run_control import Logged
from ps2.run.clock_loop import FOREVER, LOG_INTERVAL_S, ClockLoop
from ps2.run.prefetch import Prefetch
from ps2.run.reports import report
from ps2.run.rotation import RotationSchedule
from ps2.run.turns import At, Fetch, Rotations, Turn, check_staleness

if TYPE_CHECKING:
    import pyarrow as pa

    from ps2.client.dcv import DCV
    from ps2.client.matrix import DCVMatrix
    from ps2.data.rows import Float
    from ps2.data.spilled_rows import KeptRows
    from ps2.data.spilling import SpillName

T = TypeVar("T")

# The value of ``budgetS`` with which the run computes the budget of turns.
AUTO = "auto"


class Worker:
    """One worker of a run: the first argument of ``worker_fn``.

    Only the thread that calls ``worker_fn`` may use it. DCVs can be used as in any other process. If Spark restarts the
    task, the worker's changes still count once, provided that all attempts make the same calls in the same order: use
    random numbers of ``rng``, and let nothing depend on the time of day.

    Attributes:
        rank: the number of the worker, from 0, which is that of the Spark partition with its rows.
        workers: the number of workers.
    """

    def __init__(self, loop: ClockLoop) -> None:
        """Not for users: ``ps.run`` makes workers."""
        self.rank = loop.rank
        self.workers = loop.workers
        self._loop = loop

    @property
    def clock(self) -> int:
        """The clock that the worker is in; outside of loops, the next clock."""
        return self._loop.clock

    def keep(
        self,
        batches: Iterable[pa.RecordBatch],
        features: str | Sequence[str] = "features",
        label: str | None = "label",
        weight: str | None = None,
        dtype: Float = "float64",
        spill: SpillName = "auto",
    ) -> KeptRows:
        """Read the rows of a DataFrame, and keep them in memory or, if they are too large, in a file.

        Example::

            rows = worker.keep(batches)
            for t in worker.clocks(100):
                w, g = weight.pull(rows.keys), np.zeros(len(rows.keys))
                for block in rows.blocks():
                    g += block.x.T @ slope(block.x @ w, block.y)
                gradient.add(g, rows.keys)

        In memory and in a file, the rows have ``keys``, ``len``, ``blocks()`` (``LocalRows`` with all keys; rows in
        memory are one block) and ``sample``. The file is on one of Spark's local disks, and is deleted when this
        process ends. See ``docs/ml.md``.

        Args:
            batches: the batches that ``worker_fn`` receives.
            features, label, weight, dtype: the arguments of ``Rows.fromBatches``.
            spill: whether rows are in a file: "auto" (if they exceed a quarter of the worker's memory), "always" or
                "never".

        Raises:
            InputError: any error of ``Rows.fromBatches``.
            ConfigError: ``spill`` or ``dtype`` is none of the allowed values.
            SpillError: the disk is full, or fails.
        """
        # Imported late, because the import of scipy takes a quarter of a second.
        from ps2.data.row_spill import RowSpill, keep_batches
        from ps2.data.spilling import Spill

        return keep_batches(batches, features, label, weight, dtype, RowSpill(Spill(spill), self.rank, self.workers))

    def clocks(self, n: int, budgetS: float | None = None) -> Iterator[int]:
        """Yield the clocks below ``n``, each when the run's staleness allows it.

        When a clock ends, all changes of its body are on the servers. Additions with ``wait=False`` can take
        ``staleness`` more clocks (under ASP any number), but end before the loop ends. Clocks count from the beginning
        of the run, so a later loop continues where this one ended. A restarted task resumes with the first clock that
        it had not finished. After the fleet rolled back to a checkpoint, the loop resumes with the first clock that the
        checkpoint does not contain.

        Args:
            n: the number of clocks since the run's beginning, the same for all workers.
            budgetS: the seconds for the body of a clock, which ``within`` and ``timeLeft`` use. A slow machine then
                does less work, and other workers need not wait for it (time control; Zhang et al., "Parallelizing Big
                Data Machine Learning Algorithms with Model Rotation", section IV.D).

        Raises:
            UsageError: loops nest, ``n`` is not an integer, or ``budgetS`` is not a positive number.
            PS2Error: an addition with ``wait=False`` failed. Raised at the end of a clock.
        """
        if not is_whole(n):
            raise UsageError(f"clocks: expected an integer, the number of clocks, got {n!r}")
        if n < 0:
            raise UsageError(f"clocks: expected a number of clocks that is not negative, got {n}")
        return self._loop.clocks(int(n), _budget("clocks", budgetS))

    def rotate(
        self,
        blocks: int,
        rotations: int = 1,
        slices: int = 2,
        budgetS: float | Literal["auto"] | None = None,
        fetch: Fetch | None = None,
        at: At | None = None,
    ) -> Iterator[Turn]:
        """Yield turns. In a turn, only this worker has a certain block of a model; a rotation gives it each block once.

        Model rotation (Zhang et al., "Parallelizing Big Data Machine Learning Algorithms with Model Rotation"). The
        caller defines the blocks; in a turn, it must change only the turn's block. All changes of a block's last owner
        are applied before this worker can read the block. A turn is a clock. Its block depends only on the run's seed
        and the clock, so a restarted task resumes with the turn that it had not finished.

        Example::

            def fetch(block):
                return worker.prefetch(table, columns=columns[block])

            for turn in worker.rotate(2 * worker.workers, rotations=100, fetch=fetch):
                values = turn.pull()
                table.add(columns=columns[turn.block], values=..., wait=False)

        All workers must call it with the same arguments, at the same point. The first turn waits for all workers, as
        ``barrier`` does.

        Args:
            blocks: the number of blocks, numbered from 0; with ``slices * worker.workers`` no worker idles. Block b
                belongs to slice b mod ``slices``.
            rotations: the number of times that every worker has every block.
            slices: the number of groups of blocks that take turns. The run needs a staleness of at most ``slices - 1``.
                With 2 slices and a staleness of 1, the worker computes on one block while the previous block's
                additions (``wait=False``) are sent and the next block is read.
            budgetS: the seconds for each turn, for ``turn.parts`` and ``turn.expired`` (section IV.D). "auto": the run
                computes them from the last turns, for which ``turn.parts`` or ``turn.done`` record the work done.
            fetch: called with a block's number, one turn before the block is needed; returns one or several results of
                ``worker.prefetch``, for ``turn.pull()``.
            at: a schedule instead of ``rotations``: called with a clock, it returns the numbers of a rotation and of a
                turn in it, both from 0, or None for a clock without a turn. Then every clock is yielded, until the run
                ends (``ps2.STOP``). All workers must return the same. In each clock, it is called first for that clock,
                when it may read ``messages``, and then for the next clock.

        Raises:
            UsageError: an argument is invalid, or differs from that of another worker; the run's staleness is too
                large; loops over clocks nest.
        """
        schedule = RotationSchedule(self.workers, blocks, slices)
        if not is_whole(rotations) or rotations < 0:
            raise UsageError(f"rotate: rotations: expected a number that is not negative, got {rotations!r}")
        if fetch is not None and not callable(fetch):
            raise UsageError(f"rotate: fetch: expected a function of a block's number, got {fetch!r}")
        if at is not None and not callable(at):
            raise UsageError(f"rotate: at: expected a function of a clock, got {at!r}")
        check_staleness(self._loop.ref.staleness, schedule.slices)
        budget_s = None if isinstance(budgetS, str) and budgetS == AUTO else _budget("rotate", budgetS, f", {AUTO!r}")
        return self._rotate(schedule, int(rotations), budget_s, fetch, at)

    def _rotate(
        self, schedule: RotationSchedule, rotations: int, budget_s: float | None, fetch: Fetch | None, at: At | None
    ) -> Iterator[Turn]:
        loop = self._loop
        if loop.is_inside:
            raise UsageError("rotate: loops over clocks do not nest")
        arguments = (int(schedule.blocks), rotations, int(schedule.slices), AUTO if budget_s is None else budget_s)
        agreed = self.once(lambda: arguments)
        if arguments != agreed:
            raise UsageError(
                "rotate: expected the arguments of another worker, because all must have the same schedule: (blocks, "
                f"rotations, slices, budgetS) = {agreed}, got {arguments}"
            )
        self.barrier()
        restarts = loop.restarts
        turns = Rotations(self, schedule, loop.ref.seed, rotations, fetch, at)
        with closing(loop.clocks(turns.clocks, budget_s)) as clocks:
            try:
                for clock in clocks:
                    turn = turns.turn(clock)
                    loop.poll_progress(clock)
                    if turn is not None:
                        loop.turn = turn
                        yield turn
            finally:
                if restarts == loop.restarts:
                    loop.stop_polling()

    def within(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items until the clock's budget is spent, but at least one. No item of an iterator is lost.

        Workers then do different amounts of work, which the caller has to weight. For example, divide the sum of all
        workers' gradients by the number of all workers' rows.

        Args:
            items: the items, such as batches of rows; without ``budgetS``, all of them are yielded.
        """
        if not isinstance(items, Iterable):
            raise UsageError(f"within: expected an iterable, got {items!r}")
        return self._within(items)

    def _within(self, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            yield item
            if self.timeLeft <= 0:
                return

    @property
    def epoch(self) -> int:
        """The number of the fleet's rollbacks to a checkpoint when this clock was entered.

        After it has grown, the model is that of the checkpoint, but the worker's variables still have later values.
        """
        return self._loop.ids.epoch

    @property
    def goesBack(self) -> bool:
        """True if the fleet has rolled back to a checkpoint: this clock or an earlier clock will be repeated.

        Until then, reads return the checkpoint's values, and changes are dropped.
        """
        return self._loop.ids.seen > self._loop.ids.epoch

    @property
    def timeLeft(self) -> float:
        """The seconds left of this clock's budget; infinite without a budget."""
        return self._loop.time_left_s

    def prefetch(self, source: DCV | DCVMatrix, indices: Any = None, ahead: int = 1, columns: Any = None) -> Prefetch:
        """Start a read in the background; the result's ``.result()`` returns what ``source.pull`` would return.

        Example::

            batch = worker.prefetch(weight, keys_of(0))
            for t in worker.clocks(100):
                w, batch = batch.result(), worker.prefetch(weight, keys_of(t + 1))
                gradient.add(..., wait=False)

        The result is never staler than that of a pull. The read is sent at once if all updates that a pull in its clock
        must see are applied, else when that clock is entered. So a prefetch helps if workers may be ahead (SSP, ASP).
        Under BSP it costs as much as a pull, except with ``ahead=0``. The result includes this worker's own changes.

        Args:
            source: a vector or a matrix; a sparse vector needs indices.
            indices: the indices of a vector, or the rows of a matrix, as for ``pull``.
            columns: the columns of a matrix, as for ``pull``.
            ahead: the number of clocks until ``.result()`` is called: 0 is this clock, 1 the next. An earlier call is
                allowed.

        Raises:
            UsageError, OutOfRangeError: the source cannot be read like this.
        """
        return self._loop.prefetches.begin(source, indices, ahead, columns)

    def barrier(self) -> None:
        """Wait until all workers have called ``barrier``; all their earlier changes are then on the servers.

        Raises:
            RunEndedError: the run has ended, because a worker failed or workers wait for each other forever.
        """
        loop = self._loop
        loop.flush()
        with loop.session.stopwatch.running("wait"):
            loop.control.barrier(*loop.next_point(), loop.take_metrics())
        loop.prefetches.record_sync()

    def once(self, fn: Callable[[], T]) -> T:
        """Let one worker call a function; return its result in all workers.

        The first worker that calls ``once`` calls the function. All workers must make such calls in the same order.
        Example: ``weight = worker.once(make_weight)``.

        Args:
            fn: a function whose result can be pickled, such as numbers, arrays and DCVs. If the worker that calls it
                dies, the worker's next attempt calls it.

        Raises:
            RunEndedError: the run has ended.
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
            new_value = fn()
            try:
                value = cloudpickle.dumps(new_value)
            except Exception as error:  # the result can hold any object, which can raise anything
                raise UsageError(f"once: the result of {fn!r} cannot be pickled: {new_value!r}: {error}") from error
            with loop.session.stopwatch.running("push"):
                loop.session.dispatch.flush()
                value = loop.control.send_once(phase, number, value)
        loop.prefetches.record_sync()
        result: T = cloudpickle.loads(value)
        return result

    def rng(self, *key: int) -> np.random.Generator:
        """Return a random generator seeded by the run's seed, rank, clock and ``key``, the same in every attempt.

        A second call with the same key in the same clock returns the same random numbers. Use a different key for each
        generator in a clock.

        Args:
            key: non-negative integers.
        """
        sequence = np.random.SeedSequence(self._loop.ref.seed, spawn_key=(self.rank, self.clock, *key))
        return np.random.Generator(np.random.Philox(sequence))

    def log(self, **metrics: float) -> None:
        """Send named values to the driver: ``worker.log(loss=0.3)``. They arrive while the job runs (``onLog``).

        They are sent with the worker's next message to the driver: at the end of the clock, or at once if the last
        message is more than a second old. ``RunResult.metrics`` returns them after the run.

        Raises:
            UsageError: a value is not a number.
        """
        self._loop.session.dispatch.check_process()
        self._loop.metrics += [Logged(name, _number(name, value), self.clock) for name, value in metrics.items()]
        if self._loop.metrics and time.monotonic() - self._loop.last_message_s > LOG_INTERVAL_S:
            self._loop.control.send_metrics(self._loop.take_metrics())

    def report(self, value: Any, merge: str = "sum") -> None:
        """Send a small result of this clock to ``onClock(clock, reports)``.

        The report is sent when the worker arrives at the next clock. ``reports`` is a list: all workers' first
        reports of the clock, merged in the order of ranks, then their second ones, and so on. If a worker
        leaves a loop within a clock, its reports of that clock are lost.

        Args:
            value: a number or a NumPy array, or a dict of numbers and arrays, which are merged by key.
            merge: "sum": the sum of numbers, or of arrays of equal shape (floats in float64, integers exactly in 64
                bits); "max": the maximum of such values; "concat": arrays along their first axis, lists as one list,
                numbers as a list.

        Raises:
            UsageError: the value cannot be merged like this, the worker is not in a clock, or ``onClock`` takes no
                reports.
            LimitError: the worker's reports of this clock take more than 64 MB.
        """
        self._loop.session.dispatch.check_process()
        if not self._loop.ref.takes_reports:
            raise UsageError("report: expected a run with onClock(clock, reports), which receives the reports")
        if not self._loop.is_inside:
            raise UsageError("report: call it in a clock, within a loop over worker.clocks or worker.rotate")
        reports = [*self._loop.reports, report(self.clock, value, merge)]
        if (nbytes := sum(len(encoded.value) for encoded in reports)) > LIMIT_BYTES:
            raise LimitError(
                f"report: clock {self.clock}: expected reports of at most {LIMIT_BYTES:,} bytes, got {nbytes:,}: put "
                "large data into vectors"
            )
        self._loop.reports = reports

    @property
    def message(self) -> Any:
        """The newest message that ``onClock`` had returned when this clock was entered; None: no message.

        In clock t of a run with staleness s, ``onClock`` returned it for clock t - s - 1 or a later clock; under BSP,
        for the previous clock. It is plain data with read-only arrays.
        """
        return self._loop.inbox.newest

    @property
    def messages(self) -> list[Any]:
        """The messages up to ``message`` that this property has not returned before, the oldest first.

        Its first use in an attempt, and its first use after ``epoch`` has grown, return all messages of the run.
        """
        self._loop.session.dispatch.check_process()
        return self._loop.inbox.take()


def _budget(call: str, value: object, other_values: str = "") -> float:
    """Return a checked budget in seconds; infinite for None."""
    if value is None:
        return FOREVER
    if not is_number(value) or not value > 0:
        raise UsageError(f"{call}: budgetS: expected a positive number of seconds{other_values}, got {value!r}")
    return float(value)


def _number(name: str, value: object) -> float:
    """Return a metric's value as a float; NumPy's scalars and zero-dimensional arrays are allowed."""
    if not isinstance(value, SupportsFloat) or isinstance(value, np.complexfloating) or getattr(value, "ndim", None):
        raise UsageError(f"log: {name}: expected a number, got {value!r}")
    return float(value)
