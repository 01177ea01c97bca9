"""Compiled loops over the rows of nodes: they build histograms, and move rows to the children of their node.

``order`` has row numbers, contiguous and ascending for each node. ``pairs`` has the integer hessian and gradient of
each row, and its third channel if there is one, int64. Integer sums do not depend on the order of the rows.
"""

from __future__ import annotations

import numpy as np

from ps2.algorithms.trees.layout import Array, UInt64s
from ps2.algorithms.trees.nonempty_bins import row_marks
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.ops.kernels import inline, kernel
from ps2.ops.prefetch import prefetch_row, prefetch_short
from ps2.ops.simd import add_pair

ONE = np.uint64(1)
# The rows, or the stored values, that come this many iterations later are prefetched.
PREFETCH_DISTANCE = 16
# The number of rows that are transposed at a time: their bins stay in a cache.
TILE = 1 << 9
# The number of rows whose margins are changed at a time.
MARGIN_TILE = 1 << 14


@kernel
def to_rows(tiles: Int64s, columns: Array, features: Int64s, out: Array) -> None:
    """Transpose bins, shape (features, rows), to blocks of features, shape (blocks, rows, width), tile by tile."""
    width = out.shape[2]
    for tile in tiles:
        begin, end = tile * TILE, min(tile * TILE + TILE, out.shape[1])
        for i in range(len(features)):
            block, column = i // width, i % width
            for row in range(begin, end):
                out[block, row, column] = columns[features[i], row]


@kernel
def add_dense(order: Int32s, rows: Array, first_columns: UInt64s, pairs: Array, sign: int, out: Array) -> None:
    """Add the pairs of rows to a histogram; rows: unsigned bins, shape (all rows, features); sign -1: subtract them."""
    channels, features, begin = pairs.shape[1], np.uint64(len(first_columns)), 0
    if channels == 2:
        # Four rows at a time: a column number is read once for all of them, and the processor overlaps their additions.
        begin = len(order) // 4 * 4
        for i in range(0, begin, 4):
            for j in range(i + PREFETCH_DISTANCE, min(i + PREFETCH_DISTANCE + 4, len(order))):
                _prefetch(order[j], rows, pairs)
            # Indices are unsigned: for a signed index, numba would check whether it counts from the end.
            a, b, c, d = np.uint64(order[i]), np.uint64(order[i + 1]), np.uint64(order[i + 2]), np.uint64(order[i + 3])
            a_h, a_g, b_h, b_g = sign * pairs[a, 0], sign * pairs[a, 1], sign * pairs[b, 0], sign * pairs[b, 1]
            c_h, c_g, d_h, d_g = sign * pairs[c, 0], sign * pairs[c, 1], sign * pairs[d, 0], sign * pairs[d, 1]
            for f in range(features):
                first = first_columns[f]
                add_pair(out, first + np.uint64(rows[a, f]), a_h, a_g)
                add_pair(out, first + np.uint64(rows[b, f]), b_h, b_g)
                add_pair(out, first + np.uint64(rows[c, f]), c_h, c_g)
                add_pair(out, first + np.uint64(rows[d, f]), d_h, d_g)
    for i in range(begin, len(order)):
        if i < len(order) - PREFETCH_DISTANCE:
            _prefetch(order[i + PREFETCH_DISTANCE], rows, pairs)
        row = np.uint64(order[i])
        h, g, third = sign * pairs[row, 0], sign * pairs[row, 1], sign * pairs[row, channels - 1]
        for f in range(features):
            bin = first_columns[f] + np.uint64(rows[row, f])
            add_pair(out, bin, h, g)
            if channels == 3:
                out[bin, 2] += third


@inline
def _prefetch(row: np.int32, rows: Array, pairs: Array) -> None:
    prefetch_row(pairs, np.int64(row))
    prefetch_row(rows, np.int64(row))


@inline
def add_blocks(order: Int32s, rows: Array, first_columns: UInt64s, pairs: Array, sign: int, out: Array) -> None:
    """Do ``add_dense`` with rows in blocks of features, shape (blocks, rows, width)."""
    width = rows.shape[2]
    for block in range(rows.shape[0]):
        add_dense(order, rows[block], first_columns[block * width : (block + 1) * width], pairs, sign, out)


@kernel
def add_sparse(order: Int32s, begins: Int64s, bins: Int32s, pairs: Array, out: Array, touched: UInt64s) -> None:
    """Add the pairs of a node's sparse rows to its histogram, and set the bits of the changed bins in ``touched``."""
    channels, last = pairs.shape[1], len(bins) - 1
    for row in order:
        for position in range(begins[row], begins[row + 1]):
            prefetch_short(out, np.int64(bins[min(position + PREFETCH_DISTANCE, last)]))
            bin = bins[position]
            touched[bin >> 6] |= ONE << np.uint64(bin & 63)
            for c in range(channels):
                out[bin, c] += pairs[row, c]


@kernel
def add_sparse_marked(
    indices: Int64s,
    rows: Int64s,
    ends: Int64s,
    order: Int32s,
    begins: Int64s,
    bins: Int32s,
    pairs: Array,
    m: Array,
    sums: Array,
    channels: int,
) -> None:
    """Add the pairs of nodes' sparse rows to their histograms, which are rows of ``m``, and mark changed bins."""
    for index in indices:
        words, out = row_marks(m, channels, rows[index]), sums[rows[index]]
        last = len(bins) - 1
        for i in range(ends[index], ends[index + 1]):
            row = order[i]
            for position in range(begins[row], begins[row + 1]):
                prefetch_short(out, np.int64(bins[min(position + PREFETCH_DISTANCE, last)]))
                bin = bins[position]
                words[bin >> 5] |= np.int64(ONE << np.uint64(bin & 31))
                for c in range(pairs.shape[1]):
                    out[bin, c] += pairs[row, c]


@kernel
def count_touched(touched: UInt64s) -> int:
    count = 0
    for word in touched:
        while word:
            word &= word - ONE
            count += 1
    return count


@kernel
def take_touched(touched: UInt64s, histogram: Array, bins: Int64s, sums: Array) -> None:
    """Copy the touched bins of a histogram to ``bins``, ascending, and ``sums``; then clear them and their bits."""
    count = 0
    for i in range(len(touched)):
        word = touched[i]
        bit = 0
        while word:
            while not word & ONE:
                word >>= ONE
                bit += 1
            bin = i * 64 + bit
            bins[count] = bin
            for c in range(histogram.shape[1]):
                sums[count, c] = histogram[bin, c]
                histogram[bin, c] = 0
            count += 1
            word >>= ONE
            bit += 1
        touched[i] = 0


@kernel
def partition_dense(order: Int32s, column: Array, goes_left: Array, spare: Int32s) -> np.int64:
    """Move the rows of a node that go left to the front, and return their number; each side keeps its order.

    ``goes_left`` has a flag for each bin of the split's feature; spare: memory of the length of ``order``.
    """
    # Indices are unsigned: see ``add_dense``.
    left, count = np.uint64(0), np.uint64(len(order))
    for i in range(count):
        row = order[i]
        # There is no branch, because the processor cannot predict it.
        order[left] = row
        spare[i - left] = row
        left += np.uint64(goes_left[column[np.uint64(row)]])
    for i in range(count - left):
        order[left + i] = spare[i]
    return np.int64(left)


@kernel
def partition_sparse(
    order: Int32s, begins: Int64s, bins: Int32s, first_column: int, implied: int, goes_left: Array, spare: Int32s
) -> int:
    """Do what ``partition_dense`` does, with sparse rows; first_column: the first histogram column of the feature."""
    left, right = 0, 0
    last = first_column + len(goes_left)
    for i in range(len(order)):
        row = order[i]
        low, high = begins[row], begins[row + 1]
        end = high
        while low < high:
            middle = (low + high) >> 1
            if bins[middle] < first_column:
                low = middle + 1
            else:
                high = middle
        is_left = goes_left[bins[low] - first_column] if low < end and bins[low] < last else goes_left[implied]
        order[left] = row
        spare[right] = row
        left += is_left
        right += 1 - is_left
    for i in range(right):
        order[left + i] = spare[i]
    return left


@kernel
def add_leaf_values(tiles: Int64s, ends: Int64s, values: Float64s, order: Int32s, margins: Array) -> None:
    """Add each leaf's value to the margins of its rows, tile by tile; ends: the leaves' intervals, shape (leaves, 2).

    The margins of a tile stay in a cache, and threads that work on different tiles share no cache line.
    """
    for tile in tiles:
        first_row, last_row = tile * MARGIN_TILE, tile * MARGIN_TILE + MARGIN_TILE
        for leaf in range(len(values)):
            low, end = ends[leaf]
            high = end
            while low < high:
                middle = (low + high) >> 1
                if order[middle] < first_row:
                    low = middle + 1
                else:
                    high = middle
            while low < end and order[low] < last_row:
                margins[order[low]] += values[leaf]
                low += 1


@kernel
def sum_pairs(order: Int32s, pairs: Array) -> tuple[np.int64, np.int64]:
    h, g = np.int64(0), np.int64(0)
    for row in order:
        h += pairs[row, 0]
        g += pairs[row, 1]
    return h, g
