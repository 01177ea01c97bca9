"""The multinomial model: a weight for each feature and class, and the cross-entropy of the softmax."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.linear.losses import softmax_kernels as kernels
from ps2.algorithms.linear.losses.loss import Array, Evaluated, check_matrix, checked_rows, log_priors
from ps2.algorithms.linear.problem import Problem
from ps2.algorithms.training.table import Facts
from ps2.array_types import Float64s, Int64s
from ps2.data.rows import LocalRows
from ps2.data.spilled_rows import KeptRows
from ps2.errors import ConfigError, OutOfRangeError


@dataclass(frozen=True, eq=False)
class FactoredGradient:
    """A gradient as sufficient factors: that of the weights is the sum over rows of x (as a column) times slopes.

    Attributes:
        loss, weight, db: as in ``Evaluated``.
        slopes: float64, shape (n, classes): derivatives by each row's margins, times the row's weight.
    """

    loss: float
    weight: float
    db: Float64s
    slopes: Float64s


@dataclass(frozen=True)
class SoftmaxLoss:
    """Cross-entropy of labels 0 to width - 1.

    Raises:
        ConfigError: the problem's width is below 1. A sole class has all probability.
    """

    problem: Problem

    def __post_init__(self) -> None:
        if self.problem.width < 1:
            raise ConfigError(f"softmax: expected a width of at least 1 class, got {self.problem.width}")

    def gradient(self, rows: KeptRows, w: Array, b: Float64s) -> Evaluated:
        dw, db, sums = np.zeros(len(w)), np.zeros(len(b)), np.zeros(2)
        for block in rows.blocks():
            x, y, weights = self._checked(block, w, b)
            kernels.softmax_gradient(x.indptr, x.indices, x.data, y, weights, w, b, dw, db, sums)
        return Evaluated(float(sums[0]), float(sums[1]), dw, db if self.problem.fit_intercept else np.zeros(len(b)))

    def factors(self, rows: LocalRows, w: Array, b: Float64s) -> FactoredGradient:
        """Compute the gradient as sufficient factors (Petuum, section 3.4); ``slopes.T @ x`` is that of the weights."""
        x, y, weights = self._checked(rows, w, b)
        slopes = np.zeros((len(rows), len(b)))
        loss, weight = kernels.softmax_slopes(x.indptr, x.indices, x.data, y, weights, w, b, slopes)
        return FactoredGradient(loss, weight, slopes.sum(axis=0) * self.problem.fit_intercept, slopes)

    def loss(self, rows: KeptRows, w: Array, b: Float64s) -> tuple[float, float]:
        sums = np.zeros(2)
        for block in rows.blocks():
            x, y, weights = self._checked(block, w, b)
            kernels.softmax_loss(x.indptr, x.indices, x.data, y, weights, w, b, sums)
        return float(sums[0]), float(sums[1])

    def margins(self, x: sp.csr_array, w: Array, b: Float64s) -> Float64s:
        check_matrix(self.problem, x, w, b)
        out = np.empty((x.shape[0], len(b)))
        kernels.all_margins(x.indptr, x.indices, x.data, w, b, out)
        return out

    def beginning(self, keys: Int64s, seed: int) -> None:
        return None

    def first_biases(self, facts: Facts) -> Float64s:
        width = self.problem.width
        return log_priors(facts, width) if self.problem.fit_intercept else np.zeros(width)

    def _checked(self, rows: LocalRows, w: Array, b: Float64s) -> tuple[sp.csr_array, Float64s, Float64s]:
        y, weights = checked_rows(self.problem, rows, w, b)
        if len(y) and not 0 <= y.min() <= y.max() < self.problem.width:
            raise OutOfRangeError(f"y: expected labels in [0, {self.problem.width}), got {y.min():g} to {y.max():g}")
        return rows.x, y, weights
