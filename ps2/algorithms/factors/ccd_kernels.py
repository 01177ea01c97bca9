"""Compiled coordinate descent over the vectors of one side, users or items, with fixed vectors of the other side.

The vectors are solved one after the other, each in blocks of ``BLOCK`` coordinates (iALS++: Rendle et al. 2021,
"iALS++: Speeding up Matrix Factorization with Subspace Optimization"). Blocks of one coordinate would be the method of
He et al. 2016, "Fast Matrix Factorization for Online Recommendation with Implicit Feedback".

A rating r of weight w has a curvature a and a target b. Half of the objective is the sum of ``a z^2 / 2 - b z``
over all ratings, with predictions z, plus a constant and terms of no single rating. Explicit feedback has a = w and
b = w r. Implicit feedback has a = w alpha |r|, and b = w + a if r > 0, else 0 (Hu, Koren and Volinsky 2008,
equation 4).

Vectors are float32, shape (n, coordinates): whole blocks, and then the bias if the model has biases. Products of up to
``TILE`` ratings are summed in float32, and these sums in float64. ``z`` has the predictions of a vector's ratings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float32s, Float64s, Int32s, Int64s
from ps2.ops.kernels import inline, inline_reduction, reduction

Array = npt.NDArray[Any]
Columns = tuple[Float32s, Float32s, Float32s, Float32s]

# The number of coordinates solved together, and of the sums for them: numerators, and an upper triangle of products.
BLOCK = 4
SUMS = BLOCK + BLOCK * (BLOCK + 1) // 2
# The number of sweeps of coordinate descent over the coordinates of a block.
SWEEPS = 3
# The number of ratings whose products are summed in float32.
TILE = 256
ZERO, ONE = np.float32(0), np.float32(1)


@reduction
def descend(
    ratings: tuple[Int64s, Int32s, Float32s, Float32s],
    bounds: tuple[int, int],
    vectors: Float32s,
    others: Float32s,
    gram: Float64s,
    ridge: Float64s,
    mean: float,
    flags: tuple[bool, bool, bool],
    losses: Float64s,
) -> None:
    """Solve all coordinates of some vectors once. A vector without ratings does not change.

    Args:
        ratings: 0 and the index after each vector's last rating; each rating's row of ``others``; a (empty: all are
            1); b.
        bounds: the index of the first vector to solve, and the end.
        vectors, others: the vectors of this side, which change, and those of the other side that the ratings need.
        gram: for implicit feedback, the Gram matrix of all vectors of the other side, from which the term z^2 of all
            pairs is computed. Empty for explicit feedback.
        ridge: the weight of each vector's squared norm in the objective.
        flags: whether the model has biases, whether coordinates must be at least 0, and whether feedback is implicit.
        losses: an output: the summed loss of each vector's ratings, w (r - z)^2; for implicit feedback
            a z^2 - 2 b z + b, without the term z^2 of all pairs.
    """
    ends, rows, a, b = ratings
    biases, nonnegative, implicit = flags
    ranks = vectors.shape[1] - biases
    longest = 0
    for u in range(bounds[0], bounds[1]):
        longest = max(longest, ends[u + 1] - ends[u])
    c0, c1 = np.empty(longest, np.float32), np.empty(longest, np.float32)
    c2, c3 = np.empty(longest, np.float32), np.empty(longest, np.float32)
    columns, z = (c0, c1, c2, c3), np.empty(longest, np.float32)
    x, sums = np.empty(ranks), np.empty(SUMS)
    numerators, products, y = np.empty(BLOCK), np.empty((BLOCK, BLOCK)), np.empty(BLOCK)
    for u in range(bounds[0], bounds[1]):
        begin, count = ends[u], ends[u + 1] - ends[u]
        losses[u] = 0.0
        if not count:
            continue
        positions, targets = rows[begin : begin + count], b[begin : begin + count]
        curvatures = a[begin : begin + count] if len(a) else a
        for f in range(ranks):
            x[f] = vectors[u, f]
        _predict(positions, vectors, u, others, mean, biases, z)
        if biases:
            vectors[u, ranks] = _solve_bias(curvatures, targets, vectors[u, ranks], ridge[u], z[:count])
        for first in range(0, ranks, BLOCK):
            for e in range(count):
                # A view of the row would be slower: numba counts references to views.
                j = np.uintp(positions[e])
                c0[e], c1[e], c2[e], c3[e] = (
                    others[j, first],
                    others[j, first + 1],
                    others[j, first + 2],
                    others[j, first + 3],
                )
            _sum_products(columns, z, curvatures, targets, sums)
            index = BLOCK
            for f in range(BLOCK):
                for g in range(f, BLOCK):
                    products[f, g] = products[g, f] = sums[index] + (gram[first + f, first + g] if len(gram) else 0.0)
                    index += 1
                products[f, f] += ridge[u]
                y[f] = x[first + f]
            for f in range(BLOCK):
                value = sums[f] - ridge[u] * y[f]
                if len(gram):
                    gram_row = gram[first + f]
                    pairs_gradient = 0.0
                    for g in range(ranks):
                        pairs_gradient += gram_row[g] * x[g]
                    value -= pairs_gradient
                for g in range(BLOCK):
                    value += products[f, g] * y[g]
                numerators[f] = value
            solve_block(numerators, products, y, nonnegative)
            for f in range(BLOCK):
                vectors[u, first + f] = y[f]
                # From here on, y has the changes of the coordinates, which are rounded to float32.
                y[f], x[first + f] = vectors[u, first + f] - x[first + f], vectors[u, first + f]
            _update_predictions(columns, y, z, count)
        losses[u] = _loss(curvatures, targets, z, implicit)


@inline_reduction
def _predict(rows: Int32s, vectors: Float32s, u: int, others: Float32s, mean: float, biases: bool, z: Float32s) -> None:
    ranks = vectors.shape[1] - biases
    for e in range(len(rows)):
        j = np.uintp(rows[e])
        dot = ZERO
        for f in range(ranks):
            dot += vectors[u, f] * others[j, f]
        z[e] = dot + np.float32(mean)
        if biases:
            z[e] += vectors[u, ranks] + others[j, ranks]


@inline_reduction
def _sum_products(columns: Columns, z: Float32s, a: Float32s, b: Float32s, sums: Float64s) -> None:
    """Set ``sums`` to ``sum (b - a z) q`` and the upper triangle of ``sum a q q^T``; q: a rating's ``columns``."""
    sums[:] = 0.0
    if len(b) <= TILE:
        # No views of the arrays: numba would count references to views.
        _sum_tile(columns, z, a, b, sums)
        return
    c0, c1, c2, c3 = columns
    for begin in range(0, len(b), TILE):
        end = min(begin + TILE, len(b))
        tile = c0[begin:end], c1[begin:end], c2[begin:end], c3[begin:end]
        _sum_tile(tile, z[begin:end], a[begin:end] if len(a) else a, b[begin:end], sums)


@inline_reduction
def _sum_tile(columns: Columns, z: Float32s, a: Float32s, b: Float32s, sums: Float64s) -> None:
    c0, c1, c2, c3 = columns
    has_curvatures = len(a) > 0
    n0 = n1 = n2 = n3 = ZERO
    s00 = s01 = s02 = s03 = s11 = s12 = s13 = s22 = s23 = s33 = ZERO
    for e in range(len(b)):
        curvature = a[e] if has_curvatures else ONE
        residual = b[e] - curvature * z[e]
        v0, v1, v2, v3 = c0[e], c1[e], c2[e], c3[e]
        n0 += residual * v0
        n1 += residual * v1
        n2 += residual * v2
        n3 += residual * v3
        a0, a1, a2 = curvature * v0, curvature * v1, curvature * v2
        s00 += a0 * v0
        s01 += a0 * v1
        s02 += a0 * v2
        s03 += a0 * v3
        s11 += a1 * v1
        s12 += a1 * v2
        s13 += a1 * v3
        s22 += a2 * v2
        s23 += a2 * v3
        s33 += curvature * v3 * v3
    sums[0], sums[1], sums[2], sums[3] = sums[0] + n0, sums[1] + n1, sums[2] + n2, sums[3] + n3
    sums[4], sums[5], sums[6], sums[7] = sums[4] + s00, sums[5] + s01, sums[6] + s02, sums[7] + s03
    sums[8], sums[9], sums[10] = sums[8] + s11, sums[9] + s12, sums[10] + s13
    sums[11], sums[12], sums[13] = sums[11] + s22, sums[12] + s23, sums[13] + s33


@inline
def solve_block(numerators: Float64s, products: Float64s, x: Float64s, nonnegative: bool) -> None:
    """Minimise ``x.products x / 2 - numerators.x`` over ``x`` by coordinate descent, in place."""
    inverse = np.empty(BLOCK)
    for f in range(BLOCK):
        inverse[f] = 1.0 / products[f, f] if products[f, f] > 0 else 0.0
    for _ in range(SWEEPS):
        for f in range(BLOCK):
            value = numerators[f] + products[f, f] * x[f]
            for g in range(BLOCK):
                value -= products[f, g] * x[g]
            value *= inverse[f]
            x[f] = max(value, 0.0) if nonnegative else value


@inline_reduction
def _update_predictions(columns: Columns, changes: Float64s, z: Float32s, count: int) -> None:
    c0, c1, c2, c3 = columns
    d0, d1, d2, d3 = np.float32(changes[0]), np.float32(changes[1]), np.float32(changes[2]), np.float32(changes[3])
    for e in range(count):
        z[e] += d0 * c0[e] + d1 * c1[e] + d2 * c2[e] + d3 * c3[e]


@inline_reduction
def _solve_bias(a: Float32s, b: Float32s, old: np.float32, ridge: float, z: Float32s) -> np.float32:
    """Return the bias that minimises the objective, and update the predictions ``z``; ``old`` is the bias in them."""
    numerator, denominator = 0.0, 0.0
    for e in range(len(z)):
        curvature = np.float64(a[e]) if len(a) else 1.0
        numerator += b[e] - curvature * (z[e] - old)
        denominator += curvature
    denominator += ridge
    new = np.float32(numerator / denominator) if denominator > 0 else ZERO
    for e in range(len(z)):
        z[e] += new - old
    return new


@inline_reduction
def _loss(a: Float32s, b: Float32s, z: Float32s, implicit: bool) -> float:
    """Return the loss of a vector's ratings; see ``descend``."""
    loss = 0.0
    for e in range(len(b)):
        curvature = np.float64(a[e]) if len(a) else 1.0
        prediction, target = np.float64(z[e]), np.float64(b[e])
        if implicit:
            loss += curvature * prediction * prediction - 2.0 * target * prediction + target
        elif curvature > 0:
            residual = target - curvature * prediction
            loss += residual * residual / curvature
    return loss


@reduction
def sum_losses(
    ratings: tuple[Int64s, Int32s, Float32s, Float32s],
    vectors: Float32s,
    others: Float32s,
    mean: float,
    flags: tuple[bool, bool, bool],
    losses: Float64s,
) -> None:
    """Sum the loss of each vector's ratings without changing vectors; arguments as in ``descend``."""
    ends, rows, a, b = ratings
    biases, _, implicit = flags
    for u in range(len(ends) - 1):
        begin, end = ends[u], ends[u + 1]
        z = np.empty(end - begin, np.float32)
        _predict(rows[begin:end], vectors, u, others, mean, biases, z)
        losses[u] = _loss(a[begin:end] if len(a) else a, b[begin:end], z, implicit)


@reduction
def multiply_rows(rows: Float32s, first: int, out: Float64s) -> None:
    """Set ``out``, shape (``BLOCK``, n), to the products of ``BLOCK`` rows, from ``first`` on, with all n rows."""
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
