"""Coordinate descent by schedule, in the workers: each holds its rows by column, and their margins.

In each clock the driver's message says what changes, and what to compute of the margins then. A worker that is started
again, or whose fleet has rolled back, makes its margins anew from the weights on the servers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ps2.algorithms.linear.coordinates.columns import DENSE, LocalColumns
from ps2.algorithms.linear.coordinates.kernels import describe_columns, slopes
from ps2.algorithms.linear.coordinates.subproblem import NO_COLUMNS, NO_VALUES
from ps2.algorithms.linear.losses.loss import Array
from ps2.algorithms.linear.losses.margin import CODES
from ps2.algorithms.linear.losses.margin_kernels import summed_loss
from ps2.algorithms.linear.parameters import Parameters
from ps2.algorithms.linear.problem import Problem
from ps2.algorithms.linear.solvers.solver import Data
from ps2.algorithms.linear.view import ModelView
from ps2.algorithms.training.table import Facts
from ps2.array_types import Float64s, Int64s
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.data.rows import LocalRows
from ps2.run.message import Message


@dataclass(frozen=True, eq=False)
class Task:
    """What workers do in a clock; a message.

    Attributes:
        columns, changes: features whose weights have changed, and by how much.
        bias: the intercept after that.
        full: whether to add the gradient of all features to that on the servers.
        block: features to compute gradients and products of.
        new: products of the first so many of these with all.
        direction, turns: features, and the changes of their weights along a direction.
        bias_turn: likewise of the intercept.
        lengths: of steps along the direction, at which to compute the loss.
    """

    bias: float
    columns: Int64s = field(default_factory=lambda: NO_COLUMNS)
    changes: Float64s = field(default_factory=lambda: NO_VALUES)
    full: bool = False
    block: Int64s = field(default_factory=lambda: NO_COLUMNS)
    new: int = 0
    direction: Int64s = field(default_factory=lambda: NO_COLUMNS)
    turns: Float64s = field(default_factory=lambda: NO_VALUES)
    bias_turn: float = 0.0
    lengths: Float64s = field(default_factory=lambda: NO_VALUES)

    @staticmethod
    def of(message: dict[str, Any]) -> Task:
        return Task(**message)

    def message(self) -> Message:
        return Message(**vars(self))


NOTHING = Task(0.0)


@dataclass(frozen=True, eq=False)
class ColumnVectors:
    """What the servers hold of each feature, co-located with the weights; picklable.

    Attributes:
        share: of the rows' weight that has the feature.
        mean: of the feature.
        curvature: mean of its square; then the second derivative of the loss, or a bound of it.
        gradient: of the loss, downhill; 0 between two computations.
        change: what the last step along it changed, or the next one would.
    """

    share: DCV
    mean: DCV
    curvature: DCV
    gradient: DCV
    change: DCV


class _Margins:
    """A worker's columns, and what the model says of its rows."""

    def __init__(self, columns: LocalColumns, z: Float64s, epoch: int) -> None:
        self.columns, self.z, self.epoch = columns, z, epoch
        self.slope, self.curvature = np.empty(len(z)), np.empty(len(z))


@dataclass(frozen=True, eq=False)
class SapWorker:
    """A worker's program."""

    problem: Problem
    facts: Facts
    model: Parameters
    vectors: ColumnVectors
    first_clock: int

    def __call__(self, worker: Any, data: Data, view: ModelView, clocks: int) -> None:
        margins: _Margins | None = None
        for clock in worker.clocks(clocks):
            if clock == self.first_clock:
                self._describe(data.whole, view)
                view.report()
                continue
            task = Task.of(worker.message)
            if margins is None or margins.epoch != worker.epoch:
                margins = self._made(worker.epoch, data.whole, view)
            else:
                margins.columns.add_to(margins.z, task.columns, task.changes)
            self._do(task, margins, data.whole, view)

    def _describe(self, rows: LocalRows, view: ModelView) -> None:
        """Add up what the servers hold of features."""
        x, to, share = rows.x, self.vectors, 1.0 / self.facts.weight
        c = np.full(len(rows), share) if rows.weights is None else rows.weights * share
        sums = np.zeros((len(rows.keys), 3))
        describe_columns(x.indptr, x.indices, x.data, c, sums)
        with batch():
            for vector, values in zip((to.share, to.mean, to.curvature), sums.T.copy(), strict=True):
                vector.add(values, rows.keys)
        view.moved_bytes += sums.nbytes

    def _made(self, epoch: int, rows: LocalRows, view: ModelView) -> _Margins:
        dense, means = NO_COLUMNS, NO_VALUES
        if self.problem.fit_intercept:
            dense, means = self.vectors.share.zip(self.vectors.mean).apply("linear.dense_columns", least=DENSE)
        columns = LocalColumns.of(rows, dense, means)
        w, _ = view.pull(self.model, columns.keys)
        used = np.flatnonzero(w)
        z = np.zeros(len(rows))
        columns.add_to(z, columns.keys[used], w[used])
        return _Margins(columns, z, epoch)

    def _do(self, task: Task, margins: _Margins, rows: LocalRows, view: ModelView) -> None:
        y, weights = _labels(rows)
        code, facts = CODES[self.problem.loss], self.facts
        if len(task.lengths):
            turn = np.full(len(rows), task.bias_turn)
            margins.columns.add_to(turn, task.direction, task.turns)
            losses = np.zeros((len(task.lengths), 2))
            for length, sums_at in zip(task.lengths, losses, strict=True):
                summed_loss(margins.z + task.bias + length * turn, y, weights, code, 1.0, 1.0, sums_at)
            view.report(rows=len(rows), losses=losses[:, 0].copy())
            return
        center = facts.label_mean if self.problem.fit_intercept else 0.0
        loss, dual = slopes(
            *(code, margins.z + task.bias, y, weights, center, 1.0 / facts.weight),
            *(margins.slope, margins.curvature),
        )
        sums = {"dual": dual, "down": margins.slope.sum(), "curved": margins.curvature.sum()}
        if task.full:
            found = margins.columns.dot(margins.slope)
            self.vectors.gradient.add(found, margins.columns.keys)
            view.moved_bytes += found.nbytes
        if not len(task.block):
            view.report((loss, 0.0), rows=len(rows), **sums)
            return
        gradient = margins.columns.dot_at(task.block, margins.slope)
        entries = margins.columns.dot_at(task.block, margins.curvature)
        products = margins.columns.products(task.block, task.new, margins.curvature)
        view.moved_bytes += products.nbytes + gradient.nbytes + entries.nbytes
        view.report((loss, 0.0), gradient=gradient, entries=entries, products=products, **sums)


def _labels(rows: LocalRows) -> tuple[Float64s, Array]:
    assert rows.y is not None
    return rows.y, NO_VALUES if rows.weights is None else rows.weights
