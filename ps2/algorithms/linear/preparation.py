"""The first clocks of a linear training, before the first step.

Workers add up the mean of each column, then the squares about the mean. Then they write the factor of each column, such
as 1 / std, and the initial weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import Task
from ps2.algorithms.linear.centering import Center
from ps2.algorithms.linear.footprint import feature_vectors
from ps2.algorithms.linear.losses.loss import Loss
from ps2.algorithms.linear.parameters import Parameters, columns_of
from ps2.algorithms.linear.plan import Start
from ps2.algorithms.linear.scaling import (
    Array,
    column_sums,
    conditioning,
    deviations,
    inverse,
    scaled,
    shrinking,
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
from ps2.data.spilled_rows import KeptRows
from ps2.errors import InputError


class PreparationTask(Task):
    """A task before the first step."""


@dataclass(frozen=True)
class SumColumns(PreparationTask):
    """Add up the columns' means, and the weights of the rows that have them."""


@dataclass(frozen=True)
class SumSquares(PreparationTask):
    """Add up the columns' squares about their means."""


@dataclass(frozen=True)
class SetScales(PreparationTask):
    """Set the columns' factors and initial weights; report the first column that has no factor."""


PREPARATION = SumColumns(), SumSquares(), SetScales()
# The run's clock with the solver's first task.
END = FIRST_CLOCK + len(PREPARATION)
# Weights of scaled features are multiplied by 1 / std in the end.
HEADROOM = 2.0**-30


@dataclass(frozen=True, eq=False)
class Preparation:
    """Vectors that the workers fill; picklable.

    Attributes:
        initial_model: the parameters before the first step.
        sums: of each feature: its mean, the weight of rows that have it, squares about the mean, and, of float64 rows,
            sizes; None: the features stay as they are.
        scale: as in ``SolverContext``.
        center: mean of each feature as it is scaled, if the solver wants that.
        start: weights on the fleet to begin with, which workers copy at their own columns; None: there are none.
        conditions: whether factors are to make training quick; else they are 1 / std, 0 where that is 0.
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
        space, start = context.space, context.start
        sums = None if context.scale is None else space.features(feature_vectors(context.problem))
        return Preparation(
            context.facts,
            context.loss,
            context.plan.seed,
            context.initial_model,
            sums,
            context.scale,
            context.center,
            start.weight if start is not None and isinstance(start.weight, DCV) else None,
            context.conditions,
        )

    def do(self, worker: Any, task: PreparationTask, rows: KeptRows) -> None:
        """Do a worker's share of a clock."""
        if not isinstance(task, SetScales):
            if self.sums is not None:
                self._add_sums(task, rows)
            return
        unscalable = np.empty((0, 2)) if self.scale is None else self._set_scale(self.scale, rows.keys)
        worker.report({"unscalable": unscalable}, merge="concat")
        self._begin(rows.keys)

    def data(self, reading: Reading | KeptReading) -> Data:
        """Return a worker's rows, scaled."""
        rows, held, width = reading.training, reading.held_out, self.initial_model.width
        if self.scale is not None:
            scale = partial(scaled, factors=self.scale.pull(rows.keys * width).astype(np.float64))
            rows, held = rows.mapped(scale), None if held is None else held.mapped(scale)
        return Data(rows, held, width)

    def check_scales(self, unscalable: Float64s, columns: ColumnNames) -> None:
        """Raise InputError if a feature cannot be divided by its standard deviation; for the driver.

        Args:
            unscalable: such features, and their deviations, shape (n, 2).
        """
        for feature, deviation in unscalable:
            raise InputError(
                f"{columns.shown('features')}: feature {feature:.0f} has a standard deviation of "
                f"{deviation:g}, too small for weights to be numbers; scale the feature, or leave it out"
            )

    def _add_sums(self, task: PreparationTask, rows: KeptRows) -> None:
        assert self.sums is not None
        of_means, of_weights, of_squares, *of_sizes = self.sums
        if isinstance(task, SumColumns):
            sums = column_sums(rows, self.facts)
            with batch():
                of_means.add(sums.means, rows.keys)
                of_weights.add(sums.weights, rows.keys)
                for vector in of_sizes:
                    vector.add(sums.sizes, rows.keys)
        else:
            with batch():
                answers = [vector.pull(rows.keys) for vector in (of_means, *of_sizes)]
            mean, *sizes = (answer.result() for answer in answers)
            of_squares.add(squared_distances(rows, mean, _shrinking(sizes, rows.keys)), rows.keys)

    def _set_scale(self, scale: DCV, keys: Int64s) -> Float64s:
        """Set the scale of features; return the first that has none, and its standard deviation: shape (1 or 0, 2)."""
        assert self.sums is not None
        with batch():
            answers = [vector.pull(keys) for vector in self.sums]
        mean, weights, squares, *sizes = (answer.result() for answer in answers)
        h = _shrinking(sizes, keys)
        std = deviations(squares, weights, mean, h, self.facts)
        max_factor = np.finfo(scale.dtype).max * HEADROOM
        if self.conditions:
            rest = mean if self.center is None else np.zeros(len(keys))
            factors = np.minimum(conditioning(std, rest, h, self.loss.problem), max_factor)
        else:
            factors = inverse(std, h)
        tiny = np.flatnonzero(factors > max_factor)
        if len(tiny):
            first = tiny[0]
            return np.array([[keys[first], std[first] / h[first] / h[first]]])
        width = self.initial_model.width
        scale.push(np.repeat(factors, width).astype(scale.dtype), columns_of(keys, width))
        if self.center is not None:
            self.center.push(mean * factors, keys)
        return np.empty((0, 2))

    def _begin(self, keys: Int64s) -> None:
        weights, columns = self.loss.beginning(keys, self.seed), columns_of(keys, self.initial_model.width)
        if self.start is not None:
            weights = unscaled(np.asarray(self.start.pull(columns), np.float64), self.scale, columns)
        if weights is not None:
            vector = self.initial_model.weight
            vector.push(weights.astype(vector.dtype), columns)


def begin_with(start: Start, context: SolverContext) -> None:
    """Let a training begin with a model's parameters; in the driver, when the factors of all columns are set.

    Weights that are on the fleet were copied by the workers.
    """
    vector = context.initial_model.weight
    if not isinstance(start.weight, DCV):
        weights = start.weight.reshape(-1)
        columns = np.flatnonzero(weights) if vector.isSparse else np.arange(len(weights))
        vector.push(unscaled(weights[columns], context.scale, columns).astype(vector.dtype), columns)
    context.initial_model.bias.push(start.biases)


def unscaled(weights: Float64s, scale: DCV | None, columns: Int64s) -> Float64s:
    """Return weights of features that are multiplied by ``scale``: 0 where that is 0, as these features have none."""
    if scale is None:
        return weights
    factors = np.asarray(scale.pull(columns), np.float64)
    return np.divide(weights, factors, out=np.zeros(len(weights)), where=factors > 0.0)


def _shrinking(sizes: list[Array], keys: Int64s) -> Float64s:
    return shrinking(sizes[0]) if sizes else np.ones(len(keys))
