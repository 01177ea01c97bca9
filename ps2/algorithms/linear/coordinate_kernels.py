"""Compiled loops of coordinate descent: over a worker's columns, and over the Gram matrix of a set of columns.

A worker's columns are in CSC form: column j has the entries from ``starts[j]`` to ``starts[j + 1]``, without the last,
of ``rows`` and ``values``. ``slots`` are indices of such columns; -1 stands for a column of zeros. ``z`` and ``s`` have
a value for each row. The callers check all arguments.
"""

from __future__ import annotations

import numpy as np

from ps2.algorithms.linear.loss_kernels import HALF_SQUARED, log_loss, margin_loss, margin_slope
from ps2.array_types import Float64s, Int64s
from ps2.ops.kernels import inline, kernel, reduction
from ps2.ops.table import Array


@reduction
def columns_dot(starts: Array, rows: Array, values: Float64s, slots: Int64s, s: Float64s, out: Float64s) -> None:
    """Set ``out[i]`` to the inner product of column ``slots[i]`` with s."""
    for i in range(len(slots)):
        j, total = slots[i], 0.0
        if j >= 0:
            for position in range(starts[j], starts[j + 1]):
                total += values[position] * s[rows[position]]
        out[i] = total


@kernel
def add_columns(starts: Array, rows: Array, values: Float64s, slots: Int64s, factors: Float64s, z: Float64s) -> None:
    """Add ``factors[i]`` times column ``slots[i]`` to z."""
    for i in range(len(slots)):
        j, factor = slots[i], factors[i]
        if j >= 0 and factor != 0.0:
            for position in range(starts[j], starts[j + 1]):
                z[rows[position]] += factor * values[position]


@kernel
def loss_derivatives(
    code: int,
    margins: Float64s,
    y: Float64s,
    weights: Float64s,
    center: float,
    factor: float,
    slope: Float64s,
    curvature: Float64s,
) -> tuple[float, float]:
    """Compute the rows' loss' and loss'' with respect to their margins.

    Set ``slope`` to -loss' and ``curvature`` to loss'', each times the row's weight and ``factor``. Return the weighted
    sums of the rows' losses and dual values. A row's dual value is residual * (label - ``center``) for the squared loss
    (Mairal and Yu, 2012), and the entropy for the logistic loss (Yu, Huang and Lin, 2011).
    """
    loss, dual = 0.0, 0.0
    for row in range(len(y)):
        c = weights[row] if len(weights) else 1.0
        margin = margins[row]
        slope_down = -margin_slope(code, margin, y[row])
        slope[row] = c * factor * slope_down
        if code == HALF_SQUARED:
            loss += c * margin_loss(code, margin, y[row])
            dual += c * slope_down * (y[row] - center)
            curvature[row] = c * factor
        else:
            row_loss = log_loss(margin, y[row])
            loss += c * row_loss
            signed = margin if y[row] > 0.0 else -margin
            dual += c * (row_loss + abs(slope_down) * signed)
            curvature[row] = c * factor * abs(slope_down) * (1.0 - abs(slope_down))
    return loss, dual


@kernel
def select_columns(
    starts: Array, rows: Array, values: Float64s, slots: Int64s, n: int
) -> tuple[Int64s, Array, Float64s]:
    """Return the columns ``slots`` of n rows in CSR form: indptr, each entry's index in ``slots``, and the values."""
    indptr = np.zeros(n + 1, np.int64)
    for i in range(len(slots)):
        j = slots[i]
        if j >= 0:
            for position in range(starts[j], starts[j + 1]):
                indptr[rows[position] + 1] += 1
    for row in range(n):
        indptr[row + 1] += indptr[row]
    indices, entries, next_free = np.empty(indptr[n], np.int32), np.empty(indptr[n]), indptr[:n].copy()
    for i in range(len(slots)):
        j = slots[i]
        if j >= 0:
            for position in range(starts[j], starts[j + 1]):
                row = rows[position]
                indices[next_free[row]] = i
                entries[next_free[row]] = values[position]
                next_free[row] += 1
    return indptr, indices, entries


@kernel
def add_products(indptr: Int64s, indices: Array, values: Float64s, h: Float64s, new: int, products: Float64s) -> None:
    """Add to ``products`` the first ``new`` columns' inner products, weighted by h, with themselves and later ones."""
    for row in range(len(h)):
        end = indptr[row + 1]
        for position in range(indptr[row], end):
            if indices[position] >= new:
                break
            factor = h[row] * values[position]
            if factor == 0.0:
                continue
            product_row = products[indices[position]]
            for other in range(position, end):
                product_row[indices[other]] += factor * values[other]


@kernel
def describe_columns(indptr: Array, columns: Array, values: Array, c: Float64s, sums: Float64s) -> None:
    """Add to ``sums``, shape (k, 3), each column's sums of c, c value and c value^2 over nonzero values; c: weights."""
    for row in range(len(c)):
        for position in range(indptr[row], indptr[row + 1]):
            value = np.float64(values[position])
            if value != 0.0:
                column_sums = sums[columns[position]]
                column_sums[0] += c[row]
                column_sums[1] += c[row] * value
                column_sums[2] += c[row] * value * value


@kernel
def rows_to_columns(
    indptr: Array, columns: Array, values: Array, slots: Int64s, means: Float64s
) -> tuple[Int64s, Array, Float64s]:
    """Turn rows in CSR form into columns in CSC form; column j of the rows becomes column ``slots[j]``.

    ``means`` are subtracted, so a column with a mean stores an entry for every row; NaN: subtract nothing.
    """
    n, k = len(indptr) - 1, len(means)
    starts = np.zeros(k + 1, np.int64)
    for position in range(len(columns)):
        starts[slots[columns[position]] + 1] += 1
    for j in range(k):
        starts[j + 1] = starts[j] + (starts[j + 1] if np.isnan(means[j]) else n)
    rows, entries, next_free = np.empty(starts[k], np.int32), np.empty(starts[k]), starts[:k].copy()
    for j in range(k):
        if not np.isnan(means[j]):
            for row in range(n):
                rows[starts[j] + row] = row
                entries[starts[j] + row] = -means[j]
    for row in range(n):
        for position in range(indptr[row], indptr[row + 1]):
            j = slots[columns[position]]
            if np.isnan(means[j]):
                rows[next_free[j]] = row
                entries[next_free[j]] = values[position]
                next_free[j] += 1
            else:
                entries[starts[j] + row] += values[position]
    return starts, rows, entries


@inline
def sweep(gram: Float64s, q: Float64s, w: Float64s, l1: float, l2: float, coordinates: Int64s) -> tuple[float, float]:
    """Minimise over d ``1/2 d' gram d - q' d + l1 |w + d| + l2 / 2 (w + d)^2``, one coordinate of d after the other.

    Add d to w, subtract gram d from q; return the objective's decrease, and the largest |change * second derivative|.
    """
    decrease, largest = 0.0, 0.0
    for j in coordinates:
        a, old_w = gram[j, j], w[j]
        if a + l2 <= 0.0:
            continue
        target = q[j] + a * old_w  # (a + l2) times the new weight, before the soft threshold
        if target > l1:
            new_w = (target - l1) / (a + l2)
        elif target < -l1:
            new_w = (target + l1) / (a + l2)
        else:
            new_w = 0.0
        d = new_w - old_w
        if d == 0.0:
            continue
        decrease += q[j] * d - 0.5 * a * d * d + l1 * (abs(old_w) - abs(new_w)) - l2 * d * (old_w + 0.5 * d)
        largest = max(largest, abs(d) * (a + l2))
        w[j] = new_w
        gram_row = gram[j]
        for k in range(len(q)):
            q[k] -= d * gram_row[k]
    return decrease, largest


@kernel
def descend(
    gram: Float64s, q: Float64s, w: Float64s, l1: float, l2: float, tol: float, max_sweeps: int
) -> tuple[float, int]:
    """Alternate a sweep over all coordinates with sweeps over the nonzero weights, until these converge.

    Stop after a sweep over all coordinates in which no change, times its second derivative, is above ``tol``. Return
    the decrease of the objective, and the number of sweeps.
    """
    all_coordinates, decrease, sweeps = np.arange(len(w)), 0.0, 0
    while sweeps < max_sweeps:
        sweep_decrease, largest = sweep(gram, q, w, l1, l2, all_coordinates)
        decrease += sweep_decrease
        sweeps += 1
        if largest <= tol:
            break
        nonzero = np.flatnonzero(w)
        while sweeps < max_sweeps:
            sweep_decrease, largest = sweep(gram, q, w, l1, l2, nonzero)
            decrease += sweep_decrease
            sweeps += 1
            if largest <= tol:
                break
    return decrease, sweeps
