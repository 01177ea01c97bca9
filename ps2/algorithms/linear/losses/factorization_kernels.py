"""Compiled loops of factorization machines over the rows of a sparse matrix; ``weights`` as in ``margin_kernels``.

The weights of a feature lie side by side: the linear one, then its factors.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.linear.losses.margin_kernels import loss_at, slope_of
from ps2.array_types import Float64s, Int64s
from ps2.ops.draws import GOLDEN, TO_UNIT, TURN, scrambled
from ps2.ops.kernels import inline, kernel

Array = npt.NDArray[Any]


@inline
def machine_margin(columns: Array, values: Array, begin: int, end: int, w: Array, width: int, sums: Float64s) -> float:
    """Compute one row's sum of w x and of pairs <v_i, v_j> x_i x_j, and set ``sums[f]`` to the sum of v_f x.

    The pairs take time linear in the entries: half of the sum over f of (sum v_f x)^2 - sum (v_f x)^2 (Rendle 2010,
    lemma 3.1).
    """
    linear, squares = 0.0, 0.0
    sums[:] = 0.0
    for position in range(begin, end):
        x = np.float64(values[position])
        of_feature = w[columns[position] * width : (columns[position] + 1) * width]
        linear += x * np.float64(of_feature[0])
        for f in range(width - 1):
            term = x * np.float64(of_feature[f + 1])
            sums[f] += term
            squares += term * term
    pairs = -squares
    for f in range(width - 1):
        pairs += sums[f] * sums[f]
    return linear + 0.5 * pairs


@kernel
def machine_margins(
    indptr: Array, columns: Array, values: Array, w: Array, b: float, width: int, out: Float64s
) -> None:
    sums = np.empty(width - 1)
    for row in range(len(out)):
        out[row] = b + machine_margin(columns, values, indptr[row], indptr[row + 1], w, width, sums)


@kernel
def machine_gradient(
    indptr: Array,
    columns: Array,
    values: Array,
    y: Float64s,
    weights: Float64s,
    w: Array,
    b: float,
    width: int,
    code: int,
    linear: bool,
    dw: Float64s,
    found: Float64s,
) -> None:
    """Add losses, weights and derivatives by the intercept to ``found``, and the gradient to ``dw``.

    Each row is read once for its margin and, still in cache, once for its gradient.
    """
    loss, weight, db = found[0], found[1], found[2]
    sums = np.empty(width - 1)
    for row in range(len(y)):
        c = weights[row] if len(weights) else 1.0
        if c == 0.0:
            continue
        begin, end = indptr[row], indptr[row + 1]
        margin = b + machine_margin(columns, values, begin, end, w, width, sums)
        loss += c * loss_at(code, margin, y[row])
        weight += c
        slope = c * slope_of(code, margin, y[row])
        db += slope
        for position in range(begin, end):
            x = np.float64(values[position])
            of_feature = w[columns[position] * width : (columns[position] + 1) * width]
            to = dw[columns[position] * width : (columns[position] + 1) * width]
            step = slope * x
            if linear:
                to[0] += step
            for f in range(width - 1):
                to[f + 1] += step * (sums[f] - x * np.float64(of_feature[f + 1]))
    found[0], found[1], found[2] = loss, weight, db


@kernel
def fill_normal(keys: Int64s, seed: np.uint64, width: int, out: Float64s) -> None:
    """Set the factors of each key to standard normal numbers that depend on seed, key and factor only."""
    of_seed = scrambled(seed + GOLDEN)
    for i in range(len(keys)):
        of_key = scrambled(of_seed + np.uint64(keys[i]) * GOLDEN)
        for f in range(1, width):
            first = scrambled(of_key + np.uint64(2 * f) * GOLDEN)
            second = scrambled(of_key + np.uint64(2 * f + 1) * GOLDEN)
            # Box and Muller; the first is in (0, 1], so that its logarithm is finite.
            radius = math.sqrt(-2.0 * math.log((np.float64(first >> np.uint64(11)) + 1.0) * TO_UNIT))
            out[i * width + f] = radius * math.cos(TURN * np.float64(second >> np.uint64(11)) * TO_UNIT)
