"""A training is one run of workers that stay: a program in each worker, and calls in the driver between clocks.

Clock 0 is the same for all families: each worker reports the faults of its rows, and any fault ends the training with
an error that counts them all. The clocks from ``FIRST_CLOCK`` on are the family's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ps2.algorithms.training.faults import ColumnNames, Form, error_of
from ps2.algorithms.training.reading import KeptReading, Reading, read, read_kept
from ps2.algorithms.training.table import Table
from ps2.data.row_spill import RowSpill, Spilled
from ps2.data.spilling import Spill
from ps2.errors import RecoveryError, RolledBack
from ps2.run.message import Message, Stop

T = TypeVar("T")

FIRST_CLOCK = 1


class NotWhole(RecoveryError):
    """Servers were lost just before the end of a run, so its result is incomplete: a fit starts again."""


class WorkerProgram(Protocol):
    """What each worker does; picklable."""

    def __call__(self, worker: Any, reading: Reading) -> Any:
        """Take part in the clocks from ``FIRST_CLOCK`` on.

        After a rollback of the fleet the program may be called again, with the same rows.
        """


class KeptProgram(Protocol):
    """A ``WorkerProgram`` that takes rows in a file, too."""

    def __call__(self, worker: Any, reading: KeptReading) -> Any: ...


@dataclass(frozen=True, eq=False)
class Training:
    """One training.

    Attributes:
        table: rows.
        form: the form that the rows must have.
        program: each worker's work on its rows.
        on_clock: called in the driver when all workers have finished a clock of the family, with the clock's number,
            from 0, and the workers' reports. It returns a message to the workers, STOP or None.
        staleness: the run's staleness.
        seed: the run's seed.
        first: the first clock of the run. A resumed training has finished the clocks below.
        opening: returns the run's first message to the workers; None: there is none.
        spill: when workers write rows to files; the program is then a ``KeptProgram``. None: rows stay in memory.
        on_spilled: called in the driver before ``on_clock``, with the sizes of the workers' files.
    """

    table: Table
    form: Form
    program: WorkerProgram | KeptProgram
    on_clock: Callable[[int, list[Any]], Message | Stop | None] = lambda clock, reports: None
    staleness: int | None = 0
    seed: int = 0
    first: int = 0
    opening: Callable[[], Message | None] = lambda: None
    spill: Spill | None = None
    on_spilled: Callable[[list[Spilled]], None] = lambda spilled: None


def clocks_until_rollback(worker: Any, n: int) -> Iterator[int]:
    """Yield the clocks of ``worker.clocks(n)``, for a program that keeps what it computes from clock to clock.

    After a rollback that may be of a later clock, so this raises RolledBack, and the run calls the program again.
    """
    epoch = worker.epoch
    for clock in worker.clocks(n):
        if worker.epoch != epoch:
            raise RolledBack(f"the fleet rolled back to clock {clock}: the worker forgets what it knows", clock)
        yield clock


def run_training(ps: Any, training: Training, result: Callable[[], T] = lambda: None) -> T:  # type: ignore[assignment,return-value]
    """Train on the servers of a context; return the result, which is read while the run can still roll back.

    Raises:
        InputError: a row cannot be used; says how many, and names one.
        SlotsError, WorkerError...: as ``ps.run`` raises.
    """
    results: list[T] = []
    _run(ps, training, lambda: results.append(result()))
    return results[-1]


def run_alone(ps: Any, training: Training) -> Any:
    """Run a training whose program needs neither servers nor the driver; return the only worker's result.

    The result is pickled, and takes at most 64 MB. Raises as ``run_training``.
    """
    (result,) = _run(ps, training)
    return result


@dataclass(frozen=True, eq=False)
class SurveyedTraining:
    """A training whose only worker also surveys its rows, which saves a Spark job.

    Attributes:
        table: rows in one rdd_partition.
        read: reads the worker's rows; called as ``read`` of ``ps.run``.
        survey: returns a report about the rows, as plain data.
        decide: called in the driver with the report; returns a message with all that the worker needs to train, or STOP
            for no training.
        program: trains; called in the worker with the rows and the message's data.
    """

    table: Table
    read: Callable[[Any, Iterator[Any]], Any]
    survey: Callable[[Any], Any]
    decide: Callable[[Any], Message | Stop]
    program: Callable[[Any, Any], Any]
    seed: int = 0


def run_surveyed(ps: Any, training: SurveyedTraining) -> Any:
    """Survey rows and train on them in one Spark job; return the program's result, None if it was not called."""

    def on_clock(clock: int, reports: list[Any]) -> Message | Stop | None:
        return training.decide(reports[0]) if clock < FIRST_CLOCK else None

    work = _SurveyAndTrain(training.survey, training.program)
    (result,) = ps.run(training.table.dealt, work, 1, 0, read=training.read, onClock=on_clock, seed=training.seed)
    return result


def _run(ps: Any, training: Training, on_end: Callable[[], None] = lambda: None) -> Any:
    table = training.table

    def on_clock(clock: int, reports: list[Any]) -> Message | Stop | None:
        if clock >= FIRST_CLOCK:
            return training.on_clock(clock - FIRST_CLOCK, reports)
        if error := error_of(reports[0], table.columns, training.form):
            raise error
        if training.spill is not None and (spilled := [Spilled(*one) for one in reports[1]]):
            training.on_spilled(spilled)
        return training.opening()

    return ps.run(
        *(table.dealt, _Work(training.program, training.spill is not None), table.workers, training.staleness),
        read=_Read(table.columns, training.form, training.spill),
        onClock=on_clock,
        onEnd=on_end,
        firstClock=training.first,
        seed=training.seed,
    )


@dataclass(frozen=True, eq=False)
class _Read:
    columns: ColumnNames
    form: Form
    spill: Spill | None

    def __call__(self, worker: Any, batches: Iterator[Any]) -> Reading | KeptReading:
        if self.spill is None:
            return read(batches, self.columns, self.form)
        return read_kept(batches, self.columns, self.form, RowSpill(self.spill, worker.rank, worker.workers))


@dataclass(frozen=True, eq=False)
class _SurveyAndTrain:
    survey: Callable[[Any], Any]
    program: Callable[[Any, Any], Any]

    def __call__(self, worker: Any, held: Any) -> Any:
        result = None
        for clock in worker.clocks(FIRST_CLOCK + 1):
            if clock < FIRST_CLOCK:
                worker.report(self.survey(held), merge="concat")
            else:
                result = self.program(held, worker.message)
        return result


@dataclass(frozen=True, eq=False)
class _Work:
    program: Any
    is_kept: bool

    def __call__(self, worker: Any, reading: Any) -> Any:
        for _ in worker.clocks(FIRST_CLOCK):
            worker.report(reading.faults[None], merge="concat")
            if self.is_kept:
                spilled = reading.spilled
                worker.report([] if spilled is None else [[spilled.bytes, spilled.folder]], merge="concat")
        return self.program(worker, reading)
