"""The objective along a block of coordinates: a quadratic function and penalties, minimised in the driver. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ps2.algorithms.linear.coordinates.kernels import descend
from ps2.array_types import Float64s, Int64s

MAX_SWEEPS = 10_000
NO_COLUMNS = np.empty(0, np.int64)
NO_VALUES = np.empty(0)


@dataclass(frozen=True, eq=False)
class Products:
    """Second derivatives of the loss by the weights of some features, the intercept minimised out.

    Attributes:
        columns: int64, shape (k,): features, each once.
        gram: float64, shape (k, k).
        means: float64, shape (k,): of the rows' entries, weighted as in ``gram``, not divided by the weight.
    """

    columns: Int64s
    gram: Float64s
    means: Float64s

    def extended(self, columns: Int64s, products: Float64s, sums: Float64s, weight: float) -> Products:
        """Return these and those of further features.

        Args:
            columns: all features: the new ones, which come first, and then ``self.columns``.
            products: shape (new, all): as ``LocalColumns.products`` returns them, of all rows.
            sums: shape (all,): of entries times the rows' second derivatives.
            weight: the sum of these; 0: there is no intercept.
        """
        new = len(columns) - len(self.columns)
        upper = products.copy()
        if weight > 0.0:
            upper -= np.outer(sums[:new], sums) / weight
        gram = np.empty((len(columns), len(columns)))
        gram[new:, new:] = self.gram
        gram[:new] = upper
        gram[new:, :new] = upper[:, new:].T
        at = np.tril_indices(new, -1)
        gram[at] = upper[:, :new].T[at]
        return Products(columns, gram, sums)

    def last(self, columns: Int64s) -> Products | None:
        """Return the products of the last features; None: ``columns`` are others."""
        first = len(self.columns) - len(columns)
        if first < 0 or not np.array_equal(self.columns[first:], columns):
            return None
        return Products(self.columns[first:], self.gram[first:, first:], self.means[first:])


NO_PRODUCTS = Products(NO_COLUMNS, np.empty((0, 0)), NO_VALUES)


@dataclass(frozen=True, eq=False)
class Step:
    """A step along a block of coordinates.

    Attributes:
        w: float64, shape (k,): weights after it.
        change: float64, shape (k,).
        intercept: the change of the intercept.
        decrease: of the quadratic function and the penalties.
        sweeps: over the block.
    """

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

    def of(self, w: Float64s) -> float:
        """Return the penalties of weights."""
        return float(self.l1 * np.abs(w).sum() + 0.5 * self.l2 * (w @ w))


def minimise(
    of: Products,
    gradient: Float64s,
    w: Float64s,
    intercept: tuple[float, float],
    strengths: Strengths,
    tol: float,
) -> Step:
    """Minimise along a block by cyclic coordinate descent on its products (Friedman, Hastie and Tibshirani, 2010).

    Args:
        of: the block.
        gradient: shape (k,): the loss's, by the weights, downhill.
        w: shape (k,): weights now.
        intercept: downhill derivative by the intercept, and second derivative; the latter is 0 without intercept.
        strengths: of the penalties.
        tol: stop when a sweep changes no weight by more, times its second derivative.
    """
    down, curved = intercept
    moved, q = w.copy(), gradient.copy()
    if curved > 0.0:
        q -= of.means * (down / curved)
    decrease, sweeps = descend(of.gram, q, moved, strengths.l1, strengths.l2, tol, MAX_SWEEPS)
    change = moved - w
    if curved <= 0.0:
        return Step(moved, change, 0.0, decrease, sweeps)
    step = (down - float(of.means @ change)) / curved
    return Step(moved, change, step, decrease + 0.5 * down * down / curved, sweeps)


@dataclass(frozen=True, eq=False)
class Support:
    """Weights that are not 0, or have not always been.

    Attributes:
        columns: int64, sorted, shape (k,).
        w: float64, shape (k,).
    """

    columns: Int64s
    w: Float64s

    def at(self, columns: Int64s) -> Float64s:
        """Return the weights of any columns."""
        if not len(self.columns):
            return np.zeros(len(columns))
        places = np.minimum(np.searchsorted(self.columns, columns), len(self.columns) - 1)
        return np.where(self.columns[places] == columns, self.w[places], 0.0)

    def replaced(self, columns: Int64s, w: Float64s) -> Support:
        """Return the support after some columns have got other weights."""
        others = ~np.isin(self.columns, columns)
        kept = w != 0.0
        together = np.concatenate([self.columns[others], columns[kept]])
        order = np.argsort(together)
        return Support(together[order], np.concatenate([self.w[others], w[kept]])[order])


NO_SUPPORT = Support(NO_COLUMNS, NO_VALUES)


def lower_bound(dual: float, loss: float | None, largest: float, square: float, strengths: Strengths) -> float:
    """Return a lower bound of the objective: its dual at the residuals, scaled so that it is feasible.

    The L2 penalty counts as further rows of the squared loss. An intercept must be at its minimum.

    Args:
        dual: mean dual value of the rows (``slopes``).
        loss: mean loss, if the loss is the squared one, whose dual is known at scaled residuals; None: the dual is
            concave and 0 at 0, which bounds it there.
        largest: max |gradient - l2 w|.
        square: |w|^2.
    """
    scale = min(1.0, strengths.l1 / largest) if largest > 0.0 else 1.0
    bound = scale * dual - 0.5 * strengths.l2 * scale * scale * square
    return bound if loss is None else bound - scale * scale * loss
