"""``BatchLearner``, the driver's part of a batch: record its begin on the servers, run a Spark job, record its end.

``learn_frame`` learns from a DataFrame in passes like from a stream: each pass is a batch, which counts once.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ps2.algorithms.training.record import StepReport, Words, steps_without_progress
from ps2.algorithms.training.streams.failures import is_repeatable, is_stopped, job_failure
from ps2.algorithms.training.streams.labelled_rows import NEVER, LabelledReader, LabelledRows
from ps2.algorithms.training.streams.progressive import Progressive
from ps2.algorithms.training.streams.spark_checkpoint import is_repeated
from ps2.algorithms.training.streams.state import Position, StreamState, ValueCounts
from ps2.algorithms.training.streams.task import SCHEMA, BatchTask, LearningProgram, TaskReport
from ps2.algorithms.training.table import quoted
from ps2.array_types import Float64s
from ps2.client.embedding_table import EmbeddingTable
from ps2.coordinator.training_host import training_host
from ps2.data.key_rows import KeyRows
from ps2.errors import InputError, PS2Error, RecoveryError, RolledBack
from ps2.run.spark.backend_lookup import backend_of, in_one_wave, with_python
from ps2.run.spark.frames import map_in_arrow

log = logging.getLogger(__name__)

# The maximum number of attempts of ``synchronize``: an attempt fails if the fleet rolls back meanwhile.
MAX_READS = 20

NO_ROWS = "expected rows to learn from, got an empty DataFrame"
# The maximum number of passes that are repeated after a rollback of the fleet, in one call of ``learn_frame``.
MAX_ROLLBACKS = 20
# The words for steps and objective in the progress of ``learn_frame``.
PASS = Words("pass", "log loss")


@dataclass(frozen=True)
class BatchProgress:
    """Measures of one batch.

    Attributes:
        batch: the number of the batch.
        rows: the number of rows from which the model learned.
        late: the number of late rows, which were skipped.
        validation: the progressive validation of this batch: each row was predicted before the model learned from it.
        total: the progressive validation of all rows of this stream from which the model has learned.
        seconds: the duration of the batch.
        taskSeconds: the durations of the tasks' parts, summed over tasks: "wait" for Spark's rows, "read", "learn".
        lagS: the age of the newest row at the end of the batch, by this machine's clock; None: rows have no times.
        heldOut: the measures of the held-out rows after the pass; None: there were none.
    """

    batch: int
    rows: int
    late: int
    validation: Progressive
    total: Progressive
    seconds: float
    taskSeconds: dict[str, float]
    lagS: float | None
    heldOut: Progressive | None = None

    @property
    def rowsPerS(self) -> float:
        """The number of rows per second of the batch."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    def report(self) -> StepReport:
        """Return the batch as a step of a training; undefined measures are left out."""
        measures = self.validation
        values = {"auc": measures.auc, "calibration": measures.calibration, "lag_s": self.lagS, "late_rows": self.late}
        metrics = {name: value for name, value in values.items() if value is not None and not math.isnan(value)}
        return StepReport(self.batch, measures.logLoss, self.seconds, self.rows, 0, metrics=metrics)

    def __str__(self) -> str:
        return f"batch {self.batch}: {', '.join(self.described())}"

    def described(self) -> list[str]:
        """Return the measures as texts, the most important first."""
        measures = self.validation
        return [
            f"{self.rows:,} rows",
            *([f"{self.late:,} late"] if self.late else []),
            f"AUC {measures.auc:.4f}",
            f"log loss {measures.logLoss:.4f}",
            f"calibration {measures.calibration:.3f}",
            f"{self.rowsPerS:,.0f} rows/s",
            *([] if self.lagS is None else [f"lag {_duration_text(self.lagS)}"]),
        ]


@dataclass(frozen=True)
class LearnerOptions:
    """The options for learning from a batch.

    Attributes:
        rows: the number of rows in a task's minibatch.
        workers: the number of tasks of a batch; None: one for each partition of the DataFrame, but at most as many as
            Spark can run at once.
        late_after_s: a row is late if it is more than this many seconds older than the newest row of earlier batches;
            None: no row is late.
    """

    rows: int
    workers: int | None = None
    late_after_s: float | None = None


class BatchLearner:
    """Learns from batches in order, once from each.

    Attributes:
        position: the position of the stream after the last batch.
        value_counts: the counts of values in the columns of earlier batches; the caller sets an earlier driver's.
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
        self._has_partial_batch = False  # whether the model may have learned from only a part of a batch
        self.value_counts = ValueCounts()
        self.position: Position
        self.synchronize()

    def learn(self, frame: Any, batch: int, check: Callable[[], None] = lambda: None) -> BatchProgress | None:
        """Learn from a batch; return None if the model has already learned from it.

        After any error, the model may have learned from a part of the batch, until ``roll_back``. ``check`` is called
        while this batch waits for a batch of another stream; it may raise.

        Raises:
            InputError: some rows are faulty; the message has the batch, the column and the row.
            RolledBack: the fleet has rolled back to a checkpoint. This replaces errors that the rollback caused.
            RecoveryError: batches before this one are missing.
            WorkerError: a task failed for another reason, such as an error in a user's function; the message names the
                batch and the reason.
            UnavailableError: an executor or a connection was lost.
        """
        try:
            return self._learn(frame, batch, check)
        except PS2Error as error:
            if self.has_rolled_back and not isinstance(error, RolledBack):
                raise RolledBack(f"the fleet rolled back to a checkpoint during the batch: {error}", None) from error
            raise

    def _learn(self, frame: Any, batch: int, check: Callable[[], None]) -> BatchProgress | None:
        began_s = time.perf_counter()
        with self._host.streams.batch(check):
            self._check_epoch()
            before = self.position
            if is_repeated(before.learned, batch):
                return None
            self._has_partial_batch = True
            self._state.begin(batch)
            reports = self._run(frame, batch, before)
            newest_s = max([before.newest_s, *(report.newest_s for report in reports)])
            if newest_s > NEVER:
                # Also if no row is newer: otherwise, the keys of this batch would count as touched in the next batch.
                self._program.advance(newest_s)
            self._state.end(batch, newest_s)
            # If the fleet has rolled back since the first check, the recorded position is wrong.
            self._check_epoch()
            self.position = after = self._state.position()
            self._has_partial_batch = False
        seconds = {key: sum(report.seconds[key] for report in reports) for key in TaskReport().seconds}
        return BatchProgress(
            batch,
            sum(report.rows for report in reports),
            sum(report.late for report in reports),
            Progressive.of(after.tally - before.tally),
            Progressive.of(after.tally),
            time.perf_counter() - began_s,
            seconds,
            time.time() - after.newest_s if after.newest_s > NEVER else None,
        )

    def _run(self, frame: Any, batch: int, before: Position) -> list[TaskReport]:
        self._host.streams.join_thread(backend_of(frame), self._epoch)
        late_after_s = self._options.late_after_s
        min_time_s = NEVER if late_after_s is None else before.newest_s - late_after_s
        task = BatchTask(self._program, self._reader, self._state, self._options.rows, min_time_s)
        frame = frame.coalesce(self._options.workers) if self._options.workers else in_one_wave(frame)
        # Spark would also send unused columns to Python.
        frame = frame.select(*map(quoted, self._reader.columns))
        reports = self._reports(map_in_arrow(with_python(frame), task, SCHEMA), batch)
        if fault := next((report.fault for report in reports if report.fault), None):
            raise InputError(f"batch {batch}: {fault}")
        rows = sum(report.rows for report in reports)
        sums = sum((Counter(report.value_counts) for report in reports), Counter[str]())
        counts = {name: sums[name] for report in reports for name in report.value_counts}  # a Counter drops zeros
        try:
            self.value_counts.check(rows, counts)
        except InputError as error:
            raise InputError(f"batch {batch}: {error}") from None
        self.value_counts = self.value_counts.plus(batch, rows, counts)
        return reports

    def _reports(self, tasks: Any, batch: int) -> list[TaskReport]:
        """Run the Spark job of a batch; return the reports of its tasks."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            return [TaskReport(**json.loads(row[0])) for row in tasks.collect()]
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
        """After an error, restore a model that has learned from complete batches only, and read its position.

        If a batch was in progress, the whole fleet rolls back to its newest checkpoint. RecoveryError: it has none.
        """
        with self._host.streams.batch(check):
            if self._has_partial_batch:
                self._ps.rollBack()
            self.synchronize()
        if not self.position.has_complete_batches:
            raise RecoveryError(
                f"the newest checkpoint contains a part of batch {self.position.started}: it was made while another "
                "driver learned that batch"
            )
        self._has_partial_batch = False

    @property
    def has_rolled_back(self) -> bool:
        """Whether the fleet has rolled back to a checkpoint since the position was read."""
        return self._host.epoch() != self._epoch

    def _check_epoch(self) -> None:
        if self.has_rolled_back:
            raise RolledBack("the fleet rolled back to a checkpoint", None)


def _duration_text(seconds: float) -> str:
    """Return a duration as text, in the largest unit in which it is at least 2, else in seconds."""
    units = {"days": 86400.0, "hours": 3600.0, "minutes": 60.0}
    unit = next((name for name, size in units.items() if seconds >= 2 * size), None)
    return f"{seconds:.1f} s" if unit is None else f"{seconds / units[unit]:.1f} {unit}"


class LearnedProgram(LearningProgram, Protocol):
    """The program of a model that can also predict, and be copied on the servers."""

    table: EmbeddingTable

    def margins(self, rows: KeyRows) -> Float64s:
        """Return the margins of rows, float64 of shape (n,), without learning from them."""


@dataclass(frozen=True)
class Predictor:
    """A ``LearningProgram`` that only predicts: the progressive validation of its batches is that of its model."""

    program: LearnedProgram

    def learn(self, rows: LabelledRows) -> Float64s:
        return self.program.margins(rows.rows)

    def advance(self, now_s: float) -> None:
        """Do nothing: the rows are not learned, and their keys not touched."""


@dataclass(frozen=True)
class HeldOut:
    """Rows to hold out: their loss chooses the pass whose model is the result.

    Attributes:
        frame: the rows.
        program: the program that learns the other rows; with ``patience`` above 0, its table has room for a copy.
        patience: stop after so many passes without progress; 0: run all passes.
        tolerance: the smallest relative decrease of the loss that counts as progress.
    """

    frame: Any
    program: LearnedProgram
    patience: int
    tolerance: float


@dataclass(frozen=True)
class Passes:
    """The passes over all rows: their number, at least 1, a function to call after each pass, and rows to hold out."""

    count: int
    on_step: Callable[[StepReport], None]
    held_out: HeldOut | None = None

    def is_over(self, finished: Sequence[BatchProgress]) -> bool:
        """Return whether no pass, and no test of the held-out rows, is left to do."""
        if self.held_out is None or not finished:
            return len(finished) == self.count
        losses = [math.nan if progress.heldOut is None else progress.heldOut.logLoss for progress in finished]
        patience = self.held_out.patience if not all(map(math.isnan, losses)) else 0
        is_stopped = 0 < patience <= steps_without_progress(losses, self.held_out.tolerance)
        return finished[-1].heldOut is not None and (is_stopped or len(finished) == self.count)


def learn_frame(
    ps: Any,
    program: LearningProgram,
    reader: LabelledReader,
    options: LearnerOptions,
    frame: Any,
    passes: Passes,
) -> list[BatchProgress]:
    """Learn from a DataFrame in passes; return the progress of each pass. The caller has opened the model's stream.

    If the context has a checkpointDir, the fleet makes a checkpoint first, and rolls back to it if a server is lost.

    Raises:
        InputError: there are no rows, or some rows are faulty. The model may already have learned from other rows.
        UnavailableError: a server or an executor was lost, and there is no checkpoint.
        WorkerError: a task failed for another reason.
    """
    # All passes have the same rows, so in a later pass they would count as late.
    options = replace(options, late_after_s=None)
    state = StreamState.new()
    try:
        learner = BatchLearner(ps, program, reader, state, options)
        if passes.held_out is None:
            return _learn_passes(ps, learner, frame, passes)
        tested = StreamState.new()
        tester = BatchLearner(ps, Predictor(passes.held_out.program), reader, tested, options)
        try:
            return _learn_passes(ps, learner, frame, passes, tester)
        finally:
            with suppress(PS2Error):
                tested.vector.free()
    finally:
        with suppress(PS2Error):  # the fleet may be gone
            state.vector.free()


def _learn_passes(
    ps: Any, learner: BatchLearner, frame: Any, passes: Passes, tester: BatchLearner | None = None
) -> list[BatchProgress]:
    """Learn from all rows in each pass; ``tester`` predicts the held-out rows after it."""
    finished: list[BatchProgress] = []
    can_roll_back = ps.conf.checkpointDir is not None and ps.conf.recover != "shard"
    if can_roll_back:
        ps.checkpoint()
    rollbacks, held_out = 0, passes.held_out
    while not passes.is_over(finished):
        try:
            if held_out is not None and tester is not None and finished and finished[-1].heldOut is None:
                measures = tester.learn(held_out.frame, tester.position.learned + 1)
                assert measures is not None
                tested = replace(finished[-1], heldOut=measures.validation)
                if held_out.patience and best_pass([*finished[:-1], tested]) == len(finished):
                    held_out.program.table.storeCopy()
                finished[-1] = tested
            else:
                progress = learner.learn(frame, len(finished))
                assert progress is not None
                if not progress.rows + progress.late:
                    raise InputError(NO_ROWS)
                finished.append(progress)
        except PS2Error as error:
            if not (is_repeatable(error) and can_roll_back) or rollbacks == MAX_ROLLBACKS:
                raise
            rollbacks += 1
            for batches in filter(None, (learner, tester)):
                batches.roll_back()
            log.warning("the pass begins again: %s", error)
            del finished[learner.position.learned + 1 :]
            continue
        if held_out is None or finished[-1].heldOut is not None:
            log.info("%s", finished[-1])
            passes.on_step(_report(finished))
    if held_out is not None and held_out.patience and best_pass(finished) < len(finished):
        held_out.program.table.restoreCopy()
    return finished


def _report(finished: list[BatchProgress]) -> StepReport:
    """Return the last pass as a step."""
    last = finished[-1]
    seconds, rows = sum(progress.seconds for progress in finished), sum(progress.rows for progress in finished)
    validation = None if last.heldOut is None or not last.heldOut.rows else last.heldOut.logLoss
    metrics = {"AUC": last.validation.auc}
    return StepReport(len(finished), last.validation.logLoss, seconds, rows, 0, validation, metrics, PASS)


def best_pass(finished: Sequence[BatchProgress]) -> int:
    """Return the pass, from 1, with the smallest loss of held-out rows; the last if there are none."""
    losses = [(progress.heldOut.logLoss, number) for number, progress in enumerate(finished, 1) if progress.heldOut]
    return min([pair for pair in losses if not math.isnan(pair[0])], default=(0.0, len(finished)))[1]
