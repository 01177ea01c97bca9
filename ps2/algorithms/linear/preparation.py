"""The first clocks of a linear training, before the first step.

Workers add up the mean of each feature, then the squared distances from the mean. Then they set the factor of each
feature, such as 1 / std, and the initial weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import Task
from ps2.algorithms.linear.footprint import feature_vectors
from ps2.algorithms.linear.losses import Loss
from ps2.algorithms.linear.parameters import Center, Parameters
from ps2.algorithms.linear.scaling import (
    column_sums,
    conditioning,
    deviations,
    inverse,
    scaled,
    shrink_factors,
    squared_distances,
)
from ps2.algorithms.linear.solvers.solver import Data, SolverContext
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.reading import KeptReading, Reading
from ps2.algorithms.training.run import FIRST_CLOCK
from ps2.algorithms.training.table import Facts
from ps2.array_types import Float64s, Int64s
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.data.rows import columns_of
from ps2.data.spilled_rows import KeptRows
from ps2.errors import InputError
from ps2.ops.table import Array


class PreparationTask(Task):
    """A task before the first step."""


@dataclass(frozen=True)
class SumColumns(PreparationTask):
    """Add up the features' means, and the weights of the rows where they are not 0."""


@dataclass(frozen=True)
class SumSquares(PreparationTask):
    """Add up the squared distances of features from their means."""


@dataclass(frozen=True)
class SetScales(PreparationTask):
    """Set the factors and initial weights of features; report the first feature whose factor would overflow."""


PREPARATION = SumColumns(), SumSquares(), SetScales()
# The clock in which the solver's first task runs.
END = FIRST_CLOCK + len(PREPARATION)
# The largest factor is the largest number times this, as the trained weights are multiplied by their factors.
HEADROOM = 2.0**-30


@dataclass(frozen=True, eq=False)
class Preparation:
    """The vectors that the workers fill; picklable.

    Attributes:
        initial_model: the parameters before the first step.
        sums: vectors with a value for each feature: its mean; the weight of the rows where it is not 0; its squared
            distances from the mean; for float64 rows, its size (``ColumnSums``). None: features are not scaled.
        scale: each feature's factor, repeated in each of its columns; None: features are not scaled.
        start: the user's initial weights on the servers; workers copy the columns of their features; or None.
        conditions: see ``SolverContext``.
    """

    facts: Facts
    loss: Loss
    seed: int
    initial_model: Parameters
    sums: list[DCV] | None
    scale: DCV | None
    center: Center | None
    start: DCV | None
    conditions: bool

    @staticmethod
    def make(context: SolverContext) -> Preparation:
        """Make the vectors for a solver's context."""
        return Preparation(
            context.facts,
            context.loss,
            context.plan.seed,
            context.initial_model,
            None if context.scale is None else context.space.features(feature_vectors(context.problem)),
            context.scale,
            context.center,
            context.start.weight if context.start is not None and isinstance(context.start.weight, DCV) else None,
            context.conditions,
        )

    def do(self, worker: Any, task: PreparationTask, rows: KeptRows) -> None:
        """Do a worker's task with its rows."""
        if isinstance(task, SetScales):
            unscalable = np.empty((0, 2)) if self.scale is None else self._set_scale(self.scale, rows.keys)
            worker.report({"unscalable": unscalable}, merge="concat")
            self._set_initial_weights(rows.keys)
        elif self.sums is not None:
            self._add_sums(self.sums, task, rows)

    def data(self, reading: Reading | KeptReading) -> Data:
        """Return a worker's rows, scaled."""
        rows, held_out, width = reading.training, reading.held_out, self.initial_model.width
        if self.scale is not None:
            scale = partial(scaled, factors=self.scale.pull(rows.keys * width).astype(np.float64))
            rows, held_out = rows.mapped(scale), None if held_out is None else held_out.mapped(scale)
        return Data(rows, held_out, width)

    def _add_sums(self, vectors: list[DCV], task: PreparationTask, rows: KeptRows) -> None:
        means, weights, squares, *sizes = vectors
        if isinstance(task, SumColumns):
            sums = column_sums(rows, self.facts)
            with batch():
                means.add(sums.means, rows.keys)
                weights.add(sums.weights, rows.keys)
                for vector in sizes:
                    vector.add(sums.sizes, rows.keys)
        else:
            mean, *size = _pull([means, *sizes], rows.keys)
            squares.add(squared_distances(rows, mean, _shrinking(size, rows.keys)), rows.keys)

    def _set_scale(self, scale: DCV, keys: Int64s) -> Float64s:
        """Set the factors of features; return the first one that would overflow, with its std: shape (1 or 0, 2)."""
        assert self.sums is not None
        mean, weights, squares, *sizes = _pull(self.sums, keys)
        shrink = _shrinking(sizes, keys)
        std = deviations(squares, weights, mean, shrink, self.facts)
        max_factor = np.finfo(scale.dtype).max * HEADROOM
        if self.conditions:
            uncentered_mean = mean if self.center is None else np.zeros(len(keys))
            factors = np.minimum(conditioning(std, uncentered_mean, shrink, self.loss.problem), max_factor)
        else:
            factors = inverse(std, shrink)
        too_large = np.flatnonzero(factors > max_factor)
        if len(too_large):
            first = too_large[0]
            return np.array([[keys[first], std[first] / shrink[first] / shrink[first]]])
        width = self.initial_model.width
        scale.push(np.repeat(factors, width).astype(scale.dtype), columns_of(keys, width))
        if self.center is not None:
            self.center.push(mean * factors, keys)
        return np.empty((0, 2))

    def _set_initial_weights(self, keys: Int64s) -> None:
        weights, columns = self.loss.initial_weights(keys, self.seed), columns_of(keys, self.initial_model.width)
        if self.start is not None:
            weights = unscaled(np.asarray(self.start.pull(columns), np.float64), self.scale, columns)
        if weights is not None:
            vector = self.initial_model.weight
            vector.push(weights.astype(vector.dtype), columns)


def check_scales(unscalable: Float64s, columns: ColumnNames) -> None:
    """Raise InputError for the first of the ``unscalable`` features, shape (n, 2): number and standard deviation."""
    for feature, deviation in unscalable:
        raise InputError(
            f"{columns.shown('features')}: feature {feature:.0f} has a standard deviation of "
            f"{deviation:g}, too small for weights to be finite; scale the feature, or leave it out"
        )


def push_start(context: SolverContext) -> None:
    """Set the parameters to ``context.start``, once the factors are set. Workers have copied the weights of a DCV."""
    start, vector = context.start, context.initial_model.weight
    assert start is not None
    if not isinstance(start.weight, DCV):
        weights = start.weight.reshape(-1)
        columns = np.flatnonzero(weights) if vector.isSparse else np.arange(len(weights))
        vector.push(unscaled(weights[columns], context.scale, columns).astype(vector.dtype), columns)
    context.initial_model.bias.push(start.biases)


def unscaled(weights: Float64s, scale: DCV | None, columns: Int64s) -> Float64s:
    """Return weights divided by ``scale``; 0 where the scale is 0."""
    if scale is None:
        return weights
    factors = np.asarray(scale.pull(columns), np.float64)
    return np.divide(weights, factors, out=np.zeros(len(weights)), where=factors > 0.0)


def _pull(vectors: list[DCV], keys: Int64s) -> list[Array]:
    with batch():
        answers = [vector.pull(keys) for vector in vectors]
    return [answer.result() for answer in answers]


def _shrinking(sizes: list[Array], keys: Int64s) -> Float64s:
    return shrink_factors(sizes[0]) if sizes else np.ones(len(keys))
