"""Coordinate descent: a worker's columns, and the minimum of the objective over a block of weights. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.linear.coordinate_kernels import (
    add_columns,
    add_products,
    columns_dot,
    descend,
    rows_to_columns,
    select_columns,
)
from ps2.array_types import Float64s, Int64s
from ps2.data.rows import LocalRows

# A feature is centred if the rows where it is not 0 have at least this fraction of the weight of all rows.
DENSE = 0.5
# Columns are multiplied as dense blocks, by BLAS, if there are at least this many, and if more than this fraction of
# their entries is stored. Otherwise a loop over the stored entries is faster.
MIN_DENSE_COLUMNS, DENSE_PRODUCTS = 32, 0.25
# The maximum number of values in a dense block of rows: 32 MiB of float64.
BLOCK_ENTRIES = 1 << 22
# Ends a descent that rounding errors keep above its tolerance.
MAX_SWEEPS = 10_000
NO_COLUMNS = np.empty(0, np.int64)
NO_VALUES = np.empty(0)


@dataclass(frozen=True, eq=False)
class LocalColumns:
    """The columns of a worker's n rows in CSC form (``coordinate_kernels``); ``keys`` are their features, ascending."""

    keys: Int64s
    n: int
    starts: Int64s
    rows: npt.NDArray[np.int32]
    values: Float64s

    @staticmethod
    def from_rows(rows: LocalRows, dense: Int64s, means: Float64s) -> LocalColumns:
        """Return the columns of rows; subtract their ``means`` from the ``dense`` features.

        Otherwise sums of their products would cancel. ``dense`` is sorted; the rows may lack some of these features.
        """
        absent = dense[_slots(rows.keys, dense) < 0]
        keys = np.insert(rows.keys, np.searchsorted(rows.keys, absent), absent)
        shifts = np.full(len(keys), np.nan)
        shifts[np.searchsorted(keys, dense)] = means
        x = rows.x
        slots = np.searchsorted(keys, rows.keys)
        starts, entry_rows, values = rows_to_columns(x.indptr, x.indices, x.data, slots, shifts)
        return LocalColumns(keys, len(rows), starts, entry_rows, values)

    def dot(self, features: Int64s, s: Float64s) -> Float64s:
        """Return the inner products of columns with s, which has a value for each row; 0 for an absent feature."""
        out = np.empty(len(features))
        columns_dot(self.starts, self.rows, self.values, _slots(self.keys, features), s, out)
        return out

    def add_to(self, z: Float64s, features: Int64s, factors: Float64s) -> None:
        """Add each feature's column times its factor to z, which has a value for each row."""
        # The arrays of a message are read-only. The copy is writable, so the kernel is compiled for one type only.
        copied = np.array(factors, np.float64)
        add_columns(self.starts, self.rows, self.values, _slots(self.keys, features), copied, z)

    def products(self, features: Int64s, new: int, h: Float64s) -> Float64s:
        """Return the inner products of the first ``new`` columns with themselves and all later columns.

        ``h`` are the weights of the rows. The result, shape (new, len(features)), is undefined below the diagonal.
        """
        n, k = self.n, len(features)
        indptr, indices, values = select_columns(self.starts, self.rows, self.values, _slots(self.keys, features), n)
        products = np.zeros((new, k))
        if new < MIN_DENSE_COLUMNS or len(values) <= DENSE_PRODUCTS * n * k:
            add_products(indptr, indices, values, h, new, products)
            return products
        by_rows = sp.csr_array((values, indices, indptr), shape=(n, k))
        step = max(1, BLOCK_ENTRIES // k)
        for begin in range(0, n, step):
            block = by_rows[begin : begin + step].toarray()
            products += (block[:, :new] * h[begin : begin + step, None]).T @ block
        return products


def _slots(keys: Int64s, features: Int64s) -> Int64s:
    """Return each feature's index in the sorted ``keys``; -1 for a feature that is not among them."""
    if not len(keys):
        return np.full(len(features), -1)
    slots = np.minimum(np.searchsorted(keys, features), len(keys) - 1)
    return np.where(keys[slots] == features, slots, -1)


@dataclass(frozen=True, eq=False)
class Products:
    """The second derivatives of the loss by the weights of the features ``columns``, at the optimal intercept.

    ``gram`` has shape (k, k). ``sums`` is each feature's sum over the rows of value times the row's second derivative.
    """

    columns: Int64s
    gram: Float64s
    sums: Float64s

    def extended(self, columns: Int64s, products: Float64s, sums: Float64s, weight: float) -> Products:
        """Return the products of ``columns``, which are new columns, then ``self.columns``.

        ``products`` is the sum of the workers' ``LocalColumns.products``, and ``sums`` the field of the result.
        ``weight`` is the sum of the rows' second derivatives; 0 without an intercept.
        """
        new = len(columns) - len(self.columns)
        upper = products.copy()
        if weight > 0.0:
            upper -= np.outer(sums[:new], sums) / weight
        gram = np.empty((len(columns), len(columns)))
        gram[new:, new:] = self.gram
        gram[:new] = upper
        gram[new:, :new] = upper[:, new:].T
        below = np.tril_indices(new, -1)
        gram[below] = upper[:, :new].T[below]
        return Products(columns, gram, sums)

    def last(self, columns: Int64s) -> Products | None:
        """Return the products of ``columns`` if they are the last of ``self.columns``, else None."""
        offset = len(self.columns) - len(columns)
        if offset < 0 or not np.array_equal(self.columns[offset:], columns):
            return None
        return Products(self.columns[offset:], self.gram[offset:, offset:], self.sums[offset:])


NO_PRODUCTS = Products(NO_COLUMNS, np.empty((0, 0)), NO_VALUES)


@dataclass(frozen=True, eq=False)
class Step:
    """A step of k weights: the new weights, their changes, the intercept's change, and the objective's decrease."""

    w: Float64s
    change: Float64s
    intercept: float
    decrease: float
    sweeps: int


@dataclass(frozen=True)
class Strengths:
    """The strengths of the penalties ``l1 |w|_1 + l2 / 2 |w|^2``."""

    l1: float
    l2: float

    def penalty(self, w: Float64s) -> float:
        return float(self.l1 * np.abs(w).sum() + 0.5 * self.l2 * (w @ w))


def minimise(
    products: Products,
    gradient: Float64s,
    w: Float64s,
    intercept: tuple[float, float],
    strengths: Strengths,
    tol: float,
) -> Step:
    """Minimise over a block of weights by cyclic coordinate descent (Friedman, Hastie and Tibshirani, 2010).

    Args:
        gradient: the loss's negative derivatives with respect to the weights, shape (k,).
        w: the weights before the step, shape (k,).
        intercept: the loss's negative first and its second derivative with respect to the intercept; 0 without one.
        tol: stop after a sweep in which no change of a weight, times its second derivative, is above this.
    """
    negative_slope, curvature = intercept
    new_w, q = w.copy(), gradient.copy()
    if curvature > 0.0:
        q -= products.sums * (negative_slope / curvature)
    decrease, sweeps = descend(products.gram, q, new_w, strengths.l1, strengths.l2, tol, MAX_SWEEPS)
    change = new_w - w
    if curvature <= 0.0:
        return Step(new_w, change, 0.0, decrease, sweeps)
    step = (negative_slope - float(products.sums @ change)) / curvature
    return Step(new_w, change, step, decrease + 0.5 * negative_slope * negative_slope / curvature, sweeps)


@dataclass(frozen=True, eq=False)
class Support:
    """The weights that are not 0: their columns, int64, ascending, and their values ``w``, float64."""

    columns: Int64s
    w: Float64s

    def weights(self, columns: Int64s) -> Float64s:
        """Return the weights of columns; 0 for columns outside the support."""
        if not len(self.columns):
            return np.zeros(len(columns))
        slots = _slots(self.columns, columns)
        return np.where(slots >= 0, self.w[slots], 0.0)

    def replaced(self, columns: Int64s, w: Float64s) -> Support:
        """Return the support after the weights of some columns have been set to ``w``."""
        is_unchanged, nonzero = ~np.isin(self.columns, columns), w != 0.0
        union = np.concatenate([self.columns[is_unchanged], columns[nonzero]])
        order = np.argsort(union)
        return Support(union[order], np.concatenate([self.w[is_unchanged], w[nonzero]])[order])


NO_SUPPORT = Support(NO_COLUMNS, NO_VALUES)


def lower_bound(dual: float, loss: float | None, max_gradient: float, square: float, strengths: Strengths) -> float:
    """Return a lower bound of the objective's minimum: the dual objective at the residuals, scaled to a feasible point.

    The L2 penalty counts as further rows with squared loss. The intercept, if there is one, must be optimal.

    Args:
        dual: the mean dual value of the rows (``loss_derivatives``).
        loss: the mean loss if it is the squared loss; None: a loss whose dual is concave, and 0 at 0.
        max_gradient: max |gradient - l2 w| over all features.
        square: the squared norm of the weights.
    """
    scale = min(1.0, strengths.l1 / max_gradient) if max_gradient > 0.0 else 1.0
    bound = scale * dual - 0.5 * strengths.l2 * scale * scale * square
    return bound if loss is None else bound - scale * scale * loss
