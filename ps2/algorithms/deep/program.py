"""A deep model's training as a durable program: minibatch steps of Adam (Kingma and Ba, 2015).

The layers and the table of embeddings are on the servers. A clock is a step with a minibatch, which consists of rows of
all workers. The table takes a step for each worker's gradient when it arrives. With staleness 0, the layers take one
step per clock with the sum of the workers' gradients, at the driver's request; else a step for each worker's gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ps2.algorithms.deep.model import DeepModel
from ps2.algorithms.deep.plan import DeepPlan
from ps2.algorithms.deep.worker import DeepRows, Learner
from ps2.algorithms.frame.program import Ask, NextClock, Program, Steps, run_program
from ps2.algorithms.training.checkpoint_names import UNNAMED, CheckpointNames
from ps2.algorithms.training.record import Record, StepReport, TrainingHistory, Words, steps_without_progress
from ps2.algorithms.training.streams.labelled_rows import NEVER
from ps2.algorithms.training.streams.task import advance_keys
from ps2.algorithms.training.table import OwnRows
from ps2.client.matrix import owning
from ps2.data.columns import named_column, read_numbers, read_weights
from ps2.data.key_rows import KeyRows
from ps2.errors import DivergedError

WORDS = Words("epoch", "loss")
# The fields of a plan that are not compared when another driver resumes the training: it may change them, or they are
# computed from the rows.
NOT_COMPARED = ("maxIter", "name", "steps", "weight", "held_weight")


class DeepProgram(Program[TrainingHistory]):
    """The training of a deep model."""

    number = 3

    first_clock = 0

    def __init__(self, learner: Learner, record: Record, settings: dict[str, Any]) -> None:
        super().__init__(learner.plan, None, record)
        self._learner, self._settings = learner, settings
        self.staleness = learner.plan.settings.staleness

    def drive(self, ask: Ask) -> Steps[bool]:
        """Train; return whether the result is the copy of an earlier epoch's model."""
        ask.start_timer()
        losses = self.record.validation
        epoch, best, smallest, patience = 0, 0, math.inf, self.plan.settings.patience
        while epoch < ask.setting(lambda: self.plan.settings.maxIter):
            loss, num_rows, held_out = yield from ask.part(partial(self._epoch, epoch))
            if self.plan.held_weight:
                losses.append(held_out)
            ask.record_step(self.record.fill_missing(loss), num_rows, 0)
            epoch += 1
            if self.plan.keeps_best:
                if held_out < smallest:
                    best, smallest = epoch, held_out
                    ask(self._learner.store_copy)
                if steps_without_progress(losses, self.plan.settings.validationTol) >= patience:
                    self.record.reason = f"no progress on the held-out rows for {patience} epochs"
                    break
        if 0 < best < epoch:
            self.record.best = best
            self.record.reason = f"{self.record.reason or self.record.completed}; the model is that of epoch {best}"
        return 0 < best < epoch

    def _epoch(self, epoch: int) -> Steps[tuple[float, int, float]]:
        """Train on all rows once.

        Return their mean loss, computed before each row's step; their number; and, after the epoch, the mean loss of
        the held-out rows (NaN: there are none).
        """
        num_rows, losses, held_out = 0, list[float](), math.nan
        for _ in range(self.plan.steps):
            step = yield NextClock().then(partial(self._take_step, epoch))
            if step is not None:
                losses.append(step[0])
                num_rows += step[1]
        # For steps whose report was lost, assume the mean loss of the other steps.
        loss = float(np.mean(losses) * self.plan.steps / self.plan.weight) if losses else math.nan
        if self.plan.held_weight:
            report = yield NextClock()
            held_out = report.loss / self.plan.held_weight if vars(report) else math.nan
        return loss, num_rows, held_out

    def _take_step(self, epoch: int, report: Any) -> tuple[float, int] | None:
        """Let the layers take a clock's step; return its loss and rows, or None if an earlier driver took it."""
        if not vars(report):
            return None
        if not math.isfinite(report.loss):
            raise DivergedError(
                f"in epoch {epoch + 1} the loss is {report.loss}: a learning rate, or a value of the rows, is too large"
            )
        if self.staleness == 0:
            self._learner.layers.step(self.plan.settings.stepSize, self.plan.settings.weightDecay)
        return report.loss, report.rows

    def settings(self) -> dict[str, Any]:
        return self._settings

    def loop(self) -> Learner:
        return self._learner

    def result(self, returned: bool) -> TrainingHistory:
        if returned:
            self._learner.restore_copy()
        return self.record.history()

    def free(self) -> None:
        """Do nothing: the matrices on the servers are the model."""


@dataclass(frozen=True, eq=False)
class DeepTable:
    """Rows to train on, with one rdd_partition for each worker.

    Attributes:
        label, weight, held_out: the names of columns; ``weight`` None: all weights are 1; ``held_out`` None: all rows
            are for the training.
        rows: the number of rows to train on.
        total, held_total: the sums of the weights of the rows to train on, and of those that are held out.
        newest_s: the latest time of a row, in seconds; minus infinity if rows have no times.
    """

    frame: Any
    hasher: Any
    label: str
    weight: str | None
    workers: int
    rows: int
    total: float
    newest_s: float = NEVER
    held_out: str | None = None
    held_total: float = 0.0


def compared_settings(table: DeepTable, plan: DeepPlan) -> dict[str, Any]:
    """Return the settings of plan and rows that must be the same in a driver that resumes the training."""
    hasher = table.hasher.to_json()
    rows = {"columns": hasher["fields"], "hashSeed": hasher["seed"], "rows": table.rows, "workers": table.workers}
    return {**{name: value for name, value in plan.plain().items() if name not in NOT_COMPARED}, **rows}


def train(  # noqa: PLR0913 - the last two arguments are for named trainings
    ps: Any,
    table: DeepTable,
    model: DeepModel,
    plan: DeepPlan,
    on_step: Callable[[StepReport], None] = lambda step: None,
    names: CheckpointNames = UNNAMED,
    settings: dict[str, Any] | None = None,
) -> TrainingHistory:
    """Train a model on the servers of a context, in place; then advance the time of its keys if rows have times.

    ``settings`` must be the same in a driver that resumes the training. If a loss is not finite, raise DivergedError
    before the step.
    """
    batch_rows = plan.settings.batchSize * (1 if plan.settings.staleness == 0 else table.workers)
    steps = max(1, math.ceil(table.rows / batch_rows))
    plan = replace(plan, steps=steps, weight=table.total, held_weight=table.held_total)
    plan.check(model.architecture.has_towers)
    if not names.finished_clocks:
        model.layers.forget_gradients()  # that an earlier training has left
    learner = Learner(model.architecture, plan, model.layers, model.table)
    program = DeepProgram(learner, Record(on_step, WORDS), settings or {})
    rows = OwnRows(table.frame, table.workers, partial(_read, table.hasher, table.label, table.weight, table.held_out))
    with owning(model.matrices):
        history = run_program(ps, program, rows, names)
    if table.newest_s > NEVER:
        advance_keys(model.table, table.newest_s)
    return history


def _read(
    hasher: Any,
    label: str,
    weight: str | None,
    held_out: str | None,
    worker: Any,
    batches: Iterator[pa.RecordBatch],
) -> DeepRows:
    """Read a worker's rows from the batches of its rdd_partition."""
    rows, labels, weights, masks, num_rows = [], [np.zeros(0)], [np.zeros(0)], [np.zeros(0, bool)], 0
    for batch in batches:
        rows.append(hasher.rows(batch, num_rows))
        labels.append(read_numbers(batch, label, num_rows))
        if weight is not None:
            weights.append(read_weights(batch, weight, num_rows))
        if held_out is not None:
            masks.append(named_column(batch, held_out).to_numpy(zero_copy_only=False))
        num_rows += batch.num_rows
    all_weights = None if weight is None else np.concatenate(weights)
    is_held_out = None if held_out is None else np.concatenate(masks)
    return DeepRows(KeyRows.concatenate(rows), np.concatenate(labels), all_weights, is_held_out)
