"""Compiled losses of one row by its margin, and loops over the rows of a sparse matrix.

A loss is named by a number, so that a loop is compiled once for all of them. ``weights`` of length 0 mean that every
row counts 1. A row of weight 0 is passed over, whatever it holds. ``sums`` hold what earlier blocks of rows have added
up, so that sums over blocks are those over all rows, to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float64s
from ps2.ops.kernels import inline, inline_reduction, kernel

Array = npt.NDArray[Any]

LOGISTIC, HINGE, SQUARED_HINGE, HALF_SQUARED, SQUARED, HUBER = range(6)


@inline
def log_loss(margin: float, y: float) -> float:
    """Compute log(1 + exp(margin)) - y margin for y of 0 or 1, without overflow and without cancellation."""
    signed = margin if y > 0.0 else -margin
    if signed > 0.0:
        return np.log1p(np.exp(-signed))
    return np.log1p(np.exp(signed)) - signed


@inline
def sigmoid(margin: float) -> float:
    if margin > 0.0:
        return 1.0 / (1.0 + np.exp(-margin))
    odds = np.exp(margin)
    return odds / (1.0 + odds)


@inline
def slope_of(code: int, margin: float, y: float) -> float:
    """Compute the derivative of a row's loss by its margin; not of Huber's."""
    if code == LOGISTIC:
        # 1 - sigmoid(margin) would lose all digits where it is small.
        return -sigmoid(-margin) if y > 0.0 else sigmoid(margin)
    if code == HALF_SQUARED:
        return margin - y
    if code == SQUARED:
        return 2.0 * (margin - y)
    sign = 1.0 if y > 0.0 else -1.0
    room = 1.0 - sign * margin
    if room <= 0.0:
        return 0.0
    return -sign if code == HINGE else -2.0 * sign * room


@inline
def loss_at(code: int, margin: float, y: float) -> float:
    """Compute a row's loss; not Huber's."""
    if code == LOGISTIC:
        return log_loss(margin, y)
    if code == HALF_SQUARED:
        return 0.5 * (margin - y) * (margin - y)
    if code == SQUARED:
        return (margin - y) * (margin - y)
    room = 1.0 - (margin if y > 0.0 else -margin)
    if room <= 0.0:
        return 0.0
    return room if code == HINGE else room * room


@inline
def huber_at(margin: float, y: float, sigma: float, epsilon: float) -> tuple[float, float, float]:
    """Compute half of sigma + H((y - margin) / sigma) sigma, and its derivatives by the margin and by log sigma.

    H(z) is z^2 up to epsilon and 2 epsilon |z| - epsilon^2 beyond (Owen 2007, equations 6 and 7; half of it as in
    pyspark.ml).
    """
    z = (y - margin) / sigma
    if abs(z) <= epsilon:
        return 0.5 * sigma * (1.0 + z * z), -z, 0.5 * sigma * (1.0 - z * z)
    loss = 0.5 * sigma * (1.0 - epsilon * epsilon) + epsilon * abs(y - margin)
    return loss, -epsilon if z > 0.0 else epsilon, 0.5 * sigma * (1.0 - epsilon * epsilon)


@inline_reduction
def margin_of(columns: Array, values: Array, begin: int, end: int, w: Array) -> float:
    """Compute one row's x w, summed in float64 whatever the arrays hold."""
    total = 0.0
    for position in range(begin, end):
        total += np.float64(values[position]) * np.float64(w[columns[position]])
    return total


@kernel
def linear_margins(indptr: Array, columns: Array, values: Array, w: Array, b: float, out: Float64s) -> None:
    for row in range(len(out)):
        out[row] = margin_of(columns, values, indptr[row], indptr[row + 1], w) + b


@kernel
def summed_loss(
    margins: Float64s,
    y: Float64s,
    weights: Float64s,
    code: int,
    sigma: float,
    epsilon: float,
    sums: Float64s,
) -> None:
    """Add losses and weights of rows, by their margins, to ``sums``; sigma and epsilon are Huber's."""
    loss, weight = sums[0], sums[1]
    for row in range(len(y)):
        c = weights[row] if len(weights) else 1.0
        if c == 0.0:
            continue
        if code == HUBER:
            loss += c * huber_at(margins[row], y[row], sigma, epsilon)[0]
        else:
            loss += c * loss_at(code, margins[row], y[row])
        weight += c
    sums[0], sums[1] = loss, weight


@kernel
def linear_gradient(
    indptr: Array,
    columns: Array,
    values: Array,
    y: Float64s,
    weights: Float64s,
    w: Array,
    b: Float64s,
    code: int,
    epsilon: float,
    dw: Float64s,
    db: Float64s,
    sums: Float64s,
) -> None:
    """Add losses and weights to ``sums``, and the gradient to ``dw`` and ``db``.

    Each row is read once for its margin and, still in cache, once for its gradient.
    """
    loss, weight = sums[0], sums[1]
    sigma = np.exp(b[1]) if code == HUBER else 1.0
    for row in range(len(y)):
        c = weights[row] if len(weights) else 1.0
        if c == 0.0:
            continue
        begin, end = indptr[row], indptr[row + 1]
        margin = margin_of(columns, values, begin, end, w) + b[0]
        if code == HUBER:
            of_row, slope, by_scale = huber_at(margin, y[row], sigma, epsilon)
            db[1] += c * by_scale
        else:
            of_row, slope = loss_at(code, margin, y[row]), slope_of(code, margin, y[row])
        loss += c * of_row
        weight += c
        slope *= c
        if slope == 0.0:
            continue
        db[0] += slope
        for position in range(begin, end):
            dw[columns[position]] += slope * values[position]
    sums[0], sums[1] = loss, weight
