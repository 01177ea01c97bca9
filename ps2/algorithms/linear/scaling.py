"""Standard deviations of features as pyspark's Summarizer computes them, and rows scaled by factors.

Two rounds avoid cancellation: workers sum the mean of each feature, then the squared distances from the mean. A feature
that a row does not store is 0 in that row. Loops visit only stored values; zeros are added at the end.

Squares of float64 values may overflow. So the first round also finds the largest value of each feature, from which a
power of two h follows. The second round sums squared distances of value * h^2, which is below 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.training.table import Facts
from ps2.array_types import Float64s
from ps2.data.rows import LocalRows
from ps2.data.spilled_rows import KeptRows
from ps2.errors import ShapeError
from ps2.ops.kernels import kernel
from ps2.ops.table import Array


@dataclass(frozen=True, eq=False)
class ColumnSums:
    """The first round's sums over a worker's rows, float64, shape (k,); the sums of several workers add up.

    Attributes:
        means: the sum of weight times value, divided by the weight of all workers' rows.
        weights: the weight of the rows where the feature is not 0.
        sizes: the square root of the largest absolute value; the sum over workers is an upper bound for all rows.
    """

    means: Float64s
    weights: Float64s
    sizes: Float64s


def column_sums(rows: KeptRows, facts: Facts) -> ColumnSums:
    """Return the first round's sums over a worker's rows, in the order of their keys."""
    sums = np.zeros((3, len(rows.keys)))
    factor = 1.0 / facts.weight if facts.weight > 0.0 else 0.0
    for block in rows.blocks():
        _add_sums(block.x.indptr, block.x.indices, block.x.data, _weights_of(block), factor, sums)
    return ColumnSums(sums[0], sums[1], np.sqrt(sums[2]))


def shrink_factors(sizes: Array) -> Float64s:
    """Return each feature's h, a power of two for which all its values times h^2 are below 1."""
    return np.ldexp(1.0, -np.frexp(sizes)[1])


def squared_distances(rows: KeptRows, mean: Array, h: Array) -> Float64s:
    """Return the second round's sums over a worker's nonzero values: weight times ((value - mean) h^2)^2.

    ``mean`` (of all workers' rows), ``h`` and the result have shape (k,).
    """
    _check_columns("mean", mean, rows)
    _check_columns("h", h, rows)
    squares = np.zeros(len(rows.keys))
    mean_and_h = np.array([mean * h * h, h], np.float64)
    for block in rows.blocks():
        _add_squares(block.x.indptr, block.x.indices, block.x.data, _weights_of(block), mean_and_h, squares)
    return squares


def deviations(squares: Array, weights: Array, mean: Array, h: Array, facts: Facts) -> Float64s:
    """Return each feature's standard deviation times h^2, unbiased for weighted rows; 0 if it is only rounding error.

    ``squares``, ``weights`` and ``mean`` are sums over all workers; all arrays have shape (k,).
    """
    mean = mean * h * h
    if not facts.weight > 0.0:
        return np.zeros(len(squares))
    denominator = facts.weight - facts.weight_squared / facts.weight
    if not denominator > 0.0:
        return np.zeros(len(squares))
    rounding = facts.rows * np.finfo(np.float64).eps
    zero_weights = facts.weight - weights
    zero_squares = np.where(zero_weights > rounding * facts.weight, zero_weights, 0.0) * mean**2
    deviation = np.sqrt((squares + zero_squares) / denominator)
    return np.where(deviation > rounding * np.abs(mean), deviation, 0.0)


def inverse(deviation: Array, h: Array) -> Float64s:
    """Return 1 / std, given deviations times h^2: 0 where the deviation is 0, infinite where 1 / std overflows."""
    inverses = np.zeros(len(deviation))
    np.divide(h, deviation, out=inverses, where=np.asarray(deviation) > 0.0)
    with np.errstate(over="ignore"):
        return inverses * h


def preconditioner(deviation: Array, mean: Array, h: Array, problem: Problem) -> Float64s:
    """Return factors of features that give the objective similar second derivatives along all weights (Jacobi).

    ``deviation`` is the standard deviation times h^2; ``mean`` is 0 if the solver centres features.
    """
    assert problem.curvature is not None
    # The root of the approximate second derivative: curvature * mean square of the feature + l2.
    loss_root = np.hypot(deviation / h / h, mean) * math.sqrt(problem.curvature)
    root = np.hypot(loss_root, math.sqrt(problem.l2))
    return 1.0 / np.where(root > 0.0, root, 1.0)


def scaled(rows: LocalRows, factors: Array) -> LocalRows:
    """Return rows with features multiplied by factors, shape (k,); all other arrays are shared with ``rows``."""
    _check_columns("factors", factors, rows)
    x = rows.x
    values = np.empty_like(x.data)
    _scale(x.indices, x.data, np.asarray(factors, np.float64), values)
    return replace(rows, x=sp.csr_array((values, x.indices, x.indptr), shape=x.shape))


def _weights_of(rows: LocalRows) -> Float64s:
    if rows.weights is None:
        return np.ones(len(rows))
    if rows.weights.shape != (len(rows),):
        raise ShapeError(f"weights: expected shape ({len(rows)},), one for each row, got {rows.weights.shape}")
    return rows.weights


def _check_columns(name: str, array: Array, rows: KeptRows) -> None:
    if array.shape != (len(rows.keys),):
        raise ShapeError(f"{name}: expected shape ({len(rows.keys)},), one for each key, got {array.shape}")


@kernel
def _add_sums(indptr: Array, columns: Array, values: Array, c: Float64s, factor: float, sums: Float64s) -> None:
    for row in range(len(c)):
        for position in range(indptr[row], indptr[row + 1]):
            if values[position] != 0:
                column, value = columns[position], np.float64(values[position])
                sums[0, column] += c[row] * factor * value
                sums[1, column] += c[row]
                sums[2, column] = max(sums[2, column], abs(value))


@kernel
def _add_squares(
    indptr: Array, columns: Array, values: Array, c: Float64s, mean_and_h: Float64s, squares: Float64s
) -> None:
    for row in range(len(c)):
        for position in range(indptr[row], indptr[row + 1]):
            if values[position] != 0:
                column = columns[position]
                mean, h = mean_and_h[0, column], mean_and_h[1, column]
                distance = np.float64(values[position]) * h * h - mean
                squares[column] += c[row] * distance * distance


@kernel
def _scale(columns: Array, values: Array, factors: Float64s, out: Array) -> None:
    for position in range(len(columns)):
        out[position] = np.float64(values[position]) * factors[columns[position]]
