"""A deep model's training as a durable program: minibatch steps of Adam (Kingma and Ba, 2015).

The layers and the table of embeddings lie on the servers. Embeddings take steps by themselves as workers push their
gradients. Layers take one step a clock, which the driver asks for, with the sum of the workers' gradients. With a
staleness, each worker takes steps of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ps2.algorithms.deep.architecture import Architecture
from ps2.algorithms.deep.options import DeepOptions
from ps2.algorithms.deep.rows import DeepRows
from ps2.algorithms.deep.shared_layers import LayerStep, SharedLayers
from ps2.algorithms.deep.worker import DeepLoop, Learner, Plan
from ps2.algorithms.frame.journal import Journal
from ps2.algorithms.frame.program import Ask, NextClock, OwnRows, Program, Steps, run_program
from ps2.algorithms.training.checkpoint_names import UNNAMED, CheckpointNames
from ps2.algorithms.training.record import Record, StepReport, TrainingHistory, Words
from ps2.algorithms.training.streams.key_time import advance_keys
from ps2.algorithms.training.streams.labelled_rows import NEVER
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
        newest_s: the largest time of a row, in seconds; minus infinity without times.
    """

    frame: Any
    hasher: Any
    label: str
    weight: str | None
    workers: int
    rows: int
    total: float
    newest_s: float = NEVER


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


@dataclass(frozen=True, eq=False)
class Resumable:
    """A training that another driver may resume.

    Attributes:
        names: the names of its vectors; they say how far an earlier driver came.
        settings: what another driver's settings must equal.
    """

    names: CheckpointNames
    settings: dict[str, Any]

    @staticmethod
    def of(name: str, ps: Any, table: DeepTable, options: DeepOptions, model: Mapping[str, Any]) -> Resumable:
        """Return the training of that name.

        Args:
            name: "": no other driver may resume the training.
            model: settings of the model, as JSON has them.

        Raises:
            NotFoundError: the context was restored, and has no such training.
            ConfigError: the earlier driver trained something else; says what differs.
        """
        keys = table.hasher.to_json()
        rows = {"columns": keys["fields"], "hashSeed": keys["seed"], "rows": table.rows, "workers": table.workers}
        chosen = {key: value for key, value in asdict(options).items() if key not in ("epochs", "overlap")}
        training = Resumable(CheckpointNames.of(name, ps), {**model, **chosen, **rows})
        # Which vectors the caller looks for depends on the settings, so these are compared first.
        Journal.of(training.names, training.settings, DeepProgram.number)
        return training


UNNAMED_TRAINING = Resumable(UNNAMED, {})


def train(
    ps: Any,
    table: DeepTable,
    model: tuple[Architecture, SharedLayers, Any],
    options: DeepOptions,
    on_step: Callable[[StepReport], None] = lambda step: None,
    training: Resumable = UNNAMED_TRAINING,
) -> TrainingHistory:
    """Train a model on the servers of a context, in place; then advance the time of its keys, if rows have times.

    Args:
        ps: the context.
        table: the rows.
        model: its architecture, its layers, and its ``EmbeddingTable``.
        options: how to train.
        on_step: called in the driver after each epoch.
        training: by which another driver resumes the training.

    Raises:
        DivergedError: the loss is not finite, because a learning rate or a number of the rows is too large. The step
            with that loss is not taken.
        InputError: a row cannot be used, or a gradient is too large for its optimizer.
        SlotsError, WorkerError...: as ``ps.run`` raises.
    """
    architecture, layers, embeddings = model
    options.check(architecture.has_towers)
    batch = options.batch if options.staleness == 0 else options.batch * table.workers
    plan = Plan(options.epochs, max(1, math.ceil(table.rows / batch)), table.total)
    if not training.names.begun:
        layers.forget_gradients()
    program = DeepProgram(Learner(architecture, options, layers, embeddings), plan, Record(on_step, WORDS), training)
    rows = OwnRows(table.frame, table.workers, _Read(table.hasher, table.label, table.weight))
    history = run_program(ps, program, rows, training.names)
    if table.newest_s > NEVER:
        advance_keys(embeddings, table.newest_s)
    return history


class DeepProgram(Program[TrainingHistory]):
    """The training of a deep model."""

    first_clock = 0

    def __init__(self, learner: Learner, plan: Plan, record: Record, training: Resumable) -> None:
        super().__init__(learner.options, None, record)
        self._learner, self._plan, self._training = learner, plan, training
        self.staleness = learner.options.staleness

    def drive(self, ask: Ask) -> Steps[None]:
        ask.start()
        epoch = 0
        while epoch < ask.setting(lambda: self.options.epochs):
            loss, rows = yield from ask.part(partial(self._epoch, epoch))
            ask.stepped(self.record.known(loss), rows, 0)
            epoch += 1

    def _epoch(self, epoch: int) -> Steps[tuple[float, int]]:
        """Pass over all rows; return the mean loss at the beginning of the steps, and the number of rows."""
        plan, rows, losses = self._plan, 0, list[float]()
        for _ in range(plan.steps):
            step = yield NextClock().then(partial(self._take_step, epoch))
            if step is not None:
                losses.append(step[0])
                rows += step[1]
        return float(np.mean(losses) * plan.steps / plan.weight) if losses else math.nan, rows

    def _take_step(self, epoch: int, report: Any) -> tuple[float, int] | None:
        """Let the layers take the step of a clock; return its loss and its number of rows, None if they are lost."""
        if not vars(report):  # an earlier driver has taken the step
            return None
        if not math.isfinite(report.loss):
            raise DivergedError(
                f"in epoch {epoch + 1} the loss is {report.loss}: a learning rate, or a number of the rows, is too "
                "large"
            )
        if self.options.staleness == 0:
            self._learner.layers.step(LayerStep(self.options.lr, self.options.decay))
        return report.loss, report.rows

    def settings(self) -> dict[str, Any]:
        return self._training.settings

    def loop(self) -> DeepLoop:
        return DeepLoop(self._learner, self._plan)

    def result(self, returned: None) -> TrainingHistory:
        return self.record.history()

    def free(self) -> None:
        """Free nothing: the vectors are the model."""
