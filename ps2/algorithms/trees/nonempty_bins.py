"""Marks: a bit for each bin of a histogram, set where the bin may not be empty.

A histogram of millions of bins is mostly empty far from the root. With marks, to add, subtract, clear and look through
it takes as long as what is in it. They lie in rows of the same matrix, so they are changed with the histograms, once,
and are on every copy: a number has the marks of 32 bins, and a row those of 64 histograms. So that a matrix can grow,
of each 65 rows the second one has the marks of the others.

Where in that row a histogram's marks are depends on how many bins lie on the server: when the matrix has been cut for
another number of servers, they have to be made again.
"""

from __future__ import annotations

import numpy as np

from ps2.algorithms.trees.layout import Array
from ps2.errors import ShapeError
from ps2.ops.kernels import Int64s, inline, kernel

# Bins whose marks are one number, whatever its dtype.
WORD_BITS = 32
# Rows whose marks are in one of them: a bin has two numbers at least.
SHARED = 2 * WORD_BITS
GROUP = SHARED + 1
ONE = np.uint64(1)
ALL = np.uint64(0xFFFFFFFF)


def rows_with_marks(count: int) -> int:
    """Return how many rows a matrix has that has room for so many beside those of marks."""
    groups, rest = divmod(count, SHARED)
    return groups * GROUP + rest + (rest > 0)


def has_marks(row: int) -> bool:
    """Tell whether a row has the marks of others."""
    return row % GROUP == 1


def marked_rows(count: int) -> list[int]:
    """Return which rows of a matrix that has so many are marked in one of them."""
    return [row for row in range(count) if not has_marks(row) and row // GROUP * GROUP + 1 < count]


def check_rows(m: Array, channels: int, *rows: Int64s) -> None:
    """Raise ShapeError unless these rows have marks; a shard without any bin needs none."""
    bins = m.shape[1] // channels
    for some in rows:
        if bins and (bins % WORD_BITS or ((some % GROUP == 1) | (some // GROUP * GROUP + 1 >= m.shape[0])).any()):
            raise ShapeError(
                f"marks: expected bins by {WORD_BITS}, and rows that have marks, got {bins} bins and rows {some} "
                f"of {m.shape[0]}"
            )


@inline
def marks_of(m: Array, channels: int, row: int) -> Array:
    """Return the marks of a row."""
    words, place = m.shape[1] // channels // WORD_BITS, row % GROUP
    begin = max(place - 1, 0) * words
    return m[row // GROUP * GROUP + 1, begin : begin + words]


@kernel
def add_marked(m: Array, marks: bool, row: int, slots: Int64s, sums: Array) -> None:
    """Add to the bins that begin at some slots, and mark them if they are to be marked."""
    channels = sums.shape[1]
    histogram = m[row]
    words = marks_of(m, channels, row) if marks else histogram[:0]
    for i in range(len(slots)):
        slot = slots[i]
        for c in range(channels):
            histogram[slot + c] += sums[i, c]
        if len(words):
            bin = np.uint64(slot // channels)
            words[bin >> np.uint64(5)] |= np.int64(ONE << (bin & np.uint64(31)))


@inline
def word_of(histogram: Array, place: int, channels: int) -> np.int64:
    """Return a word of the marks that a whole row should have."""
    word = np.uint64(0)
    for bin in range(place * WORD_BITS, min((place + 1) * WORD_BITS, len(histogram) // channels)):
        for c in range(channels):
            if histogram[bin * channels + c] != 0:
                word |= ONE << np.uint64(bin & 31)
                break
    return np.int64(word)


@kernel
def add_rows_marked(rows: Int64s, sums: Array, m: Array, channels: int) -> None:
    """Add to whole rows, and mark the bins that get something."""
    for i in range(len(rows)):
        words, histogram, more = marks_of(m, channels, rows[i]), m[rows[i]], sums[i]
        for j in range(len(histogram)):
            histogram[j] += more[j]
        for place in range(len(words)):
            words[place] |= word_of(more, place, channels)


@kernel
def mark_rows(rows: Int64s, m: Array, channels: int) -> None:
    """Mark the bins of whole rows that are not empty; none are marked yet."""
    for row in rows:
        words, histogram = marks_of(m, channels, row), m[row]
        for place in range(len(words)):
            words[place] = word_of(histogram, place, channels)


@inline
def next_marked(words: Array, bin: int, end: int) -> int:
    """Return the next bin that is marked, or ``end``."""
    if bin >= end:
        return end
    place = bin >> 5
    word = (np.uint64(words[place]) & ALL) >> np.uint64(bin & 31)
    while word == 0:
        place += 1
        bin = place << 5
        if bin >= end:
            return end
        word = np.uint64(words[place]) & ALL
    while word & ONE == 0:
        word >>= ONE
        bin += 1
    return min(bin, end)


@kernel
def subtract_marked(rows: Int64s, others: Int64s, m: Array, channels: int) -> None:
    """Subtract marked bins of other rows, which are marked in the rows too."""
    bins = m.shape[1] // channels
    for i in range(len(rows)):
        words = marks_of(m, channels, others[i])
        row, other = m[rows[i]], m[others[i]]
        bin = next_marked(words, 0, bins)
        while bin < bins:
            for j in range(bin * channels, (bin + 1) * channels):
                row[j] -= other[j]
            bin = next_marked(words, bin + 1, bins)


@kernel
def clear_marked(rows: Int64s, m: Array, channels: int) -> None:
    """Set marked bins of rows to 0, and their marks."""
    bins = m.shape[1] // channels
    for row in rows:
        words, histogram = marks_of(m, channels, row), m[row]
        bin = next_marked(words, 0, bins)
        while bin < bins:
            histogram[bin * channels : (bin + 1) * channels] = 0
            bin = next_marked(words, bin + 1, bins)
        words[:] = 0
