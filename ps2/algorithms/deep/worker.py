"""The training steps of a deep model in a worker, with rows of a DataFrame or of a stream."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ps2.algorithms.deep.architecture import Architecture
from ps2.algorithms.deep.batches import Batch, batch_of
from ps2.algorithms.deep.kernels import compact_indices, gather_rows, row_hashes
from ps2.algorithms.deep.layers import OnLayer
from ps2.algorithms.deep.model import SharedLayers
from ps2.algorithms.deep.network import Pass, PositivePairs, logistic_loss, softmax_loss
from ps2.algorithms.deep.plan import DeepPlan
from ps2.algorithms.deep.scoring import check_fields
from ps2.algorithms.training.faults import Mask
from ps2.algorithms.training.streams.labelled_rows import LabelledRows
from ps2.algorithms.training.streams.task import advance_keys
from ps2.array_types import Float64s, Int64s
from ps2.data.key_rows import KeyRows, check_margins
from ps2.errors import InputError, OutOfRangeError


@dataclass(frozen=True, eq=False)
class Minibatch:
    """The n rows of a worker's step.

    Attributes:
        batch: the rows; ``batch.inverse`` has indices in ``keys``.
        keys: the distinct keys, int64, ascending.
        labels: the labels of the rows, float64 of shape (n,).
        weights: the weights of the rows, float64 of shape (n,); None: all weights are 1.
        row_indices: the indices of the rows among all rows of the worker, int64 of shape (n,).
    """

    batch: Batch
    keys: Int64s
    labels: Float64s
    weights: Float64s | None
    row_indices: Int64s


class DeepRows:
    """All rows of a worker. Distinct keys are found once, so that minibatches need not sort the keys of their pairs."""

    def __init__(
        self, rows: KeyRows, labels: Float64s, weights: Float64s | None = None, is_held_out: Mask | None = None
    ) -> None:
        self._indptr, self._field, self._x = rows.indptr, rows.fields, rows.values
        self.labels, self.weights = labels, weights
        is_held_out = np.zeros(len(self), bool) if is_held_out is None else is_held_out
        # The indices of the rows to train on, and of the others.
        self.training, self.held_out = np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)
        keys, inverse = rows.distinct()
        # int32: rows that fit a worker's memory have fewer than 2**31 distinct keys.
        self._keys, self._inverse = keys, inverse.astype(np.int32, copy=False)
        self._marks = np.full(len(keys), -1, np.int32)

    def __len__(self) -> int:
        return len(self._indptr) - 1

    def take(self, row_indices: Int64s) -> Minibatch:
        """Return these rows, in this order."""
        indptr, inverse, field, x = gather_rows(self._indptr, self._inverse, self._field, self._x, row_indices)
        distinct = compact_indices(inverse, self._marks)
        weights = None if self.weights is None else self.weights[row_indices]
        batch = Batch(indptr, inverse, field, x)
        return Minibatch(batch, self._keys[distinct], self.labels[row_indices], weights, row_indices)

    def items(self, begin: int, end: int) -> tuple[Int64s, Float64s]:
        """Return an id of each row's item, and the fraction of rows with this item; both have shape (rows,).

        Rows with equal keys in the fields [begin, end) have the same item. A row is one of those to train on, or of the
        held-out rows, and so are the rows of the fraction.
        """
        hashes = row_hashes(self._indptr, self._keys[self._inverse], self._field, begin, end)
        _, items = np.unique(hashes, return_inverse=True)
        fractions = np.empty(len(self))
        for rows in (self.training, self.held_out):
            fractions[rows] = np.bincount(items[rows])[items[rows]] / len(rows) if len(rows) else 0.0
        return items, fractions


@dataclass(frozen=True, eq=False)
class Learner:
    """Trains a model on the servers: the loop of a worker, and the ``LearningProgram`` of a stream; picklable."""

    architecture: Architecture
    plan: DeepPlan
    layers: SharedLayers
    table: Any

    def __call__(self, worker: Any, rows: DeepRows) -> None:
        """Take the steps of a training with a worker's rows. Each attempt of a task uses the same order of rows.

        If rows are held out, the last clock of each epoch computes their loss.
        """
        plan, sizes = self.plan, self.architecture
        items = rows.items(sizes.deep, sizes.fields) if plan.loss == "softmax" else None
        # With staleness, the gradient of a step is the mean over one worker's rows, else over all workers' rows.
        divisor = plan.weight / (plan.steps if plan.settings.staleness == 0 else plan.steps * worker.workers)
        order, epoch = np.zeros(0, np.int64), -1
        for clock in worker.clocks(plan.settings.maxIter * plan.epoch_clocks):
            if clock // plan.epoch_clocks != epoch:
                epoch = clock // plan.epoch_clocks
                order = np.random.default_rng([plan.seed, worker.rank, epoch]).permutation(rows.training)
            step = clock - epoch * plan.epoch_clocks
            if step == plan.steps:
                worker.report({"loss": self._held_out_loss(rows, items), "rows": len(rows.held_out)})
                continue
            row_indices = order[plan.rows_of(len(order), step)]
            loss = 0.0
            if len(row_indices):
                number = epoch * plan.steps + step
                seed = int(np.random.SeedSequence([plan.seed, worker.rank, number]).generate_state(1)[0])
                loss = self.take_step(rows.take(row_indices), items, divisor, seed)
            worker.report({"loss": loss, "rows": len(row_indices)})

    def _held_out_loss(self, rows: DeepRows, items: tuple[Int64s, Float64s] | None) -> float:
        """Return the summed loss of a worker's held-out rows; with towers, the negatives are those of a batch."""
        layers, total, size = self.layers.pull(), 0.0, self.plan.settings.batchSize
        for begin in range(0, len(rows.held_out), size):
            batch = rows.take(rows.held_out[begin : begin + size])
            forward = Pass(self.architecture, layers, batch.batch, self.table.pullDistinct(batch.keys))
            with np.errstate(over="ignore", invalid="ignore"):
                total += self._loss(forward, batch, items, 1.0)[0]
        return total

    def take_step(self, rows: Minibatch, items: tuple[Int64s, Float64s] | None, divisor: float, seed: int) -> float:
        """Take a step with some rows; return their summed loss. If the loss is not finite, send no gradient.

        Raise InputError if a gradient is too large for its optimizer; later layers may have taken the step already.

        ``items`` is the result of ``DeepRows.items`` for the loss "softmax", else None; ``seed`` is that of dropout.
        """
        weights, table = self.layers.pull(), self.table.pullDistinct(rows.keys)
        forward = Pass(self.architecture, weights, rows.batch, table, seed)
        with np.errstate(over="ignore", invalid="ignore"):  # the loss is not finite in these cases
            loss, backward = self._loss(forward, rows, items, divisor)
        if math.isfinite(loss):
            send = self._step_layer if self.plan.settings.staleness else self.layers.add
            try:
                self.table.pushDistinct(rows.keys, backward(send), wait=False)
            except OutOfRangeError as error:
                raise InputError(str(error)) from error
        return loss

    def learn(self, rows: LabelledRows) -> Float64s:
        """Predict rows of a stream, then take a step with them; return the margins before the step, float64.

        Raise InputError, and send no gradient, if a margin is not finite.
        """
        check_fields(rows.rows, self.architecture.fields)
        batch, keys = batch_of(rows.rows)
        layers, table = self.layers.pull(), self.table.pullDistinct(keys)
        margins = Pass(self.architecture, layers, batch, table).margins()
        check_margins(margins)
        weights = np.asarray(rows.weights, np.float64) if len(rows.weights) else None
        total = float(len(batch)) if weights is None else float(weights.sum())
        if total > 0:
            # The seed of dropout is computed from the rows, so that another attempt of the task drops the same outputs.
            seed = None if not self.architecture.dropout else int(keys.sum(dtype=np.int64) & 0xFFFFFFFF)
            forward = Pass(self.architecture, layers, batch, table, seed)
            _, slopes = logistic_loss(forward.margins(), rows.labels, weights, total)
            self.table.pushDistinct(keys, forward.backward(slopes, self._step_layer), wait=False)
        return np.asarray(margins, np.float64)

    def store_copy(self) -> None:
        """Copy the model on the servers, with the state of all optimizers; replaces an earlier copy."""
        self.layers.store_copy()
        self.table.storeCopy()

    def restore_copy(self) -> None:
        """Set the model to its copy."""
        self.layers.restore_copy()
        self.table.restoreCopy()

    def advance(self, now_s: float) -> None:
        """Advance the time of the keys, as ``advance_keys`` does."""
        advance_keys(self.table, now_s)

    def _loss(
        self, forward: Pass, rows: Minibatch, items: tuple[Int64s, Float64s] | None, divisor: float
    ) -> tuple[float, Callable[[OnLayer], Any]]:
        """Return the loss, and a function that runs the backward pass and returns the gradient of the table."""
        if items is None:
            loss, slopes = logistic_loss(forward.margins(), rows.labels, rows.weights, divisor)
            return loss, partial(forward.backward, slopes)
        item_ids, fractions = items[0][rows.row_indices].astype(np.int64), items[1][rows.row_indices]
        pairs = PositivePairs(item_ids, np.log(fractions), rows.weights)
        loss, left, right = softmax_loss(*forward.towers(), pairs, self.architecture.temperature, divisor)
        return loss, partial(forward.backward_towers, left, right)

    def _step_layer(self, index: int, gradient: Any) -> None:
        settings = self.plan.settings
        self.layers.step_with(index, gradient, settings.stepSize, settings.weightDecay)
