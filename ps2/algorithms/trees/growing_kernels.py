"""Compiled loops over the rows of open nodes: histograms, and rows that move to the children of their node.

The rows of a node lie together in ``order``: numbers of rows, ascending within a node. Each row has its quantised
hessian and gradient side by side, int64 or int32. Sums are whole numbers, so they are the same in any order.

Where sums are int32, a pair of them is added to at once, as one int64: the hessian, which is never negative, in
the low half, the gradient in the high one. So ``pairs`` and ``out`` are one number a row and a bin then, else two, or
three: with the third one's, such as how many rows there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.ops.kernels import kernel
from ps2.ops.prefetch import prefetch_short

Array = npt.NDArray[Any]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

ONE = np.uint64(1)
# Indices are made unsigned, as for a signed one numba asks whether it counts from the end. Rows whose pairs stay in the
# first cache while all features' bins are looked up.
TILE = 1 << 11
# Features that are added to at once.
AT_ONCE = 4
# Rows between the one that is added and the one that is fetched into the caches.
AHEAD = 16


@kernel
def add_dense(order: Int32s, features: Int64s, columns: Array, first: Int64s, pairs: Array, out: Array) -> None:
    """Add the pairs of a node's rows to its histogram.

    Args:
        features: those to do, best AT_ONCE of them; columns: the bins, shape (features, rows).
        first: where each feature's bins begin.
        pairs: shape (rows, channels); out: shape (bins, channels). With one channel, see above.
    """
    together = len(features) // AT_ONCE * AT_ONCE
    for begin in range(0, len(order), TILE):
        tile = order[begin : begin + TILE]
        for at in range(0, together, AT_ONCE):
            _add_four(tile, features[at : at + AT_ONCE], columns, first, pairs, out)
        for f in features[together:]:
            _add_one(tile, columns[f], np.uint64(first[f]), pairs, out)


@kernel
def add_by_row(order: Int32s, features: Int64s, rows: Array, first: Int64s, pairs: Array, out: Array) -> None:
    """Do what ``add_dense`` does, by row: faster for nodes with few of the rows, whose bins lie far apart.

    Args:
        features: those to do; rows: the bins, shape (rows, features).
    """
    near = max(len(order) - AHEAD, 0)
    for i in range(near):
        coming = np.int64(order[i + AHEAD])
        prefetch_short(pairs, coming)
        prefetch_short(rows, coming)
        _add_row(np.uint64(order[i]), features, rows, first, pairs, out)
    for i in range(near, len(order)):
        _add_row(np.uint64(order[i]), features, rows, first, pairs, out)


@kernel
def _add_row(row: np.uint64, features: Int64s, rows: Array, first: Int64s, pairs: Array, out: Array) -> None:
    channels, h = pairs.shape[1], pairs[row, 0]
    if channels == 1:
        for f in features:
            out[np.uint64(first[f]) + np.uint64(rows[row, f]), 0] += h
        return
    g = pairs[row, 1]
    n = pairs[row, channels - 1]
    for f in features:
        bin = np.uint64(first[f]) + np.uint64(rows[row, f])
        out[bin, 0] += h
        out[bin, 1] += g
        if channels == 3:
            out[bin, 2] += n


@kernel
def _add_four(order: Int32s, features: Int64s, columns: Array, first: Int64s, pairs: Array, out: Array) -> None:
    """Add to four features at once: a row is looked up once for all, and no addition waits."""
    c0, c1, c2, c3 = columns[features[0]], columns[features[1]], columns[features[2]], columns[features[3]]
    b0, b1 = np.uint64(first[features[0]]), np.uint64(first[features[1]])
    b2, b3 = np.uint64(first[features[2]]), np.uint64(first[features[3]])
    if pairs.shape[1] == 1:
        for i in range(len(order)):
            row = np.uint64(order[i])
            pair = pairs[row, 0]
            out[b0 + np.uint64(c0[row]), 0] += pair
            out[b1 + np.uint64(c1[row]), 0] += pair
            out[b2 + np.uint64(c2[row]), 0] += pair
            out[b3 + np.uint64(c3[row]), 0] += pair
        return
    third = pairs.shape[1] == 3
    for i in range(len(order)):
        row = np.uint64(order[i])
        h, g = pairs[row, 0], pairs[row, 1]
        i0, i1 = b0 + np.uint64(c0[row]), b1 + np.uint64(c1[row])
        i2, i3 = b2 + np.uint64(c2[row]), b3 + np.uint64(c3[row])
        for bin in (i0, i1, i2, i3):
            out[bin, 0] += h
            out[bin, 1] += g
        if third:
            n = pairs[row, 2]
            for bin in (i0, i1, i2, i3):
                out[bin, 2] += n


@kernel
def _add_one(order: Int32s, column: Array, base: np.uint64, pairs: Array, out: Array) -> None:
    channels = pairs.shape[1]
    if channels == 2:
        for i in range(len(order)):
            row = np.uint64(order[i])
            bin = base + np.uint64(column[row])
            out[bin, 0] += pairs[row, 0]
            out[bin, 1] += pairs[row, 1]
    else:
        for i in range(len(order)):
            row = np.uint64(order[i])
            bin = base + np.uint64(column[row])
            for c in range(channels):
                out[bin, c] += pairs[row, c]


@kernel
def add_sparse(order: Int32s, begins: Int64s, bins: Int32s, pairs: Array, out: Array, touched: UInt64s) -> None:
    """Add the pairs of a node's rows to its histogram, and mark in ``touched``, a bit a bin, what is changed."""
    channels = pairs.shape[1]
    for row in order:
        if channels == 1:
            pair = pairs[row, 0]
            for position in range(begins[row], begins[row + 1]):
                bin = bins[position]
                out[bin, 0] += pair
                touched[bin >> 6] |= ONE << np.uint64(bin & 63)
        else:
            for position in range(begins[row], begins[row + 1]):
                bin = bins[position]
                touched[bin >> 6] |= ONE << np.uint64(bin & 63)
                for c in range(channels):
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
    """Move the marked bins of a histogram to ``bins``, ascending, and ``sums``; what was marked is 0 again."""
    at = 0
    for place in range(len(touched)):
        word = touched[place]
        bit = 0
        while word:
            while not word & ONE:
                word >>= ONE
                bit += 1
            bin = place * 64 + bit
            bins[at] = bin
            for c in range(histogram.shape[1]):
                sums[at, c] = histogram[bin, c]
                histogram[bin, c] = 0
            at += 1
            word >>= ONE
            bit += 1
        touched[place] = 0


@kernel
def part_dense(order: Int32s, column: Array, lefts: Array, aside: Int32s) -> int:
    """Part the rows of a node, in place: those that go left come first; return how many. Both sides keep their order.

    Args:
        column: bins of the feature; lefts: for each bin, whether it goes left.
        aside: as long as ``order``, overwritten.
    """
    left, right = 0, 0
    for i in range(len(order)):
        row = order[i]
        goes = lefts[column[row]]
        # No branch: which way rows go cannot be predicted.
        order[left] = row
        aside[right] = row
        left += goes
        right += 1 - goes
    order[left:] = aside[:right]
    return left


@kernel
def part_sparse(
    order: Int32s, begins: Int64s, bins: Int32s, first: int, implied: int, lefts: Array, aside: Int32s
) -> int:
    """Do what ``part_dense`` does with sparse rows: the feature's bins begin at ``first``."""
    left, right = 0, 0
    last = first + len(lefts)
    for i in range(len(order)):
        row = order[i]
        low, high = begins[row], begins[row + 1]
        end = high
        while low < high:
            middle = (low + high) >> 1
            if bins[middle] < first:
                low = middle + 1
            else:
                high = middle
        goes = lefts[bins[low] - first] if low < end and bins[low] < last else lefts[implied]
        order[left] = row
        aside[right] = row
        left += goes
        right += 1 - goes
    order[left:] = aside[:right]
    return left


@kernel
def add_to_rows(order: Int32s, margins: Array, value: float) -> None:
    """Add what a leaf says to the margins of its rows."""
    for row in order:
        margins[row] += value


@kernel
def sum_pairs(order: Int32s, pairs: Array) -> tuple[np.int64, np.int64]:
    """Return the sums of a node's hessians and gradients; pairs of two."""
    h, g = np.int64(0), np.int64(0)
    for row in order:
        h += pairs[row, 0]
        g += pairs[row, 1]
    return h, g
