"""Compiled loops over the rows of open nodes: histograms, and rows that move to the children of their node.

The rows of a node lie together in ``order``: numbers of rows, ascending within a node. Each row has its quantised
hessian and gradient side by side, int32. Sums are whole numbers, so they are the same in any order.

Where sums fit into int32, a pair of them is added to at once, as one int64: the hessian, which is never negative, in
the low half, the gradient in the high one. So ``pairs`` and ``out`` are one number a row and a bin then; where they are
two (or three: with the third one's, such as how many rows there are), they are added to one by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.ops.kernels import kernel

Array = npt.NDArray[Any]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

ONE = np.uint64(1)
# Indices are made unsigned, as for a signed one numba asks whether it counts from the end.
WORD_BITS = 64
# Rows whose pairs and bins stay in the first cache while they are added, a cache line of bins from each.
TILE, LINE = 1 << 8, 8


@kernel
def add_dense(
    words: Int64s, order: Int32s, cells: Array, begins: Int64s, per_word: int, pairs: Array, out: Array
) -> None:
    """Add the pairs of a node's rows to its histogram.

    What a tile of rows has is first copied to a small place: so reads of rows that lie apart wait for nothing, least of
    all for what is written to the histogram.

    Args:
        words: numbers of the columns of ``cells`` to do.
        cells: uint64, shape (rows, columns): bins of ``per_word`` features each, the first ones in the low bits.
        begins: where each feature's bins begin.
        pairs: shape (rows, channels); out: shape (bins, channels). With one channel, see above.
    """
    channels, features = pairs.shape[1], len(begins)
    its_pairs, its_cells = np.empty((TILE, channels), pairs.dtype), np.empty((TILE, LINE), np.uint64)
    for begin in range(0, len(order), TILE):
        rows = order[begin : begin + TILE]
        for i in range(len(rows)):
            row = np.uint64(rows[i])
            for c in range(channels):
                its_pairs[i, c] = pairs[row, c]
        for start in range(0, len(words), LINE):
            some = words[start : start + LINE]
            for i in range(len(rows)):
                row = np.uint64(rows[i])
                for w in range(len(some)):
                    its_cells[i, w] = cells[row, some[w]]
            for w in range(len(some)):
                first = some[w] * per_word
                its_begins = begins[first : min(first + per_word, features)]
                if channels == 1:
                    _add_word(len(rows), its_cells, w, its_begins, per_word, its_pairs, out)
                else:
                    _add_channels(len(rows), its_cells, w, its_begins, per_word, its_pairs, out)


@kernel
def _add_word(count: int, cells: Array, w: int, begins: Int64s, per_word: int, pairs: Array, out: Array) -> None:
    """Add pairs, one number each, to the bins of the features of a word, two at a time."""
    word, bits = np.uint64(w), np.uint64(WORD_BITS // per_word)
    mask = (ONE << bits) - ONE
    for f in range(0, len(begins), 2):
        low, base = np.uint64(f) * bits, np.uint64(begins[f])
        if f + 1 < len(begins):
            high, other = low + bits, np.uint64(begins[f + 1])
            for i in range(count):
                row = np.uint64(i)
                cell, pair = cells[row, word], pairs[row, 0]
                out[base + ((cell >> low) & mask), 0] += pair
                out[other + ((cell >> high) & mask), 0] += pair
        else:
            for i in range(count):
                row = np.uint64(i)
                out[base + ((cells[row, word] >> low) & mask), 0] += pairs[row, 0]


@kernel
def _add_channels(count: int, cells: Array, w: int, begins: Int64s, per_word: int, pairs: Array, out: Array) -> None:
    """Do what ``_add_word`` does with several numbers each."""
    word, bits = np.uint64(w), np.uint64(WORD_BITS // per_word)
    mask = (ONE << bits) - ONE
    for f in range(len(begins)):
        low, base = np.uint64(f) * bits, np.uint64(begins[f])
        for i in range(count):
            row = np.uint64(i)
            bin = base + ((cells[row, word] >> low) & mask)
            for c in range(pairs.shape[1]):
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
