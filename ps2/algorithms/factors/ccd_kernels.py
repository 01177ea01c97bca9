"""Coordinate descent over the ratings of a worker's users, compiled.

All coordinates of one rank are changed before those of the next one (CCD++: Yu et al. 2012, "Scalable Coordinate
Descent Approaches to Parallel Matrix Factorization for Recommender Systems", section 3.2). A rating has a curvature a
and a target b, and the objective is the sum of ``a x^2 / 2 - b x`` over ratings, x the prediction, and of terms that do
not depend on single ratings. Explicit feedback has a = w and b = w r; implicit feedback has a = alpha |r|, and
b = 1 + a where r > 0, else 0 (Hu, Koren and Volinsky 2008, equation 4). So ``y = b - a x`` is the residual of both.

Factors are float32 and lie rank by rank, shape (rank, users) and (rank, items). Sums of a user's and of an item's
ratings are float64. Ratings lie user by user; those of user u are ``ends[u]`` to ``ends[u + 1]``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.ops.kernels import Float64s, Int64s, kernel, reduction

Float32s = npt.NDArray[np.float32]
Int32s = npt.NDArray[np.int32]
Array = npt.NDArray[Any]

# Numbers that are summed in float32, or that are in a processor's cache.
TILE = 512


@reduction
def predict(
    ends: Int64s, items: Int32s, p: Float32s, q: Float32s, biases: tuple[Float32s, Float32s, float], out: Float32s
) -> None:
    """Set ``out`` to the predictions of ratings.

    Args:
        p, q: vectors of the users, shape (users, rank), and of all items, shape (items, rank).
        biases: of the users, of all items, and the mean.
    """
    of_users, of_items, mean = biases
    for u in range(len(ends) - 1):
        for e in range(ends[u], ends[u + 1]):
            j = items[e]
            x = np.float32(0)
            for f in range(p.shape[1]):
                x += p[u, f] * q[j, f]
            out[e] = mean + of_users[u] + of_items[j] + x


@reduction
def explicit_loss(x: Float32s, a: Float32s, b: Float32s, y: Float32s) -> float:
    """Turn predictions into residuals, in ``y``; return the sum of w (r - x)^2. ``a`` is empty if all weights are 1."""
    loss = 0.0
    if not len(a):
        for e in range(len(x)):
            y[e] = b[e] - x[e]
            loss += np.float64(y[e]) * np.float64(y[e])
        return loss
    for e in range(len(x)):
        y[e] = b[e] - a[e] * x[e]
        if a[e] > 0:
            loss += np.float64(y[e]) * np.float64(y[e]) / np.float64(a[e])
    return loss


@reduction
def implicit_loss(x: Float32s, a: Float32s, b: Float32s, y: Float32s) -> float:
    """Turn predictions into residuals, in ``y``; return the sum of a x^2 - 2 b x + b: what the given cells have beyond
    the x^2 of all cells."""
    loss = 0.0
    for e in range(len(x)):
        z = np.float64(x[e])
        y[e] = b[e] - a[e] * x[e]
        loss += a[e] * z * z - 2.0 * b[e] * z + b[e]
    return loss


@reduction
def descend(
    ratings: tuple[Int64s, Int32s, Float32s],
    y: Float32s,
    users: tuple[Float32s, Float32s],
    of_items: Float32s,
    ridge: Float32s,
    linear: Float64s,
    options: tuple[float, bool, bool],
    sums: Float64s,
) -> None:
    """Solve all users' coordinates of one rank, and sum what the items' coordinates need.

    The residuals still lack the change of the rank before, which is made up for on the way: each rating is read once.

    Args:
        ratings: ends, items, and a of each rating; empty: all are 1.
        y: residuals; on return those without the product of this rank.
        users: the coordinates of the rank before, and those of this rank, which are changed.
        of_items: shape (items, 2): the coordinates of the rank before, as they are now, and those of this rank.
        ridge: what is added to each user's sum of squares.
        linear: what is subtracted from each user's numerator: the other ranks' share in all cells; empty: none.
        options: what is added to all sums of squares; whether no coordinate is negative; whether the users' coordinates
            of this rank stay as they are.
        sums: shape (items, 2): numerators and denominators are added to it.
    """
    ends, items, a = ratings
    before, now = users
    square, nonnegative, fixed = options
    weighted, all_cells = len(a) > 0, len(linear) > 0
    one = np.float32(1)
    for u in range(len(ends) - 1):
        begin, end = ends[u], ends[u + 1]
        last, old = before[u], now[u]
        above, below = 0.0, 0.0
        if weighted:
            for e in range(begin, end):
                j = items[e]
                v = of_items[j, 1]
                y[e] += a[e] * (old * v - last * of_items[j, 0])
                above += y[e] * v
                below += a[e] * v * v
        else:
            for e in range(begin, end):
                j = items[e]
                v = of_items[j, 1]
                y[e] += old * v - last * of_items[j, 0]
                above += y[e] * v
                below += v * v
        if not fixed:
            if all_cells:
                above -= linear[u]
            below += square + ridge[u]
            new = np.float32(above / below) if below > 0 else np.float32(0)
            now[u] = max(new, np.float32(0)) if nonnegative else new
        new = now[u]
        squared = new * new
        for e in range(begin, end):
            j = items[e]
            sums[j, 0] += y[e] * new
            sums[j, 1] += squared * (a[e] if weighted else one)


@kernel
def count(ends: Int64s, items: Int32s, counted: Float32s, of_users: Float64s, of_items: Float64s) -> None:
    """Add each rating's share in the penalties to its user and its item. ``counted`` is empty if all are 1."""
    for u in range(len(ends) - 1):
        for e in range(ends[u], ends[u + 1]):
            share = 1.0 if not len(counted) else np.float64(counted[e])
            of_users[u] += share
            of_items[items[e]] += share


@reduction
def products(rows: Float32s, rank: int, out: Float64s) -> None:
    """Set ``out`` to the products of one row with every row, of shape (rows, n)."""
    n = rows.shape[1]
    for f in range(len(rows)):
        total = 0.0
        for begin in range(0, n, TILE):
            part = np.float32(0)
            for i in range(begin, min(begin + TILE, n)):
                part += rows[f, i] * rows[rank, i]
            total += np.float64(part)
        out[f] = total


@reduction
def combined(rows: Float32s, scales: Float64s, rank: int, out: Float64s) -> None:
    """Set ``out`` to the sum of all rows but one, each times its scale; rows have the shape (rows, n)."""
    n = rows.shape[1]
    for begin in range(0, n, TILE):
        end = min(begin + TILE, n)
        for i in range(begin, end):
            out[i] = 0.0
        for f in range(len(rows)):
            if f != rank:
                scale = scales[f]
                for i in range(begin, end):
                    out[i] += scale * rows[f, i]
