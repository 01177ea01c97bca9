"""The driver's program of a deep model's training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ps2.algorithms.deep.architecture import Architecture
from ps2.algorithms.deep.options import DeepOptions
from ps2.algorithms.deep.rows import DeepRows
from ps2.algorithms.deep.shared_layers import LayerStep, SharedLayers
from ps2.algorithms.deep.worker import DeepProgram, Learner, Plan
from ps2.algorithms.training.checkpoint_names import UNNAMED, CheckpointNames
from ps2.algorithms.training.record import Record, StepReport, TrainingHistory, Words
from ps2.algorithms.training.replay_journal import ReplayJournal
from ps2.algorithms.training.streams.key_time import advance_keys
from ps2.algorithms.training.streams.labelled_rows import NEVER
from ps2.data.columns import read_numbers, read_weights
from ps2.data.key_rows import KeyRows
from ps2.errors import DivergedError
from ps2.run.message import Message

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
class Earlier:
    """What an earlier driver has done of a training that another one may go on with.

    Attributes:
        names: of the training's vectors.
        journal: what the training is.
    """

    names: CheckpointNames
    journal: ReplayJournal

    @staticmethod
    def of(name: str, ps: Any, table: DeepTable, options: DeepOptions, model: Mapping[str, Any]) -> Earlier:
        """Return what a restored context has of the training of that name.

        Args:
            model: settings of the model, as JSON has them.

        Raises:
            NotFoundError: it has no such training.
            ConfigError: the earlier driver trained something else; says what differs.
        """
        names = CheckpointNames.of(name, ps)
        # There may be more epochs.
        chosen = {key: value for key, value in asdict(options).items() if key not in ("epochs", "overlap")}
        keys = table.hasher.to_json()
        rows = {"columns": keys["fields"], "hashSeed": keys["seed"], "rows": table.rows, "workers": table.workers}
        return Earlier(names, ReplayJournal.of(names, {**model, **chosen, **rows}))


NOTHING_EARLIER = Earlier(UNNAMED, ReplayJournal())


def train(
    ps: Any,
    table: DeepTable,
    model: tuple[Architecture, SharedLayers, Any],
    options: DeepOptions,
    on_step: Callable[[StepReport], None] = lambda step: None,
    earlier: Earlier = NOTHING_EARLIER,
) -> TrainingHistory:
    """Train a model on the servers of a context, in place; then advance the time of its keys, if rows have times.

    Args:
        ps: the context.
        table: the rows.
        model: its architecture, its layers, and its ``EmbeddingTable``.
        options: how to train.
        on_step: called in the driver after each epoch.
        earlier: what an earlier driver has done. The history has the epochs that end here; the loss of one that was
            begun there is that of the rows since.

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
    learner = Learner(architecture, options, layers, embeddings)
    if not earlier.names.begun:
        layers.forget_gradients()
    driver = _Driver(learner, plan, Record(on_step, WORDS), earlier.journal)
    if earlier.names.called < plan.clocks:
        ps.run(
            *(table.frame, DeepProgram(learner, plan), table.workers, options.staleness),
            read=_Read(table.hasher, table.label, table.weight),
            onClock=driver.on_clock,
            firstClock=earlier.names.begun,
            seed=options.seed,
        )
    if table.newest_s > NEVER:
        advance_keys(embeddings, table.newest_s)
    return driver.record.history()


class _Driver:
    def __init__(self, learner: Learner, plan: Plan, record: Record, journal: ReplayJournal) -> None:
        self._learner, self._plan, self.record, self._journal = learner, plan, record, journal
        # By epoch and step, because steps are repeated after a rollback of the fleet. NaN: an earlier driver's step.
        self._losses, self._rows = np.full((plan.epochs, plan.steps), np.nan), np.zeros((plan.epochs, plan.steps), int)
        self._first: int | None = None
        record.start()

    def on_clock(self, clock: int, reports: Sequence[Any]) -> Message | None:
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
        self._first = clock if self._first is None else self._first
        if step == plan.steps - 1:
            self.record.enter(epoch - self._first // plan.steps)
            self.record.add(int(self._rows[epoch].sum()), 0)
            self.record.step(float(np.nanmean(self._losses[epoch]) * plan.steps / plan.weight))
        return self._journal.message(opening=clock == 0)
