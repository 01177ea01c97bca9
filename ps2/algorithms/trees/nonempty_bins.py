"""Marks: a bit for each bin of a histogram, which is set unless the bin is known to be empty.

Far from the root, most of a histogram's millions of bins are empty. With marks, the time to add, subtract, clear and
search a histogram depends on its filled bins. Marks are in rows of the same matrix, so that they change together with
the histograms, and are copied with them. A number has the marks of 32 bins, and a row those of 64 histograms. So that a
matrix can grow, the second of every 65 rows has the marks of the others.

The position of a histogram's marks in this row depends on the number of bins on the server. When the matrix is divided
among another number of servers, marks are made again.
"""

from __future__ import annotations

import numpy as np

from ps2.algorithms.trees.layout import Array
from ps2.errors import ShapeError
from ps2.ops.kernels import Int64s, inline, kernel

# The number of bins whose marks are one number.
WORD_BITS = 32
# The number of rows whose marks are in one row: a bin has at least two numbers. With this row they are a group.
SHARED = 2 * WORD_BITS
GROUP = SHARED + 1
ONE = np.uint64(1)
ALL = np.uint64(0xFFFFFFFF)


def rows_with_marks(count: int) -> int:
    """Return the number of rows of a matrix with ``count`` rows besides those of marks."""
    groups, remainder = divmod(count, SHARED)
    return groups * GROUP + remainder + (remainder > 0)


def has_marks(row: int) -> bool:
    """Return whether a row has the marks of other rows."""
    return row % GROUP == 1


def marked_rows(count: int) -> list[int]:
    """Return the rows that have marks, in a matrix of ``count`` rows."""
    return [row for row in range(count) if not has_marks(row) and row // GROUP * GROUP + 1 < count]


def check_rows(m: Array, channels: int, *rows: Int64s) -> None:
    """Raise ShapeError unless these rows have marks; a shard without bins needs none."""
    bins = m.shape[1] // channels
    for ids in rows:
        if bins and (bins % WORD_BITS or ((ids % GROUP == 1) | (ids // GROUP * GROUP + 1 >= m.shape[0])).any()):
            raise ShapeError(
                f"marks: expected {WORD_BITS} n bins, and rows that have marks, got {bins} bins and rows {ids} "
                f"of {m.shape[0]}"
            )


@inline
def row_marks(m: Array, channels: int, row: int) -> Array:
    """Return the marks of a row."""
    words, position = m.shape[1] // channels // WORD_BITS, row % GROUP
    begin = max(position - 1, 0) * words
    return m[row // GROUP * GROUP + 1, begin : begin + words]


@kernel
def add_marked(m: Array, marks: bool, row: int, slots: Int64s, sums: Array) -> None:
    """Add to the bins that begin at these columns; marks: whether to mark the bins."""
    channels = sums.shape[1]
    histogram = m[row]
    words = row_marks(m, channels, row) if marks else histogram[:0]
    for i in range(len(slots)):
        slot = slots[i]
        for c in range(channels):
            histogram[slot + c] += sums[i, c]
        if len(words):
            bin = np.uint64(slot // channels)
            words[bin >> np.uint64(5)] |= np.int64(ONE << (bin & np.uint64(31)))


@inline
def mark_word(histogram: Array, index: int, channels: int) -> np.int64:
    """Return a word of the marks for a histogram: the bits of its filled bins."""
    word = np.uint64(0)
    for bin in range(index * WORD_BITS, min((index + 1) * WORD_BITS, len(histogram) // channels)):
        for c in range(channels):
            if histogram[bin * channels + c] != 0:
                word |= ONE << np.uint64(bin & 31)
                break
    return np.int64(word)


@kernel
def add_rows_marked(rows: Int64s, sums: Array, m: Array, channels: int) -> None:
    """Add to all bins of rows, and mark the bins that change."""
    for i in range(len(rows)):
        words, histogram, row_sums = row_marks(m, channels, rows[i]), m[rows[i]], sums[i]
        for j in range(len(histogram)):
            histogram[j] += row_sums[j]
        for index in range(len(words)):
            words[index] |= mark_word(row_sums, index, channels)


@kernel
def mark_rows(rows: Int64s, m: Array, channels: int) -> None:
    """Set the marks of rows to their filled bins."""
    for row in rows:
        words, histogram = row_marks(m, channels, row), m[row]
        for index in range(len(words)):
            words[index] = mark_word(histogram, index, channels)


@inline
def next_marked(words: Array, bin: int, end: int) -> int:
    """Return the first marked bin from ``bin`` on, or ``end``."""
    if bin >= end:
        return end
    index = bin >> 5
    word = (np.uint64(words[index]) & ALL) >> np.uint64(bin & 31)
    while word == 0:
        index += 1
        bin = index << 5
        if bin >= end:
            return end
        word = np.uint64(words[index]) & ALL
    while word & ONE == 0:
        word >>= ONE
        bin += 1
    return min(bin, end)


@kernel
def subtract_marked(rows: Int64s, others: Int64s, m: Array, channels: int) -> None:
    """Subtract the marked bins of other rows; these bins are marked in ``rows``, too."""
    bins = m.shape[1] // channels
    for i in range(len(rows)):
        words = row_marks(m, channels, others[i])
        row, other = m[rows[i]], m[others[i]]
        bin = next_marked(words, 0, bins)
        while bin < bins:
            for j in range(bin * channels, (bin + 1) * channels):
                row[j] -= other[j]
            bin = next_marked(words, bin + 1, bins)


@kernel
def clear_marked(rows: Int64s, m: Array, channels: int) -> None:
    """Set the marked bins of rows to 0, and clear the marks."""
    bins = m.shape[1] // channels
    for row in rows:
        words, histogram = row_marks(m, channels, row), m[row]
        bin = next_marked(words, 0, bins)
        while bin < bins:
            histogram[bin * channels : (bin + 1) * channels] = 0
            bin = next_marked(words, bin + 1, bins)
        words[:] = 0
