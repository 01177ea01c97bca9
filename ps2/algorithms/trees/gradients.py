"""Losses of margins, their gradients as whole numbers, and initial margins."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.trees import gradient_kernels as kernels
from ps2.algorithms.trees.layout import Array
from ps2.algorithms.trees.ranking import MAX_OF_GROUP, RowGroups, lambda_gradients, lost_ndcg
from ps2.algorithms.trees.tree import LossName
from ps2.array_types import Float64s, Int64s
from ps2.errors import ConfigError
from ps2.ops.guards import readable
from ps2.ops.parallel import over_blocks

CODES: dict[LossName, int] = {
    "logistic": kernels.LOGISTIC,
    "squared": kernels.SQUARED,
    "absolute": kernels.ABSOLUTE,
    "huber": kernels.HUBER,
    "poisson": kernels.POISSON,
    "quantile": kernels.QUANTILE,
}
NO_WEIGHTS = readable(np.empty(0))
# As xgboost's max_delta_step.
MAX_OF_POISSON = 0.7
# Kinds whose exponents are counted: hessians, gradients, weights. A number of exponent e is below 2^(e - FROM_BITS).
KINDS = 3
FROM_BITS = 1022
# The cost of a row's gradient, and of counting its exponents, in additions of array elements.
ROW_COST, COUNT_COST = 16, 4
# Largest exponent of a scale: its inverse is no subnormal number.
MAX_EXPONENT = 1000
# Covers are sums of whole numbers, with a smaller error than this.
SLACK = 1 + 1e-6


@dataclass(frozen=True)
class Objective:
    """A loss.

    Labels are 0 and 1 ("logistic"), classes from 0 on ("softmax"), not negative ("poisson"), whole numbers from 0 to 31
    ("lambdarank"), else any numbers. Gradients of "lambdarank" depend on the rows of a group; its loss is 1 - NDCG, and
    each group counts 1. The hessian of "absolute", "huber" and "quantile" counts as 1: a leaf is the mean of gradients.

    Attributes:
        loss: the loss's name.
        width: the number of margins of a row: the number of classes ("softmax"), else 1.
        shape: "huber": the residual beyond which the loss is linear, above 0; "quantile": the quantile, in (0, 1);
            "lambdarank": the number of rows at the head of a group that pairs are made of.
    """

    loss: LossName
    width: int = 1
    shape: float = 0.5

    def gradients(
        self,
        margins: Float64s,
        y: Float64s,
        weights: Float64s = NO_WEIGHTS,
        out: Float64s | None = None,
        groups: RowGroups | None = None,
    ) -> tuple[Float64s, tuple[float, float]]:
        """Return hessians and gradients, shape (width, n, 2), in ``out`` if it is set, and the sums of ``losses``."""
        pairs = np.empty((self.width, len(y), 2)) if out is None else out
        if self.loss == "lambdarank":
            assert groups is not None
            return pairs, lambda_gradients(margins[:, 0], y, weights, groups, int(self.shape), pairs[0])
        if self.loss == "softmax":
            return pairs, kernels.softmax_gradients(readable(margins), readable(y), readable(weights), pairs)

        def compute(margins: Float64s, y: Float64s, out: Float64s, weights: Float64s = NO_WEIGHTS) -> Any:
            arrays = readable(margins), readable(y), readable(weights)
            return kernels.gradients(*arrays, CODES[self.loss], self.shape, out)

        rows = (margins[:, 0], y, pairs[0], weights) if len(weights) else (margins[:, 0], y, pairs[0])
        sums = over_blocks(compute, rows, cost=ROW_COST)
        return pairs, (math.fsum(loss for loss, _ in sums), math.fsum(weight for _, weight in sums))

    def losses(
        self, margins: Float64s, y: Float64s, weights: Float64s = NO_WEIGHTS, groups: RowGroups | None = None
    ) -> tuple[float, float]:
        """Sum losses, each times its row's weight, and weights; empty weights: each row counts 1."""
        if self.loss == "lambdarank":
            assert groups is not None
            return lost_ndcg(margins[:, 0], y, groups, int(self.shape))
        held = (readable(margins if self.loss == "softmax" else margins[:, 0]), readable(y), readable(weights))
        if self.loss == "softmax":
            return kernels.softmax_losses(*held)
        return kernels.losses(*held, CODES[self.loss], self.shape)

    def bounds_after(self, bounds: Float64s, step: float, moved: float = math.inf) -> tuple[float, float]:
        """Return bounds of the sums of hessians and absolute gradients, after margins have moved by ``step``."""
        h, g, weight = bounds.tolist()
        with np.errstate(over="ignore"):
            # The logarithms of a probability's derivatives are 1 at most; in "softmax" all margins may move.
            factor = float(np.exp(2 * step if self.loss == "softmax" else step))
        if self.loss in ("logistic", "softmax"):
            # The absolute gradients of a row's classes sum up to 2 at most.
            max_g = min(self.width, 2) * weight
            return min(h * factor, self.width * self.max_hessian * weight), min(g * factor, max_g)
        if self.loss == "lambdarank":
            # A row may come to be ranked in any other way.
            return MAX_OF_GROUP * weight, MAX_OF_GROUP * weight
        if self.loss == "poisson":
            return h * factor, g + h * (factor - 1)
        max_row = {"huber": self.shape, "absolute": 1.0, "quantile": max(self.shape, 1 - self.shape)}.get(self.loss)
        far = g + min(weight * step, moved * SLACK)
        return weight, far if max_row is None else min(far, max_row * weight)

    @property
    def max_leaf_value(self) -> float:
        """The largest absolute value of a leaf: small for "poisson", whose exponential grows fast."""
        return MAX_OF_POISSON if self.loss == "poisson" else math.inf

    @property
    def classes(self) -> int | None:
        """The number of classes; None: labels are numbers."""
        return {"logistic": 2, "softmax": self.width}.get(self.loss)

    @property
    def has_shape(self) -> bool:
        """Whether the loss depends on ``shape``."""
        return self.loss in ("huber", "quantile", "lambdarank")

    @property
    def hessians_are_weights(self) -> bool:
        """Whether each row's hessian is its weight."""
        return self.loss in ("squared", "absolute", "huber", "quantile")

    @property
    def has_bounded_gradients(self) -> bool:
        """Whether no gradient of a row that weighs 1 is much larger than 1, however large labels are."""
        return self.loss in ("logistic", "softmax", "absolute", "quantile", "lambdarank")

    @property
    def max_hessian(self) -> float:
        """The largest hessian that a row of weight 1 may have."""
        return {"logistic": 0.25, "softmax": 0.5, "poisson": math.inf, "lambdarank": math.inf}.get(self.loss, 1.0)

    @property
    def leaf_share(self) -> float | None:
        """The quantile of its rows' residuals that is a leaf's value; None: it comes from gradients and hessians."""
        return self.label_share if self.loss in ("absolute", "quantile") else None

    @property
    def label_share(self) -> float | None:
        """The quantile of the labels that margins begin with; None: they begin with the mean, or shares of classes."""
        return {"absolute": 0.5, "huber": 0.5, "quantile": self.shape}.get(self.loss)

    def base(
        self, label_mean: float, class_weights: Float64s, quantile: float = 0.0, row_weight: float = 1.0
    ) -> Float64s:
        """Return the margins that are best without trees, shape (width,); quantile: that of ``label_share``."""
        if self.loss in ("logistic", "softmax"):
            logs = np.log(np.where(class_weights > 0, class_weights, row_weight))
            return np.array([logs[1] - logs[0]]) if self.loss == "logistic" else logs - logs.mean()
        if self.loss == "poisson":
            return np.array([math.log(label_mean) if label_mean > 0 else 0.0])
        return np.array([label_mean if self.label_share is None else quantile])


def exponents_of(pairs: Float64s, weights: Float64s) -> Int64s:
    """Count rows by the exponents of hessians, gradients and weights: int64, shape (KINDS, EXPONENTS)."""
    counts = np.zeros((KINDS, kernels.EXPONENTS), np.int64)

    def count(words: npt.NDArray[np.uint64]) -> Int64s:
        block_counts = np.zeros((words.shape[1], kernels.EXPONENTS), np.int64)
        kernels.count_exponents(readable(words), block_counts)
        return block_counts

    counts[:2] = sum(over_blocks(count, (pairs.view(np.uint64).reshape(-1, 2),), cost=COUNT_COST))
    if len(weights):
        counts[2:] = sum(over_blocks(count, (weights.view(np.uint64)[:, None],), cost=COUNT_COST))
    else:
        counts[2, FROM_BITS] = pairs.shape[1]
    return counts


def sums_below(counts: Int64s) -> Float64s:
    """Return bounds of the sums of hessians, absolute gradients and weights, at most twice these, by exponents."""
    bounds = np.zeros(KINDS)
    for kind, exponent in zip(*np.nonzero(counts), strict=True):
        # In a fixed order, so that not even the last bit depends on the order of the rows.
        limit = math.inf if exponent == kernels.EXPONENTS - 1 else math.ldexp(1.0, int(exponent) - FROM_BITS)
        bounds[kind] += int(counts[kind, exponent]) * limit
    return bounds


def scales_of(below_h: float, below_g: float) -> tuple[float, float]:
    """Return powers of two by which hessians and gradients become whole numbers whose sums fit.

    A number is rounded by less than 1 over its scale, at random: by about 2^-60 of the sum of all rows, so no total is
    less exact than a sum of float64. ``below_h`` and ``below_g`` are bounds of the sums (``sums_below``).
    """
    if not (np.isfinite(below_h) and np.isfinite(below_g)):
        raise ConfigError(
            f"gradients: expected finite numbers, but they sum up to {below_g}, hessians to {below_h}; a smaller "
            "stepSize, or a larger regLambda, keeps margins from running away"
        )
    # Half of int64's range, as each row may be rounded up.
    h, g = (2.0 ** min(62 - np.frexp(below)[1], MAX_EXPONENT) if below > 0 else 1.0 for below in (below_h, below_g))
    return float(h), float(g)


def quantised(
    pairs: Float64s,
    ids: Int64s,
    key: int,
    scales: tuple[float, float],
    out: Array | None = None,
) -> Array:
    """Return hessians and gradients as whole numbers, int64, shape (n, 2), rounded at random by key and row."""
    out = np.empty(pairs.shape, np.int64) if out is None else out

    def quantise(pairs: Float64s, ids: Int64s, out: Array) -> None:
        kernels.quantise(readable(pairs), readable(ids), key, scales, out)

    over_blocks(quantise, (pairs, ids, out), cost=ROW_COST)
    return out
