"""Gradients, hessians and losses of "logistic". Loops over tiles of rows have no calls, so that they use SIMD."""

from __future__ import annotations

import numpy as np

from ps2.algorithms.trees.layout import MIN_HESSIAN
from ps2.array_types import Float64s, Int64s
from ps2.ops.kernels import inline, kernel

# The number of rows in a tile, and the number of sums to which a tile's losses are added.
TILE, LANES = 512, 64
LOG2_E = 1.4426950408889634
# The upper bits of log(2), whose product with an exponent is exact, and the rest.
LN2_HIGH, LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10
# 1.5 * 2^52: the lower bits of a float64 of this size are an integer.
INTEGER_FLOAT = 6755399441055744.0
# The odds of a larger margin are taken as 0, because their float64 would be subnormal.
MAX_MARGIN = 708.0
EXPONENT_BIAS, MANTISSA_BITS = 1023, 52


@inline
def logistic_gradient(margin: float, y: float, odds: float) -> tuple[float, float]:
    """Compute the gradient and the hessian of "logistic"; odds: exp(-abs(margin))."""
    # The smaller probability is not computed as 1 - larger, which would lose its digits.
    larger = 1.0 / (1.0 + odds)
    smaller = odds * larger
    gradient_0 = larger if margin > 0.0 else smaller
    gradient_1 = smaller if margin > 0.0 else larger
    return (-gradient_1 if y > 0.0 else gradient_0), max(larger * smaller, MIN_HESSIAN)


@inline
def set_odds(margins: Float64s, powers: Int64s, odds: Float64s) -> None:
    """Set ``odds`` to exp(-abs(margin)); powers: memory of the same length.

    The exponential is 2^n exp(r) with an integer n and abs(r) <= log(2) / 2; exp(r) is its Taylor series.
    """
    floats = powers.view(np.float64)
    for i in range(len(margins)):
        floats[i] = INTEGER_FLOAT - abs(margins[i]) * LOG2_E
    for i in range(len(margins)):
        n = floats[i] - INTEGER_FLOAT
        r = (-abs(margins[i]) - n * LN2_HIGH) - n * LN2_LOW
        series = 1.0 / 39916800.0 + r * (1.0 / 479001600.0 + r * (1.0 / 6227020800.0))
        series = 1.0 / 40320.0 + r * (1.0 / 362880.0 + r * (1.0 / 3628800.0 + r * series))
        series = 1.0 / 120.0 + r * (1.0 / 720.0 + r * (1.0 / 5040.0 + r * series))
        odds[i] = 1.0 + r * (1.0 + r * (1.0 / 2.0 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * series))))
    for i in range(len(margins)):
        powers[i] = (powers[i] + EXPONENT_BIAS) << MANTISSA_BITS
    for i in range(len(margins)):
        odds[i] = 0.0 if abs(margins[i]) > MAX_MARGIN else odds[i] * floats[i]  # NaN stays NaN


@kernel
def logistic_gradients(margins: Float64s, y: Float64s, weights: Float64s, out: Float64s) -> tuple[float, float]:
    """Do what ``gradients.gradients`` does."""
    total, weight_sum = 0.0, 0.0
    powers, tile_odds, tile_weights = np.empty(TILE, np.int64), np.empty(TILE), np.ones(TILE)
    for begin in range(0, len(y), TILE):
        size = min(TILE, len(y) - begin)
        tile_margins, labels, pairs = margins[begin : begin + size], y[begin : begin + size], out[begin : begin + size]
        odds = tile_odds[:size]
        set_odds(tile_margins, powers[:size], odds)
        if len(weights):
            tile_weights[:size] = weights[begin : begin + size]
        for i in range(size):
            weight, (g, h) = tile_weights[i], logistic_gradient(tile_margins[i], labels[i], odds[i])
            pairs[i, 0] = h * weight if weight > 0.0 else 0.0
            pairs[i, 1] = g * weight if weight > 0.0 else 0.0
        if size == TILE and not len(weights):
            total += _sum_losses(tile_margins, labels, odds)
            weight_sum += TILE
            continue
        for i in range(size):
            if tile_weights[i] > 0.0:
                total += tile_weights[i] * (_linear_loss(tile_margins[i], labels[i]) + np.log1p(odds[i]))
                weight_sum += tile_weights[i]
    return total, weight_sum


@inline
def _linear_loss(margin: float, y: float) -> float:
    return max(-margin if y > 0.0 else margin, 0.0)


@inline
def _sum_losses(margins: Float64s, y: Float64s, odds: Float64s) -> float:
    """Return the sum of the losses of a tile of rows with weight 1.

    The sum of log(1 + odds) is the logarithm of a product. ``products`` has products minus 1, to keep their digits.
    """
    linear_losses, products = np.zeros(LANES), np.zeros(LANES)
    for begin in range(0, TILE, LANES):
        for lane in range(LANES):
            products[lane] += odds[begin + lane] * (1.0 + products[lane])
            linear_losses[lane] += _linear_loss(margins[begin + lane], y[begin + lane])
    total = 0.0
    for lane in range(LANES):
        total += linear_losses[lane] + np.log1p(products[lane])
    return total
