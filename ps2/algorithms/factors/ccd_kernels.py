"""Coordinate descent over the ratings of a worker's users, compiled.

All coordinates of a block of ranks are changed before those of the next one (CCD++, where a block is one rank: Yu et
al. 2012, "Scalable Coordinate Descent Approaches to Parallel Matrix Factorization for Recommender Systems", section
3.2; blocks: Rendle et al. 2021, "iALS++: Speeding up Matrix Factorization with Subspace Optimization").

A rating has a curvature a and a target b, and the objective is the sum of ``a x^2 / 2 - b x`` over ratings, x the
prediction, and of terms that do not depend on single ratings. Explicit feedback has a = w and b = w r; implicit
feedback has a = alpha |r|, and b = 1 + a where r > 0, else 0 (Hu, Koren and Volinsky 2008, equation 4). So
``y = b - a x`` is the residual of both.

Factors are float32 and lie rank by rank, shape (rank, users) and (rank, items). Sums of a user's and of an item's
ratings are float64. Ratings lie user by user; those of user u are ``ends[u]`` to ``ends[u + 1]``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.factors.ops import BLOCK, solve_block
from ps2.ops.kernels import Float64s, Int64s, kernel, reduction

Float32s = npt.NDArray[np.float32]
Int32s = npt.NDArray[np.int32]
Array = npt.NDArray[Any]

# Numbers whose products are summed in float32.
TILE = 256
ZERO, ONE = np.float32(0), np.float32(1)


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
    cells: tuple[Float64s, Float64s],
    nonnegative: bool,
    sums: Float64s,
) -> None:
    """Solve all users' coordinates of one block of ranks, and sum what the items' coordinates need.

    The residuals still lack the change of the block before, which is made up for on the way: each rating is read once.

    Args:
        ratings: ends, items, and a of each rating; empty: all are 1.
        y: residuals; on return those without the products of this block.
        users: shape (users, BLOCK): the coordinates of the block before, and those of this block, which are changed.
        of_items: shape (items, 2 BLOCK): the coordinates of the block before, as they are now, and those of this block.
        ridge: what is added to each user's sums of squares.
        cells: all cells: what is subtracted from users' numerators, shape (users, BLOCK), and what is added to sums of
            products, shape (BLOCK, BLOCK); empty, and zeros: only given ratings count.
        nonnegative: no coordinate is negative.
        sums: shape (items, SUMS): BLOCK numerators and the products' upper triangle, row by row, are added to it.
    """
    ends, items, a = ratings
    before, now = users
    linear, gram = cells
    weighted, all_cells = len(a) > 0, len(linear) > 0
    above, below, x = np.empty(BLOCK), np.empty((BLOCK, BLOCK)), np.empty(BLOCK)
    for u in range(len(ends) - 1):
        begin, end = ends[u], ends[u + 1]
        l0, l1, l2, l3 = before[u, 0], before[u, 1], before[u, 2], before[u, 3]
        o0, o1, o2, o3 = now[u, 0], now[u, 1], now[u, 2], now[u, 3]
        above[:] = 0.0
        below[:] = 0.0
        for chunk in range(begin, end, TILE):
            n0 = n1 = n2 = n3 = ZERO
            s00 = s01 = s02 = s03 = s11 = s12 = s13 = s22 = s23 = s33 = ZERO
            for e in range(chunk, min(chunk + TILE, end)):
                # Not a view of the item's row: numba would count a reference to it, which takes longer than the sums.
                j = np.uintp(items[e])
                w = a[e] if weighted else ONE
                v0, v1, v2, v3 = of_items[j, 4], of_items[j, 5], of_items[j, 6], of_items[j, 7]
                gone = l0 * of_items[j, 0] + l1 * of_items[j, 1] + l2 * of_items[j, 2] + l3 * of_items[j, 3]
                residual = y[e] + w * ((o0 * v0 + o1 * v1 + o2 * v2 + o3 * v3) - gone)
                y[e] = residual
                n0 += residual * v0
                n1 += residual * v1
                n2 += residual * v2
                n3 += residual * v3
                w0, w1, w2 = w * v0, w * v1, w * v2
                s00 += w0 * v0
                s01 += w0 * v1
                s02 += w0 * v2
                s03 += w0 * v3
                s11 += w1 * v1
                s12 += w1 * v2
                s13 += w1 * v3
                s22 += w2 * v2
                s23 += w2 * v3
                s33 += w * v3 * v3
            above[0], above[1], above[2], above[3] = above[0] + n0, above[1] + n1, above[2] + n2, above[3] + n3
            below[0, 0], below[0, 1] = below[0, 0] + s00, below[0, 1] + s01
            below[0, 2], below[0, 3] = below[0, 2] + s02, below[0, 3] + s03
            below[1, 1], below[1, 2], below[1, 3] = below[1, 1] + s11, below[1, 2] + s12, below[1, 3] + s13
            below[2, 2], below[2, 3], below[3, 3] = below[2, 2] + s22, below[2, 3] + s23, below[3, 3] + s33
        for f in range(BLOCK):
            x[f] = now[u, f]
            if all_cells:
                above[f] -= linear[u, f]
            for g in range(f, BLOCK):
                below[f, g] += gram[f, g]
            below[f, f] += ridge[u]
        solve_block(above, below, x, BLOCK, nonnegative)
        for f in range(BLOCK):
            now[u, f] = x[f]
        o0, o1, o2, o3 = now[u, 0], now[u, 1], now[u, 2], now[u, 3]
        q0, q1, q2, q3, q4 = o0 * o0, o0 * o1, o0 * o2, o0 * o3, o1 * o1
        q5, q6, q7, q8, q9 = o1 * o2, o1 * o3, o2 * o2, o2 * o3, o3 * o3
        for e in range(begin, end):
            j, residual = np.uintp(items[e]), y[e]
            w = a[e] if weighted else ONE
            sums[j, 0] += residual * o0
            sums[j, 1] += residual * o1
            sums[j, 2] += residual * o2
            sums[j, 3] += residual * o3
            sums[j, 4] += w * q0
            sums[j, 5] += w * q1
            sums[j, 6] += w * q2
            sums[j, 7] += w * q3
            sums[j, 8] += w * q4
            sums[j, 9] += w * q5
            sums[j, 10] += w * q6
            sums[j, 11] += w * q7
            sums[j, 12] += w * q8
            sums[j, 13] += w * q9


@reduction
def descend_biases(
    ratings: tuple[Int64s, Int32s, Float32s],
    y: Float32s,
    biases: tuple[Float32s, Float32s],
    ridge: Float32s,
    sums: Float64s,
) -> None:
    """Solve all users' biases, and sum what the items' biases need.

    Args:
        ratings, ridge: as of ``descend``.
        y: residuals; on return those without the items' biases.
        biases: of the users, which are changed, and of all items.
        sums: shape (items, SUMS): the numerators and denominators of items are added to its first columns.
    """
    ends, items, a = ratings
    of_users, of_items = biases
    for u in range(len(ends) - 1):
        above, below, old = 0.0, 0.0, of_users[u]
        for e in range(ends[u], ends[u + 1]):
            w = a[e] if len(a) else ONE
            above += y[e] + w * old
            below += np.float64(w)
        below += ridge[u]
        new = np.float32(above / below) if below > 0 else ZERO
        of_users[u] = new
        for e in range(ends[u], ends[u + 1]):
            j, w = items[e], a[e] if len(a) else ONE
            y[e] += w * (old - new + of_items[j])
            sums[j, 0] += y[e]
            sums[j, 1] += w


@kernel
def count(ends: Int64s, items: Int32s, counted: Float32s, of_users: Float64s, of_items: Float64s) -> None:
    """Add each rating's share in the penalties to its user and its item. ``counted`` is empty if all are 1."""
    for u in range(len(ends) - 1):
        for e in range(ends[u], ends[u + 1]):
            share = 1.0 if not len(counted) else np.float64(counted[e])
            of_users[u] += share
            of_items[items[e]] += share


@reduction
def products(rows: Float32s, first: int, out: Float64s) -> None:
    """Set ``out`` to the products of a block of rows with every row; rows have the shape (rows, n).

    Not by BLAS: its threads wait for more work without giving up their core, which the servers need.
    """
    out[:] = 0.0
    for begin in range(0, rows.shape[1], TILE):
        end = min(begin + TILE, rows.shape[1])
        a0, a1 = rows[first, begin:end], rows[first + 1, begin:end]
        a2, a3 = rows[first + 2, begin:end], rows[first + 3, begin:end]
        for g in range(len(rows)):
            b = rows[g, begin:end]
            s0 = s1 = s2 = s3 = ZERO
            for i in range(len(b)):
                s0 += a0[i] * b[i]
                s1 += a1[i] * b[i]
                s2 += a2[i] * b[i]
                s3 += a3[i] * b[i]
            out[0, g] += np.float64(s0)
            out[1, g] += np.float64(s1)
            out[2, g] += np.float64(s2)
            out[3, g] += np.float64(s3)


@reduction
def combined(rows: Float32s, scales: Float64s, first: int, out: Float64s) -> None:
    """Set ``out`` to the sums of all rows but a block, each row times its scales of shape (BLOCK, rows)."""
    for begin in range(0, rows.shape[1], TILE):
        end = min(begin + TILE, rows.shape[1])
        to0, to1, to2, to3 = out[0, begin:end], out[1, begin:end], out[2, begin:end], out[3, begin:end]
        for i in range(end - begin):
            to0[i] = to1[i] = to2[i] = to3[i] = 0.0
        for f in range(len(rows)):
            if first <= f < first + BLOCK:
                continue
            row = rows[f, begin:end]
            s0, s1, s2, s3 = scales[0, f], scales[1, f], scales[2, f], scales[3, f]
            for i in range(len(row)):
                to0[i] += s0 * row[i]
                to1[i] += s1 * row[i]
                to2[i] += s2 * row[i]
                to3[i] += s3 * row[i]
