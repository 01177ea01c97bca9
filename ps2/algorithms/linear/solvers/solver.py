"""The input of all solvers: a worker's rows, the form in which gradients are sent, and the driver's context."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ps2.algorithms.linear.losses import Loss, LossAndGradient, SoftmaxLoss
from ps2.algorithms.linear.parameters import NO_LOSS, Center, Parameters, Space
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

# ``Data.sample`` draws at most this many random numbers at a time: 8 MiB.
DRAWS = 1 << 20


@dataclass(frozen=True, eq=False)
class Data:
    """A worker's training rows and, with the same keys, its held-out rows if there are any."""

    rows: KeptRows
    held_out: KeptRows | None = None
    width: int = 1

    @cached_property
    def columns(self) -> Int64s:
        """The columns of the weights of the rows' features."""
        return columns_of(self.rows.keys, self.width)

    @property
    def local_rows(self) -> LocalRows:
        """The training rows, for a solver that keeps all rows in memory."""
        assert isinstance(self.rows, LocalRows)
        return self.rows

    def held_out_loss(self, loss: Loss, w: Array, b: Float64s) -> tuple[float, float]:
        """Return the summed loss of the held-out rows, and their summed weight."""
        return NO_LOSS if self.held_out is None else loss.loss(self.held_out, w, b)

    def sample(self, fraction: float, rng: np.random.Generator) -> KeptRows:
        """Select each training row with probability ``fraction``; keep all keys."""
        if fraction == 1.0:
            return self.rows
        n = len(self.rows)
        begins = range(0, n, DRAWS)
        selected = [np.flatnonzero(rng.random(min(DRAWS, n - begin)) < fraction) + begin for begin in begins]
        return self.rows.chosen(np.concatenate([np.empty(0, np.int64), *selected]))


@dataclass(frozen=True, eq=False)
class GradientForm:
    """Computes a worker's gradients, in the form that the user requests or that takes fewer bytes; picklable."""

    loss: Loss
    choice: FormChoice

    def gradient(
        self, vector: DCV, rows: KeptRows, w: Array, b: Float64s, columns: Int64s, scale: float = 1.0
    ) -> tuple[LossAndGradient, SentValues | SentFactors]:
        """Return loss and gradient, and the gradient times ``scale`` in the form in which it is sent to ``vector``.

        If rows are in a file, values are sent: sufficient factors would contain all rows.
        """
        loss = self.loss
        if isinstance(loss, SoftmaxLoss) and not vector.isSparse and isinstance(rows, LocalRows):
            x = rows.x.toarray() if rows.x.nnz == math.prod(rows.x.shape) else rows.x
            factor_bytes = self.choice.factor_bytes(vector, loss.problem.width, x, rows.keys)
            if factor_bytes is not None:
                sums, slopes = loss.factors(rows, w, b)
                return sums, SentFactors(slopes * scale, x, rows.keys, factor_bytes)
        sums = loss.gradient(rows, w, b)
        return sums, SentValues(sums.dw * scale, columns)


@dataclass(frozen=True, eq=False)
class SolverContext:
    """What a solver's program needs in the driver.

    Attributes:
        initial_model: the parameters on the servers before the first step.
        scale: for each weight, the factor by which its feature is multiplied during training; the trained weight is
            multiplied by it, too. None: features are not scaled.
        center: the means of the scaled features; None: the solver does not centre features.
        box: the bounds of the parameters; None: there are none.
        start: the user's initial model; None: the loss determines the initial parameters.
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
    def is_preconditioned(self) -> bool:
        """Whether ``scale`` is only a preconditioner of L-BFGS, and penalties are on unscaled features' weights."""
        return self.scale is not None and not self.problem.standardize and self.plan.solver == "l-bfgs"
