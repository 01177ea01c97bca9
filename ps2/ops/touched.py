"""The set of columns of a row that may be nonzero. A lazy optimizer step processes only these columns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ps2.ops.guards import check_slots, readable
from ps2.ops.kernels import Int64s, kernel

WORD_BITS = 64
ONE = np.uint64(1)
# A set has at most width / COLUMNS_PER_MEMBER members. With more, scanning the row on two cores is as fast.
COLUMNS_PER_MEMBER = 32


class Touched:
    """A set of columns in ``[0, width)``: a list and a bitmap of its members. Callers must hold the shard's lock."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._bits = np.zeros(_count_words(width), np.uint64)
        self._list = np.empty(_list_capacity(width), np.int64)
        self._count = 0

    @staticmethod
    def bytes_for(width: int) -> int:
        """Return the size in bytes of a set for ``width`` columns."""
        return 8 * (_count_words(width) + _list_capacity(width))

    @property
    def columns(self) -> Int64s:
        """The members in insertion order: a view, valid until the set changes."""
        return readable(self._list[: self._count])

    def mark(self, slots: Int64s) -> bool:
        """Add columns, in any order, with duplicates; ignore slots of -1 (absent keys).

        Return False on overflow: the set can then no longer be used. Raises OutOfRangeError, and adds nothing, if a
        slot is not in ``[-1, width)``.
        """
        self._count = _mark(self._bits, self._list, self._count, check_slots(slots, self._width))
        return self._count >= 0

    def clear(self) -> None:
        """Remove all members, in time proportional to their number."""
        _unmark(self._bits, self.columns)
        self._count = 0


def _count_words(width: int) -> int:
    return -(-width // WORD_BITS)


def _list_capacity(width: int) -> int:
    return width // COLUMNS_PER_MEMBER + 1  # ``_mark`` writes one element beyond the last member


@kernel
def _mark(bits: npt.NDArray[np.uint64], columns: Int64s, count: int, slots: Int64s) -> int:
    """Add columns to the list and the bitmap; return the new length of the list, or -1 if they do not fit."""
    for slot in slots:
        if slot >= 0:
            if count == columns.size - 1:
                return -1
            word, bit = slot >> 6, ONE << np.uint64(slot & 63)
            # Use no branch, because a CPU could not predict which slots are already members.
            columns[count] = slot
            count += (bits[word] & bit) == 0
            bits[word] |= bit
    return count


@kernel
def _unmark(bits: npt.NDArray[np.uint64], columns: Int64s) -> None:
    for column in columns:
        bits[column >> 6] = 0
