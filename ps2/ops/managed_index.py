"""The index of managed keys: int64 key -> slot, an open-addressing hash table that is rebuilt step by step.

Slots stay dense: the key in the last slot moves into the slot of a removed key. A cell has a slot and 32 bits of its
key's hash. So a look-up reads a key only if these bits are equal, and a table is rebuilt without reading keys. While a
table is rebuilt with another size, look-ups search the new table and then the old one, and each call moves some cells.
So no call takes time in proportion to all keys (Redis's dictionaries do the same).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ps2.errors import LimitError
from ps2.ops.guards import readable
from ps2.ops.kernels import Int64s, inline, kernel
from ps2.ops.keyindex import _mix
from ps2.ops.mapped import PAGE, MappedArray
from ps2.ops.prefetch import prefetch_short

ABSENT = -1
MIN_CELLS = 1024
MIN_SLOTS = 512
MAX_SLOTS = 2**31 - 2
# Loads of a table, in 32nds of its cells. A table is rebuilt if more than MAX_LOAD or fewer than MIN_LOAD have a slot.
# From PREPARE_LOAD on, the next table is allocated, and its pages are touched step by step, as the system needs long
# for all at once; below DISCARD_LOAD it is freed. The load of a rebuilt table is at most REBUILT_LOAD.
MAX_LOAD, PREPARE_LOAD, DISCARD_LOAD, MIN_LOAD, REBUILT_LOAD = 22, 18, 17, 6, 15
# The number of cells of the next table that a call passes while it touches pages: for each key, and in any case.
TOUCHED_PER_KEY, TOUCHED_PER_CALL = 24, 1 << 15
# The number of cells that a call moves from the old table: for each key, and in any case. LOOKED_UP_PER_MOVED keys of a
# look-up count as one inserted or removed key.
MOVED_PER_KEY, MOVED_PER_CALL, LOOKED_UP_PER_MOVED = 8, 1 << 12, 8
# A cell is 0 if it is empty, DEAD if its key was removed from an old table, else (slot + 1) << 32 | hash bits.
EMPTY, DEAD = 0, 1
HASH_BITS = 32
HASH_MASK = (1 << HASH_BITS) - 1
# The distance of prefetching, in keys, and the number of keys that are looked up together.
AHEAD, BATCH = 16, 256


class ManagedIndex:
    """Assigns slots ``[0, len(self))`` to int64 keys. Not thread-safe: callers hold the shard's lock."""

    def __init__(self) -> None:
        self._count = 0
        self._keys = MappedArray(1, MIN_SLOTS, np.int64)
        self._cells = MappedArray(1, MIN_CELLS, np.int64)
        self._old: MappedArray | None = None
        # The cells of the old table below this index have been moved.
        self._moved = 0
        self._next: MappedArray | None = None
        # The cells of the next table below this index have been touched.
        self._touched = 0

    def __len__(self) -> int:
        return self._count

    @property
    def keys(self) -> Int64s:
        """The key of each slot: a read-only int64 view of shape (len(self),), valid until the next change."""
        return readable(self._keys.array[0, : self._count])

    @property
    def nbytes(self) -> int:
        tables = (self._keys, self._cells, self._old, self._next)
        return sum(table.nbytes for table in tables if table is not None)

    def nbytes_after(self, added: int) -> int:
        """Return the maximum size in bytes after ``added`` more keys, with a table that is being rebuilt."""
        count, cells = self._count + added, self._cells.columns
        while count * 32 > cells * PREPARE_LOAD:
            cells *= 2
        table_bytes = 8 * cells if cells > self._cells.columns and self._next is None else 0
        slot_bytes = 8 * max(self._slots_for(count) - self._keys.columns, 0) if count > self._keys.columns else 0
        return self.nbytes + table_bytes + slot_bytes + PAGE

    def lookup(self, keys: Int64s) -> Int64s:
        """Return the slot of each key, -1 for an absent key. Keys can be in any order, with duplicates."""
        slots = np.empty(keys.size, dtype=np.int64)
        if self._old is not None:
            # Otherwise look-ups alone would search two tables forever.
            self._step(keys.size // LOOKED_UP_PER_MOVED)
        _lookup(self._table, self._old_table, self._keys.array[0], readable(keys), slots)
        return slots

    def insert(self, keys: Int64s) -> None:
        """Add distinct absent keys; they get the slots from ``len(self)`` on. LimitError: too many; none is added."""
        count = self._count + keys.size
        if count > MAX_SLOTS:
            raise LimitError(f"a partition has at most {MAX_SLOTS:,} active keys, got {count:,}")
        if count > self._keys.columns:
            self._keys.resize(self._slots_for(count))
        if count * 32 > self._cells.columns * MAX_LOAD:
            self._rebuild(count)
        elif count * 32 > self._cells.columns * PREPARE_LOAD and self._next is None and self._old is None:
            self._next, self._touched = MappedArray(1, 2 * self._cells.columns, np.int64), 0
        _insert(self._table, self._keys.array[0], readable(keys), self._count)
        self._count = count
        self._step(keys.size)

    def remove(self, slots: Int64s) -> Int64s:
        """Remove the keys of distinct slots, in descending order. Keys of the last slots move into the free slots.

        Return for each slot the slot whose key moved there, the slot itself if it was the last one.
        """
        sources = np.empty(slots.size, np.int64)
        _remove(self._table, self._old_table, self._keys.array[0], self._count, readable(slots), sources)
        self._count -= slots.size
        self.settle(slots.size)
        if self._count * 4 < self._keys.columns * 3 and self._keys.columns > MIN_SLOTS:
            self._keys.resize(self._slots_for(self._count))
        return sources

    def settle(self, keys: int) -> None:
        """Move as many cells as a removal of ``keys`` keys, and begin a smaller table if this one is too large."""
        self._step(keys)
        if self._count * 32 < self._cells.columns * DISCARD_LOAD:
            self._next = None
        if self._count * 32 < self._cells.columns * MIN_LOAD and self._cells.columns > MIN_CELLS and self._old is None:
            self._rebuild(self._count)

    @property
    def _table(self) -> Int64s:
        return self._cells.array[0]

    @property
    def _old_table(self) -> Int64s:
        return self._cells.array[0, :0] if self._old is None else self._old.array[0]

    @staticmethod
    def _slots_for(count: int) -> int:
        return max(MIN_SLOTS, count + count // 8)

    def _rebuild(self, count: int) -> None:
        """Begin a table with space for twice ``count`` keys, of at least half the size of the current table.

        With this minimum, the insertions that fill a smaller table also move all cells of the old table.
        """
        prepared, self._next = self._next, None
        self._step(2**62)
        cells = max(MIN_CELLS, self._cells.columns // 2)
        while count * 32 > cells * REBUILT_LOAD:
            cells *= 2
        if cells == self._cells.columns:
            return
        self._old, self._moved = self._cells, 0
        if prepared is None or prepared.columns != cells:
            prepared = MappedArray(1, cells, np.int64)
        self._cells = prepared

    def _step(self, keys: int) -> None:
        """Move some cells of the old table, and touch some of the next table, in a call with ``keys`` keys."""
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
    return np.int64(_mix(key)) & np.int64(HASH_MASK)


@inline
def _find(cells: Int64s, slot_keys: Int64s, key: int, bits: Any) -> Any:
    """Return the cell of a key, or -1."""
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
    # Batch by batch, in stages: the cache misses of a batch's cells overlap, then those of its keys.
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
    """Write a cell to the first empty position from its hash bits on."""
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
    last = np.int64(cells.size - 1)
    for position in range(begin, end):
        if position + AHEAD < end:
            prefetch_short(cells, old[position + AHEAD] & last)
        if old[position] > HASH_MASK:
            _put(cells, old[position] & HASH_MASK, old[position])


@inline
def _close_gap(cells: Int64s, gap: Any) -> None:
    """Empty a cell, and move later cells so that no probe sequence has a gap (Knuth, 6.4, Algorithm R)."""
    last = np.int64(cells.size - 1)
    position = gap
    while True:
        position = (position + 1) & last
        cell = cells[position]
        if cell == EMPTY:
            break
        home = cell & last
        if ((position - home) & last) >= ((position - gap) & last):
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
