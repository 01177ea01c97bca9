"""A compiled pass of stochastic gradient descent over the rows of a sparse matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.linear.losses.margin_kernels import margin_of, slope_of
from ps2.ops.kernels import kernel

Array = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

# Below this the scale goes into the weights: often enough to keep their digits, and too seldom to cost anything.
_LEAST_SCALE = 1e-6


@kernel
def sgd_pass(
    indptr: Array,
    columns: Array,
    values: Array,
    y: Float64Array,
    weights: Float64Array,
    order: Int64Array,
    u: Float64Array,
    b: Float64Array,
    code: int,
    intercept: bool,
    batch: int,
    step_size: float,
    l2: float,
    first_step: int,
) -> float:
    """Change ``u`` and ``b`` by a step for every ``batch`` rows; return the product of the shrinking.

    The weights are s u: then the shrinking of a step is one product, and a row costs only its entries (Bottou 2012,
    section 5.1).
    """
    scale, shrink = 1.0, 1.0
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
            margin = scale * margin_of(columns, values, indptr[row], indptr[row + 1], u) + b[0]
            slopes[i] = c * slope_of(code, margin, y[row])
            slope_sum += slopes[i]
            of_batch += c
        kept = 1.0 - eta * l2
        shrink *= kept
        scale *= kept
        if abs(scale) < _LEAST_SCALE:
            for k in range(len(u)):
                u[k] *= scale
            scale = 1.0
        step += 1
        if of_batch == 0.0:
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
    for k in range(len(u)):
        u[k] *= scale
    return shrink
