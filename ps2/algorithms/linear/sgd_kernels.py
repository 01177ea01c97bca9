"""A compiled pass of stochastic gradient descent over the rows of a sparse matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.linear.losses.margin_kernels import margin_of, slope_of
from ps2.array_types import Float64s, Int64s
from ps2.ops.kernels import inline, kernel

Array = npt.NDArray[Any]

# Below this the scale goes into the weights: often enough to keep their digits, and too seldom to cost anything.
_LEAST_SCALE = 1e-6


@kernel
def sgd_pass(
    indptr: Array,
    columns: Array,
    values: Array,
    y: Float64s,
    weights: Float64s,
    order: Int64s,
    u: Float64s,
    b: Float64s,
    code: int,
    intercept: bool,
    batch: int,
    step_size: float,
    l1: float,
    l2: float,
    first_step: int,
) -> tuple[float, float]:
    """Change ``u`` and ``b`` by a step for each ``batch`` rows; return the product of the shrinking, and the threshold.

    The weights are s u: then the shrinking of a step is one product, and a row costs only its entries (Bottou 2012,
    section 5.1). A step's soft threshold eta l1 is eta l1 / abs(s) for u. Soft thresholds add up, so a weight takes
    those that it has missed when a row uses it (Langford et al., 2009, section 4). A weight v that no row uses becomes
    shrink * soft(v, threshold).
    """
    scale, shrink, threshold = 1.0, 1.0, 0.0
    total = 0.0  # of the thresholds since the scale went into the weights
    taken = np.zeros(len(u) if l1 > 0.0 else 0)
    slopes = np.empty(min(batch, len(order)))
    step = first_step
    for first in range(0, len(order), batch):
        count = min(batch, len(order) - first)
        eta = step_size / (1.0 + step_size * l2 * step)
        of_batch, slope_sum = 0.0, 0.0
        for i in range(count):
            row = order[first + i]
            c = weights[row] if len(weights) else 1.0
            slopes[i] = 0.0
            if c == 0.0:
                continue
            if l1 > 0.0:
                for position in range(indptr[row], indptr[row + 1]):
                    k = columns[position]
                    u[k] = soft(u[k], total - taken[k])
                    taken[k] = total
            margin = scale * margin_of(columns, values, indptr[row], indptr[row + 1], u) + b[0]
            slopes[i] = c * slope_of(code, margin, y[row])
            slope_sum += slopes[i]
            of_batch += c
        kept = 1.0 - eta * l2
        shrink *= kept
        scale *= kept
        if abs(scale) < _LEAST_SCALE:
            for k in range(len(u)):
                if l1 > 0.0:
                    u[k] = soft(u[k], total - taken[k])
                    taken[k] = 0.0
                u[k] *= scale
            scale, total = 1.0, 0.0
        step += 1
        missed = eta * l1 / abs(scale) if l1 > 0.0 else 0.0
        if l1 > 0.0:
            threshold += eta * l1 / abs(shrink) if shrink != 0.0 else np.inf
        if of_batch == 0.0:
            total += missed
            continue
        if intercept:
            b[0] -= eta * slope_sum / of_batch
        for i in range(count):
            if slopes[i] == 0.0:
                continue
            change = eta * slopes[i] / of_batch / scale
            row = order[first + i]
            for position in range(indptr[row], indptr[row + 1]):
                u[columns[position]] -= change * values[position]
        total += missed
    for k in range(len(u)):
        if l1 > 0.0:
            u[k] = soft(u[k], total - taken[k])
        u[k] *= scale
    return shrink, threshold


@inline
def soft(value: float, threshold: float) -> float:
    """Return the value, nearer to 0 by the threshold, and no further than 0."""
    if value > threshold:
        return value - threshold
    if value < -threshold:
        return value + threshold
    return 0.0
