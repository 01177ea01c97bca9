"""Losses of a linear model with one weight a feature: they see a row by its margin x w + b."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.linear.losses import margin_kernels as kernels
from ps2.algorithms.linear.losses.loss import Array, Evaluated, check_matrix, checked_rows, log_odds
from ps2.algorithms.linear.problem import Problem
from ps2.algorithms.training.table import Facts
from ps2.array_types import Float64s, Int64s
from ps2.data.spilled_rows import KeptRows
from ps2.errors import ConfigError

CODES = {
    "logistic": kernels.LOGISTIC,
    "hinge": kernels.HINGE,
    "squaredHinge": kernels.SQUARED_HINGE,
    "squared": kernels.HALF_SQUARED,
    "huber": kernels.HUBER,
}


@dataclass(frozen=True)
class MarginLoss:
    """Logistic, hinge, squared hinge, squared or Huber's loss; the last has the logarithm of its scale as last bias.

    Raises:
        ConfigError: the problem's width is not 1, or Huber's epsilon not above 1.
    """

    problem: Problem

    def __post_init__(self) -> None:
        if self.problem.width != 1:
            raise ConfigError(f"{self.problem.loss}: expected a width of 1, got {self.problem.width}")
        if self.problem.loss == "huber" and not self.problem.epsilon > 1.0:
            raise ConfigError(f"huber: expected an epsilon above 1, got {self.problem.epsilon}")

    def gradient(self, rows: KeptRows, w: Array, b: Float64s) -> Evaluated:
        dw, db, sums = np.zeros(len(w)), np.zeros(len(b)), np.zeros(2)
        for block in rows.blocks():
            y, weights = checked_rows(self.problem, block, w, b)
            x = block.x
            kernels.linear_gradient(
                x.indptr, x.indices, x.data, y, weights, w, b, self._code, self.problem.epsilon, dw, db, sums
            )
        if not self.problem.fit_intercept:
            db[0] = 0.0
        return Evaluated(float(sums[0]), float(sums[1]), dw, db)

    def loss(self, rows: KeptRows, w: Array, b: Float64s) -> tuple[float, float]:
        sigma, sums = math.exp(b[1]) if self.problem.loss == "huber" else 1.0, np.zeros(2)
        for block in rows.blocks():
            y, weights = checked_rows(self.problem, block, w, b)
            margins = self.margins(block.x, w, b)
            kernels.summed_loss(margins, y, weights, self._code, sigma, self.problem.epsilon, sums)
        return float(sums[0]), float(sums[1])

    def margins(self, x: sp.csr_array, w: Array, b: Float64s) -> Float64s:
        check_matrix(self.problem, x, w, b)
        out = np.empty(x.shape[0])
        kernels.linear_margins(x.indptr, x.indices, x.data, w, b[0], out)
        return out

    def beginning(self, keys: Int64s, seed: int) -> None:
        return None

    def first_biases(self, facts: Facts) -> Float64s:
        first = np.zeros(self.problem.biases)
        if self.problem.fit_intercept:
            if self.problem.loss == "logistic":
                first[0] = log_odds(facts)
            elif self.problem.loss in ("squared", "huber"):
                first[0] = facts.label_mean
        if self.problem.loss == "huber" and facts.label_std > 0.0:
            first[1] = math.log(facts.label_std)
        return first

    @property
    def _code(self) -> int:
        return CODES[self.problem.loss]
