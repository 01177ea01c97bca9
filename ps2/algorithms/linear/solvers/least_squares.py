"""Least squares with penalties, by the products of features that the normal equations are made of; pure functions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.optimize

from ps2.data.rows import LocalRows

Array = npt.NDArray[Any]
Float64Array = npt.NDArray[np.float64]

# Entries of a block of rows as a dense matrix: 32 MiB.
BLOCK_ENTRIES = 1 << 22
# Rows with a smaller share of entries are multiplied as sparse ones.
DENSE_FROM = 0.1
# A pivot of the Cholesky factor that is smaller, by the roundings of one feature, is none.
SINGULAR = 16 * np.finfo(np.float64).eps


@dataclass(frozen=True, eq=False)
class Products:
    """Sums over rows, each times its weight, of features and labels less their means.

    Attributes:
        xx: float64, shape (k, k): of features with each other.
        xy: float64, shape (k,): of features with the label.
        yy: of the label with itself.
    """

    xx: Float64Array
    xy: Float64Array
    yy: float

    def packed(self) -> Float64Array:
        """Return all of it as one array, shape (packed_size(k),), of which those of several workers add up."""
        return np.concatenate([self.xx[_upper(len(self.xy))], self.xy, [self.yy]])

    @staticmethod
    def unpacked(packed: Float64Array, k: int) -> Products:
        xx = np.zeros((k, k))
        xx[_upper(k)] = packed[: -k - 1]
        return Products(np.triu(xx, 1).T + xx, packed[-k - 1 : -1], float(packed[-1]))


def packed_size(k: int) -> int:
    return k * (k + 1) // 2 + k + 1


def products(rows: LocalRows, mean: Float64Array, label_mean: float) -> Products:
    """Sum over a worker's rows.

    Args:
        rows: with labels, of some keys.
        mean: shape (k,): of all features, those that no row of the worker has among them.
        label_mean: of all rows.
    """
    assert rows.y is not None
    k, c = len(mean), np.ones(len(rows)) if rows.weights is None else rows.weights
    y = rows.y - label_mean
    yy = float(c @ y**2)
    if rows.x.nnz < DENSE_FROM * len(rows) * k:
        return _sparse_products(rows, mean, c, y, yy)
    xx, xy = np.zeros((k, k)), np.zeros(k)
    step = max(1, BLOCK_ENTRIES // k)
    for begin in range(0, len(rows), step):
        part = slice(begin, begin + step)
        block = np.zeros((len(y[part]), k))
        block[:, rows.keys] = rows.x[part].toarray()
        block -= mean
        root = np.sqrt(c[part])
        block *= root[:, None]
        xx += block.T @ block
        xy += block.T @ (root * y[part])
    return Products(xx, xy, yy)


def _sparse_products(rows: LocalRows, mean: Float64Array, c: Float64Array, y: Float64Array, yy: float) -> Products:
    k, x = len(mean), rows.x
    weighted = x.multiply(c[:, None]).tocsr()
    xx, xy, sums = np.zeros((k, k)), np.zeros(k), np.zeros(k)
    xx[np.ix_(rows.keys, rows.keys)] = (weighted.T @ x).toarray()
    xy[rows.keys], sums[rows.keys] = weighted.T @ y, np.asarray(weighted.sum(axis=0)).reshape(-1)
    crossed = np.outer(sums, mean)
    xx += c.sum() * np.outer(mean, mean) - crossed - crossed.T
    return Products(xx, xy - mean * (c @ y), yy)


@dataclass(frozen=True, eq=False)
class Solution:
    """Weights that minimise 1/2 w' xx w - xy' w + l1' |w| + 1/2 l2' w^2.

    Attributes:
        w: float64, shape (k,).
        factor: the Cholesky factor of xx + diag(l2), upper; None: the matrix is singular, or there is an L1 penalty.
    """

    w: Float64Array
    factor: Float64Array | None = None

    def inverse_diagonal(self) -> Float64Array:
        """Return the diagonal of (xx + diag(l2))^-1."""
        inverse, failed = scipy.linalg.lapack.dpotri(self.factor)
        assert not failed
        return np.asarray(np.diag(inverse))

    def inverse_form(self, v: Float64Array) -> float:
        """Return v' (xx + diag(l2))^-1 v."""
        root = scipy.linalg.solve_triangular(self.factor, v, trans="T")
        return float(root @ root)


def solve(of: Products, l1: Float64Array, l2: Float64Array, steps: int, tol: float) -> Solution:
    """Solve the normal equations; where they are singular, for the shortest weights; with an L1 penalty by L-BFGS-B.

    Args:
        of: of features whose sizes are alike.
        l1: shape (k,).
        l2: shape (k,).
        steps: of L-BFGS-B at most.
        tol: it stops when the objective improves by less than this, relatively.
    """
    a, k = of.xx + np.diag(l2), len(of.xy)
    if l1.any():
        return Solution(_with_l1(a, of, l1, steps, tol))
    factor, failed = scipy.linalg.lapack.dpotrf(a)
    if failed or (np.diag(factor) ** 2 <= SINGULAR * k * np.diag(a)).any():
        return Solution(np.asarray(np.linalg.lstsq(a, of.xy, rcond=SINGULAR * k)[0], np.float64))
    return Solution(scipy.linalg.cho_solve((factor, False), of.xy), factor)


def _with_l1(a: Float64Array, of: Products, l1: Float64Array, steps: int, tol: float) -> Float64Array:
    """Return weights as differences of numbers that are not negative, of labels of size 1."""
    size = math.sqrt(of.yy) or 1.0
    xy, l1 = of.xy / size, l1 / size

    def objective(halves: Float64Array) -> tuple[float, Float64Array]:
        plus, minus = halves.reshape(2, -1)
        slope = a @ (plus - minus) - xy
        value = 0.5 * (plus - minus) @ (slope - xy) + l1 @ (plus + minus)
        return float(value), np.concatenate([l1 + slope, l1 - slope])

    found = scipy.optimize.minimize(
        objective,
        np.zeros(2 * len(l1)),
        method="L-BFGS-B",
        jac=True,
        bounds=[(0, None)] * (2 * len(l1)),
        options={"maxiter": steps, "maxfun": 20 * steps + 1, "ftol": tol, "gtol": 0.0},
    )
    plus, minus = found.x.reshape(2, -1)
    return np.asarray((plus - minus) * size)


def objective(of: Products, w: Float64Array, l1: Float64Array, l2: Float64Array) -> float:
    """Return half the mean squared error and the penalties at weights."""
    return float(0.5 * of.yy - of.xy @ w + 0.5 * w @ of.xx @ w + l1 @ np.abs(w) + 0.5 * l2 @ w**2)


def _upper(k: int) -> npt.NDArray[np.bool_]:
    """Return which entries of a matrix are its diagonal and those above."""
    return np.tri(k, dtype=np.bool_).T
