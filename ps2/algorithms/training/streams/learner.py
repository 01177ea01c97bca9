"""``BatchLearner``, the driver's part of a batch: it runs one Spark job, and notes begin and end on the servers."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.training.record import StepReport
from ps2.algorithms.training.streams.failures import is_stopped, job_failure
from ps2.algorithms.training.streams.labelled_rows import NEVER, LabelledReader
from ps2.algorithms.training.streams.positions import is_repeated
from ps2.algorithms.training.streams.progressive import Progressive
from ps2.algorithms.training.streams.state import HeldColumns, Position, StreamState
from ps2.algorithms.training.streams.task import SCHEMA, BatchTask, LearningProgram, TaskReport
from ps2.algorithms.training.table import quoted
from ps2.coordinator.training_host import training_host
from ps2.errors import InputError, PS2Error, RecoveryError, RolledBack
from ps2.run.spark.backend_lookup import backend_of, in_one_wave, with_python
from ps2.run.spark.frames import map_in_arrow

log = logging.getLogger(__name__)

# How often ``synchronize`` reads the position again because the fleet has rolled back meanwhile.
MAX_READS = 20


@dataclass(frozen=True)
class BatchProgress:
    """Measures of one batch.

    Attributes:
        batch: number of the batch.
        rows: number of rows that were learned.
        late: number of rows that were left out because they came too late.
        validation: progressive validation of this batch: each row was predicted before it was learned.
        total: progressive validation of all rows that the model has learned from this stream.
        seconds: duration of the batch.
        taskSeconds: summed durations of the tasks' parts: "wait" for Spark's rows, "read" and "learn".
        lagS: age of the newest row at the end of the batch, by its time and this machine's clock; None without times.
    """

    batch: int
    rows: int
    late: int
    validation: Progressive
    total: Progressive
    seconds: float
    taskSeconds: dict[str, float]
    lagS: float | None

    @property
    def rowsPerS(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    def report(self) -> StepReport:
        """Return the measures as those of a step, without those that this batch's rows do not have."""
        measures = self.validation
        known = {"auc": measures.auc, "calibration": measures.calibration, "lag_s": self.lagS, "late_rows": self.late}
        numbers = {name: value for name, value in known.items() if value is not None and not math.isnan(value)}
        return StepReport(self.batch, measures.logLoss, self.seconds, self.rows, 0, metrics=numbers)

    def __str__(self) -> str:
        return f"batch {self.batch}: {', '.join(self.described())}"

    def described(self) -> list[str]:
        """Return the measures in words, the most important ones first."""
        measures = self.validation
        return [
            f"{self.rows:,} rows",
            *([f"{self.late:,} late"] if self.late else []),
            f"AUC {measures.auc:.4f}",
            f"log loss {measures.logLoss:.4f}",
            f"calibration {measures.calibration:.3f}",
            f"{self.rowsPerS:,.0f} rows/s",
            *([] if self.lagS is None else [f"lag {_spoken(self.lagS)}"]),
        ]


@dataclass(frozen=True)
class LearnerOptions:
    """How to learn a batch.

    Attributes:
        rows: number of rows that a task learns from at once.
        workers: number of tasks of a batch; None: one for each partition of the DataFrame, but no more than Spark can
            run at once.
        late_after_s: a row is late if it is older, by more seconds than this, than the newest row of earlier batches;
            None: no row is late.
    """

    rows: int
    workers: int | None = None
    late_after_s: float | None = None


class BatchLearner:
    """Learns batches in order, each of them once.

    Attributes:
        position: position of the stream after the last batch.
        held: columns that earlier batches had values in; the caller sets those of earlier drivers.
    """

    def __init__(
        self, ps: Any, program: LearningProgram, reader: LabelledReader, state: StreamState, options: LearnerOptions
    ) -> None:
        self._ps, self._host = ps, training_host(ps)
        self._program = program
        self._reader = reader
        self._state = state
        self._options = options
        self._epoch = 0
        self._is_torn = False  # the model may hold a part of a batch
        self.held = HeldColumns()
        self.position: Position
        self.synchronize()

    def learn(self, frame: Any, batch: int, check: Callable[[], None] = lambda: None) -> BatchProgress | None:
        """Learn a batch; return None if the model holds it already.

        After any error the model may hold a part of the batch, until ``roll_back``.

        Args:
            frame: the rows of the batch, a DataFrame.
            batch: number of the batch.
            check: called while the batch waits for its turn; it may raise.

        Raises:
            InputError: rows of the batch cannot be learned from; names the batch, the column and the row.
            RolledBack: the fleet has rolled back to a checkpoint. It replaces other errors that the rollback caused.
            RecoveryError: batches before this one are missing.
            WorkerError: a task failed for another reason, such as a user's function; names the batch and the reason.
            UnavailableError: an executor or a connection was lost.
        """
        try:
            return self._learn(frame, batch, check)
        except PS2Error as error:
            if self.has_rolled_back and not isinstance(error, RolledBack):
                raise RolledBack(f"the fleet rolled back to a checkpoint meanwhile: {error}", None) from error
            raise

    def _learn(self, frame: Any, batch: int, check: Callable[[], None]) -> BatchProgress | None:
        began_s = time.perf_counter()
        with self._host.streams.batch(check):
            self._check_epoch()
            before = self.position
            if is_repeated(before.learned, batch):
                return None
            self._is_torn = True
            self._state.begin(batch)
            reports = self._run(frame, batch, before)
            newest_s = max([before.newest_s, *(report.newest_s for report in reports)])
            if newest_s > NEVER:
                # Even if no row is newer: otherwise keys of this batch would count as touched in the next one.
                self._program.advance(newest_s)
            self._state.end(batch, newest_s)
            # If another thread has taken part in a rollback meanwhile, the position that was noted is wrong.
            self._check_epoch()
            self.position = now = self._state.position()
            self._is_torn = False
        seconds = {key: sum(report.seconds[key] for report in reports) for key in TaskReport().seconds}
        return BatchProgress(
            batch,
            sum(report.rows for report in reports),
            sum(report.late for report in reports),
            Progressive.of(now.tally - before.tally),
            Progressive.of(now.tally),
            time.perf_counter() - began_s,
            seconds,
            time.time() - now.newest_s if now.newest_s > NEVER else None,
        )

    def _run(self, frame: Any, batch: int, before: Position) -> list[TaskReport]:
        self._host.streams.join_thread(backend_of(frame), self._epoch)
        late_after_s = self._options.late_after_s
        least_s = NEVER if late_after_s is None else before.newest_s - late_after_s
        task = BatchTask(self._program, self._reader, self._state, self._options.rows, least_s)
        frame = frame.coalesce(self._options.workers) if self._options.workers else in_one_wave(frame)
        # Without this, Spark would send every column to Python, used or not.
        frame = frame.select(*map(quoted, self._reader.columns))
        reports = self._reports(map_in_arrow(with_python(frame), task, SCHEMA), batch)
        if fault := next((report.fault for report in reports if report.fault), None):
            raise InputError(f"batch {batch}: {fault}")
        rows = sum(report.rows for report in reports)
        held = sum((Counter(report.held) for report in reports), Counter[str]())
        counts = {name: held[name] for report in reports for name in report.held}
        try:
            self.held.check(rows, counts)
        except InputError as error:
            raise InputError(f"batch {batch}: {error}") from None
        self.held = self.held.plus(batch, rows, counts)
        return reports

    def _reports(self, tasks: Any, batch: int) -> list[TaskReport]:
        """Run the Spark job of a batch; return the reports of its tasks."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            return [TaskReport.from_json(row[0]) for row in tasks.collect()]
        except (PySparkException, Py4JError) as error:
            if is_stopped(error):
                raise
            log.debug("batch %d: %s", batch, error)
            raise job_failure(error, batch) from None

    def synchronize(self) -> None:
        """Read the stream's position from the servers; RecoveryError: the fleet rolls back again and again."""
        for _ in range(MAX_READS):
            epoch = self._host.epoch()
            with suppress(RolledBack):
                self.position = self._state.position()
                if self._host.epoch() == epoch:
                    self._epoch = epoch
                    return
        raise RecoveryError("the position of the stream cannot be read: the fleet rolls back again and again")

    def roll_back(self, check: Callable[[], None] = lambda: None) -> None:
        """Restore the model to whole batches after an error, and read its position.

        If a batch was in progress, the whole fleet rolls back to its newest checkpoint; RecoveryError: there is none.
        """
        with self._host.streams.batch(check):
            if self._is_torn:
                self._ps.rollBack()
            self.synchronize()
        if not self.position.is_whole:
            raise RecoveryError(
                f"the newest checkpoint holds a part of batch {self.position.begun}: it was made while another driver "
                "learned that batch"
            )
        self._is_torn = False

    @property
    def has_rolled_back(self) -> bool:
        """True if the fleet has rolled back to a checkpoint since the position was read."""
        return self._host.epoch() != self._epoch

    def _check_epoch(self) -> None:
        if self.has_rolled_back:
            raise RolledBack("the fleet rolled back to a checkpoint", None)


def _spoken(seconds: float) -> str:
    """Return a duration in the largest unit of which it has two at least, else in seconds."""
    units = {"days": 86400.0, "hours": 3600.0, "minutes": 60.0}
    unit = next((name for name, size in units.items() if seconds >= 2 * size), None)
    return f"{seconds:.1f} s" if unit is None else f"{seconds / units[unit]:.1f} {unit}"


def progress_line(progress: BatchProgress) -> dict[str, Any]:
    """Return the progress of a batch as JSON data, with None for NaN."""

    def plain(measures: Progressive) -> dict[str, Any]:
        return {
            key: None if isinstance(value, float) and np.isnan(value) else value
            for key, value in vars(measures).items()
        }

    measures = {"validation": plain(progress.validation), "total": plain(progress.total)}
    return {**vars(progress), **measures, "rowsPerS": progress.rowsPerS}
