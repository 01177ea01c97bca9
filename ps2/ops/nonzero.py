"""Finds the nonzero columns of a row, by a bitmap with one bit per column."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ps2.ops.guards import readable
from ps2.ops.kernels import Int64s, inline, kernel
from ps2.ops.table import Array

Words = npt.NDArray[np.uint64]

WORD_BITS = 64
ONE = np.uint64(1)
# Constants of ``count_bits``: masks of every second bit, pair of bits and group of four bits; lowest bits of all bytes.
ODD_BITS = np.uint64(0x5555555555555555)
ODD_PAIRS = np.uint64(0x3333333333333333)
ODD_FOURS = np.uint64(0x0F0F0F0F0F0F0F0F)
ONES = np.uint64(0x0101010101010101)


def nonzero(row: Array) -> Int64s:
    """Return the nonzero columns of a row in ascending order; NaN counts as nonzero, -0.0 as zero."""
    words: Words = np.zeros(-(-row.size // WORD_BITS), dtype=np.uint64)
    _set_bits(words, readable(row))
    columns = np.empty(_count_columns(words), dtype=np.int64)
    _list_columns(words, columns)
    return columns


@inline
def count_bits(word: np.uint64) -> np.uint64:
    """Return the number of 1 bits of a word. LLVM recognizes this formula, and compiles it into one instruction."""
    word = word - ((word >> ONE) & ODD_BITS)
    word = (word & ODD_PAIRS) + ((word >> np.uint64(2)) & ODD_PAIRS)
    return (((word + (word >> np.uint64(4))) & ODD_FOURS) * ONES) >> np.uint64(56)


@kernel
def _count_columns(words: Words) -> int:
    count = np.uint64(0)
    for i in range(words.size):
        count += count_bits(words[i])
    return int(count)


@kernel
def _set_bits(words: Words, row: Array) -> None:
    num_full = row.size // WORD_BITS
    for i in range(num_full):
        word = np.uint64(0)
        # The loop has a constant number of iterations and no branch, so LLVM compares 16 columns at once.
        for bit in range(WORD_BITS):
            word |= np.uint64(row[i * WORD_BITS + bit] != 0) << np.uint64(bit)
        words[i] |= word
    for column in range(num_full * WORD_BITS, row.size):
        words[num_full] |= np.uint64(row[column] != 0) << np.uint64(column & 63)


@kernel
def _list_columns(words: Words, columns: Int64s) -> None:
    count = 0
    for i in range(words.size):
        word = words[i]
        while word:
            # The number of zeros below the lowest 1 bit of the word is the position of this bit.
            columns[count] = i * WORD_BITS + np.int64(count_bits(~word & (word - ONE)))
            count += 1
            word &= word - ONE
