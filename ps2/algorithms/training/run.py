"""A training as one run of workers that stay: a half in each worker, and a half in the driver between their clocks.

Clock 0 is the same for all: workers tell what is wrong with their rows, and if anything is, the training ends with an
error that knows of all of them. The clocks from ``FIRST_CLOCK`` on are the family's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from ps2.algorithms.training.faults import LENGTH, ColumnNames, Form, error_of
from ps2.algorithms.training.reading import Reading, read
from ps2.algorithms.training.table import Table
from ps2.client.dcv import DCV
from ps2.errors import RecoveryError

T = TypeVar("T")

FIRST_CLOCK = 1


class NotWhole(RecoveryError):
    """What a run has come to lacks something, as servers were lost just before its end: a fit begins anew."""


class WorkerHalf(Protocol):
    """What each worker does; picklable."""

    def __call__(self, worker: Any, reading: Reading) -> None:
        """Take part in the clocks from ``FIRST_CLOCK`` on.

        When the fleet has gone back to a checkpoint, it may be called again, with the same rows.
        """


@dataclass(frozen=True, eq=False)
class Training:
    """One training.

    Attributes:
        table: rows.
        form: what they have to be.
        half: what each worker does with them.
        on_clock: what the driver does after a clock of the family's, counted from 0, that all workers have finished.
        staleness: that of the run.
        seed: that of the run.
        first: the clock that it begins with; a training that goes on has had those before.
    """

    table: Table
    form: Form
    half: WorkerHalf
    on_clock: Callable[[int], None]
    staleness: int | None = 0
    seed: int = 0
    first: int = 0


def run_training(ps: Any, training: Training, result: Callable[[], T] = lambda: None) -> T:  # type: ignore[assignment,return-value]
    """Train on the servers of a context; return the result.

    Args:
        result: reads it from the servers when all workers have ended, while the run can still go back.

    Raises:
        InputError: a row cannot be used; says how many, and names one.
        SlotsError, WorkerError...: as ``ps.run`` raises.
    """
    table = training.table
    faults = DCV.dense(table.workers * LENGTH, dtype="float64")

    def on_clock(clock: int) -> None:
        if clock >= FIRST_CLOCK:
            training.on_clock(clock - FIRST_CLOCK)
        elif error := error_of(faults.pull().reshape(table.workers, LENGTH), table.columns, training.form):
            raise error

    results: list[T] = []
    try:
        ps.run(
            *(table.frame, _Work(training.half, faults), table.workers, training.staleness),
            read=_Read(table.columns, training.form),
            onClock=on_clock,
            onEnd=lambda: results.append(result()),
            firstClock=training.first,
            seed=training.seed,
        )
    finally:
        faults.free()
    return results[-1]


@dataclass(frozen=True, eq=False)
class _Read:
    columns: ColumnNames
    form: Form

    def __call__(self, worker: Any, batches: Iterator[Any]) -> Reading:
        return read(batches, self.columns, self.form)


@dataclass(frozen=True, eq=False)
class _Work:
    half: WorkerHalf
    faults: DCV

    def __call__(self, worker: Any, reading: Reading) -> None:
        for _ in worker.clocks(FIRST_CLOCK):
            self.faults.push(reading.faults, np.arange(LENGTH) + worker.rank * LENGTH)
        self.half(worker, reading)
