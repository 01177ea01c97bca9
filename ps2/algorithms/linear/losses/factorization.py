"""Factorization machines of degree 2 (Rendle 2010), with logistic or squared loss as in pyspark.ml."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.linear.losses import factorization_kernels as kernels
from ps2.algorithms.linear.losses import margin_kernels as loss_kernels
from ps2.algorithms.linear.losses.loss import Array, Evaluated, check_matrix, checked_rows
from ps2.algorithms.linear.problem import Problem
from ps2.algorithms.training.table import Facts
from ps2.array_types import Float64s, Int64s
from ps2.data.spilled_rows import KeptRows
from ps2.errors import ConfigError

# The squared loss is (margin - y)^2, not half of it.
CODES = {"fmLogistic": loss_kernels.LOGISTIC, "fmSquared": loss_kernels.SQUARED}


@dataclass(frozen=True)
class MachineLoss:
    """Loss of a factorization machine.

    Raises:
        ConfigError: the problem's width leaves no factor.
    """

    problem: Problem

    def __post_init__(self) -> None:
        if self.problem.width < 2:
            raise ConfigError(
                f"{self.problem.loss}: expected a width of 1 + factors, at least 2, got {self.problem.width}"
            )

    def gradient(self, rows: KeptRows, w: Array, b: Float64s) -> Evaluated:
        dw, found, of = np.zeros(len(w)), np.zeros(3), self.problem
        for block in rows.blocks():
            y, weights = checked_rows(of, block, w, b)
            x = block.x
            kernels.machine_gradient(
                x.indptr, x.indices, x.data, y, weights, w, b[0], of.width, CODES[of.loss], of.fit_linear, dw, found
            )
        loss, weight, db = found.tolist()
        return Evaluated(loss, weight, dw, np.array([db if of.fit_intercept else 0.0]))

    def loss(self, rows: KeptRows, w: Array, b: Float64s) -> tuple[float, float]:
        sums = np.zeros(2)
        for block in rows.blocks():
            y, weights = checked_rows(self.problem, block, w, b)
            margins = self.margins(block.x, w, b)
            loss_kernels.summed_loss(margins, y, weights, CODES[self.problem.loss], 1.0, 0.0, sums)
        return float(sums[0]), float(sums[1])

    def margins(self, x: sp.csr_array, w: Array, b: Float64s) -> Float64s:
        check_matrix(self.problem, x, w, b)
        out = np.empty(x.shape[0])
        kernels.machine_margins(x.indptr, x.indices, x.data, w, b[0], self.problem.width, out)
        return out

    def beginning(self, keys: Int64s, seed: int) -> Float64s:
        """Return linear weights of 0 and normal factors with the problem's standard deviation."""
        first = np.zeros(len(keys) * self.problem.width)
        kernels.fill_normal(np.asarray(keys, np.int64), np.uint64(seed % 2**64), self.problem.width, first)
        return first * self.problem.init_std

    def first_biases(self, facts: Facts) -> Float64s:
        return np.zeros(1)  # as in pyspark.ml
