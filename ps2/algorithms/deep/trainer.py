"""The driver's program of a deep model's training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ps2.algorithms.deep.architecture import Architecture
from ps2.algorithms.deep.options import DeepOptions
from ps2.algorithms.deep.rows import DeepRows
from ps2.algorithms.deep.shared_layers import LayerStep, SharedLayers
from ps2.algorithms.deep.worker import DeepProgram, Learner, Plan
from ps2.algorithms.training.record import Record, StepReport, TrainingHistory, Words
from ps2.data.columns import read_numbers, read_weights
from ps2.data.key_rows import KeyRows
from ps2.errors import DivergedError

WORDS = Words("epoch", "loss")


@dataclass(frozen=True, eq=False)
class DeepTable:
    """Rows to train on, with one rdd_partition for each worker.

    Attributes:
        frame: the DataFrame.
        hasher: makes keys from its columns.
        label, weight: names of columns; ``weight`` None: all rows weigh 1.
        workers: number of workers, and of rdd_partitions.
        rows: number of rows.
        total: sum of the rows' weights.
    """

    frame: Any
    hasher: Any
    label: str
    weight: str | None
    workers: int
    rows: int
    total: float


@dataclass(frozen=True, eq=False)
class _Read:
    hasher: Any
    label: str
    weight: str | None

    def __call__(self, worker: Any, batches: Iterator[pa.RecordBatch]) -> DeepRows:
        parts, labels, weights, before = [], [np.zeros(0)], [np.zeros(0)], 0
        for batch in batches:
            parts.append(self.hasher.rows(batch, before))
            labels.append(read_numbers(batch, self.label, before))
            if self.weight is not None:
                weights.append(read_weights(batch, self.weight, before))
            before += batch.num_rows
        return DeepRows(
            KeyRows.joined(parts), np.concatenate(labels), None if self.weight is None else np.concatenate(weights)
        )


def train(
    ps: Any,
    table: DeepTable,
    model: tuple[Architecture, SharedLayers, Any],
    options: DeepOptions,
    on_step: Callable[[StepReport], None] = lambda step: None,
) -> TrainingHistory:
    """Train a model on the servers of a context, in place.

    Args:
        ps: the context.
        table: the rows.
        model: its architecture, its layers, and its ``EmbeddingTable``.
        options: how to train.
        on_step: called in the driver after each epoch.

    Raises:
        DivergedError: the loss is not finite, because a learning rate or a number of the rows is too large. The step
            with that loss is not taken.
        InputError, SlotsError, WorkerError...: as ``ps.run`` raises.
    """
    architecture, layers, embeddings = model
    options.check(architecture.has_towers)
    batch = options.batch if options.staleness == 0 else options.batch * table.workers
    plan = Plan(options.epochs, max(1, math.ceil(table.rows / batch)), table.total)
    learner = Learner(architecture, options, layers, embeddings)
    layers.forget_gradients()
    driver = _Driver(learner, plan, Record(on_step, WORDS))
    ps.run(
        *(table.frame, DeepProgram(learner, plan), table.workers, options.staleness),
        read=_Read(table.hasher, table.label, table.weight),
        onClock=driver.on_clock,
        seed=options.seed,
    )
    return driver.record.history()


class _Driver:
    def __init__(self, learner: Learner, plan: Plan, record: Record) -> None:
        self._learner, self._plan, self.record = learner, plan, record
        # By epoch and step, because steps are repeated after a rollback of the fleet.
        self._losses, self._rows = np.zeros((plan.epochs, plan.steps)), np.zeros((plan.epochs, plan.steps), np.int64)
        record.start()

    def on_clock(self, clock: int, reports: Sequence[Any]) -> None:
        """Take the step of a clock, of all workers' gradients, and record its loss."""
        options, plan, report = self._learner.options, self._plan, reports[0]
        epoch, step = divmod(clock, plan.steps)
        loss = report["loss"]
        if not math.isfinite(loss):
            raise DivergedError(
                f"in epoch {epoch + 1} the loss is {loss}: a learning rate, or a number of the rows, is too large"
            )
        if options.staleness == 0:
            self._learner.layers.step(LayerStep(options.lr, options.decay))
        self._losses[epoch, step], self._rows[epoch, step] = loss, report["rows"]
        if step == plan.steps - 1:
            self.record.enter(epoch)
            self.record.add(int(self._rows[epoch].sum()), 0)
            self.record.step(float(self._losses[epoch].sum() / plan.weight))
