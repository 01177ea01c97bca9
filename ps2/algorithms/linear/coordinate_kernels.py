"""Compiled loops of coordinate descent: over a worker's columns, and over the products of a block of columns.

A worker's columns are compressed: column j has the entries ``starts[j]`` to ``starts[j + 1]`` of ``rows`` and
``values``. ``slots`` are indices of columns; -1 stands for a column of zeros. Callers check all arguments.
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
def slopes(
    code: int,
    margins: Float64s,
    y: Float64s,
    weights: Float64s,
    center: float,
    share: float,
    slope: Float64s,
    curvature: Float64s,
) -> tuple[float, float]:
    """Set the negative derivative of each row's loss by its margin, and the second one, times weight and ``share``.

    Return the weighted sums of the loss and of its dual value: for the squared loss residual times (label - ``center``)
    (Mairal and Yu, 2012), for the logistic loss the entropy (Yu, Huang and Lin, 2011).
    """
    loss, dual = 0.0, 0.0
    for row in range(len(y)):
        c = weights[row] if len(weights) else 1.0
        margin = margins[row]
        down = -margin_slope(code, margin, y[row])
        slope[row] = c * share * down
        if code == HALF_SQUARED:
            loss += c * margin_loss(code, margin, y[row])
            dual += c * down * (y[row] - center)
            curvature[row] = c * share
        else:
            row_loss = log_loss(margin, y[row])
            loss += c * row_loss
            signed = margin if y[row] > 0.0 else -margin
            dual += c * (row_loss + abs(down) * signed)
            curvature[row] = c * share * abs(down) * (1.0 - abs(down))
    return loss, dual


@kernel
def select_columns(
    starts: Array, rows: Array, values: Float64s, slots: Int64s, n: int
) -> tuple[Int64s, Array, Float64s]:
    """Return columns as CSR: the bounds of the rows, the index of each entry's column in ``slots``, and the values."""
    begins = np.zeros(n + 1, np.int64)
    for i in range(len(slots)):
        j = slots[i]
        if j >= 0:
            for position in range(starts[j], starts[j + 1]):
                begins[rows[position] + 1] += 1
    for row in range(n):
        begins[row + 1] += begins[row]
    indices, entries, free = np.empty(begins[n], np.int32), np.empty(begins[n]), begins[:n].copy()
    for i in range(len(slots)):
        j = slots[i]
        if j >= 0:
            for position in range(starts[j], starts[j + 1]):
                row = rows[position]
                indices[free[row]] = i
                entries[free[row]] = values[position]
                free[row] += 1
    return begins, indices, entries


@kernel
def add_products(begins: Int64s, indices: Array, values: Float64s, h: Float64s, new: int, products: Float64s) -> None:
    """Add to ``products`` each of the first ``new`` columns of ``select_columns`` times itself and all later ones."""
    for row in range(len(h)):
        end = begins[row + 1]
        for position in range(begins[row], end):
            if indices[position] >= new:
                break
            factor = h[row] * values[position]
            if factor == 0.0:
                continue
            line = products[indices[position]]
            for other in range(position, end):
                line[indices[other]] += factor * values[other]


@kernel
def describe_columns(indptr: Array, columns: Array, values: Array, c: Float64s, sums: Float64s) -> None:
    """Add to ``sums``, shape (k, 3), for each column's values that are not 0: the weights c, c value, and c value^2."""
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
    """Turn rows into columns at ``slots``; subtract ``means``, which makes an entry for every row (NaN: no mean)."""
    n, k = len(indptr) - 1, len(means)
    starts = np.zeros(k + 1, np.int64)
    for position in range(len(columns)):
        starts[slots[columns[position]] + 1] += 1
    for j in range(k):
        starts[j + 1] = starts[j] + (starts[j + 1] if np.isnan(means[j]) else n)
    rows, entries, free = np.empty(starts[k], np.int32), np.empty(starts[k]), starts[:k].copy()
    for j in range(k):
        if not np.isnan(means[j]):
            for row in range(n):
                rows[starts[j] + row] = row
                entries[starts[j] + row] = -means[j]
    for row in range(n):
        for position in range(indptr[row], indptr[row + 1]):
            j = slots[columns[position]]
            if np.isnan(means[j]):
                rows[free[j]] = row
                entries[free[j]] = values[position]
                free[j] += 1
            else:
                entries[starts[j] + row] += values[position]
    return starts, rows, entries


@inline
def sweep(gram: Float64s, q: Float64s, w: Float64s, l1: float, l2: float, coordinates: Int64s) -> tuple[float, float]:
    """Minimise ``1/2 d' gram d - q' d + l1 |w + d| + l2 / 2 (w + d)^2`` along ``coordinates``; update ``q`` and ``w``.

    Return the decrease of the objective, and the largest product of a change and its second derivative.
    """
    decrease, largest = 0.0, 0.0
    for j in coordinates:
        a, u = gram[j, j], w[j]
        if a + l2 <= 0.0:
            continue
        pulled = q[j] + a * u
        if pulled > l1:
            new_w = (pulled - l1) / (a + l2)
        elif pulled < -l1:
            new_w = (pulled + l1) / (a + l2)
        else:
            new_w = 0.0
        d = new_w - u
        if d == 0.0:
            continue
        decrease += q[j] * d - 0.5 * a * d * d + l1 * (abs(u) - abs(new_w)) - l2 * d * (u + 0.5 * d)
        largest = max(largest, abs(d) * (a + l2))
        w[j] = new_w
        line = gram[j]
        for k in range(len(q)):
            q[k] -= d * line[k]
    return decrease, largest


@kernel
def descend(
    gram: Float64s, q: Float64s, w: Float64s, l1: float, l2: float, tol: float, max_sweeps: int
) -> tuple[float, int]:
    """Sweep over all coordinates, and in between over those that are not 0; return the decrease, and the sweeps.

    The end is a sweep over all coordinates in which no change, times its second derivative, is above ``tol``.
    """
    every, decrease, sweeps = np.arange(len(w)), 0.0, 0
    while sweeps < max_sweeps:
        gained, largest = sweep(gram, q, w, l1, l2, every)
        decrease += gained
        sweeps += 1
        if largest <= tol:
            break
        nonzero = np.flatnonzero(w)
        while sweeps < max_sweeps:
            gained, largest = sweep(gram, q, w, l1, l2, nonzero)
            decrease += gained
            sweeps += 1
            if largest <= tol:
                break
    return decrease, sweeps
