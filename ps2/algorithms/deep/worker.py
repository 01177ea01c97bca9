"""The worker's program of a deep model's training: gradients of a layer leave while those below are computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ps2.algorithms.deep.architecture import Architecture
from ps2.algorithms.deep.layers import OnLayer
from ps2.algorithms.deep.network import Pass, PositivePairs, logistic_loss, softmax_loss
from ps2.algorithms.deep.plan import DeepPlan
from ps2.algorithms.deep.rows import DeepRows, Minibatch
from ps2.algorithms.deep.shared_layers import LayerStep, SharedLayers
from ps2.array_types import Float64s
from ps2.errors import InputError, OutOfRangeError


@dataclass(frozen=True)
class Schedule:
    """The steps of a training.

    Attributes:
        epochs: number of passes over the rows.
        steps: number of steps in each epoch; each worker uses an equal share of its rows in each.
        weight: sum of the weights of all rows.
    """

    epochs: int
    steps: int
    weight: float

    @property
    def clocks(self) -> int:
        return self.epochs * self.steps

    def part(self, count: int, step: int) -> slice:
        """Return the slice of a worker's ``count`` rows, in the order of the epoch, that belong to a step of it."""
        return slice(count * step // self.steps, count * (step + 1) // self.steps)


@dataclass(frozen=True, eq=False)
class Learner:
    """Takes steps of a model on the servers; picklable.

    Attributes:
        architecture: kind and sizes of the model.
        plan: the training.
        layers: its layers on the servers.
        table: its embeddings, an ``EmbeddingTable``.
    """

    architecture: Architecture
    plan: DeepPlan
    layers: SharedLayers
    table: Any

    def learn(self, part: Minibatch, shares: Float64s | None, mean: float, seed: int) -> float:
        """Take one step with some rows; return their summed loss. If the loss is not finite, nothing is sent.

        Args:
            part: the rows, at least one.
            shares: for the loss "softmax": the items of all rows of the worker, and their shares (``DeepRows.items``);
                else None.
            mean: number that divides the summed gradient.
            seed: seed of dropout.

        Raises:
            InputError: a gradient is not finite, or too large for its optimizer. Layers above that one may have taken
                the step.
        """
        weights, table = self.layers.pull(), self.table.pullDistinct(part.keys)
        one = Pass(self.architecture, weights, part.batch, table, seed)
        with np.errstate(over="ignore", invalid="ignore"):  # the loss tells
            loss, back = self._loss(one, part, shares, mean)
        if math.isfinite(loss):
            try:
                self.table.pushDistinct(part.keys, back(self._sender()), wait=not self.plan.overlap)
            except OutOfRangeError as error:
                raise InputError(str(error)) from error
        return loss

    def _loss(
        self, one: Pass, part: Minibatch, shares: Float64s | None, mean: float
    ) -> tuple[float, Callable[[OnLayer], Any]]:
        """Return the loss, and a function that runs the backward pass and returns the gradient of the embeddings."""
        if shares is None:
            loss, slopes = logistic_loss(one.margins(), part.labels, part.weights, mean)
            return loss, partial(one.slopes_back, slopes)
        items, of_items = shares[0][part.numbers].astype(np.int64), shares[1][part.numbers]
        pairs = PositivePairs(items, np.log(of_items), part.weights)
        found = softmax_loss(*one.towers(), pairs, self.architecture.temperature, mean)
        return found.loss, partial(one.towers_back, found.left, found.right)

    def _sender(self) -> Any:
        """Return the function that sends a layer's gradient as soon as it is computed."""
        layers, plan, wait = self.layers, self.plan, not self.plan.overlap
        if plan.settings.staleness == 0:
            return lambda number, gradient: layers.add(number, gradient, wait)
        taken = LayerStep(plan.settings.stepSize, plan.settings.weightDecay)
        return lambda number, gradient: layers.step_with(number, gradient, taken, wait)


@dataclass(frozen=True, eq=False)
class DeepLoop:
    """What each worker runs; picklable."""

    learner: Learner
    schedule: Schedule

    def __call__(self, worker: Any, rows: DeepRows) -> None:
        learner, schedule, plan = self.learner, self.schedule, self.learner.plan
        shares = self._shares(rows)
        # If each worker takes steps of its own, the gradient is the mean over its rows.
        parts = schedule.steps if plan.settings.staleness == 0 else schedule.steps * worker.workers
        mean = schedule.weight / parts
        order, epoch = np.zeros(0, np.int64), -1
        for clock in worker.clocks(schedule.clocks):
            if clock // schedule.steps != epoch:
                epoch = clock // schedule.steps
                order = rows.order(plan.seed, worker.rank, epoch)
            numbers = order[schedule.part(len(rows), clock % schedule.steps)]
            if not len(numbers):
                worker.report({"loss": 0.0, "rows": 0})
                continue
            part = rows.take(numbers)
            seed = int(np.random.SeedSequence([plan.seed, worker.rank, clock]).generate_state(1)[0])
            loss = learner.learn(part, shares, mean, seed)
            worker.report({"loss": loss, "rows": len(numbers)})

    def _shares(self, rows: DeepRows) -> Any:
        sizes = self.learner.architecture
        return rows.items(sizes.deep, sizes.fields) if self.learner.plan.loss == "softmax" else None
