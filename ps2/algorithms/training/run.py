"""Run a training as one ``ps.run``: a program in each worker, and calls in the driver between clocks.

Clock 0 is the same for all families: each worker reports the faults of its rows, and any fault ends the training with
an error that counts all faults. The clocks of a family begin with ``FIRST_CLOCK``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from ps2.algorithms.training.faults import ColumnNames, Form, error_of
from ps2.algorithms.training.reading import Reading, SpillableReading, read, read_spillable
from ps2.algorithms.training.table import Table
from ps2.data.row_spill import RowSpill, Spilled
from ps2.data.spilling import Spill
from ps2.errors import RecoveryError, RolledBack
from ps2.run.message import Message, Stop

T = TypeVar("T")

FIRST_CLOCK = 1


class IncompleteRunError(RecoveryError):
    """Servers were lost just before the end of a run, so its result is incomplete. The fit starts again."""


class WorkerProgram(Protocol):
    """The program of each worker; picklable."""

    def __call__(self, worker: Any, reading: Any) -> Any:
        """Take part in the clocks from ``FIRST_CLOCK`` on.

        ``reading`` is a ``Reading``, or a ``SpillableReading`` if the training spills rows. After a rollback of the
        fleet the program can be called again, with the same rows.
        """


@dataclass(frozen=True, eq=False)
class Training:
    """One training.

    Attributes:
        on_clock: a function that the driver calls when all workers have finished a clock of the family, with the
            clock's number, from 0, and the workers' reports. It returns a message to the workers, STOP or None.
        staleness, seed: the arguments of ``ps.run``.
        first_clock: the first clock of the run. A resumed training has finished the earlier clocks.
        first_message: a function that returns the run's first message to the workers, or None.
        spill: the rule by which workers write rows to files; None: rows stay in memory.
        on_spilled: a function that the driver calls before ``on_clock``, with the sizes of the workers' files.
    """

    table: Table
    form: Form
    program: WorkerProgram
    on_clock: Callable[[int, list[Any]], Message | Stop | None] = lambda clock, reports: None
    staleness: int | None = 0
    seed: int = 0
    first_clock: int = 0
    first_message: Callable[[], Message | None] = lambda: None
    spill: Spill | None = None
    on_spilled: Callable[[list[Spilled]], None] = lambda spilled: None


def clocks_until_rollback(worker: Any, n: int) -> Iterator[int]:
    """Yield the clocks of ``worker.clocks(n)``, for a program that keeps results of earlier clocks.

    After a rollback these results are wrong, so this raises RolledBack, and the run calls the program again.
    """
    epoch = worker.epoch
    for clock in worker.clocks(n):
        if worker.epoch != epoch:
            raise RolledBack(f"the fleet rolled back to clock {clock}: the worker begins again", clock)
        yield clock


def run_training(ps: Any, training: Training, result: Callable[[], T] = lambda: None) -> T:  # type: ignore[assignment,return-value]
    """Train on the servers of a context; return the result, which is read while the run can still roll back.

    Raises:
        InputError: rows cannot be used; the message counts them, and names one.
        SlotsError, WorkerError, ...: see ``ps.run``.
    """
    results: list[T] = []
    _run(ps, training, lambda: results.append(result()))
    return results[-1]


def run_alone(ps: Any, training: Training) -> Any:
    """Run a training whose program needs neither servers nor the driver; return the only worker's result.

    The pickled result takes at most 64 MB. Raises like ``run_training``.
    """
    (result,) = _run(ps, training)
    return result


@dataclass(frozen=True, eq=False)
class SurveyedTraining:
    """A training whose only worker also surveys its rows, which saves a Spark job.

    Attributes:
        table: the rows, in one rdd_partition.
        read: the argument ``read`` of ``ps.run``, which reads the worker's rows.
        survey: returns a report about the rows, as plain data.
        decide: a function that the driver calls with the report. It returns a message with all data that the worker
            needs to train, or STOP: the worker does not train.
        program: trains in the worker; its arguments are the rows and the message's data.
    """

    table: Table
    read: Callable[[Any, Iterator[Any]], Any]
    survey: Callable[[Any], Any]
    decide: Callable[[Any], Message | Stop]
    program: Callable[[Any, Any], Any]
    seed: int = 0


def run_surveyed(ps: Any, training: SurveyedTraining) -> Any:
    """Survey rows and train on them in one Spark job; return the result of ``program``; None: it was not called."""

    def on_clock(clock: int, reports: list[Any]) -> Message | Stop | None:
        return training.decide(reports[0]) if clock < FIRST_CLOCK else None

    work = partial(survey_and_work, training.survey, partial(_train_once, training.program))
    frame = training.table.frame_for_run
    (result,) = ps.run(frame, work, 1, 0, read=training.read, onClock=on_clock, seed=training.seed)
    return result


def _run(ps: Any, training: Training, on_end: Callable[[], None] = lambda: None) -> Any:
    table = training.table

    def on_clock(clock: int, reports: list[Any]) -> Message | Stop | None:
        if clock >= FIRST_CLOCK:
            return training.on_clock(clock - FIRST_CLOCK, reports)
        if error := error_of(reports[0], table.columns, training.form):
            raise error
        if training.spill is not None and (spilled := [Spilled(*file) for file in reports[1]]):
            training.on_spilled(spilled)
        return training.first_message()

    return ps.run(
        *(table.frame_for_run, partial(_work, training.program), table.workers, training.staleness),
        read=partial(_read, table.columns, training.form, training.spill),
        onClock=on_clock,
        onEnd=on_end,
        firstClock=training.first_clock,
        seed=training.seed,
    )


def _read(
    columns: ColumnNames, form: Form, spill: Spill | None, worker: Any, batches: Iterator[Any]
) -> Reading | SpillableReading:
    if spill is None:
        return read(batches, columns, form)
    return read_spillable(batches, columns, form, RowSpill(spill, worker.rank, worker.workers))


def survey_and_work(survey: Callable[[Any], Any], work: Callable[[Any, Any], Any], worker: Any, reading: Any) -> Any:
    """Report the survey of the rows in clock 0; return the result of ``work``, which takes part in the later clocks."""
    for _ in worker.clocks(FIRST_CLOCK):
        worker.report(survey(reading), merge="concat")
    return work(worker, reading)


def _train_once(program: Callable[[Any, Any], Any], worker: Any, reading: Any) -> Any:
    result = None
    for _ in worker.clocks(FIRST_CLOCK + 1):
        result = program(reading, worker.message)
    return result


def _work(program: WorkerProgram, worker: Any, reading: Reading | SpillableReading) -> Any:
    for _ in worker.clocks(FIRST_CLOCK):
        worker.report(reading.faults[None], merge="concat")
        if isinstance(reading, SpillableReading):
            spilled = reading.spilled
            worker.report([] if spilled is None else [[spilled.bytes, spilled.folder]], merge="concat")
    return program(worker, reading)
