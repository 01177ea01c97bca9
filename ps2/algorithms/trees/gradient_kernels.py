"""Compiled gradients and hessians of losses by a row's margin, and their quantisation.

A loss is named by a number, so that a loop is compiled once for all of them. ``weights`` of length 0 mean that every
row counts 1. A row of weight 0 has neither gradient nor hessian, whatever it holds.
"""

from __future__ import annotations

import numpy as np

from ps2.algorithms.trees.layout import Array, UInt64s
from ps2.array_types import Float64s, Int64s
from ps2.ops.draws import GOLDEN, TO_UNIT, scrambled
from ps2.ops.kernels import inline, kernel

LOGISTIC, SQUARED, ABSOLUTE, HUBER, POISSON, QUANTILE = range(6)
# The smallest hessian of a row, as in xgboost.
MIN_HESSIAN = 1e-16
# Exponents that a float64 may have, as its bits say them.
EXPONENTS = 1 << 11
MANTISSA_BITS = np.uint64(52)
EXPONENT_MASK = np.uint64(EXPONENTS - 1)


@inline
def logistic_gradient(margin: float, y: float, odds: float) -> tuple[float, float]:
    """Compute gradient and hessian of "logistic", by exp(-abs(margin))."""
    # 1 - the larger one would lose all digits where the smaller one is small.
    larger, smaller = 1.0 / (1.0 + odds), odds / (1.0 + odds)
    gradient_0 = larger if margin > 0.0 else smaller
    gradient_1 = smaller if margin > 0.0 else larger
    return (-gradient_1 if y > 0.0 else gradient_0), max(larger * smaller, MIN_HESSIAN)


@inline
def gradient_at(code: int, shape: float, margin: float, y: float) -> tuple[float, float]:
    """Compute a row's gradient and hessian; 1 stands for the hessian of losses that are linear in places."""
    if code == LOGISTIC:
        return logistic_gradient(margin, y, np.exp(-abs(margin)))
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
    """Compute a row's loss: of "poisson" without what does not depend on the margin."""
    residual = y - margin
    if code == LOGISTIC:
        signed = -margin if y > 0.0 else margin
        return max(signed, 0.0) + np.log1p(np.exp(-abs(signed)))
    if code == SQUARED:
        return 0.5 * residual * residual
    if code == ABSOLUTE:
        return abs(residual)
    if code == HUBER:
        size = abs(residual)
        return 0.5 * size * size if size <= shape else shape * (size - 0.5 * shape)
    if code == POISSON:
        return np.exp(margin) - y * margin
    return shape * residual if residual >= 0.0 else (shape - 1.0) * residual


@kernel
def gradients(
    margins: Float64s, y: Float64s, weights: Float64s, code: int, shape: float, out: Float64s
) -> tuple[float, float]:
    """Set ``out``, shape (n, 2), to hessians and gradients; return the sums of losses and of weights."""
    total, weight_sum = 0.0, 0.0
    for i in range(len(y)):
        weight = weights[i] if len(weights) else 1.0
        if not weight > 0.0:
            out[i, 0] = out[i, 1] = 0.0
            continue
        if code == LOGISTIC:
            # Gradient and loss share it, as it takes most of the time.
            odds = np.exp(-abs(margins[i]))
            g, h = logistic_gradient(margins[i], y[i], odds)
            loss = max(-margins[i] if y[i] > 0.0 else margins[i], 0.0) + np.log1p(odds)
        else:
            g, h = gradient_at(code, shape, margins[i], y[i])
            loss = loss_at(code, shape, margins[i], y[i])
        out[i, 0], out[i, 1] = h * weight, g * weight
        total += weight * loss
        weight_sum += weight
    return total, weight_sum


@kernel
def losses(margins: Float64s, y: Float64s, weights: Float64s, code: int, shape: float) -> tuple[float, float]:
    """Sum losses and weights."""
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
        total = odds.sum()
        for c in range(classes):
            p = odds[c] / total
            # The rest of the odds, not 1 - p, which would lose all digits where it is small.
            rest = (total - odds[c]) / total
            out[c, i, 0] = max(2.0 * p * rest, MIN_HESSIAN) * weight
            out[c, i, 1] = (-rest if c == y[i] else p) * weight
        loss += weight * (np.log(total) + largest - margins[i, np.int64(y[i])])
        weight_sum += weight
    return loss, weight_sum


@kernel
def softmax_losses(margins: Float64s, y: Float64s, weights: Float64s) -> tuple[float, float]:
    """Sum losses and weights."""
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
    """Add to counts, shape (kinds, EXPONENTS), the numbers of words, shape (n, kinds), by exponent, but for zeros."""
    for i in range(words.shape[0]):
        for kind in range(words.shape[1]):
            word = words[i, kind] << np.uint64(1)  # without the sign
            if word != 0:
                counts[kind, (word >> (MANTISSA_BITS + np.uint64(1))) & EXPONENT_MASK] += 1


@inline
def _rounded(value: float, draw: float) -> np.int64:
    """Round down or, if the fraction is above a draw, up: what has no fraction stays as it is."""
    whole = np.floor(value)
    return np.int64(whole) + np.int64(draw < value - whole)


@kernel
def quantise(pairs: Float64s, ids: Int64s, key: int, scales: tuple[float, float], out: Array) -> None:
    """Set ``out``, int64, shape (n, 2), to scaled hessians and gradients, rounded at random; a hessian is >= 1."""
    for i in range(len(pairs)):
        if pairs[i, 0] == 0.0:
            out[i, 0] = out[i, 1] = 0
            continue
        state = scrambled(np.uint64(key) + GOLDEN * np.uint64(ids[i]))
        draw_h = np.float64(state >> np.uint64(11)) * TO_UNIT
        draw_g = np.float64(scrambled(state + GOLDEN) >> np.uint64(11)) * TO_UNIT
        out[i, 0] = max(_rounded(pairs[i, 0] * scales[0], draw_h), np.int64(1))
        out[i, 1] = _rounded(pairs[i, 1] * scales[1], draw_g)
