"""Marks: a bit for each bin of a histogram. A bin whose mark is not set is empty.

Far from the root, most of a histogram's millions of bins are empty. With marks, the time to add, subtract, clear and
search a histogram depends only on its filled bins. Marks are in rows of the matrix of histograms, so they change, and
are copied, together with the histograms. An int64 has the marks of 32 bins, in its lower half. The second of every 65
rows has the marks of the other 64, so a matrix can grow.

The position of a histogram's marks in their row depends on the number of bins on the server. After the matrix has been
divided among another number of servers, ``trees.mark`` sets all marks again.
"""

from __future__ import annotations

import numpy as np

from ps2.algorithms.trees.layout import Array
from ps2.errors import ShapeError
from ps2.ops.kernels import Int64s, inline, kernel

# The number of bins whose marks are in one int64.
MARKS_PER_WORD = 32
# A row has at least two int64s for each bin, so it has room for the marks of this many histograms. These rows and the
# row of their marks are a group.
GROUP_HISTOGRAMS = 2 * MARKS_PER_WORD
GROUP_ROWS = GROUP_HISTOGRAMS + 1
ONE = np.uint64(1)
ALL = np.uint64(0xFFFFFFFF)


def rows_with_marks(count: int) -> int:
    """Return the number of rows of a matrix that has ``count`` rows and the rows of their marks."""
    groups, remainder = divmod(count, GROUP_HISTOGRAMS)
    return groups * GROUP_ROWS + remainder + (remainder > 0)


def is_marks_row(row: int) -> bool:
    """Return whether a row contains the marks of the other rows of its group."""
    return row % GROUP_ROWS == 1


def marked_rows(count: int) -> list[int]:
    """Return the rows whose bins have marks, in a matrix of ``count`` rows in all."""
    return [row for row in range(count) if not is_marks_row(row) and row // GROUP_ROWS * GROUP_ROWS + 1 < count]


def check_rows(m: Array, channels: int, *rows: Int64s) -> None:
    """Raise ShapeError unless the bins of these rows have marks; a shard without bins needs none."""
    bins = m.shape[1] // channels
    for ids in rows:
        lack_marks = (ids % GROUP_ROWS == 1) | (ids // GROUP_ROWS * GROUP_ROWS + 1 >= m.shape[0])
        if bins and (bins % MARKS_PER_WORD or lack_marks.any()):
            raise ShapeError(
                f"marks: expected a multiple of {MARKS_PER_WORD} bins, and rows with marks, got {bins} bins and "
                f"rows {ids} of {m.shape[0]}"
            )


@inline
def row_marks(m: Array, channels: int, row: int) -> Array:
    """Return the marks of a row's bins, int64."""
    words, position = m.shape[1] // channels // MARKS_PER_WORD, row % GROUP_ROWS
    begin = max(position - 1, 0) * words
    return m[row // GROUP_ROWS * GROUP_ROWS + 1, begin : begin + words]


@kernel
def add_marked(m: Array, marks: bool, row: int, slots: Int64s, sums: Array) -> None:
    """Add sums to the bins that begin at columns ``slots`` of a row; marks: whether to mark these bins."""
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
    """Return int64 number ``index`` of a histogram's marks: a bit is set if the bin is filled."""
    word = np.uint64(0)
    for bin in range(index * MARKS_PER_WORD, min((index + 1) * MARKS_PER_WORD, len(histogram) // channels)):
        for c in range(channels):
            if histogram[bin * channels + c] != 0:
                word |= ONE << np.uint64(bin & 31)
                break
    return np.int64(word)


@kernel
def add_rows_marked(rows: Int64s, sums: Array, m: Array, channels: int) -> None:
    """Add sums to all bins of rows, and mark the bins whose sums are not 0."""
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
def subtract_marked(rows: Int64s, children: Int64s, m: Array, channels: int) -> None:
    """Subtract the marked bins of children from the parents in ``rows``, whose marks include those of the children."""
    bins = m.shape[1] // channels
    for i in range(len(rows)):
        words = row_marks(m, channels, children[i])
        row, child = m[rows[i]], m[children[i]]
        bin = next_marked(words, 0, bins)
        while bin < bins:
            for j in range(bin * channels, (bin + 1) * channels):
                row[j] -= child[j]
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
