"""Standard deviations of features as pyspark's Summarizer computes them, and rows divided by them.

In two rounds, so that nothing cancels: the workers' sums give the mean of each feature, and with it the workers compute
squared distances from it. A feature that a row does not hold is 0 in it; these zeros are never visited.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.training.problem import Facts
from ps2.errors import ShapeError
from ps2.ops.kernels import kernel
from ps2.rows import LocalRows

Array = npt.NDArray[Any]
Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ColumnSums:
    """Sums of the first round over some rows; those of several workers add up.

    Attributes:
        sums: float64, shape (k,): of weight times value.
        weights: float64, shape (k,): of the weights of rows where the feature is not 0.
    """

    sums: Float64Array
    weights: Float64Array


def column_sums(rows: LocalRows) -> ColumnSums:
    """Sum the first round over a worker's rows, by its keys."""
    sums, weights = np.zeros(len(rows.keys)), np.zeros(len(rows.keys))
    _add_sums(rows.x.indptr, rows.x.indices, rows.x.data, _weights_of(rows), sums, weights)
    return ColumnSums(sums, weights)


def squared_distances(rows: LocalRows, mean: Array) -> Float64Array:
    """Sum the second round over a worker's rows: weight times (value - mean)^2, where the value is not 0.

    Args:
        rows: of k keys.
        mean: shape (k,): of each key, over all rows of all workers.

    Returns:
        float64, shape (k,).
    """
    _check_columns("mean", mean, rows)
    squares = np.zeros(len(rows.keys))
    mean = np.asarray(mean, np.float64)
    _add_squares(rows.x.indptr, rows.x.indices, rows.x.data, _weights_of(rows), mean, squares)
    return squares


def means(sums: Array, facts: Facts) -> Float64Array:
    """Return the mean of each feature by the sums of the first round."""
    return sums / facts.weight if facts.weight > 0.0 else np.zeros(len(sums))


def deviations(squares: Array, weights: Array, mean: Array, facts: Facts) -> Float64Array:
    """Return the standard deviation of each feature, unbiased for weighted rows.

    Args:
        squares: shape (k,): of the second round, over all workers.
        weights: shape (k,): of the first round, over all workers.
        mean: shape (k,).
        facts: weights of all rows.

    Returns:
        float64, shape (k,); 0 where there is nothing to divide by, or no more than sums of so many rows are rounded by.
    """
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


def inverse(deviation: Array) -> Float64Array:
    """Return 1 / deviation, and 0 where that is 0."""
    inverses = np.zeros(len(deviation))
    np.divide(1.0, deviation, out=inverses, where=np.asarray(deviation) > 0.0)
    return inverses


def scaled(rows: LocalRows, factors: Array) -> LocalRows:
    """Return rows whose features are multiplied by factors, shape (k,); they share all other arrays."""
    _check_columns("factors", factors, rows)
    x = rows.x
    values = np.empty_like(x.data)
    _scale(x.indices, x.data, np.asarray(factors, np.float64), values)
    return replace(rows, x=sp.csr_array((values, x.indices, x.indptr), shape=x.shape))


def _weights_of(rows: LocalRows) -> Float64Array:
    if rows.weights is None:
        return np.ones(len(rows))
    if rows.weights.shape != (len(rows),):
        raise ShapeError(f"weights: expected shape ({len(rows)},), one for each row, got {rows.weights.shape}")
    return rows.weights


def _check_columns(name: str, given: Array, rows: LocalRows) -> None:
    if given.shape != (rows.x.shape[1],):
        raise ShapeError(f"{name}: expected shape ({rows.x.shape[1]},), one for each key, got {given.shape}")


@kernel
def _add_sums(
    indptr: Array, columns: Array, values: Array, c: Float64Array, sums: Float64Array, weights: Float64Array
) -> None:
    for row in range(len(c)):
        for position in range(indptr[row], indptr[row + 1]):
            if values[position] != 0:
                sums[columns[position]] += c[row] * values[position]
                weights[columns[position]] += c[row]


@kernel
def _add_squares(
    indptr: Array, columns: Array, values: Array, c: Float64Array, mean: Float64Array, squares: Float64Array
) -> None:
    for row in range(len(c)):
        for position in range(indptr[row], indptr[row + 1]):
            if values[position] != 0:
                distance = np.float64(values[position]) - mean[columns[position]]
                squares[columns[position]] += c[row] * distance * distance


@kernel
def _scale(columns: Array, values: Array, factors: Float64Array, out: Array) -> None:
    for position in range(len(columns)):
        out[position] = np.float64(values[position]) * factors[columns[position]]
