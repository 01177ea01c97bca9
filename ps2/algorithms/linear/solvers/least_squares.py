"""Least squares with penalties by the normal equations, from sums of products of features; pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # its modules load on first use

from ps2.array_types import Float64s
from ps2.data.rows import LocalRows
from ps2.data.spilled_rows import KeptRows

Array = npt.NDArray[Any]

# The number of entries of a block of rows as a dense matrix: 32 MiB.
BLOCK_ENTRIES = 1 << 22
# Rows with at least this share of stored entries are multiplied as dense matrices.
DENSE_FROM = 0.1
# Means up to this number of standard deviations are subtracted from sums of products, which loses at most one digit. A
# feature with a larger mean is stored in most rows, so as a dense column it takes little more memory.
SMALL_MEAN = 1.0
# With a pivot below this number for each feature, the matrix is singular.
SINGULAR = 16 * np.finfo(np.float64).eps


@dataclass(frozen=True, eq=False)
class Products:
    """Weighted sums over rows of products of k features x and the label y, all less their means."""

    xx: Float64s
    xy: Float64s
    yy: float

    def packed(self) -> Float64s:
        """Return one array of ``packed_size(k)`` numbers; the arrays of several workers add up."""
        return np.concatenate([self.xx[_upper(len(self.xy))], self.xy, [self.yy]])

    @staticmethod
    def unpacked(packed: Float64s, k: int) -> Products:
        xx = np.zeros((k, k))
        xx[_upper(k)] = packed[: -k - 1]
        return Products(np.triu(xx, 1).T + xx, packed[-k - 1 : -1], float(packed[-1]))


def packed_size(k: int) -> int:
    return k * (k + 1) // 2 + k + 1


def products(rows: KeptRows, mean: Float64s, label_mean: float) -> Products:
    """Return the sums over a worker's rows; ``mean`` and ``label_mean`` are those of all workers' rows.

    The rows of all workers together have features with standard deviations of about 1.
    """
    xx, xy, yy = np.zeros((len(mean), len(mean))), np.zeros(len(mean)), 0.0
    for block in rows.blocks():
        yy += _add_products(block, mean, label_mean, xx, xy)
    return Products(xx, xy, yy)


def _add_products(rows: LocalRows, mean: Float64s, label_mean: float, xx: Float64s, xy: Float64s) -> float:
    """Add the products of a block's features to ``xx`` and ``xy``; return the product of its labels."""
    assert rows.y is not None
    k, c = len(mean), np.ones(len(rows)) if rows.weights is None else rows.weights
    y = rows.y - label_mean
    is_dense = rows.x.nnz >= DENSE_FROM * len(rows) * k
    columns = np.arange(k) if is_dense else np.flatnonzero(np.abs(mean) > SMALL_MEAN)
    dense = _DenseColumns(rows, columns, mean[columns])
    if not is_dense:
        _add_sparse_products(dense, mean, c, y, xx, xy)
    pairs = np.ix_(columns, columns)
    for part, block in dense.blocks():
        root = np.sqrt(c[part])
        block *= root[:, None]
        xx[pairs] += block.T @ block
        xy[columns] += block.T @ (root * y[part])
    return float(c @ y**2)


@dataclass(frozen=True, eq=False)
class _DenseColumns:
    """The columns of some features, ascending, less their means, which are subtracted before sums: nothing cancels."""

    rows: LocalRows
    columns: npt.NDArray[np.int64]
    mean: Float64s

    def blocks(self) -> Iterator[tuple[slice, Float64s]]:
        """Yield slices of rows, and the features of these rows less the means."""
        rows, columns = self.rows, self.columns
        if not len(columns):
            return
        positions = np.searchsorted(columns, rows.keys)
        has = columns[np.minimum(positions, len(columns) - 1)] == rows.keys
        x = rows.x[:, has] if not has.all() else rows.x
        step = max(1, BLOCK_ENTRIES // len(columns))
        for begin in range(0, len(rows), step):
            part = slice(begin, min(begin + step, len(rows)))
            block = np.zeros((part.stop - begin, len(columns)))
            block[:, positions[has]] = x[part].toarray()
            block -= self.mean
            yield part, block


def slopes(rows: KeptRows, mean: Float64s, label_mean: float, w: Float64s) -> Float64s:
    """Sum over a worker's rows the features, less their means, times the residuals of weights: ``xy - xx w``.

    Computed from rows, the result has more correct digits than ``xy - xx w`` computed from products.
    """
    return sum((_block_slopes(block, mean, label_mean, w) for block in rows.blocks()), np.zeros(len(mean)))


def _block_slopes(rows: LocalRows, mean: Float64s, label_mean: float, w: Float64s) -> Float64s:
    assert rows.y is not None
    c = np.ones(len(rows)) if rows.weights is None else rows.weights
    sums, columns = np.zeros(len(mean)), np.flatnonzero(np.abs(mean) > SMALL_MEAN)
    dense = _DenseColumns(rows, columns, mean[columns])
    sparse = np.flatnonzero(~np.isin(rows.keys, columns))
    x, keys = rows.x[:, sparse], rows.keys[sparse]
    small = mean.copy()
    small[columns] = 0.0
    residuals = rows.y - label_mean - (x @ w[keys] - small @ w)
    for part, block in dense.blocks():
        residuals[part] -= block @ w[columns]
    residuals *= c
    sums[keys] = x.T @ residuals
    sums -= small * residuals.sum()
    for part, block in dense.blocks():
        sums[columns] += block.T @ residuals[part]
    return sums


def _add_sparse_products(
    dense: _DenseColumns, mean: Float64s, c: Float64s, y: Float64s, xx: Float64s, xy: Float64s
) -> None:
    """Add the products of the other features, whose means are small, with each other, with ``dense`` and the label."""
    rows = dense.rows
    sparse = np.flatnonzero(~np.isin(rows.keys, dense.columns))
    x, keys, k = rows.x[:, sparse], rows.keys[sparse], len(mean)
    weighted = x.multiply(c[:, None]).tocsr()
    small, sums = mean.copy(), np.zeros(k)
    small[dense.columns] = 0.0
    xx[np.ix_(keys, keys)] += (weighted.T @ x).toarray()
    xy[keys] += weighted.T @ y
    sums[keys] = np.asarray(weighted.sum(axis=0)).reshape(-1)
    crossed = np.outer(sums, small)
    xx += c.sum() * np.outer(small, small) - crossed - crossed.T
    xy -= small * (c @ y)
    for part, block in dense.blocks():
        with_dense = np.zeros((k, len(dense.columns)))
        with_dense[keys] = weighted[part].T @ block
        with_dense -= np.outer(small, c[part] @ block)
        xx[:, dense.columns] += with_dense
        xx[dense.columns] += with_dense.T


@dataclass(frozen=True, eq=False)
class Solution:
    """Weights that minimise 1/2 w' xx w - xy' w + l1' |w| + 1/2 l2' w^2.

    Attributes:
        factor: the upper Cholesky factor of xx + diag(l2); None: the matrix is singular, or there is an L1 penalty.
        pivot: the smallest share of a feature's product with itself that the features before it do not explain. The
            relative error of the weights is about 1e-16 divided by this share.
        feature: the feature with the smallest share.
    """

    w: Float64s
    factor: Float64s | None = None
    pivot: float = 1.0
    feature: int = 0

    def refined(self, residual: Float64s) -> Solution:
        """Return better weights from the residual xy - (xx + diag(l2)) w (seminormal equations: Björck 1987)."""
        return replace(self, w=self.w + scipy.linalg.cho_solve((self.factor, False), residual))

    def inverse_diagonal(self) -> Float64s:
        """Return the diagonal of (xx + diag(l2))^-1."""
        inverse, failed = scipy.linalg.lapack.dpotri(self.factor)
        assert not failed
        return np.asarray(np.diag(inverse))

    def inverse_form(self, v: Float64s) -> float:
        """Return v' (xx + diag(l2))^-1 v."""
        root = scipy.linalg.solve_triangular(self.factor, v, trans="T")
        return float(root @ root)


def solve(sums: Products, l1: Float64s, l2: Float64s, steps: int, tol: float) -> Solution:
    """Solve the normal equations. If they are singular, the weights have minimum norm. An L1 penalty needs L-BFGS-B.

    Features have about the same size. ``steps`` and ``tol`` are the arguments of L-BFGS-B.
    """
    a, k = sums.xx + np.diag(l2), len(sums.xy)
    if l1.any():
        return Solution(_with_l1(a, sums, l1, steps, tol))
    # A constant feature, less its mean, is 0. With any number on the diagonal, its weight becomes 0.
    a[np.diag_indices(k)] += np.diag(a) == 0.0
    factor, failed = scipy.linalg.lapack.dpotrf(a)
    # If the factorization failed, it is defined up to the first column whose pivot is not positive.
    pivots = (np.diag(factor) ** 2 / np.diag(a))[: failed - 1 if failed else k]
    feature = failed - 1 if failed else int(np.argmin(pivots))
    if failed or pivots[feature] <= SINGULAR * k:
        w = np.asarray(np.linalg.lstsq(a, sums.xy, rcond=SINGULAR)[0], np.float64)
        return Solution(w, pivot=0.0, feature=feature)
    return Solution(scipy.linalg.cho_solve((factor, False), sums.xy), factor, float(pivots[feature]), feature)


def _with_l1(a: Float64s, sums: Products, l1: Float64s, steps: int, tol: float) -> Float64s:
    """Minimise with an L1 penalty: each weight is the difference of two nonnegative numbers. Labels are scaled."""
    label_size = math.sqrt(sums.yy) or 1.0
    xy, l1 = sums.xy / label_size, l1 / label_size

    def objective(halves: Float64s) -> tuple[float, Float64s]:
        plus, minus = halves.reshape(2, -1)
        slope = a @ (plus - minus) - xy
        value = 0.5 * (plus - minus) @ (slope - xy) + l1 @ (plus + minus)
        return float(value), np.concatenate([l1 + slope, l1 - slope])

    minimum = scipy.optimize.minimize(
        objective,
        np.zeros(2 * len(l1)),
        method="L-BFGS-B",
        jac=True,
        bounds=[(0, None)] * (2 * len(l1)),
        options={"maxiter": steps, "maxfun": 20 * steps + 1, "ftol": tol, "gtol": 0.0},
    )
    plus, minus = minimum.x.reshape(2, -1)
    return np.asarray((plus - minus) * label_size)


def objective(sums: Products, w: Float64s, l1: Float64s, l2: Float64s) -> float:
    """Return half the mean squared error and the penalties at weights."""
    # Rounding may make the squared error of a perfect fit negative.
    squares = max(float(0.5 * sums.yy - sums.xy @ w + 0.5 * w @ sums.xx @ w), 0.0)
    return float(squares + l1 @ np.abs(w) + 0.5 * l2 @ w**2)


def _upper(k: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the diagonal of a matrix and the entries above it."""
    return np.tri(k, dtype=np.bool_).T
