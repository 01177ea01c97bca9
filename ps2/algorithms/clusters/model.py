"""Trained clusters, usable without Spark and servers."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.clusters import kernels
from ps2.algorithms.frame.array_files import ArrayModel, ModelFiles
from ps2.algorithms.frame.powers_of_two import exponent_of, shifted
from ps2.algorithms.frame.row_matrices import as_rows, finite_rows
from ps2.data.plain_arrays import as_array
from ps2.errors import ConfigError, InputError, ShapeError
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s, Int64s

Array = npt.NDArray[Any]

DISTANCES = ("euclidean", "cosine")
# The maximum number of products of rows and centres in memory at a time.
MAX_PRODUCTS = 1 << 20


class Points:
    """Rows, in a form in which their nearest centres are found fast."""

    def __init__(self, x: sp.csr_array, dim: int) -> None:
        """``x`` has a column for each feature that the rows use; ``dim`` is the number of all features."""
        self.x, self._dim = x, dim
        # The rows as a dense array, if each row stores all features; None: at least one row does not.
        self._table: Array | None = None
        rows, columns = x.shape
        is_full = columns == dim and x.nnz == rows * dim and bool((np.diff(x.indptr) == dim).all())
        if is_full and rows and bool((x.indices.reshape(rows, dim) == np.arange(dim)).all()):
            self._table = readable(x.data.reshape(rows, dim))

    def nearest(self, centres: Array, squares: Float64s) -> tuple[Int64s, Float64s]:
        """Return the index of each row's nearest centre (of several, the lowest index), and the squared distance.

        Args:
            centres: C-contiguous array of the rows' dtype, shape (columns, clusters).
            squares: the squared norms of the centres over all features.
        """
        count = self.x.shape[0]
        assignments, distances = np.empty(count, np.int64), np.empty(count)
        epsilon = float(np.finfo(centres.dtype).eps)
        squares = readable(squares)
        norms = readable(np.sqrt(squares))
        if self._table is None:
            entries = readable(self.x.indptr), readable(self.x.indices), readable(self.x.data)
            outputs = assignments, distances
            kernels.nearest_sparse(*entries, readable(centres), squares, norms, epsilon, self._dim, *outputs)
            return assignments, distances
        by_cluster = readable(centres.T)
        step = max(1, MAX_PRODUCTS // max(1, centres.shape[1]))
        for begin in range(0, count, step):
            block = slice(begin, begin + step)
            x = readable(self._table[block])
            products = readable(x @ centres)
            outputs = assignments[block], distances[block]
            kernels.nearest_dense(x, products, by_cluster, squares, norms, epsilon, *outputs)
        return assignments, distances


def squared_norms(centres: Array) -> Float64s:
    """Return the squared norms of centres, shape (columns, clusters), as float64 of shape (clusters,)."""
    return np.einsum("fc,fc->c", centres, centres, dtype=np.float64)


class KMeansClusters(ArrayModel):
    """The clusters of a trained ``KMeans``; picklable.

    Attributes:
        centres: float32 or float64, shape (clusters, features).
        distance: "euclidean" or "cosine".

    Example::

        clusters = KMeansClusters.load("models/shoppers")
        nearest = clusters.predict(X)  # NumPy or scipy CSR
    """

    _MODEL_CLASS = "ps2.algorithms.clustering.KMeansModel"
    _FILES = ModelFiles("ps2.clusters.v1", "clusters", {"centres": "f"}, {"distance": str})

    def __init__(self, centres: npt.ArrayLike, distance: str = "euclidean") -> None:
        """Raises:
        ShapeError, DTypeError: the centres are not a numeric matrix.
        InputError: a value of a centre is not finite.
        ConfigError: the distance is unknown.
        """
        matrix = as_rows("centres", centres)
        self.centres: Array = np.ascontiguousarray(matrix, np.float32 if matrix.dtype == np.float32 else np.float64)
        if not self.centres.shape[0]:
            raise ShapeError(f"centres: expected shape (clusters, features), got {self.centres.shape}")
        if not np.isfinite(self.centres).all():
            raise InputError("centres: expected finite numbers, got NaN or infinity")
        if distance not in DISTANCES:
            raise ConfigError(f"distance: expected one of {', '.join(DISTANCES)}, got {distance!r}")
        self.distance = distance

    def __repr__(self) -> str:
        return f"KMeansClusters(k={self.k}, features={self.dim}, distance={self.distance!r})"

    def _params(self) -> dict[str, Any]:
        return {"k": self.k, "distanceMeasure": self.distance}

    @property
    def k(self) -> int:
        """Number of clusters."""
        return int(self.centres.shape[0])

    @property
    def dim(self) -> int:
        """Number of features."""
        return int(self.centres.shape[1])

    @property
    def classes(self) -> int:
        return self.k

    def predict(self, x: Any) -> Int64s:
        """Return the cluster with the nearest centre for each row, int64, shape (n,); of several, the lowest index.

        Args:
            x: NumPy array or scipy CSR of shape (n, features).

        Raises:
            ShapeError, DTypeError: x is not a numeric matrix of this shape.
            InputError: a value is not finite; or, with the cosine distance, all values of a row are 0.
        """
        return self._nearest(x)[0]

    def cost(self, x: Any, weights: npt.ArrayLike | None = None) -> float:
        """Return the sum of squared (or cosine) distances of rows to their centres; raises like ``predict``.

        Args:
            weights: the rows' weights, shape (n,), finite, not negative; None: all are 1.
        """
        _, distances, exponent = self._nearest(x)
        row_weights = np.ones(len(distances)) if weights is None else as_array("weights", weights).astype(np.float64)
        if row_weights.shape != distances.shape:
            raise InputError(f"weights: expected shape {distances.shape}, got {row_weights.shape}")
        if not ((row_weights >= 0) & (row_weights < np.inf)).all():
            raise InputError("weights: expected finite numbers that are not negative")
        total = sum(kernels.total(readable(distances), readable(row_weights), (0.0, 0.0)))
        return float(shifted(np.array(total), 2 * exponent)) / (2.0 if self.distance == "cosine" else 1.0)

    def margins(self, x: sp.csr_array) -> Float64s:
        """Return the cluster of each row as float64, shape (n, 1): the raw output of which predictions are made."""
        return self.predict(x)[:, None].astype(np.float64)

    @cached_property
    def _by_feature(self) -> Array:
        """The centres, transposed to shape (features, clusters); with the cosine distance, scaled to norm 1."""
        centres = self.centres
        if self.distance == "cosine":
            norms = np.sqrt(squared_norms(np.ascontiguousarray(centres.T)))
            centres = (centres / np.where(norms > 0, norms, 1.0)[:, None]).astype(centres.dtype)
        return np.ascontiguousarray(centres.T)

    def __getstate__(self) -> dict[str, Any]:
        return {"centres": self.centres, "distance": self.distance}

    def _nearest(self, x: Any) -> tuple[Int64s, Float64s, int]:
        """Return each row's cluster and squared distance, both for rows divided by 2^exponent, and the exponent."""
        rows = sp.csr_array(finite_rows("x", x, self.dim))
        data, exponent = rows.data, 0
        if self.distance == "cosine":
            data = data.copy()
            if num_zero := kernels.normalize(readable(rows.indptr), data):
                raise InputError(f"features: {num_zero:,} rows hold zeros alone, which have no cosine distance")
        else:
            exponent = exponent_of(data, self._by_feature)
        dtype = self.centres.dtype
        data = shifted(data, -exponent).astype(dtype)
        points = Points(sp.csr_array((data, rows.indices, rows.indptr), shape=rows.shape), self.dim)
        centres = shifted(self._by_feature, -exponent)
        return *points.nearest(centres, squared_norms(centres)), exponent
