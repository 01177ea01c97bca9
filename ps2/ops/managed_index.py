"""The index of managed keys: a hash table from int64 keys to slots, with open addressing and incremental rehashing.

Slots stay dense: the key in the last slot moves into the slot of a removed key. A cell contains a slot and 32 bits of
the key's hash. So a look-up reads a key only if these bits are equal, and a rehash reads no keys. During a rehash,
look-ups search the new table and then the old one, and each call moves some cells to the new table. So no call takes
time proportional to the number of all keys (as in Redis's dictionaries).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ps2.errors import LimitError
from ps2.ops.guards import readable
from ps2.ops.kernels import Int64s, inline, kernel
from ps2.ops.keyindex import hash_key
from ps2.ops.mapped import PAGE, MappedArray
from ps2.ops.prefetch import prefetch_short

ABSENT = -1
MIN_CELLS = 1024
MIN_SLOTS = 512
MAX_SLOTS = 2**31 - 2
# Loads of a table, in 32nds of its cells. A table is rehashed if its load is above MAX_LOAD or below MIN_LOAD. Above
# PREPARE_LOAD, the next table is allocated, and each call touches some of its pages, because the system takes too long
# to provide all pages at once. Below DISCARD_LOAD, the next table is freed. A new table has at most REHASHED_LOAD.
MAX_LOAD, PREPARE_LOAD, DISCARD_LOAD, MIN_LOAD, REHASHED_LOAD = 22, 18, 17, 6, 15
# A call with n keys touches the pages of n * TOUCHED_PER_KEY + TOUCHED_PER_CALL cells of the next table.
TOUCHED_PER_KEY, TOUCHED_PER_CALL = 24, 1 << 15
# A call that inserts or removes n keys moves n * MOVED_PER_KEY + MOVED_PER_CALL cells of the old table. For a look-up,
# n is the number of its keys divided by LOOKED_UP_PER_MOVED.
MOVED_PER_KEY, MOVED_PER_CALL, LOOKED_UP_PER_MOVED = 8, 1 << 12, 8
# A cell is EMPTY, DEAD if its key was removed during a rehash of its table, or (slot + 1) << 32 | hash bits.
EMPTY, DEAD = 0, 1
HASH_BITS = 32
HASH_MASK = (1 << HASH_BITS) - 1
# The number of keys between the current key and the prefetched key; the number of keys that are looked up together.
AHEAD, BATCH = 16, 256


class ManagedIndex:
    """Assigns slots ``[0, len(self))`` to int64 keys. Not thread-safe: callers must hold the shard's lock."""

    def __init__(self) -> None:
        self._count = 0
        self._keys = MappedArray(1, MIN_SLOTS, np.int64)
        self._cells = MappedArray(1, MIN_CELLS, np.int64)
        # The old table during a rehash, and the number of its cells that have been moved.
        self._old: MappedArray | None = None
        self._moved = 0
        # The next table before a rehash, and the number of its cells that have been touched.
        self._next: MappedArray | None = None
        self._touched = 0

    def __len__(self) -> int:
        return self._count

    @property
    def keys(self) -> Int64s:
        """The key of each slot: a read-only view of shape (len(self),), valid until the next change."""
        return readable(self._keys.array[0, : self._count])

    @property
    def nbytes(self) -> int:
        tables = (self._keys, self._cells, self._old, self._next)
        return sum(table.nbytes for table in tables if table is not None)

    def nbytes_after(self, added: int) -> int:
        """Return the maximum size in bytes after ``added`` more keys, including the tables of a rehash."""
        count, cells = self._count + added, self._cells.columns
        while count * 32 > cells * PREPARE_LOAD:
            cells *= 2
        table_bytes = 8 * cells if cells > self._cells.columns and self._next is None else 0
        slot_bytes = 8 * max(self._slots_for(count) - self._keys.columns, 0) if count > self._keys.columns else 0
        return self.nbytes + table_bytes + slot_bytes + PAGE

    def lookup(self, keys: Int64s) -> Int64s:
        """Return the slot of each key; -1 if the key is absent. Keys may be in any order, with duplicates."""
        slots = np.empty(keys.size, dtype=np.int64)
        if self._old is not None:
            # Without this, an index that is only read would never finish its rehash.
            self._step(keys.size // LOOKED_UP_PER_MOVED)
        _lookup(self._table, self._old_table, self._keys.array[0], readable(keys), slots)
        return slots

    def insert(self, keys: Int64s) -> None:
        """Add distinct absent keys, in the slots from ``len(self)`` on. Raise LimitError, and add none, if too many."""
        count = self._count + keys.size
        if count > MAX_SLOTS:
            raise LimitError(f"a partition has at most {MAX_SLOTS:,} active keys, got {count:,}")
        if count > self._keys.columns:
            self._keys.resize(self._slots_for(count))
        if count * 32 > self._cells.columns * MAX_LOAD:
            self._start_rehash(count)
        elif count * 32 > self._cells.columns * PREPARE_LOAD and self._next is None and self._old is None:
            self._next, self._touched = MappedArray(1, 2 * self._cells.columns, np.int64), 0
        _insert(self._table, self._keys.array[0], readable(keys), self._count)
        self._count = count
        self._step(keys.size)

    def remove(self, slots: Int64s) -> Int64s:
        """Remove the keys of distinct, descending slots. Keys in the last slots move into the free slots.

        Return, for each slot, the slot from which a key has moved there; the slot itself if it was the last one.
        """
        sources = np.empty(slots.size, np.int64)
        _remove(self._table, self._old_table, self._keys.array[0], self._count, readable(slots), sources)
        self._count -= slots.size
        self.settle(slots.size)
        if self._count * 4 < self._keys.columns * 3 and self._keys.columns > MIN_SLOTS:
            self._keys.resize(self._slots_for(self._count))
        return sources

    def settle(self, keys: int) -> None:
        """Move some cells, as after the removal of ``keys`` keys; start a rehash if the table is too large."""
        self._step(keys)
        if self._count * 32 < self._cells.columns * DISCARD_LOAD:
            self._next = None
        if self._count * 32 < self._cells.columns * MIN_LOAD and self._cells.columns > MIN_CELLS and self._old is None:
            self._start_rehash(self._count)

    @property
    def _table(self) -> Int64s:
        return self._cells.array[0]

    @property
    def _old_table(self) -> Int64s:
        return self._cells.array[0, :0] if self._old is None else self._old.array[0]

    @staticmethod
    def _slots_for(count: int) -> int:
        return max(MIN_SLOTS, count + count // 8)

    def _start_rehash(self, count: int) -> None:
        """Start a rehash to a table for about twice ``count`` keys, with at least half the cells of the present table.

        With this minimum, the moves of all cells end before insertions can fill the new table.
        """
        prepared, self._next = self._next, None
        self._step(2**62)  # finish the last rehash
        cells = max(MIN_CELLS, self._cells.columns // 2)
        while count * 32 > cells * REHASHED_LOAD:
            cells *= 2
        if cells == self._cells.columns:
            return
        self._old, self._moved = self._cells, 0
        if prepared is None or prepared.columns != cells:
            prepared = MappedArray(1, cells, np.int64)
        self._cells = prepared

    def _step(self, keys: int) -> None:
        """Move some cells of the old table, and touch some pages of the next table, for a call with ``keys`` keys."""
        if self._next is not None:
            end = min(self._next.columns, self._touched + keys * TOUCHED_PER_KEY + TOUCHED_PER_CALL)
            self._next.array[0, self._touched : end : PAGE // 8] = EMPTY
            self._touched = end
        if self._old is None:
            return
        end = min(self._old.columns, self._moved + keys * MOVED_PER_KEY + MOVED_PER_CALL)
        _move(self._old_table, self._table, self._moved, end)
        self._moved = end
        if end == self._old.columns:
            self._old = None


@inline
def hash_bits(key: int) -> Any:
    """Return the lower 32 bits of a key's hash."""
    return np.int64(hash_key(key)) & np.int64(HASH_MASK)


@inline
def _find(cells: Int64s, slot_keys: Int64s, key: int, bits: Any) -> Any:
    """Return the position of a key's cell; -1 if the key is absent."""
    last = np.int64(cells.size - 1)
    position = bits & last
    while cells[position] != EMPTY:
        cell = cells[position]
        if (cell & HASH_MASK) == bits and cell > HASH_MASK and slot_keys[(cell >> HASH_BITS) - 1] == key:
            return position
        position = (position + 1) & last
    return -1


@inline
def _slot(cells: Int64s, old: Int64s, slot_keys: Int64s, key: int) -> Any:
    """Return the slot of a key from the new or the old table; -1 if the key is absent."""
    bits = hash_bits(key)
    position = _find(cells, slot_keys, key, bits)
    if position >= 0:
        return (cells[position] >> HASH_BITS) - 1
    if old.size:
        position = _find(old, slot_keys, key, bits)
        if position >= 0:
            return (old[position] >> HASH_BITS) - 1
    return ABSENT


@kernel
def _lookup(cells: Int64s, old: Int64s, slot_keys: Int64s, keys: Int64s, slots: Int64s) -> None:
    # Look up batches of keys in stages: first the cache misses of all cells overlap, then those of all keys.
    last, old_last = np.int64(cells.size - 1), np.int64(old.size - 1)
    bits = np.empty(BATCH, np.int64)
    for begin in range(0, keys.size, BATCH):
        count = min(BATCH, keys.size - begin)
        for i in range(count):
            bits[i] = hash_bits(keys[begin + i])
            prefetch_short(cells, bits[i] & last)
            if old.size:
                prefetch_short(old, bits[i] & old_last)
        for i in range(count):
            position = bits[i] & last
            cell = cells[position]
            while cell != EMPTY and (cell & HASH_MASK) != bits[i]:
                position = (position + 1) & last
                cell = cells[position]
            slots[begin + i] = (cell >> HASH_BITS) - 1
            if cell != EMPTY:
                prefetch_short(slot_keys, (cell >> HASH_BITS) - 1)
        for i in range(count):
            key, slot = keys[begin + i], slots[begin + i]
            if slot >= 0:
                # Another key may have the same hash bits.
                if slot_keys[slot] != key:
                    slots[begin + i] = _slot(cells, old, slot_keys, key)
            elif old.size:
                slots[begin + i] = _slot(cells, old, slot_keys, key)


@inline
def _put(cells: Int64s, bits: Any, cell: Any) -> None:
    """Write a cell to the first empty position, beginning at the position of its hash bits."""
    last = np.int64(cells.size - 1)
    position = bits & last
    while cells[position] != EMPTY:
        position = (position + 1) & last
    cells[position] = cell


@kernel
def _insert(cells: Int64s, slot_keys: Int64s, keys: Int64s, count: int) -> None:
    last = np.int64(cells.size - 1)
    for i in range(keys.size):
        if i + AHEAD < keys.size:
            prefetch_short(cells, hash_bits(keys[i + AHEAD]) & last)
        bits = hash_bits(keys[i])
        slot_keys[count + i] = keys[i]
        _put(cells, bits, ((count + i + 1) << HASH_BITS) | bits)


@kernel
def _move(old: Int64s, cells: Int64s, begin: int, end: int) -> None:
    """Copy the cells ``[begin, end)`` of the old table into the new one."""
    last = np.int64(cells.size - 1)
    for position in range(begin, end):
        if position + AHEAD < end:
            prefetch_short(cells, old[position + AHEAD] & last)
        if old[position] > HASH_MASK:
            _put(cells, old[position] & HASH_MASK, old[position])


@inline
def _close_gap(cells: Int64s, gap: Any) -> None:
    """Empty a cell, and move later cells of its probe sequences (Knuth, TAOCP vol. 3, 6.4, Algorithm R)."""
    last = np.int64(cells.size - 1)
    position = gap
    while True:
        position = (position + 1) & last
        cell = cells[position]
        if cell == EMPTY:
            break
        first_probe = cell & last
        if ((position - first_probe) & last) >= ((position - gap) & last):
            cells[gap] = cell
            gap = position
    cells[gap] = EMPTY


@kernel
def _remove(cells: Int64s, old: Int64s, slot_keys: Int64s, count: int, slots: Int64s, sources: Int64s) -> None:
    last = np.int64(cells.size - 1)
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_short(cells, hash_bits(slot_keys[slots[i + AHEAD]]) & last)
        if count > AHEAD:
            prefetch_short(cells, hash_bits(slot_keys[count - 1 - AHEAD]) & last)
        slot = slots[i]
        bits = hash_bits(slot_keys[slot])
        position = _find(cells, slot_keys, slot_keys[slot], bits)
        if position >= 0:
            _close_gap(cells, position)
        if old.size:
            position = _find(old, slot_keys, slot_keys[slot], bits)
            if position >= 0:
                old[position] = DEAD
        count -= 1
        sources[i] = count
        if count != slot:
            key = slot_keys[count]
            bits = hash_bits(key)
            cell = ((slot + 1) << HASH_BITS) | bits
            position = _find(cells, slot_keys, key, bits)
            if position >= 0:
                cells[position] = cell
            if old.size:
                position = _find(old, slot_keys, key, bits)
                if position >= 0:
                    old[position] = cell
            slot_keys[slot] = key
        slot_keys[count] = 0
