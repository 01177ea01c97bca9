"""Losses: their gradients and hessians, the rounding of gradients and hessians to integers, and initial margins."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.trees.custom_functions import RowFunction
from ps2.algorithms.trees.layout import MIN_HESSIAN, Array, UInt64s
from ps2.algorithms.trees.logistic_kernels import logistic_gradients
from ps2.algorithms.trees.ranking import MAX_GROUP_SUM, RowGroups, lambda_gradients, ndcg_losses
from ps2.algorithms.trees.tree import LossName
from ps2.array_types import Float64s, Int64s
from ps2.errors import ConfigError
from ps2.ops.draws import GOLDEN, TO_UNIT, scrambled
from ps2.ops.guards import readable
from ps2.ops.kernels import inline, kernel
from ps2.ops.parallel import over_blocks

LOGISTIC, SQUARED, ABSOLUTE, HUBER, POISSON, QUANTILE = range(6)
# A float64 has 11 bits for the exponent, above 52 bits for the mantissa.
EXPONENTS = 1 << 11
MANTISSA_BITS = np.uint64(52)
EXPONENT_MASK = np.uint64(EXPONENTS - 1)


@inline
def gradient_at(code: int, shape: float, margin: float, y: float) -> tuple[float, float]:
    """Compute a row's gradient and hessian for a code; "absolute", "huber" and "quantile" have hessian 1."""
    if code == SQUARED:
        return margin - y, 1.0
    if code == ABSOLUTE:
        return np.sign(margin - y), 1.0
    if code == HUBER:
        return min(max(margin - y, -shape), shape), 1.0
    if code == POISSON:
        mean = np.exp(margin)
        return mean - y, max(mean, MIN_HESSIAN)
    return (1.0 - shape if margin > y else -shape if margin < y else 0.0), 1.0


@inline
def loss_at(code: int, shape: float, margin: float, y: float) -> float:
    """Compute a row's loss; the loss of "poisson" omits the term that depends only on the label."""
    residual = y - margin
    if code == LOGISTIC:
        signed = -margin if y > 0.0 else margin
        return max(signed, 0.0) + np.log1p(np.exp(-abs(signed)))
    if code == SQUARED:
        return 0.5 * residual * residual
    if code == ABSOLUTE:
        return abs(residual)
    if code == HUBER:
        magnitude = abs(residual)
        return 0.5 * magnitude * magnitude if magnitude <= shape else shape * (magnitude - 0.5 * shape)
    if code == POISSON:
        return np.exp(margin) - y * margin
    return shape * residual if residual >= 0.0 else (shape - 1.0) * residual


@kernel
def gradients(
    margins: Float64s, y: Float64s, weights: Float64s, code: int, shape: float, out: Float64s
) -> tuple[float, float]:
    """Set ``out``, shape (n, 2), to hessians and gradients; return the sums of losses and of weights."""
    if code == LOGISTIC:
        return logistic_gradients(margins, y, weights, out)
    total, weight_sum = 0.0, 0.0
    for i in range(len(y)):
        weight = weights[i] if len(weights) else 1.0
        if not weight > 0.0:
            out[i, 0] = out[i, 1] = 0.0
            continue
        g, h = gradient_at(code, shape, margins[i], y[i])
        loss = loss_at(code, shape, margins[i], y[i])
        out[i, 0], out[i, 1] = h * weight, g * weight
        total += weight * loss
        weight_sum += weight
    return total, weight_sum


@kernel
def losses(margins: Float64s, y: Float64s, weights: Float64s, code: int, shape: float) -> tuple[float, float]:
    """Return the sums of weighted losses and of weights."""
    total, weight_sum = 0.0, 0.0
    for i in range(len(y)):
        weight = weights[i] if len(weights) else 1.0
        if weight > 0.0:
            total += weight * loss_at(code, shape, margins[i], y[i])
            weight_sum += weight
    return total, weight_sum


@kernel
def softmax_gradients(margins: Float64s, y: Float64s, weights: Float64s, out: Float64s) -> tuple[float, float]:
    """Set ``out``, shape (classes, n, 2), as ``gradients`` does; the hessian is 2 p (1 - p), as in xgboost."""
    loss, weight_sum = 0.0, 0.0
    classes = margins.shape[1]
    odds = np.empty(classes)
    for i in range(len(y)):
        weight = weights[i] if len(weights) else 1.0
        if not weight > 0.0:
            out[:, i] = 0.0
            continue
        largest = margins[i].max()
        for c in range(classes):
            odds[c] = np.exp(margins[i, c] - largest)
        odds_sum = odds.sum()
        for c in range(classes):
            p = odds[c] / odds_sum
            # This is not computed as 1 - p, which would lose its digits if p is near 1.
            other_p = (odds_sum - odds[c]) / odds_sum
            out[c, i, 0] = max(2.0 * p * other_p, MIN_HESSIAN) * weight
            out[c, i, 1] = (-other_p if c == y[i] else p) * weight
        loss += weight * (np.log(odds_sum) + largest - margins[i, np.int64(y[i])])
        weight_sum += weight
    return loss, weight_sum


@kernel
def softmax_losses(margins: Float64s, y: Float64s, weights: Float64s) -> tuple[float, float]:
    """Return the sums of weighted losses of "softmax" and of weights."""
    total, weight_sum = 0.0, 0.0
    for i in range(len(y)):
        weight = weights[i] if len(weights) else 1.0
        if weight > 0.0:
            largest = margins[i].max()
            total += weight * (np.log(np.exp(margins[i] - largest).sum()) + largest - margins[i, np.int64(y[i])])
            weight_sum += weight
    return total, weight_sum


@kernel
def count_exponents(words: UInt64s, counts: Int64s) -> None:
    """Count float64 values, as bits of shape (n, kinds), by exponent, without zeros; counts: (kinds, EXPONENTS)."""
    for i in range(words.shape[0]):
        for kind in range(words.shape[1]):
            word = words[i, kind] << np.uint64(1)  # without the sign
            if word != 0:
                counts[kind, (word >> (MANTISSA_BITS + np.uint64(1))) & EXPONENT_MASK] += 1


@inline
def _rounded(value: float, random: float) -> np.int64:
    """Round down, or up if the fractional part is above a random number in [0, 1)."""
    floor = np.floor(value)
    return np.int64(floor) + np.int64(random < value - floor)


@kernel
def quantise(pairs: Float64s, ids: Int64s, key: int, scales: tuple[float, float], out: Array) -> None:
    """Set ``out``, int64, (n, 2), to scaled hessians and gradients, rounded at random; hessians are at least 1."""
    for i in range(len(pairs)):
        if pairs[i, 0] == 0.0:
            out[i, 0] = out[i, 1] = 0
            continue
        state = scrambled(np.uint64(key) + GOLDEN * np.uint64(ids[i]))
        random_h = np.float64(state >> np.uint64(11)) * TO_UNIT
        random_g = np.float64(scrambled(state + GOLDEN) >> np.uint64(11)) * TO_UNIT
        out[i, 0] = max(_rounded(pairs[i, 0] * scales[0], random_h), np.int64(1))
        out[i, 1] = _rounded(pairs[i, 1] * scales[1], random_g)


CODES: dict[LossName, int] = {
    "logistic": LOGISTIC,
    "squared": SQUARED,
    "absolute": ABSOLUTE,
    "huber": HUBER,
    "poisson": POISSON,
    "quantile": QUANTILE,
}
NO_WEIGHTS = readable(np.empty(0))
# The largest absolute leaf value of "poisson", as xgboost's max_delta_step.
MAX_POISSON_LEAF = 0.7
# Exponents of three kinds of values are counted: hessians, gradients, weights. A float64 with exponent bits e is below
# 2^(e - EXPONENT_BIAS).
KINDS = 3
EXPONENT_BIAS = 1022
# The cost of a row's gradient and hessian, and of counting their exponents, in additions of array elements.
GRADIENT_COST, COUNT_COST = 16, 4
# The largest exponent to base 2 of a scale, so that the scale's inverse is not subnormal.
MAX_EXPONENT = 1000
# The hessian of two classes with ``defaults="pyspark"``. A leaf is then 8 times the mean gradient, as in pyspark.ml,
# whose margins are half as large and whose gradients are four times as large (decision 112).
PYSPARK_HESSIAN = 0.125
# A factor above the relative error of covers, which are sums of rounded hessians.
COVER_SLACK = 1 + 1e-6


@dataclass(frozen=True)
class Objective:
    """A loss.

    Labels are 0 and 1 ("logistic"), classes from 0 on ("softmax"), not negative ("poisson"), integers from 0 to 31
    ("lambdarank"), else any numbers. The gradients of "lambdarank" depend on the other rows of the group. Its loss is
    1 - NDCG, and each group has weight 1. The hessian of "absolute", "huber" and "quantile" is taken as 1.

    Attributes:
        width: the number of margins of a row: the number of classes ("softmax"), else 1.
        shape: "huber": the residual beyond which the loss is linear, above 0; "quantile": the quantile, in (0, 1);
            "lambdarank": the number of top rows of a group that are paired with the rows below them.
        function: the user's function of gradients and hessians, which replaces those of the loss. The loss remains for
            labels, base, reports and predictions. None: there is no such function.
        hessian: the hessian of all rows of weight 1 ("logistic"), so that leaves are means of gradients; None: the
            hessian is that of the loss.
    """

    loss: LossName
    width: int = 1
    shape: float = 0.5
    function: RowFunction | None = None
    hessian: float | None = None

    def by_library(self, library: str) -> Objective:
        """Return the loss with the hessians of a library, one of ``LIBRARIES``."""
        if library == "pyspark" and self.loss == "logistic" and self.function is None:
            return replace(self, hessian=PYSPARK_HESSIAN)
        return self

    def gradients(
        self,
        margins: Float64s,
        y: Float64s,
        weights: Float64s = NO_WEIGHTS,
        out: Float64s | None = None,
        groups: RowGroups | None = None,
    ) -> tuple[Float64s, tuple[float, float]]:
        """Return hessians and gradients, shape (width, n, 2), and the sums of ``losses``; out: memory for gradients."""
        pairs = np.empty((self.width, len(y), 2)) if out is None else out
        if self.function is not None:
            self.function.set_gradients(margins, y, weights, pairs)
            return pairs, self.losses(margins, y, weights)
        if self.loss == "lambdarank":
            assert groups is not None
            return pairs, lambda_gradients(margins[:, 0], y, weights, groups, int(self.shape), pairs[0])
        if self.loss == "softmax":
            return pairs, softmax_gradients(readable(margins), readable(y), readable(weights), pairs)

        def compute(margins: Float64s, y: Float64s, out: Float64s, weights: Float64s = NO_WEIGHTS) -> Any:
            arrays = readable(margins), readable(y), readable(weights)
            return gradients(*arrays, CODES[self.loss], self.shape, out)

        rows = (margins[:, 0], y, pairs[0], weights) if len(weights) else (margins[:, 0], y, pairs[0])
        sums = over_blocks(compute, rows, cost=GRADIENT_COST)
        if self.hessian is not None:
            pairs[0, :, 0] = self.hessian * weights if len(weights) else self.hessian
        return pairs, (math.fsum(loss for loss, _ in sums), math.fsum(weight for _, weight in sums))

    def losses(
        self, margins: Float64s, y: Float64s, weights: Float64s = NO_WEIGHTS, groups: RowGroups | None = None
    ) -> tuple[float, float]:
        """Return the sums of weighted losses and of weights; empty weights: each row counts 1."""
        if self.loss == "lambdarank":
            assert groups is not None
            return ndcg_losses(margins[:, 0], y, groups, int(self.shape))
        rows = readable(margins if self.loss == "softmax" else margins[:, 0]), readable(y), readable(weights)
        if self.loss == "softmax":
            return softmax_losses(*rows)
        return losses(*rows, CODES[self.loss], self.shape)

    def bounds_after(self, bounds: Float64s, step: float, total_moved: float = math.inf) -> tuple[float, float]:
        """Return bounds of the sums of hessians and absolute gradients in the next round.

        Args:
            bounds: bounds of the sums of hessians, absolute gradients and weights in this round.
            step: the largest change of a margin between the rounds.
            total_moved: the weighted sum of the changes of margins; infinity: unknown.
        """
        h, g, weight = bounds.tolist()
        with np.errstate(over="ignore"):
            # The derivative of a probability's logarithm is at most 1; with "softmax" all margins of a row may change.
            factor = float(np.exp(2 * step if self.loss == "softmax" else step))
        if self.loss in ("logistic", "softmax"):
            # The absolute gradients of a row's classes sum up to 2 at most.
            max_g = min(self.width, 2) * weight
            return min(h * factor, self.width * self.max_hessian * weight), min(g * factor, max_g)
        if self.loss == "lambdarank":
            # The ranks of rows may change in any way.
            return MAX_GROUP_SUM * weight, MAX_GROUP_SUM * weight
        if self.loss == "poisson":
            return h * factor, g + h * (factor - 1)
        max_row = {"huber": self.shape, "absolute": 1.0, "quantile": max(self.shape, 1 - self.shape)}.get(self.loss)
        max_g = g + min(weight * step, total_moved * COVER_SLACK)
        return weight, max_g if max_row is None else min(max_g, max_row * weight)

    @property
    def max_leaf_value(self) -> float:
        """The largest absolute value of a leaf: small for "poisson", whose exponential grows fast."""
        return MAX_POISSON_LEAF if self.loss == "poisson" else math.inf

    @property
    def classes(self) -> int | None:
        """The number of classes; None: a loss of regression or ranking."""
        return {"logistic": 2, "softmax": self.width}.get(self.loss)

    @property
    def starts_at_zero(self) -> bool:
        """Whether the initial margin is 0, unless it is set."""
        return self.loss == "lambdarank" or self.hessian is not None

    @property
    def has_shape(self) -> bool:
        return self.loss in ("huber", "quantile", "lambdarank")

    @property
    def hessians_are_weights(self) -> bool:
        return self.function is None and self.loss in ("squared", "absolute", "huber", "quantile")

    @property
    def has_bounded_gradients(self) -> bool:
        """Whether the gradient of a row of weight 1 has a limit that does not depend on the labels."""
        return self.loss in ("logistic", "softmax", "absolute", "quantile", "lambdarank")

    @property
    def max_hessian(self) -> float:
        """The largest hessian that a row of weight 1 may have."""
        if self.function is not None:
            return math.inf
        if self.hessian is not None:
            return self.hessian
        return {"logistic": 0.25, "softmax": 0.5, "poisson": math.inf, "lambdarank": math.inf}.get(self.loss, 1.0)

    @property
    def leaf_quantile_level(self) -> float | None:
        """The level of the residuals' quantile that is a leaf's value; None: gradients and hessians give the value."""
        has_quantiles = self.function is None and self.loss in ("absolute", "quantile")
        return self.label_quantile_level if has_quantiles else None

    @property
    def label_quantile_level(self) -> float | None:
        """The level of the labels' quantile that is the initial margin; None: labels' mean or class weights give it."""
        return {"absolute": 0.5, "huber": 0.5, "quantile": self.shape}.get(self.loss)

    def base(
        self, label_mean: float, class_weights: Float64s, quantile: float = 0.0, row_weight: float = 1.0
    ) -> Float64s:
        """Return the best margins without trees, shape (width,).

        ``quantile`` is the labels' quantile at ``label_quantile_level``; row_weight: of a class without rows.
        """
        if self.loss in ("logistic", "softmax"):
            log_weights = np.log(np.where(class_weights > 0, class_weights, row_weight))
            log_odds = np.array([log_weights[1] - log_weights[0]])
            return log_odds if self.loss == "logistic" else log_weights - log_weights.mean()
        if self.loss == "poisson":
            return np.array([math.log(label_mean) if label_mean > 0 else 0.0])
        return np.array([label_mean if self.label_quantile_level is None else quantile])


def exponent_counts(pairs: Float64s, weights: Float64s) -> Int64s:
    """Count rows by the exponents of their hessians, gradients and weights: int64, shape (KINDS, EXPONENTS)."""
    counts = np.zeros((KINDS, EXPONENTS), np.int64)

    def count(words: npt.NDArray[np.uint64]) -> Int64s:
        block_counts = np.zeros((words.shape[1], EXPONENTS), np.int64)
        count_exponents(readable(words), block_counts)
        return block_counts

    counts[:2] = sum(over_blocks(count, (pairs.view(np.uint64).reshape(-1, 2),), cost=COUNT_COST))
    if len(weights):
        counts[2:] = sum(over_blocks(count, (weights.view(np.uint64)[:, None],), cost=COUNT_COST))
    else:
        counts[2, EXPONENT_BIAS] = pairs.shape[1]
    return counts


def sum_bounds(counts: Int64s) -> Float64s:
    """Return bounds of the sums of hessians, absolute gradients and weights, at most twice as large as these."""
    bounds = np.zeros(KINDS)
    for kind, exponent in zip(*np.nonzero(counts), strict=True):
        # Terms are added in the order of exponents, so not even the last bit depends on the order of the rows.
        limit = math.inf if exponent == EXPONENTS - 1 else math.ldexp(1.0, int(exponent) - EXPONENT_BIAS)
        bounds[kind] += int(counts[kind, exponent]) * limit
    return bounds


def integer_scales(bound_h: float, bound_g: float) -> tuple[float, float]:
    """Return powers of two by which hessians and gradients become integers whose sums fit int64.

    Random rounding changes a value by less than 1 / scale, about 2^-60 of the sum over all rows. So no total is less
    exact than a sum of float64. ``bound_h`` and ``bound_g`` are bounds of the sums (``sum_bounds``).
    """
    if not (np.isfinite(bound_h) and np.isfinite(bound_g)):
        raise ConfigError(
            f"gradients: expected finite numbers, but they sum up to {bound_g}, hessians to {bound_h}; a smaller "
            "stepSize, or a larger regLambda, keeps margins from growing without limit"
        )
    # Half of int64's range, as each row may be rounded up.
    h, g = (2.0 ** min(62 - np.frexp(bound)[1], MAX_EXPONENT) if bound > 0 else 1.0 for bound in (bound_h, bound_g))
    return float(h), float(g)


def quantise_pairs(
    pairs: Float64s, ids: Int64s, key: int, scales: tuple[float, float], out: Array | None = None
) -> Array:
    """Scale hessians and gradients, and round them at random by key and row id, to int64, shape (n, 2)."""
    out = np.empty(pairs.shape, np.int64) if out is None else out

    def quantise_block(pairs: Float64s, ids: Int64s, out: Array) -> None:
        quantise(readable(pairs), readable(ids), key, scales, out)

    over_blocks(quantise_block, (pairs, ids, out), cost=GRADIENT_COST)
    return out
