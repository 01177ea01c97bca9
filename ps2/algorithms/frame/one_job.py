"""A fit in one Spark job: the only worker surveys its rows, waits for the driver's decision, and trains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

from pyspark.sql import DataFrame

from ps2.algorithms.frame.dealing import Dealer, gather_rows
from ps2.algorithms.frame.labels import PART_COLUMN, Labels, ReadAndSurvey, WorkerSurvey
from ps2.algorithms.frame.program import DoTask, Program, ProgramDriver, WorkerLoop
from ps2.algorithms.frame.tables import SMALL_BYTES, Survey, field, survey_of
from ps2.algorithms.training.checkpoint_names import UNNAMED
from ps2.algorithms.training.faults import ColumnNames, Form
from ps2.algorithms.training.record import TrainingHistory
from ps2.algorithms.training.run import FIRST_CLOCK, survey_and_work
from ps2.run.message import STOP, Message, Stop
from ps2.run.spark.backend_lookup import backend_of

T = TypeVar("T")

# Spark's estimate of a table's size may be too low. A fit in one job gives up if the table's Arrow batches take more
# than this many times ``SMALL_BYTES``.
MAX_SMALL = 4


class OneJob(ABC):
    """One fit of a small table.

    Attributes:
        table: the rows, in one rdd_partition.
        survey: the result of the worker's survey; None: the worker has not reported it, rows are faulty, or they exceed
            MAX_SMALL.
    """

    def __init__(self, estimator: Any, dataset: DataFrame, columns: ColumnNames, form: Form) -> None:
        assert columns.label is not None
        self._estimator, self._dataset, self._columns, self._form = estimator, dataset, columns, form
        self.table = gather_rows(dataset, columns, PART_COLUMN)
        self._labels = Labels(columns.label, estimator._CLASSES, field(dataset, columns.label))
        self.survey: Survey | None = None

    @abstractmethod
    def run(self) -> tuple[Any, TrainingHistory] | None:
        """Train; return the public model and its history; None: it needs servers, or Spark has to survey the table."""

    @property
    def is_small(self) -> bool:
        """Whether Spark estimates that the table is small enough for one job."""
        return backend_of(self.table.frame).estimated_bytes(self.table.frame) <= SMALL_BYTES

    @property
    def dealer(self) -> Dealer:
        """Deals the rows of the surveyed table to workers."""
        assert self.survey is not None
        return Dealer(self._dataset, self._columns, self.survey, self._estimator._requested_workers)

    @property
    def _read(self) -> ReadAndSurvey:
        """The function that reads and surveys the worker's rows."""
        labels = self._labels
        return ReadAndSurvey(self._columns, self._form, labels.classes, labels.limit, MAX_SMALL * SMALL_BYTES)

    def _receive(self, report: Mapping[str, Any]) -> Survey | None:
        """Set and return ``survey``, given the worker's report (``pack_survey``)."""
        if (rows := WorkerSurvey.unpack(report)) is not None:
            groups = rows.groups(), rows.dim, rows.shift, rows.unit
            self.survey = survey_of(self._dataset, self._columns, self._labels, *groups)
        return self.survey

    def _run_program(
        self,
        ps: Any,
        survey: Callable[[Any], Any],
        decide: Callable[[Any], Program[T] | None],
        worker: Callable[[Any], DoTask],
        seed: int,
    ) -> T | None:
        """Run a program that depends on the survey, which the only worker makes of its rows in clock 0.

        Args:
            survey: returns the report about the rows and their survey, as plain data.
            decide: returns the program, given this report; None: no program runs, and the result is None.
            worker: the result of ``Program.worker``.
        """
        drivers: list[ProgramDriver[T]] = []
        results: list[T] = []

        with ExitStack() as ending:

            def on_clock(clock: int, reports: Sequence[dict[str, Any]]) -> Message | Stop | None:
                if clock >= FIRST_CLOCK:
                    return drivers[0].on_clock(clock - FIRST_CLOCK, reports)
                if not drivers:  # else the fleet has rolled back
                    if (program := decide(reports[0])) is None:
                        return STOP
                    ending.callback(program.free)
                    drivers.append(ProgramDriver(program, UNNAMED))
                    drivers[0].start()
                return drivers[0].message()

            ps.run(
                *(self.table.frame_for_run, partial(survey_and_work, survey, WorkerLoop(worker)), 1, 0),
                read=self._read,
                onClock=on_clock,
                onEnd=lambda: results.extend(driver.result() for driver in drivers),
                seed=seed,
            )
        return results[-1] if results else None
