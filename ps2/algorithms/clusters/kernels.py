"""Kernels of k-means in a worker: nearest centres, and sums of rows by cluster.

Products of rows and centres are computed in the rows' dtype, with a bound of their rounding errors. Where the bounds
leave more than one centre, their distances are computed anew, in float64 and in one fixed order. So the nearest centre
of a row depends on the row and the centres only, not on which rows or columns a worker has beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float64s, Int32s, Int64s
from ps2.ops.kernels import inline, kernel

Array = npt.NDArray[Any]

# Clusters whose products with a row are computed together: they stay in the first-level cache.
TILE = 2048
# Roundings beside those of the products.
EXTRA = 8.0


@inline
def _least_upper(
    products: Array, norms: Float64s, roots: Float64s, length: float, slack: float, low: Float64s
) -> float:
    """Write a lower bound of each squared distance, less the row's own square; return the least upper bound.

    The errors that the bounds allow for are those of the products, and of distances as they are computed from
    differences: ``slack`` times the square of the lengths' sum.
    """
    for c in range(products.size):
        reach = length + roots[c]
        low[c] = norms[c] - 2.0 * np.float64(products[c]) - slack * reach * reach
    best = np.inf
    for c in range(products.size):
        reach = length + roots[c]
        high = low[c] + 2.0 * slack * reach * reach
        if high < best:
            best = high
    return best


@kernel
def nearest_sparse(
    indptr: Int32s,
    indices: Int32s,
    data: Array,
    centres: Array,
    norms: Float64s,
    roots: Float64s,
    epsilon: float,
    dim: int,
    assigned: Int64s,
    distances: Float64s,
) -> None:
    """Find the nearest centre of each row.

    Args:
        centres: array of the rows' dtype, shape (columns, clusters).
        norms, roots: squared lengths of the whole centres, and their roots.
        epsilon: the dtype's.
        dim: number of all columns; a row that has them all needs no length of a centre.
        assigned, distances: the number of each row's nearest centre, the first of several, and its squared distance;
            written.
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
                of_a, of_b = centres[indices[p], start:stop], centres[indices[p + 1], start:stop]
                of_c, of_d = centres[indices[p + 2], start:stop], centres[indices[p + 3], start:stop]
                for j in range(stop - start):
                    tile[j] += (a * of_a[j] + b * of_b[j]) + (c * of_c[j] + d * of_d[j])
                p += 4
            while p < end:
                a, of_a = data[p], centres[indices[p], start:stop]
                for j in range(stop - start):
                    tile[j] += a * of_a[j]
                p += 1
        slack = (end - begin + EXTRA) * epsilon
        best = _least_upper(products, norms, roots, np.sqrt(square), slack, low)
        assigned[i], distances[i] = 0, np.inf
        for c in range(count):
            if low[c] <= best:
                is_full = end - begin == dim
                # Two sums, as in ``nearest_dense``: a row with all columns has one distance, wherever it is.
                even, odd = 0.0 if is_full else norms[c], 0.0
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
    norms: Float64s,
    roots: Float64s,
    epsilon: float,
    assigned: Int64s,
    distances: Float64s,
) -> None:
    """Find the nearest centre of each row that has all columns; other arguments are those of ``nearest_sparse``.

    Args:
        products: products of rows and centres, in any order of addition, shape (n, clusters).
        centres: shape (clusters, columns).
    """
    low = np.empty(len(norms))
    width = x.shape[1]
    slack = (width + EXTRA) * epsilon
    for i in range(len(x)):
        square = 0.0
        for f in range(width):
            square += np.float64(x[i, f]) * np.float64(x[i, f])
        best = _least_upper(products[i], norms, roots, np.sqrt(square), slack, low)
        assigned[i], distances[i] = 0, np.inf
        for c in range(len(norms)):
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
    """Add each row times its weight, in whole units of its columns, to the sums of its cluster.

    ``units`` has a power of two for each column, and ``sums`` has the shape (columns, clusters).
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
    """List the sums that ``sum_rows`` adds up, column by column, without zeros; return how many there are.

    Args:
        starts, rows, data: the rows' matrix, column by column.
        sizes: the number of sums of each column; written.
        clusters, values: the cluster of each sum, and the sum; written.
        count: number of clusters.
    """
    sums, met = np.zeros(count), np.zeros(count, np.bool_)
    at = 0
    for f in range(len(starts) - 1):
        begin = at
        for p in range(starts[f], starts[f + 1]):
            c = assigned[rows[p]]
            if not met[c]:
                met[c] = True
                clusters[at] = c
                at += 1
            sums[c] += np.rint(weights[rows[p]] * np.float64(data[p]) / units[f]) * units[f]
        for found in range(begin, at):
            c = clusters[found]
            values[found] = sums[c]
            sums[c], met[c] = 0.0, False
        sizes[f] = at - begin
    return at


@kernel
def total(values: Float64s, weights: Float64s) -> tuple[float, float]:
    """Return the weighted sum of values, and what it has lost by rounding."""
    found, rest = 0.0, 0.0
    for i in range(len(values)):
        value = values[i] * weights[i]
        added = found + value
        part = added - found
        rest += (found - (added - part)) + (value - part)
        found = added
    return found, rest


@kernel
def normalize(indptr: Int32s, data: Array) -> int:
    """Divide rows by their lengths, in place; return the number of rows that have none."""
    without = 0
    for i in range(len(indptr) - 1):
        largest = 0.0
        for p in range(indptr[i], indptr[i + 1]):
            largest = max(largest, abs(np.float64(data[p])))
        if largest == 0.0:
            without += 1
            continue
        square = 0.0
        for p in range(indptr[i], indptr[i + 1]):
            square += (np.float64(data[p]) / largest) ** 2
        for p in range(indptr[i], indptr[i + 1]):
            data[p] = np.float64(data[p]) / largest / np.sqrt(square)
    return without
