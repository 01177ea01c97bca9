"""Kernels of k-means in a worker: nearest centres, and sums of rows by cluster.

Inner products of rows and centres are computed in the rows' dtype; they and bounds of their rounding errors give bounds
of the distances. Only for the centres that may be the nearest, by these bounds, is the distance computed in float64 and
in a fixed order. So a row's nearest centre depends only on the row and the centres, not on the worker's other rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float64s, Int32s, Int64s
from ps2.ops.exact_sums import two_sum
from ps2.ops.kernels import inline, kernel

Array = npt.NDArray[Any]

# The number of clusters whose products with a row are computed together; these products fit into the first-level cache.
TILE = 2048
# A distance has a rounding error for each stored value of the row, in the inner product, and at most this many others.
EXTRA_ROUNDINGS = 8.0


@inline
def _bound_distances(
    products: Array, squares: Float64s, norms: Float64s, norm: float, slack: float, low: Float64s
) -> float:
    """Bound |x - c|^2 - |x|^2 for row x and each centre c: write lower bounds to ``low``, return the least upper bound.

    ``norm`` is |x|, ``norms`` are |c|, ``squares`` |c|^2, ``products`` x c. Errors are at most slack (|x| + |c|)^2.
    """
    for c in range(products.size):
        norm_sum = norm + norms[c]
        low[c] = squares[c] - 2.0 * np.float64(products[c]) - slack * norm_sum * norm_sum
    best = np.inf
    for c in range(products.size):
        norm_sum = norm + norms[c]
        high = low[c] + 2.0 * slack * norm_sum * norm_sum
        if high < best:
            best = high
    return best


@kernel
def nearest_sparse(
    indptr: Int32s,
    indices: Int32s,
    data: Array,
    centres: Array,
    squares: Float64s,
    norms: Float64s,
    epsilon: float,
    dim: int,
    assignments: Int64s,
    distances: Float64s,
) -> None:
    """Find the nearest centre of each row of a CSR matrix.

    Args:
        centres: array of the rows' dtype, shape (columns, clusters).
        squares: the squared norms of the centres over all features, including features that the rows do not use.
        norms: the square roots of ``squares``.
        dim: the number of all features. For a row that stores all of them, distances are computed without ``squares``.
        assignments: output: the index of each row's nearest centre; of equally near centres, the lowest index.
        distances: output: the squared distance to that centre.
    """
    num_clusters = centres.shape[1]
    products, low = np.empty(num_clusters, centres.dtype), np.empty(num_clusters)
    for i in range(len(indptr) - 1):
        begin, end = indptr[i], indptr[i + 1]
        square = 0.0
        for p in range(begin, end):
            square += np.float64(data[p]) * np.float64(data[p])
        for start in range(0, num_clusters, TILE):
            stop = min(start + TILE, num_clusters)
            tile = products[start:stop]
            tile[:] = 0
            p = begin
            while p + 3 < end:
                a, b, c, d = data[p], data[p + 1], data[p + 2], data[p + 3]
                row_a, row_b = centres[indices[p], start:stop], centres[indices[p + 1], start:stop]
                row_c, row_d = centres[indices[p + 2], start:stop], centres[indices[p + 3], start:stop]
                for j in range(stop - start):
                    tile[j] += (a * row_a[j] + b * row_b[j]) + (c * row_c[j] + d * row_d[j])
                p += 4
            while p < end:
                a, row_a = data[p], centres[indices[p], start:stop]
                for j in range(stop - start):
                    tile[j] += a * row_a[j]
                p += 1
        slack = (end - begin + EXTRA_ROUNDINGS) * epsilon
        best = _bound_distances(products, squares, norms, np.sqrt(square), slack, low)
        assignments[i], distances[i] = 0, np.inf
        for c in range(num_clusters):
            if low[c] <= best:
                is_full = end - begin == dim
                # Sum even and odd entries apart, as ``nearest_dense`` does: the distances are then equal bit for bit.
                even, odd = 0.0 if is_full else squares[c], 0.0
                for p in range(begin, end):
                    x, y = np.float64(data[p]), np.float64(centres[indices[p], c])
                    term = (x - y) * (x - y) if is_full else x * (x - 2.0 * y)
                    if (p - begin) % 2:
                        odd += term
                    else:
                        even += term
                exact = max(even + odd, 0.0)
                if exact < distances[i]:
                    assignments[i], distances[i] = c, exact


@kernel
def nearest_dense(
    x: Array,
    products: Array,
    centres: Array,
    squares: Float64s,
    norms: Float64s,
    epsilon: float,
    assignments: Int64s,
    distances: Float64s,
) -> None:
    """Find the nearest centre of each row of an array with all features; see ``nearest_sparse`` for other arguments.

    Args:
        products: the inner products of rows and centres, summed in any order, shape (n, clusters).
        centres: shape (clusters, features).
    """
    low = np.empty(len(squares))
    width = x.shape[1]
    slack = (width + EXTRA_ROUNDINGS) * epsilon
    for i in range(len(x)):
        square = 0.0
        for f in range(width):
            square += np.float64(x[i, f]) * np.float64(x[i, f])
        best = _bound_distances(products[i], squares, norms, np.sqrt(square), slack, low)
        assignments[i], distances[i] = 0, np.inf
        for c in range(len(squares)):
            if low[c] <= best:
                even, odd = 0.0, 0.0
                for f in range(0, width - 1, 2):
                    a = np.float64(x[i, f]) - np.float64(centres[c, f])
                    b = np.float64(x[i, f + 1]) - np.float64(centres[c, f + 1])
                    even += a * a
                    odd += b * b
                if width % 2:
                    a = np.float64(x[i, width - 1]) - np.float64(centres[c, width - 1])
                    even += a * a
                exact = even + odd
                if exact < distances[i]:
                    assignments[i], distances[i] = c, exact


@kernel
def sum_rows(
    indptr: Int32s,
    indices: Int32s,
    data: Array,
    weights: Float64s,
    assignments: Int64s,
    units: Float64s,
    sums: Float64s,
) -> None:
    """Add each row times its weight to its cluster's ``sums``, shape (columns, clusters).

    Values are rounded to multiples of ``units``, a power of two for each column (``worker._Prepared``).
    """
    for i in range(len(indptr) - 1):
        for p in range(indptr[i], indptr[i + 1]):
            f = indices[p]
            sums[f, assignments[i]] += np.rint(weights[i] * np.float64(data[p]) / units[f]) * units[f]


@kernel
def sum_columns(
    starts: Int32s,
    rows: Int32s,
    data: Array,
    weights: Float64s,
    assignments: Int64s,
    units: Float64s,
    sizes: Int32s,
    clusters: Int32s,
    values: Float64s,
    num_clusters: int,
) -> int:
    """Compute the sums of ``sum_rows``, from rows in CSC form, as a CSC matrix; return its number of entries.

    Outputs: ``sizes``, each column's number of entries; ``clusters`` and ``values``, each entry's cluster and sum.
    """
    sums, is_listed = np.zeros(num_clusters), np.zeros(num_clusters, np.bool_)  # in the current column
    end = 0
    for f in range(len(starts) - 1):
        begin = end
        for p in range(starts[f], starts[f + 1]):
            c = assignments[rows[p]]
            if not is_listed[c]:
                is_listed[c] = True
                clusters[end] = c
                end += 1
            sums[c] += np.rint(weights[rows[p]] * np.float64(data[p]) / units[f]) * units[f]
        for entry in range(begin, end):
            c = clusters[entry]
            values[entry] = sums[c]
            sums[c], is_listed[c] = 0.0, False
        sizes[f] = end - begin
    return end


@kernel
def total(values: Float64s, weights: Float64s, before: tuple[float, float]) -> tuple[float, float]:
    """Add weighted values to a sum and its rounding error, which the caller adds in the end; return both."""
    result, result_error = before
    for i in range(len(values)):
        result, error = two_sum(result, values[i] * weights[i])
        result_error += error
    return result, result_error


@kernel
def normalize(indptr: Int32s, data: Array) -> int:
    """Scale rows to norm 1 in place; return the number of rows of zeros, which have no norm."""
    num_zero_rows = 0
    for i in range(len(indptr) - 1):
        max_value = 0.0
        for p in range(indptr[i], indptr[i + 1]):
            max_value = max(max_value, abs(np.float64(data[p])))
        if max_value == 0.0:
            num_zero_rows += 1
            continue
        square = 0.0
        for p in range(indptr[i], indptr[i + 1]):
            square += (np.float64(data[p]) / max_value) ** 2
        for p in range(indptr[i], indptr[i + 1]):
            data[p] = np.float64(data[p]) / max_value / np.sqrt(square)
    return num_zero_rows
