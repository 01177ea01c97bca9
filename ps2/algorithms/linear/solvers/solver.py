"""The input of a solver: a worker's rows and the form of their gradients, and the context in the driver."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ps2.algorithms.linear.losses import Evaluated, Loss, SoftmaxLoss
from ps2.algorithms.linear.parameters import NOTHING, Center, Parameters, Space
from ps2.algorithms.linear.plan import LinearPlan, Problem, Start
from ps2.algorithms.linear.solvers.regions import Box
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.record import Record
from ps2.algorithms.training.sent_gradients import FormChoice, SentFactors, SentValues
from ps2.algorithms.training.table import Facts
from ps2.array_types import Float64s, Int64s
from ps2.client.dcv import DCV
from ps2.data.rows import LocalRows, columns_of
from ps2.data.spilled_rows import KeptRows
from ps2.ops.table import Array

# The maximum number of random numbers in memory at a time.
DRAWS = 1 << 20


@dataclass(frozen=True, eq=False)
class Data:
    """A worker's rows to train on, and its held-out rows, with the same keys, if there are any."""

    rows: KeptRows
    held_out: KeptRows | None = None
    width: int = 1

    @cached_property
    def columns(self) -> Int64s:
        """The columns of the weights of the rows' features."""
        return columns_of(self.rows.keys, self.width)

    @property
    def whole(self) -> LocalRows:
        """The rows to train on, for a solver that needs all of them in memory."""
        assert isinstance(self.rows, LocalRows)
        return self.rows

    def held_loss(self, loss: Loss, w: Array, b: Float64s) -> tuple[float, float]:
        """Return the summed loss of the held-out rows, and their summed weight."""
        return NOTHING if self.held_out is None else loss.loss(self.held_out, w, b)

    def sample(self, fraction: float, rng: np.random.Generator) -> KeptRows:
        """Select each row to train on with probability ``fraction``; keep all keys."""
        if fraction == 1.0:
            return self.rows
        begins = range(0, len(self.rows), DRAWS)
        parts = [np.flatnonzero(rng.random(min(DRAWS, len(self.rows) - begin)) < fraction) + begin for begin in begins]
        return self.rows.chosen(np.concatenate([np.empty(0, np.int64), *parts]))


@dataclass(frozen=True, eq=False)
class GradientForm:
    """Computes a worker's gradients, in the requested form or the one that takes fewer bytes; picklable."""

    loss: Loss
    choice: FormChoice

    def gradient(
        self, vector: DCV, rows: KeptRows, w: Array, b: Float64s, columns: Int64s, scale: float = 1.0
    ) -> tuple[Evaluated, SentValues | SentFactors]:
        """Return loss and gradient, and the gradient times ``scale`` in the form in which it travels to ``vector``.

        If rows are in a file, the gradient travels value by value: factors would be as large as the rows.
        """
        loss = self.loss
        if isinstance(loss, SoftmaxLoss) and not vector.isSparse and isinstance(rows, LocalRows):
            x = rows.x.toarray() if rows.x.nnz == math.prod(rows.x.shape) else rows.x
            factor_bytes = self.choice.factor_bytes(vector, loss.problem.width, x, rows.keys)
            if factor_bytes is not None:
                evaluated, slopes = loss.factors(rows, w, b)
                return evaluated, SentFactors(slopes * scale, x, rows.keys, factor_bytes)
        evaluated = loss.gradient(rows, w, b)
        return evaluated, SentValues(evaluated.dw * scale, columns)


@dataclass(frozen=True, eq=False)
class SolverContext:
    """The context of a solver in the driver.

    Attributes:
        initial_model: the parameters on the servers before the first step.
        scale: for each weight, the factor by which its feature is multiplied; in the end, weights are multiplied by it.
            None: features are not scaled.
        center: the means of the scaled features, which the solver subtracts; None: it subtracts none.
        box: the bounds of the parameters; None: there are none.
        start: the user's initial model, near which gradients, and good first steps, are small. None: the loss decides
            the initial parameters.
    """

    problem: Problem
    plan: LinearPlan
    facts: Facts
    loss: Loss
    space: Space
    initial_model: Parameters
    record: Record
    workers: int
    columns: ColumnNames
    scale: DCV | None = None
    center: Center | None = None
    box: Box | None = None
    start: Start | None = None

    @property
    def conditions(self) -> bool:
        """Whether ``scale`` only makes L-BFGS faster, and penalties are on the weights of unscaled features."""
        return self.scale is not None and not self.problem.standardize and self.plan.solver == "l-bfgs"
