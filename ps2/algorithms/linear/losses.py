"""Losses of a worker's rows: pure functions of arrays, without Spark or servers.

The loss of a linear model with one weight for each feature depends on a row's margin x w + b. The multinomial model has
a weight for each feature and class. Factorization machines have interactions of two features (Rendle 2010).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.linear import loss_kernels as kernels
from ps2.algorithms.linear.loss_kernels import RowArrays
from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.training.table import Facts
from ps2.array_types import Float64s, Int64s
from ps2.data.rows import LocalRows
from ps2.data.spilled_rows import KeptRows
from ps2.errors import ConfigError, OutOfRangeError, ShapeError
from ps2.ops.table import Array

# The losses of linear models with one weight for each feature, and their codes in kernels.
MARGIN_CODES = {
    "logistic": kernels.LOGISTIC,
    "hinge": kernels.HINGE,
    "squaredHinge": kernels.SQUARED_HINGE,
    "squared": kernels.HALF_SQUARED,
    "huber": kernels.HUBER,
}
# The losses of factorization machines. The squared loss is (margin - y)^2, as in pyspark.ml, without the factor 1/2.
FM_CODES = {"fmLogistic": kernels.LOGISTIC, "fmSquared": kernels.SQUARED}
CODES = MARGIN_CODES | FM_CODES
# ``dw`` and ``db`` of ``LossAndGradient``, and an array of its loss and weight.
Sums = tuple[Float64s, Float64s, Float64s]


@dataclass(frozen=True, eq=False)
class LossAndGradient:
    """A loss and its gradient, summed over weighted rows, without penalties.

    Attributes:
        weight: the sum of the rows' weights.
        dw: float64, shape (k * width,): the derivatives with respect to the weights of the rows' keys, by feature.
        db: float64, shape (biases,): the derivatives with respect to the biases; 0 for intercepts that are not trained.
    """

    loss: float
    weight: float
    dw: Float64s
    db: Float64s


@dataclass(frozen=True)
class Loss(ABC):
    """A loss of rows whose features are k keys; picklable.

    Methods take ``w``, float32 or float64, shape (k * width,): the weights of the rows' keys, feature by feature; and
    ``b``, float64, shape (biases,). Sums are float64. Other shapes raise ShapeError.
    """

    problem: Problem

    def gradient(self, rows: KeptRows, w: Array, b: Float64s) -> LossAndGradient:
        """Compute loss and gradient, block by block; the result is the same for all sizes of blocks."""
        dw, db, sums = np.zeros(len(w)), np.zeros(len(b)), np.zeros(2)
        for block in rows.blocks():
            self._add_gradient(self._arrays(block, w, b), w, b, (dw, db, sums))
        if not self.problem.fit_intercept:
            db[: self.problem.outputs] = 0.0
        return LossAndGradient(float(sums[0]), float(sums[1]), dw, db)

    def loss(self, rows: KeptRows, w: Array, b: Float64s) -> tuple[float, float]:
        """Compute the summed loss, and the summed weight of the rows."""
        sums, loss_name = np.zeros(2), self.problem.loss
        sigma = math.exp(b[1]) if loss_name == "huber" else 1.0
        for block in rows.blocks():
            *_, y, weights = self._arrays(block, w, b)
            margins, epsilon = self.margins(block.x, w, b), self.problem.epsilon
            kernels.summed_loss(margins, y, weights, CODES[loss_name], sigma, epsilon, sums)
        return float(sums[0]), float(sums[1])

    @abstractmethod
    def margins(self, x: sp.csr_array, w: Array, b: Float64s) -> Float64s:
        """Compute the margins of rows: float64, shape (n,); "softmax": (n, width)."""

    def initial_weights(self, keys: Int64s, seed: int) -> Float64s | None:
        """Return initial weights of features, shape (len(keys) * width,), equal in all workers; None: all are 0."""
        return None

    @abstractmethod
    def initial_biases(self, facts: Facts) -> Float64s:
        """Return the initial biases: the optimal biases of a model without features, or 0 if they are unknown."""

    @abstractmethod
    def _add_gradient(self, rows: RowArrays, w: Array, b: Float64s, sums: Sums) -> None:
        """Add a block's gradient, loss and weight to ``sums``."""

    def _arrays(self, rows: LocalRows, w: Array, b: Float64s) -> RowArrays:
        """Return the arrays of rows; raise ShapeError if they do not fit each other."""
        check_matrix(self.problem, rows.x, w, b)
        return rows.x.indptr, rows.x.indices, rows.x.data, *labels_and_weights(rows)


def check_matrix(problem: Problem, x: sp.csr_array, w: Array, b: Float64s) -> None:
    """Raise ShapeError unless weights and biases fit the matrix. The compiled loops do not check bounds."""
    expected = x.shape[1] * problem.width
    if w.shape != (expected,):
        raise ShapeError(f"w: expected shape ({expected},), {problem.width} for each key, got {w.shape}")
    if b.shape != (problem.biases,):
        raise ShapeError(f"b: expected shape ({problem.biases},), got {b.shape}")


def labels_and_weights(rows: LocalRows) -> tuple[Float64s, Float64s]:
    """Return labels and weights; an empty array means that all weights are 1. Raise ShapeError if sizes differ."""
    if rows.y is None or rows.y.shape != (len(rows),):
        shape = "none" if rows.y is None else f"{rows.y.shape}"
        raise ShapeError(f"y: expected shape ({len(rows)},), a label for each row, got {shape}")
    if rows.weights is None:
        return rows.y, np.empty(0)
    if rows.weights.shape != (len(rows),):
        raise ShapeError(f"weights: expected shape ({len(rows)},), one for each row, got {rows.weights.shape}")
    return rows.y, rows.weights


@dataclass(frozen=True)
class MarginLoss(Loss):
    """The losses of one margin: logistic, hinge, squared hinge, squared, Huber's. Huber's last bias is log(scale)."""

    def __post_init__(self) -> None:
        if self.problem.width != 1:
            raise ConfigError(f"{self.problem.loss}: expected a width of 1, got {self.problem.width}")
        if self.problem.loss == "huber" and not self.problem.epsilon > 1.0:
            raise ConfigError(f"huber: expected an epsilon above 1, got {self.problem.epsilon}")

    def margins(self, x: sp.csr_array, w: Array, b: Float64s) -> Float64s:
        check_matrix(self.problem, x, w, b)
        out = np.empty(x.shape[0])
        kernels.linear_margins(x.indptr, x.indices, x.data, w, b[0], out)
        return out

    def initial_biases(self, facts: Facts) -> Float64s:
        biases = np.zeros(self.problem.biases)
        if self.problem.fit_intercept:
            if self.problem.loss == "logistic":
                logs = _log_priors(facts, 2)
                biases[0] = logs[1] - logs[0]
            elif self.problem.loss in ("squared", "huber"):
                biases[0] = facts.label_mean
        if self.problem.loss == "huber" and facts.label_std > 0.0:
            biases[1] = math.log(facts.label_std)
        return biases

    def _add_gradient(self, rows: RowArrays, w: Array, b: Float64s, sums: Sums) -> None:
        kernels.linear_gradient(rows, w, b, CODES[self.problem.loss], self.problem.epsilon, *sums)


@dataclass(frozen=True)
class SoftmaxLoss(Loss):
    """The cross-entropy of the softmax for labels 0 to width - 1; a single class has probability 1."""

    def __post_init__(self) -> None:
        if self.problem.width < 1:
            raise ConfigError(f"softmax: expected a width of at least 1 class, got {self.problem.width}")

    def loss(self, rows: KeptRows, w: Array, b: Float64s) -> tuple[float, float]:
        sums = np.zeros(2)
        for block in rows.blocks():
            kernels.softmax_loss(self._arrays(block, w, b), w, b, sums)
        return float(sums[0]), float(sums[1])

    def factors(self, rows: LocalRows, w: Array, b: Float64s) -> tuple[LossAndGradient, Float64s]:
        """Compute the gradient in factored form (sufficient factors; Petuum, section 3.4): ``dw`` is ``x.T @ slopes``.

        Returns:
            Loss and gradient, with an empty ``dw``; and ``slopes``, float64, shape (n, classes): the derivatives with
            respect to each row's margins, times the row's weight.
        """
        slopes = np.zeros((len(rows), len(b)))
        loss, weight = kernels.softmax_slopes(self._arrays(rows, w, b), w, b, slopes)
        return LossAndGradient(loss, weight, np.empty(0), slopes.sum(axis=0) * self.problem.fit_intercept), slopes

    def margins(self, x: sp.csr_array, w: Array, b: Float64s) -> Float64s:
        check_matrix(self.problem, x, w, b)
        out = np.empty((x.shape[0], len(b)))
        kernels.all_margins(x.indptr, x.indices, x.data, w, b, out)
        return out

    def initial_biases(self, facts: Facts) -> Float64s:
        width = self.problem.width
        return _log_priors(facts, width) if self.problem.fit_intercept else np.zeros(width)

    def _add_gradient(self, rows: RowArrays, w: Array, b: Float64s, sums: Sums) -> None:
        kernels.softmax_gradient(rows, w, b, *sums)

    def _arrays(self, rows: LocalRows, w: Array, b: Float64s) -> RowArrays:
        arrays = super()._arrays(rows, w, b)
        y = arrays[3]
        if len(y) and not 0 <= y.min() <= y.max() < self.problem.width:
            raise OutOfRangeError(f"y: expected labels in [0, {self.problem.width}), got {y.min():g} to {y.max():g}")
        return arrays


@dataclass(frozen=True)
class FMLoss(Loss):
    """The logistic or squared loss of a factorization machine."""

    def __post_init__(self) -> None:
        if self.problem.width < 2:
            raise ConfigError(
                f"{self.problem.loss}: expected a width of 1 + factors, at least 2, got {self.problem.width}"
            )

    def margins(self, x: sp.csr_array, w: Array, b: Float64s) -> Float64s:
        check_matrix(self.problem, x, w, b)
        out = np.empty(x.shape[0])
        kernels.fm_margins(x.indptr, x.indices, x.data, w, b[0], self.problem.width, out)
        return out

    def initial_weights(self, keys: Int64s, seed: int) -> Float64s:
        """Return linear weights of 0 and normal factors with the problem's standard deviation."""
        weights = np.zeros(len(keys) * self.problem.width)
        kernels.fill_normal(np.asarray(keys, np.int64), np.uint64(seed % 2**64), self.problem.width, weights)
        return weights * self.problem.init_std

    def initial_biases(self, facts: Facts) -> Float64s:
        return np.zeros(1)  # as in pyspark.ml

    def _add_gradient(self, rows: RowArrays, w: Array, b: Float64s, sums: Sums) -> None:
        problem = self.problem
        kernels.fm_gradient(rows, w, b[0], problem.width, CODES[problem.loss], problem.fit_linear, *sums)


def loss_of(problem: Problem) -> Loss:
    """Return the loss of a problem; raise ConfigError if its name, width or epsilon is wrong."""
    if problem.loss in MARGIN_CODES:
        return MarginLoss(problem)
    if problem.loss in FM_CODES:
        return FMLoss(problem)
    if problem.loss == "softmax":
        return SoftmaxLoss(problem)
    known = [*MARGIN_CODES, "softmax", *FM_CODES]
    raise ConfigError(f"loss: expected one of {', '.join(known)}, got {problem.loss!r}")


def _log_priors(facts: Facts, classes: int) -> Float64s:
    """Return the logarithms of the classes' weights minus their mean; a class without rows counts as half a row."""
    weights, surveyed = np.zeros(classes), np.array(facts.class_weights[:classes], np.float64)
    weights[: len(surveyed)] = surveyed
    if facts.rows == 0 or not facts.weight > 0.0:
        return np.zeros(classes)
    logs = np.log(np.where(weights > 0.0, weights, 0.5 * facts.weight / facts.rows))
    return logs - logs.mean()
