"""A worker's rows, column by column."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.linear.coordinates.kernels import (
    add_columns,
    add_products,
    all_columns_dot,
    by_column,
    chosen_rows,
    columns_dot,
)
from ps2.array_types import Float64s, Int64s
from ps2.data.rows import LocalRows

# A column that holds at least this share of the rows' weight has its mean subtracted from all rows.
DENSE = 0.5
# Products of so many columns, if they hold more than this share of the rows, are those of dense blocks, by BLAS.
MANY, DENSE_PRODUCTS = 32, 0.25
# Numbers in a dense block of rows.
BLOCK_ENTRIES = 1 << 22


@dataclass(frozen=True, eq=False)
class LocalColumns:
    """Columns of a worker's rows.

    Attributes:
        keys: int64, sorted: their numbers among all features.
        n: number of rows.
        starts: int64, shape (k + 1,): where columns begin.
        rows, values: int32 and float64: of each entry.
    """

    keys: Int64s
    n: int
    starts: Int64s
    rows: npt.NDArray[np.int32]
    values: Float64s

    @staticmethod
    def of(rows: LocalRows, dense: Int64s, means: Float64s) -> LocalColumns:
        """Make the columns of rows; subtract means from those that are dense, whose products would cancel else.

        Args:
            dense: features to centre, sorted; the worker's rows may hold none of their entries.
            means: of these.
        """
        absent = dense[_places(rows.keys, dense) < 0]
        keys = np.insert(rows.keys, np.searchsorted(rows.keys, absent), absent)
        shifts = np.full(len(keys), np.nan)
        shifts[np.searchsorted(keys, dense)] = means
        x = rows.x
        starts, at, values = by_column(x.indptr, x.indices, x.data, np.searchsorted(keys, rows.keys), shifts)
        return LocalColumns(keys, len(rows), starts, at, values)

    def at(self, columns: Int64s) -> Int64s:
        """Return the places of features among ``keys``; -1 where the rows do not hold one."""
        return _places(self.keys, columns)

    def dot(self, s: Float64s) -> Float64s:
        """Return the inner products of all columns with a vector of rows, shape (k,)."""
        out = np.empty(len(self.keys))
        all_columns_dot(self.starts, self.rows, self.values, s, out)
        return out

    def dot_at(self, columns: Int64s, s: Float64s) -> Float64s:
        """Return the inner products of some features with a vector of rows."""
        out = np.empty(len(columns))
        columns_dot(self.starts, self.rows, self.values, self.at(columns), s, out)
        return out

    def add_to(self, z: Float64s, columns: Int64s, factors: Float64s) -> None:
        """Add features times factors to a vector of rows."""
        # A message's arrays are read-only: a copy is not, and the kernel is compiled once.
        add_columns(self.starts, self.rows, self.values, self.at(columns), np.array(factors, np.float64), z)

    def products(self, columns: Int64s, new: int, h: Float64s) -> Float64s:
        """Return weighted products of features: each of the first ``new`` ones with itself and those after it.

        Args:
            h: weights of rows.

        Returns:
            float64, shape (new, len(columns)); below the diagonal it is not defined.
        """
        n, k = self.n, len(columns)
        begins, numbers, values = chosen_rows(self.starts, self.rows, self.values, self.at(columns), n)
        found = np.zeros((new, k))
        if new < MANY or len(values) <= DENSE_PRODUCTS * n * k:
            add_products(begins, numbers, values, h, new, found)
            return found
        by_rows = sp.csr_array((values, numbers, begins), shape=(n, k))
        step = max(1, BLOCK_ENTRIES // k)
        for begin in range(0, n, step):
            block = by_rows[begin : begin + step].toarray()
            found += (block[:, :new] * h[begin : begin + step, None]).T @ block
        return found


def _places(keys: Int64s, columns: Int64s) -> Int64s:
    """Return the places of columns among sorted keys, -1 for those that are not there."""
    if not len(keys):
        return np.full(len(columns), -1)
    places = np.minimum(np.searchsorted(keys, columns), len(keys) - 1)
    return np.where(keys[places] == columns, places, -1)
