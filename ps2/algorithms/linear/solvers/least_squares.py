"""Penalised least squares by the normal equations, from sums of products of features. Pure functions."""

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

# The maximum number of values in a dense block of rows: 32 MiB.
BLOCK_ENTRIES = 1 << 22
# Rows are multiplied as dense matrices if at least this fraction of their entries is stored.
DENSE_FROM = 0.1
# Features are centred in one of two ways. If the mean is at most this number of standard deviations, it is subtracted
# from sums of products, which loses at most one digit. Otherwise it is subtracted from a dense column before the
# products: such a feature is stored in most rows, so a dense column takes little more memory.
SMALL_MEAN = 1.0
# The matrix of k features is singular if a pivot is at most k times this value.
SINGULAR = 16 * np.finfo(np.float64).eps


@dataclass(frozen=True, eq=False)
class Products:
    """Weighted sums over rows of the products of k features x and the label y, all centred."""

    xx: Float64s
    xy: Float64s
    yy: float

    def packed(self) -> Float64s:
        """Return one array of ``packed_size(k)`` values; the arrays of several workers add up."""
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

    The features' standard deviations, over all workers' rows, are about 1.
    """
    xx, xy, yy = np.zeros((len(mean), len(mean))), np.zeros(len(mean)), 0.0
    for block in rows.blocks():
        yy += _add_products(block, mean, label_mean, xx, xy)
    return Products(xx, xy, yy)


def _add_products(rows: LocalRows, mean: Float64s, label_mean: float, xx: Float64s, xy: Float64s) -> float:
    """Add the products of a block's features to ``xx`` and ``xy``; return the weighted sum of its squared labels."""
    assert rows.y is not None
    k, c = len(mean), np.ones(len(rows)) if rows.weights is None else rows.weights
    y = rows.y - label_mean
    is_dense = rows.x.nnz >= DENSE_FROM * len(rows) * k
    columns = np.arange(k) if is_dense else np.flatnonzero(np.abs(mean) > SMALL_MEAN)
    dense = _DenseColumns(rows, columns, mean[columns])
    if not is_dense:
        _add_sparse_products(dense, mean, c, y, xx, xy)
    pairs = np.ix_(columns, columns)
    for block_rows, block in dense.blocks():
        root = np.sqrt(c[block_rows])
        block *= root[:, None]
        xx[pairs] += block.T @ block
        xy[columns] += block.T @ (root * y[block_rows])
    return float(c @ y**2)


@dataclass(frozen=True, eq=False)
class _DenseColumns:
    """The dense columns of some features, ascending, minus their means."""

    rows: LocalRows
    columns: npt.NDArray[np.int64]
    mean: Float64s

    def blocks(self) -> Iterator[tuple[slice, Float64s]]:
        """Yield slices of rows, and these rows' centred features, float64, shape (rows, columns)."""
        rows, columns = self.rows, self.columns
        if not len(columns):
            return
        positions = np.searchsorted(columns, rows.keys)
        is_selected = columns[np.minimum(positions, len(columns) - 1)] == rows.keys
        x = rows.x[:, is_selected] if not is_selected.all() else rows.x
        step = max(1, BLOCK_ENTRIES // len(columns))
        for begin in range(0, len(rows), step):
            block_rows = slice(begin, min(begin + step, len(rows)))
            block = np.zeros((block_rows.stop - begin, len(columns)))
            block[:, positions[is_selected]] = x[block_rows].toarray()
            block -= self.mean
            yield block_rows, block


def residual_products(rows: KeptRows, mean: Float64s, label_mean: float, w: Float64s) -> Float64s:
    """Return ``xy - xx w``: the sums over a worker's rows of centred features times the residuals of weights w.

    Computed from rows, as here, it has more correct digits than computed from products.
    """
    return sum((_block_residual_products(block, mean, label_mean, w) for block in rows.blocks()), np.zeros(len(mean)))


def _block_residual_products(rows: LocalRows, mean: Float64s, label_mean: float, w: Float64s) -> Float64s:
    assert rows.y is not None
    c = np.ones(len(rows)) if rows.weights is None else rows.weights
    sums, columns = np.zeros(len(mean)), np.flatnonzero(np.abs(mean) > SMALL_MEAN)
    dense = _DenseColumns(rows, columns, mean[columns])
    sparse = np.flatnonzero(~np.isin(rows.keys, columns))
    x, keys = rows.x[:, sparse], rows.keys[sparse]
    small_mean = mean.copy()
    small_mean[columns] = 0.0
    residuals = rows.y - label_mean - (x @ w[keys] - small_mean @ w)
    for block_rows, block in dense.blocks():
        residuals[block_rows] -= block @ w[columns]
    residuals *= c
    sums[keys] = x.T @ residuals
    sums -= small_mean * residuals.sum()
    for block_rows, block in dense.blocks():
        sums[columns] += block.T @ residuals[block_rows]
    return sums


def _add_sparse_products(
    dense: _DenseColumns, mean: Float64s, c: Float64s, y: Float64s, xx: Float64s, xy: Float64s
) -> None:
    """Add the products of the features outside ``dense``, which have small means, with all features and the label."""
    rows = dense.rows
    sparse = np.flatnonzero(~np.isin(rows.keys, dense.columns))
    x, keys, k = rows.x[:, sparse], rows.keys[sparse], len(mean)
    weighted = x.multiply(c[:, None]).tocsr()
    small_mean, sums = mean.copy(), np.zeros(k)
    small_mean[dense.columns] = 0.0
    xx[np.ix_(keys, keys)] += (weighted.T @ x).toarray()
    xy[keys] += weighted.T @ y
    sums[keys] = np.asarray(weighted.sum(axis=0)).reshape(-1)
    cross_terms = np.outer(sums, small_mean)
    xx += c.sum() * np.outer(small_mean, small_mean) - cross_terms - cross_terms.T
    xy -= small_mean * (c @ y)
    for block_rows, block in dense.blocks():
        with_dense = np.zeros((k, len(dense.columns)))
        with_dense[keys] = weighted[block_rows].T @ block
        with_dense -= np.outer(small_mean, c[block_rows] @ block)
        xx[:, dense.columns] += with_dense
        xx[dense.columns] += with_dense.T


@dataclass(frozen=True, eq=False)
class Solution:
    """Weights that minimise 1/2 w' xx w - xy' w + l1' |w| + 1/2 l2' w^2.

    Attributes:
        factor: the upper Cholesky factor of xx + diag(l2); None: the matrix is singular, or there is an L1 penalty.
        pivot: the smallest fraction of a feature's variance that the features before it do not explain linearly; 0 if
            the matrix is singular. The relative error of the weights is about 1e-16 divided by this fraction.
        feature: the feature with this smallest fraction.
    """

    w: Float64s
    factor: Float64s | None = None
    pivot: float = 1.0
    feature: int = 0

    def refined(self, residual: Float64s) -> Solution:
        """Return corrected weights, given the residual xy - (xx + diag(l2)) w (seminormal equations: Björck 1987)."""
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
    """Solve the normal equations; with an L1 penalty, minimise by L-BFGS-B with ``steps`` and ``tol``.

    If the equations are singular, the weights have minimum norm. The features must have similar scales.
    """
    a, k = sums.xx + np.diag(l2), len(sums.xy)
    if l1.any():
        return Solution(_with_l1(a, sums, l1, steps, tol))
    # A constant feature is 0 when centred. With any positive value on the diagonal, its weight becomes 0.
    a[np.diag_indices(k)] += np.diag(a) == 0.0
    factor, failed = scipy.linalg.lapack.dpotrf(
        a
    )  # failed: the first column, from 1, whose pivot is not positive; 0: none
    pivots = (np.diag(factor) ** 2 / np.diag(a))[: failed - 1 if failed else k]
    feature = failed - 1 if failed else int(np.argmin(pivots))
    if failed or pivots[feature] <= SINGULAR * k:
        w = np.asarray(np.linalg.lstsq(a, sums.xy, rcond=SINGULAR)[0], np.float64)
        return Solution(w, pivot=0.0, feature=feature)
    return Solution(scipy.linalg.cho_solve((factor, False), sums.xy), factor, float(pivots[feature]), feature)


def _with_l1(a: Float64s, sums: Products, l1: Float64s, steps: int, tol: float) -> Float64s:
    """Minimise with an L1 penalty by L-BFGS-B: each weight is the difference of two nonnegative variables."""
    # Labels are scaled to variance 1, so the tolerance does not depend on their unit.
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
