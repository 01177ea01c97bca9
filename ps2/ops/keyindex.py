"""The key index of a sparse shard (PS2 paper, section 4.3): a hash table from int64 keys to slots."""

from __future__ import annotations

import numpy as np

from ps2.errors import OutOfRangeError
from ps2.ops.guards import readable
from ps2.ops.kernels import Int64s, inline, kernel

EMPTY = -1
MIN_CELLS = 16
# Constants of MurmurHash3's finalizer. The hash must differ from ``ps2.matrix.partition.hash_bucket``, which assigns
# keys to partitions: all keys of a partition have similar hash buckets, and would fill only a part of the table.
SHIFT = np.uint64(33)
MULTIPLIER_1 = np.uint64(0xFF51AFD7ED558CCD)
MULTIPLIER_2 = np.uint64(0xC4CEB9FE1A85EC53)


class KeyIndex:
    """Assigns slots 0, 1, 2... to int64 keys in ``[0, 2**63 - 1]``, in the order of insertion.

    At most half of the cells are occupied. A cell contains the key and its slot, so most look-ups read one cache line.
    Not thread-safe: callers must hold the shard's lock.
    """

    def __init__(self) -> None:
        self._count = 0
        self._cells = _empty_cells(MIN_CELLS)
        self._keys = np.empty(MIN_CELLS // 2, dtype=np.int64)

    def __len__(self) -> int:
        return self._count

    @property
    def keys(self) -> Int64s:
        """The key of each slot: a read-only view of shape (len(self),), valid until the next insertion."""
        return readable(self._keys[: self._count])

    @property
    def cells(self) -> Int64s:
        """The hash table of (key, slot), for ``find``: shape (cells, 2), valid until the next insertion."""
        return self._cells

    @property
    def nbytes(self) -> int:
        """The present size of the index in bytes."""
        return self._cells.nbytes + self._keys.nbytes

    def nbytes_after(self, added: int) -> int:
        """Return the size of the index, in bytes, after ``added`` more keys.

        While the index grows, it needs ``nbytes`` more, because the old arrays are still in memory.
        """
        cells = len(self._cells)
        while self._count + added > cells // 2:
            cells *= 2
        return cells * self._cells.itemsize * 2 + cells // 2 * self._keys.itemsize

    def lookup(self, keys: Int64s) -> Int64s:
        """Return the slot of each key; -1 if the key is absent. Keys may be in any order, with duplicates."""
        slots = np.empty(keys.size, dtype=np.int64)
        _lookup(self._cells, readable(keys), slots)
        return slots

    def insert(self, keys: Int64s) -> Int64s:
        """Add absent keys in their order; return the slot of each key.

        Raises OutOfRangeError, and adds no key, if a key is negative.
        """
        keys = readable(keys)
        if keys.size and keys.min() < 0:
            raise OutOfRangeError(f"key {keys.min()} is outside [0, 2**63)")
        slots = np.empty(keys.size, dtype=np.int64)
        next_key = 0
        while True:
            next_key, self._count = _insert(self._cells, self._keys, self._count, keys, slots, next_key)
            if next_key == keys.size:
                return slots
            self._grow()

    def count_absent(self, keys: Int64s) -> int:
        """Return the number of distinct absent keys: the number of slots that ``insert`` would add."""
        absent = keys[self.lookup(keys) == EMPTY]
        # Fast path: the keys of most requests are sorted and distinct.
        if bool(np.all(absent[1:] > absent[:-1])):
            return int(absent.size)
        return int(np.unique(absent).size)

    def _grow(self) -> None:
        cells = _empty_cells(2 * len(self._cells))
        keys = np.empty(len(cells) // 2, dtype=np.int64)
        keys[: self._count] = self._keys[: self._count]
        _fill(cells, keys, self._count)
        self._cells, self._keys = cells, keys


def _empty_cells(count: int) -> Int64s:
    return np.full((count, 2), EMPTY, dtype=np.int64)


@inline
def hash_key(key: int) -> np.int64:
    x = np.uint64(key)
    x = (x ^ (x >> SHIFT)) * MULTIPLIER_1
    x = (x ^ (x >> SHIFT)) * MULTIPLIER_2
    return np.int64(x ^ (x >> SHIFT))


@inline
def _cell(cells: Int64s, key: int) -> int:
    """Return the cell of a key; if it is absent, the empty cell into which it would be inserted."""
    last = cells.shape[0] - 1
    cell: int = int(hash_key(key)) & last
    while cells[cell, 0] != key and cells[cell, 0] != EMPTY:
        cell = (cell + 1) & last
    return cell


@kernel
def _lookup(cells: Int64s, keys: Int64s, slots: Int64s) -> None:
    for i in range(keys.size):
        slots[i] = cells[_cell(cells, keys[i]), 1]


@inline
def find(cells: Int64s, keys: Int64s) -> bool:
    """Replace each key by its slot, or by -1 if the key is absent; return True if all keys are present."""
    absent = 0
    for i in range(keys.size):
        slot = cells[_cell(cells, keys[i]), 1]
        keys[i] = slot
        absent += slot < 0
    return absent == 0


@kernel
def _insert(cells: Int64s, slot_keys: Int64s, count: int, keys: Int64s, slots: Int64s, start: int) -> tuple[int, int]:
    """Insert ``keys[start:]`` until the table is half full; return the index of the next key, and the new count."""
    for i in range(start, keys.size):
        cell = _cell(cells, keys[i])
        if cells[cell, 0] == EMPTY:
            if count == slot_keys.size:
                return i, count
            cells[cell, 0] = keys[i]
            cells[cell, 1] = count
            slot_keys[count] = keys[i]
            count += 1
        slots[i] = cells[cell, 1]
    return keys.size, count


@kernel
def _fill(cells: Int64s, slot_keys: Int64s, count: int) -> None:
    """Insert distinct keys into an empty table."""
    for slot in range(count):
        cell = _cell(cells, slot_keys[slot])
        cells[cell, 0] = slot_keys[slot]
        cells[cell, 1] = slot
