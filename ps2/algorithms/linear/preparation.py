"""The first clocks of a linear training, before the first step.

Workers add their shares of each feature's mean on the servers, then the squared distances from the mean. From these
sums, they compute each feature's factor, such as 1 / std, and push it to the servers with the initial weights.
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
    deviations,
    inverse,
    preconditioner,
    scaled,
    shrink_factors,
    squared_distances,
)
from ps2.algorithms.linear.solvers.solver import Data, SolverContext
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.reading import Reading, SpillableReading
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
    """A task that scales features or sets initial weights, before the first step."""


@dataclass(frozen=True)
class SumColumns(PreparationTask):
    """Add up each feature's mean, and the weight of the rows where the feature is not 0."""


@dataclass(frozen=True)
class SumSquares(PreparationTask):
    """Add up the squared distances of features from their means."""


@dataclass(frozen=True)
class SetScales(PreparationTask):
    """Set the factors and initial weights of features; report the first feature whose factor would overflow."""


PREPARATION = SumColumns(), SumSquares(), SetScales()
# The clock in which the solver's first task runs.
FIRST_SOLVER_CLOCK = FIRST_CLOCK + len(PREPARATION)
# The maximum factor is the dtype's largest value times this: trained weights up to 2^30 times a factor stay finite.
HEADROOM = 2.0**-30


@dataclass(frozen=True, eq=False)
class Preparation:
    """The workers' part of the preparation, with the vectors that they fill; picklable.

    Attributes:
        initial_model: the parameters before the first step.
        sums: vectors with a value for each feature: the mean; the weight of the rows where it is not 0; the sum of
            squared distances; for float64 rows, a bound of values (``ColumnSums.sizes``). None: no scaling.
        scale: each feature's factor, repeated in each of its columns; None: features are not scaled.
        start: the user's initial weights, if they are on servers: each worker copies the columns of its features.
        is_preconditioned: see ``SolverContext``.
    """

    facts: Facts
    loss: Loss
    seed: int
    initial_model: Parameters
    sums: list[DCV] | None
    scale: DCV | None
    center: Center | None
    start: DCV | None
    is_preconditioned: bool

    @staticmethod
    def make(context: SolverContext) -> Preparation:
        """Return the preparation for a solver, with new vectors for the sums."""
        return Preparation(
            context.facts,
            context.loss,
            context.plan.seed,
            context.initial_model,
            None if context.scale is None else context.space.new_features(feature_vectors(context.problem)),
            context.scale,
            context.center,
            context.start.weight if context.start is not None and isinstance(context.start.weight, DCV) else None,
            context.is_preconditioned,
        )

    def do(self, worker: Any, task: PreparationTask, rows: KeptRows) -> None:
        """Do a task with a worker's rows."""
        if isinstance(task, SetScales):
            unscalable = np.empty((0, 2)) if self.scale is None else self._set_scale(self.scale, rows.keys)
            worker.report({"unscalable": unscalable}, merge="concat")
            self._set_initial_weights(rows.keys)
        elif self.sums is not None:
            self._add_sums(self.sums, task, rows)

    def data(self, reading: Reading | SpillableReading) -> Data:
        """Return a worker's rows, scaled."""
        rows, held_out, width = reading.training, reading.held_out, self.initial_model.width
        if self.scale is not None:
            scale = partial(scaled, factors=self.scale.pull(rows.keys * width).astype(np.float64))
            rows, held_out = rows.mapped(scale), None if held_out is None else held_out.mapped(scale)
        return Data(rows, held_out, width)

    def _add_sums(self, vectors: list[DCV], task: PreparationTask, rows: KeptRows) -> None:
        means, weights, squares, *sizes = vectors  # sizes: one vector, or none
        if isinstance(task, SumColumns):
            sums = column_sums(rows, self.facts)
            with batch():
                means.add(sums.means, rows.keys)
                weights.add(sums.weights, rows.keys)
                for vector in sizes:
                    vector.add(sums.sizes, rows.keys)
        else:
            mean, *size = _pull([means, *sizes], rows.keys)
            squares.add(squared_distances(rows, mean, _shrink_factors(size, rows.keys)), rows.keys)

    def _set_scale(self, scale: DCV, keys: Int64s) -> Float64s:
        """Set features' factors; return the first feature that would overflow, with its std, shape (0 or 1, 2)."""
        assert self.sums is not None
        mean, weights, squares, *sizes = _pull(self.sums, keys)
        h = _shrink_factors(sizes, keys)  # see ``scaling``
        scaled_std = deviations(squares, weights, mean, h, self.facts)
        max_factor = np.finfo(scale.dtype).max * HEADROOM
        if self.is_preconditioned:
            remaining_mean = mean if self.center is None else np.zeros(len(keys))
            factors = np.minimum(preconditioner(scaled_std, remaining_mean, h, self.loss.problem), max_factor)
        else:
            factors = inverse(scaled_std, h)
        too_large = np.flatnonzero(factors > max_factor)
        if len(too_large):
            index = too_large[0]
            return np.array([[keys[index], scaled_std[index] / h[index] / h[index]]])  # h^2 could underflow
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
    """Raise InputError for the first of the ``unscalable`` features, shape (n, 2): index and standard deviation."""
    for feature, deviation in unscalable:
        raise InputError(
            f"{columns.shown('features')}: feature {feature:.0f} has a standard deviation of "
            f"{deviation:g}, too small for weights to be finite; scale the feature, or leave it out"
        )


def push_start(context: SolverContext) -> None:
    """Set the parameters to ``context.start``, after ``SetScales``, in which workers have copied a DCV's weights."""
    start, vector = context.start, context.initial_model.weight
    assert start is not None
    if not isinstance(start.weight, DCV):
        weights = start.weight.reshape(-1)
        columns = np.flatnonzero(weights) if vector.isSparse else np.arange(len(weights))
        vector.push(unscaled(weights[columns], context.scale, columns).astype(vector.dtype), columns)
    context.initial_model.bias.push(start.biases)


def unscaled(weights: Float64s, scale: DCV | None, columns: Int64s) -> Float64s:
    """Return weights divided by the factors ``scale`` at columns, 0 where a factor is 0; without scale, weights."""
    if scale is None:
        return weights
    factors = np.asarray(scale.pull(columns), np.float64)
    return np.divide(weights, factors, out=np.zeros(len(weights)), where=factors > 0.0)


def _pull(vectors: list[DCV], keys: Int64s) -> list[Array]:
    with batch():
        results = [vector.pull(keys) for vector in vectors]
    return [result.result() for result in results]


def _shrink_factors(sizes: list[Array], keys: Int64s) -> Float64s:
    return shrink_factors(sizes[0]) if sizes else np.ones(len(keys))
