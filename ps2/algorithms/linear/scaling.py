"""Standard deviations of features as pyspark's Summarizer computes them, and rows divided by them.

In two rounds, so that nothing cancels: the workers' sums give the mean of each feature, and with it the workers compute
squared distances from it. A feature that a row does not hold is 0 in it; these zeros are never visited.

Squares of float64 values may leave its range. So each feature has a power of two h, and the second round is of value *
h^2, which is below 1: the h follow from what the workers say of their largest values in the first round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.linear.problem import Problem
from ps2.algorithms.training.table import Facts
from ps2.array_types import Float64s
from ps2.data.rows import LocalRows
from ps2.data.spilled_rows import KeptRows
from ps2.errors import ShapeError
from ps2.ops.kernels import kernel

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class ColumnSums:
    """Sums of the first round over some rows; those of several workers add up.

    Attributes:
        means: float64, shape (k,): of weight times value, divided by the weight of all rows: they add up to the mean.
        weights: float64, shape (k,): of the weights of rows where the feature is not 0.
        sizes: float64, shape (k,): the root of the largest absolute value. Their sum is at least that of all rows, and
            at most the number of workers times it.
    """

    means: Float64s
    weights: Float64s
    sizes: Float64s


def column_sums(rows: KeptRows, facts: Facts) -> ColumnSums:
    """Sum the first round over a worker's rows, by its keys."""
    sums = np.zeros((3, len(rows.keys)))
    share = 1.0 / facts.weight if facts.weight > 0.0 else 0.0
    for block in rows.blocks():
        _add_sums(block.x.indptr, block.x.indices, block.x.data, _weights_of(block), share, sums)
    return ColumnSums(sums[0], sums[1], np.sqrt(sums[2]))


def shrinking(sizes: Array) -> Float64s:
    """Return the power of two h of each feature, so that its values times h^2 are below 1 and no less than needed."""
    return np.ldexp(1.0, -np.frexp(sizes)[1])


def squared_distances(rows: KeptRows, mean: Array, h: Array) -> Float64s:
    """Sum the second round over a worker's rows: weight times ((value - mean) h^2)^2, where the value is not 0.

    Args:
        rows: of k keys.
        mean: shape (k,): of each key, over all rows of all workers.
        h: shape (k,).

    Returns:
        float64, shape (k,).
    """
    _check_columns("mean", mean, rows)
    _check_columns("h", h, rows)
    squares = np.zeros(len(rows.keys))
    mean_and_h = np.array([mean * h * h, h], np.float64)
    for block in rows.blocks():
        _add_squares(block.x.indptr, block.x.indices, block.x.data, _weights_of(block), mean_and_h, squares)
    return squares


def deviations(squares: Array, weights: Array, mean: Array, h: Array, facts: Facts) -> Float64s:
    """Return the standard deviation of each feature times h^2, unbiased for weighted rows.

    Args:
        squares: shape (k,): of the second round, over all workers.
        weights: shape (k,): of the first round, over all workers.
        mean: shape (k,).
        h: shape (k,).
        facts: weights of all rows.

    Returns:
        float64, shape (k,); 0 where there is nothing to divide by, or no more than sums of so many rows are rounded by.
    """
    mean = mean * h * h
    if not facts.weight > 0.0:
        return np.zeros(len(squares))
    denominator = facts.weight - facts.weight_squared / facts.weight
    if not denominator > 0.0:
        return np.zeros(len(squares))
    rounding = facts.rows * np.finfo(np.float64).eps
    absent = facts.weight - weights
    of_zeros = np.where(absent > rounding * facts.weight, absent, 0.0) * mean**2
    deviation = np.sqrt((squares + of_zeros) / denominator)
    return np.where(deviation > rounding * np.abs(mean), deviation, 0.0)


def inverse(deviation: Array, h: Array) -> Float64s:
    """Return 1 / std by the deviations times h^2: 0 where that is 0, infinite where it is out of float64's range."""
    inverses = np.zeros(len(deviation))
    np.divide(h, deviation, out=inverses, where=np.asarray(deviation) > 0.0)
    with np.errstate(over="ignore"):
        return inverses * h


def conditioning(deviation: Array, mean: Array, h: Array, problem: Problem) -> Float64s:
    """Return the factors of features by which the objective is about as curved along each weight: Jacobi's.

    Args:
        deviation: times h^2.
        mean: that the search does not take care of, shape (k,).
        h: shape (k,).
        problem: whose penalty is on the weights of features as they are given.
    """
    assert problem.curvature is not None
    size = np.hypot(deviation / h / h, mean) * math.sqrt(problem.curvature)
    root = np.hypot(size, math.sqrt(problem.l2))
    return 1.0 / np.where(root > 0.0, root, 1.0)


def scaled(rows: LocalRows, factors: Array) -> LocalRows:
    """Return rows whose features are multiplied by factors, shape (k,); they share all other arrays."""
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


def _check_columns(name: str, given: Array, rows: KeptRows) -> None:
    if given.shape != (len(rows.keys),):
        raise ShapeError(f"{name}: expected shape ({len(rows.keys)},), one for each key, got {given.shape}")


@kernel
def _add_sums(indptr: Array, columns: Array, values: Array, c: Float64s, share: float, sums: Float64s) -> None:
    for row in range(len(c)):
        for position in range(indptr[row], indptr[row + 1]):
            if values[position] != 0:
                column, value = columns[position], np.float64(values[position])
                sums[0, column] += c[row] * share * value
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
