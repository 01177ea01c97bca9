"""Bitmaps of the columns that rows use, for rows in one array or in several blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Int32s, Int64s
from ps2.ops.kernels import inline, kernel
from ps2.ops.nonzero import count_bits

Array = npt.NDArray[Any]
Words = npt.NDArray[np.uint64]

WORD_BITS = 64


class UsedColumns:
    """A set of columns in ``[0, size)``, with one bit for each column."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._words = np.zeros(size // WORD_BITS + 1, np.uint64)

    def add(self, columns: Int32s) -> None:
        _mark(columns, self._words)

    def keys(self) -> Int64s:
        """Return the columns, ascending."""
        bits = np.unpackbits(self._words.view(np.uint8), bitorder="little")
        return np.flatnonzero(bits)

    def numbers(self) -> ColumnNumbers:
        """Return the numbers of the columns: 0, 1, ... in ascending order."""
        return ColumnNumbers(self._words)


class ColumnNumbers:
    """The numbers of the columns in a set: 0, 1, ... in ascending order. Picklable."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._before = np.empty(len(words), np.int32)
        _sum_before(words, self._before)

    def number(self, columns: Int32s) -> Int32s:
        """Return the number of each column. All columns must be in the set."""
        numbers = np.empty(len(columns), np.int32)
        _look_up(columns, self._words, self._before, numbers)
        return numbers


@kernel
def renumber(ids: Array, inverse: Int32s, size: int) -> Int64s:
    """Return the sorted unique ids in [0, size), and write each entry's index in them to ``inverse``.

    ``inverse`` can be ``ids``. A bitmap and the number of set bits before each word replace the sorting.
    """
    words = np.zeros(size // WORD_BITS + 1, np.uint64)
    _mark(ids, words)
    before = np.empty(len(words), np.int32)
    used = np.empty(_sum_before(words, before), np.int64)
    for i in range(len(ids)):
        id = ids[i]
        number = _number_of(id, words, before)
        used[number] = id
        inverse[i] = number
    return used


@kernel
def _mark(columns: Array, words: Words) -> None:
    for column in columns:
        words[column // WORD_BITS] |= np.uint64(1) << np.uint64(column % WORD_BITS)


@kernel
def _sum_before(words: Words, before: Int32s) -> np.int64:
    """Write the number of set bits before each word to ``before``; return the number of all set bits."""
    count = np.int64(0)
    for word in range(len(words)):
        before[word] = count
        count += np.int64(count_bits(words[word]))
    return count


@inline
def _number_of(column: int, words: Words, before: Int32s) -> np.int64:
    word = column // WORD_BITS
    lower = words[word] & ((np.uint64(1) << np.uint64(column % WORD_BITS)) - np.uint64(1))
    return before[word] + np.int64(count_bits(lower))


@kernel
def _look_up(columns: Int32s, words: Words, before: Int32s, numbers: Int32s) -> None:
    for position in range(len(columns)):
        numbers[position] = _number_of(columns[position], words, before)
