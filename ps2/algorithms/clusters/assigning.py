"""Rows, and the nearest of some centres of each one. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.clusters import kernels
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s, Int64s

Array = npt.NDArray[Any]

# Numbers of the products of rows and centres that are in memory at a time.
PRODUCTS = 1 << 20
# Exponents of the largest value beyond which squares may leave the range of float32.
MAX_EXPONENT = 50


@dataclass(frozen=True, eq=False)
class Points:
    """Rows of one dtype.

    Attributes:
        x: shape (n, columns).
        dim: number of all features, of which the columns are some.
        table: the same as an array, if each row has all features; None: they are sparse.
    """

    x: sp.csr_array
    dim: int
    table: Array | None

    @staticmethod
    def of(x: sp.csr_array, dim: int) -> Points:
        """Make points of a matrix, whose arrays are used as they are."""
        rows, columns = x.shape
        is_full = columns == dim and x.nnz == rows * dim and bool((np.diff(x.indptr) == dim).all())
        if is_full and rows and bool((x.indices.reshape(rows, dim) == np.arange(dim)).all()):
            return Points(x, dim, readable(x.data.reshape(rows, dim)))
        return Points(x, dim, None)

    def __len__(self) -> int:
        return int(self.x.shape[0])

    def nearest(self, centres: Array, norms: Float64s) -> tuple[Int64s, Float64s]:
        """Return the number of the nearest centre of each row, and its squared distance; of several, the first one.

        Args:
            centres: of the rows' dtype, shape (columns, clusters), C-contiguous.
            norms: squared lengths of the whole centres.
        """
        assigned, distances = np.empty(len(self), np.int64), np.empty(len(self))
        epsilon = float(np.finfo(centres.dtype).eps)
        norms = readable(norms)
        roots = readable(np.sqrt(norms))
        if self.table is None:
            entries = readable(self.x.indptr), readable(self.x.indices), readable(self.x.data)
            kernels.nearest_sparse(*entries, readable(centres), norms, roots, epsilon, self.dim, assigned, distances)
            return assigned, distances
        by_cluster = readable(centres.T)
        step = max(1, PRODUCTS // max(1, centres.shape[1]))
        for begin in range(0, len(self), step):
            some = slice(begin, begin + step)
            x = readable(self.table[some])
            products = readable(x @ centres)
            kernels.nearest_dense(x, products, by_cluster, norms, roots, epsilon, assigned[some], distances[some])
        return assigned, distances


def squared_lengths(centres: Array) -> Float64s:
    """Return the squared lengths of centres, float64; shape (columns, clusters) is that of ``Points.nearest``."""
    return np.einsum("fc,fc->c", centres, centres, dtype=np.float64)


def exponent_of(*arrays: Array) -> int:
    """Return the power of two by which values are to be divided so that their squares stay within float32's range."""
    largest = max((float(np.abs(array).max(initial=0.0)) for array in arrays), default=0.0)
    exponent = int(np.frexp(largest)[1])
    return exponent if abs(exponent) > MAX_EXPONENT else 0


def shifted(values: Array, exponent: int) -> Array:
    """Return values times a power of two."""
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(values, exponent) if exponent else values
