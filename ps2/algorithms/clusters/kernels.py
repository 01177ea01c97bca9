"""Kernels of k-means in a worker: nearest centres, and sums of rows by cluster.

Products of rows and centres are computed in the rows' dtype, with bounds of their rounding errors. The distances to all
centres that may be the nearest, by these bounds, are then computed in float64 and in a fixed order. So the nearest
centre of a row depends only on the row and the centres, not on the other rows and columns of the worker.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float64s, Int32s, Int64s
from ps2.ops.exact_sums import two_sum
from ps2.ops.kernels import inline, kernel

Array = npt.NDArray[Any]

# The number of clusters whose products with a row are computed together, so that these stay in the first-level cache.
TILE = 2048
# The number of rounding errors in a distance besides those of the products, one for each stored value.
EXTRA_ROUNDINGS = 8.0


@inline
def _bound_distances(
    products: Array, squares: Float64s, norms: Float64s, norm: float, slack: float, low: Float64s
) -> float:
    """Write a lower bound of each squared distance minus the row's squared norm; return the smallest upper bound.

    A bound allows for an error of ``slack`` times the square of the sum of the row's and the centre's norm.
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
    assigned: Int64s,
    distances: Float64s,
) -> None:
    """Find the nearest centre of each row.

    Args:
        centres: array of the rows' dtype, shape (columns, clusters).
        squares: the squared norms of the centres over all features, also over those that the worker's rows do not use.
        norms: the square roots of ``squares``.
        epsilon: the machine epsilon of the dtype.
        dim: the number of all features. The distance to a row that stores all of them needs no norm.
        assigned: output: the index of each row's nearest centre, the lowest index of equally near ones.
        distances: output: the squared distance to that centre.
    """
    count = centres.shape[1]
    products, low = np.empty(count, centres.dtype), np.empty(count)
    for i in range(len(indptr) - 1):
        begin, end = indptr[i], indptr[i + 1]
        square = 0.0
        for p in range(begin, end):
            square += np.float64(data[p]) * np.float64(data[p])
        for start in range(0, count, TILE):
            stop = min(start + TILE, count)
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
        assigned[i], distances[i] = 0, np.inf
        for c in range(count):
            if low[c] <= best:
                is_full = end - begin == dim
                # Two sums, as in ``nearest_dense``: both kernels compute the same distance of a row with all features.
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
                    assigned[i], distances[i] = c, exact


@kernel
def nearest_dense(
    x: Array,
    products: Array,
    centres: Array,
    squares: Float64s,
    norms: Float64s,
    epsilon: float,
    assigned: Int64s,
    distances: Float64s,
) -> None:
    """Find the nearest centre of each row, if rows store all features; see also ``nearest_sparse``.

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
        assigned[i], distances[i] = 0, np.inf
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
                    assigned[i], distances[i] = c, exact


@kernel
def sum_rows(
    indptr: Int32s,
    indices: Int32s,
    data: Array,
    weights: Float64s,
    assigned: Int64s,
    units: Float64s,
    sums: Float64s,
) -> None:
    """Add each row times its weight, rounded to multiples of ``units``, to the sums of its cluster.

    Args:
        assigned: the cluster of each row.
        units: a power of two for each column.
        sums: shape (columns, clusters); changed.
    """
    for i in range(len(indptr) - 1):
        for p in range(indptr[i], indptr[i + 1]):
            f = indices[p]
            sums[f, assigned[i]] += np.rint(weights[i] * np.float64(data[p]) / units[f]) * units[f]


@kernel
def sum_columns(
    starts: Int32s,
    rows: Int32s,
    data: Array,
    weights: Float64s,
    assigned: Int64s,
    units: Float64s,
    sizes: Int32s,
    clusters: Int32s,
    values: Float64s,
    count: int,
) -> int:
    """Compute the sums of ``sum_rows`` as a sparse matrix, column by column; return the number of its entries.

    Args:
        starts, rows, data: the rows in CSC form.
        sizes: output: the number of entries of each column.
        clusters, values: output: the cluster and the sum of each entry.
        count: the number of clusters.
    """
    sums, is_listed = np.zeros(count), np.zeros(count, np.bool_)
    end = 0
    for f in range(len(starts) - 1):
        begin = end
        for p in range(starts[f], starts[f + 1]):
            c = assigned[rows[p]]
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
def total(values: Float64s, weights: Float64s) -> tuple[float, float]:
    """Return the weighted sum of values, and its rounding error."""
    result, result_error = 0.0, 0.0
    for i in range(len(values)):
        result, error = two_sum(result, values[i] * weights[i])
        result_error += error
    return result, result_error


@kernel
def normalize(indptr: Int32s, data: Array) -> int:
    """Scale rows to norm 1 in place; return the number of rows that are 0."""
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
