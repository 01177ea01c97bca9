"""Compiled loops of coordinate descent: over a worker's columns, and over the products of a block of columns.

A worker's columns are compressed: column j has the entries ``starts[j]`` to ``starts[j + 1]`` of ``rows`` and
``values``. Loops check nothing: ``LocalColumns`` and ``subproblem`` do.
"""

from __future__ import annotations

import numpy as np

from ps2.algorithms.linear.losses.margin_kernels import HALF_SQUARED, Array, log_loss, loss_at, slope_of
from ps2.array_types import Float64s, Int64s
from ps2.ops.kernels import inline, kernel, reduction


@reduction
def columns_dot(starts: Array, rows: Array, values: Float64s, at: Int64s, s: Float64s, out: Float64s) -> None:
    """Set ``out[i]`` to the inner product of column ``at[i]`` with s; 0 where ``at[i]`` is -1."""
    for i in range(len(at)):
        j, total = at[i], 0.0
        if j >= 0:
            for position in range(starts[j], starts[j + 1]):
                total += values[position] * s[rows[position]]
        out[i] = total


@reduction
def all_columns_dot(starts: Array, rows: Array, values: Float64s, s: Float64s, out: Float64s) -> None:
    """Set ``out[j]`` to the inner product of each column with s."""
    for j in range(len(out)):
        total = 0.0
        for position in range(starts[j], starts[j + 1]):
            total += values[position] * s[rows[position]]
        out[j] = total


@kernel
def add_columns(starts: Array, rows: Array, values: Float64s, at: Int64s, factors: Float64s, z: Float64s) -> None:
    """Add ``factors[i]`` times column ``at[i]`` to z; -1 is a column of zeros."""
    for i in range(len(at)):
        j, factor = at[i], factors[i]
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
    """Set of each row the descent direction by its margin, and the second derivative, both times weight and share.

    Args:
        weights: of rows; an empty array means 1 for every row.
        center: that dual values are taken of labels less it (squared loss).
        share: factor of every row: 1 / the weight of all rows.

    Returns:
        The weighted sums of the loss and of its dual value: of the squared loss residual times label, of the logistic
        loss the entropy (Mairal and Yu, 2012, give the former; Yu, Huang and Lin, 2011, the latter).
    """
    loss, dual = 0.0, 0.0
    for row in range(len(y)):
        c = weights[row] if len(weights) else 1.0
        margin = margins[row]
        down = -slope_of(code, margin, y[row])
        slope[row] = c * share * down
        if code == HALF_SQUARED:
            loss += c * loss_at(code, margin, y[row])
            dual += c * down * (y[row] - center)
            curvature[row] = c * share
        else:
            of_row = log_loss(margin, y[row])
            loss += c * of_row
            signed = margin if y[row] > 0.0 else -margin
            dual += c * (of_row + abs(down) * signed)
            curvature[row] = c * share * abs(down) * (1.0 - abs(down))
    return loss, dual


@kernel
def chosen_rows(starts: Array, rows: Array, values: Float64s, at: Int64s, n: int) -> tuple[Int64s, Array, Float64s]:
    """Return some columns row by row: where rows begin, the number of each entry's column in ``at``, and the values."""
    begins = np.zeros(n + 1, np.int64)
    for i in range(len(at)):
        j = at[i]
        if j >= 0:
            for position in range(starts[j], starts[j + 1]):
                begins[rows[position] + 1] += 1
    for row in range(n):
        begins[row + 1] += begins[row]
    numbers, found, free = np.empty(begins[n], np.int32), np.empty(begins[n]), begins[:n].copy()
    for i in range(len(at)):
        j = at[i]
        if j >= 0:
            for position in range(starts[j], starts[j + 1]):
                row = rows[position]
                numbers[free[row]] = i
                found[free[row]] = values[position]
                free[row] += 1
    return begins, numbers, found


@kernel
def add_products(begins: Int64s, numbers: Array, values: Float64s, h: Float64s, new: int, products: Float64s) -> None:
    """Add the weighted products of columns: of each of the first ``new`` ones with itself and all that come after it.

    Args:
        begins, numbers, values: as ``chosen_rows`` returns them.
        h: weights of rows.
        products: shape (new, columns).
    """
    for row in range(len(h)):
        end = begins[row + 1]
        for position in range(begins[row], end):
            if numbers[position] >= new:
                break
            factor = h[row] * values[position]
            if factor == 0.0:
                continue
            line = products[numbers[position]]
            for other in range(position, end):
                line[numbers[other]] += factor * values[other]


@kernel
def describe_columns(indptr: Array, columns: Array, values: Array, c: Float64s, sums: Float64s) -> None:
    """Add up rows by column: weight where it is not 0, weight times value, and weight times its square.

    Args:
        c: weights of rows.
        sums: shape (k, 3), of zeros.
    """
    for row in range(len(c)):
        for position in range(indptr[row], indptr[row + 1]):
            value = np.float64(values[position])
            if value != 0.0:
                of_column = sums[columns[position]]
                of_column[0] += c[row]
                of_column[1] += c[row] * value
                of_column[2] += c[row] * value * value


@kernel
def by_column(
    indptr: Array, columns: Array, values: Array, places: Int64s, means: Float64s
) -> tuple[Int64s, Array, Float64s]:
    """Turn rows into columns; those that are centred hold an entry of every row.

    Args:
        indptr, columns, values: of the rows.
        places: of each column among the new ones.
        means: of each new column, to subtract; NaN: it is not centred.
    """
    n, k = len(indptr) - 1, len(means)
    starts = np.zeros(k + 1, np.int64)
    for position in range(len(columns)):
        starts[places[columns[position]] + 1] += 1
    for j in range(k):
        starts[j + 1] = starts[j] + (starts[j + 1] if np.isnan(means[j]) else n)
    rows, found, free = np.empty(starts[k], np.int32), np.empty(starts[k]), starts[:k].copy()
    for j in range(k):
        if not np.isnan(means[j]):
            for row in range(n):
                rows[starts[j] + row] = row
                found[starts[j] + row] = -means[j]
    for row in range(n):
        for position in range(indptr[row], indptr[row + 1]):
            j = places[columns[position]]
            if np.isnan(means[j]):
                rows[free[j]] = row
                found[free[j]] = values[position]
                free[j] += 1
            else:
                found[starts[j] + row] += values[position]
    return starts, rows, found


@inline
def sweep(gram: Float64s, q: Float64s, w: Float64s, l1: float, l2: float, some: Int64s) -> tuple[float, float]:
    """Minimise along some coordinates, one after the other.

    The objective is ``1/2 d' gram d - q' d + l1 |w + d| + l2 / 2 (w + d)^2``; ``q`` and ``w`` go along.

    Args:
        gram: shape (k, k), symmetric.
        q, w: shape (k,), changed.
        some: numbers of coordinates.

    Returns:
        By how much the objective has fallen, and the largest change times second derivative.
    """
    fallen, largest = 0.0, 0.0
    for j in some:
        a, u = gram[j, j], w[j]
        if a + l2 <= 0.0:
            continue
        pulled = q[j] + a * u
        if pulled > l1:
            moved = (pulled - l1) / (a + l2)
        elif pulled < -l1:
            moved = (pulled + l1) / (a + l2)
        else:
            moved = 0.0
        d = moved - u
        if d == 0.0:
            continue
        fallen += q[j] * d - 0.5 * a * d * d + l1 * (abs(u) - abs(moved)) - l2 * d * (u + 0.5 * d)
        largest = max(largest, abs(d) * (a + l2))
        w[j] = moved
        line = gram[j]
        for k in range(len(q)):
            q[k] -= d * line[k]
    return fallen, largest


@kernel
def descend(gram: Float64s, q: Float64s, w: Float64s, l1: float, l2: float, tol: float, most: int) -> tuple[float, int]:
    """Sweep over all coordinates, and in between over those that are not 0, until all gradients change little.

    Args:
        tol: end with a sweep over all coordinates of which none changes by more, times its second derivative.
        most: sweeps.

    Returns:
        By how much the objective has fallen, and the number of sweeps.
    """
    every, fallen, sweeps = np.arange(len(w)), 0.0, 0
    while sweeps < most:
        gained, largest = sweep(gram, q, w, l1, l2, every)
        fallen += gained
        sweeps += 1
        if largest <= tol:
            break
        some = np.flatnonzero(w)
        while sweeps < most:
            gained, largest = sweep(gram, q, w, l1, l2, some)
            fallen += gained
            sweeps += 1
            if largest <= tol:
                break
    return fallen, sweeps
