"""``ManagedShard``: a sparse shard with a ``KeyPolicy``, whose keys are admitted, expire and are evicted."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from ps2.array_types import Int64s
from ps2.errors import BusyError, LimitError, OutOfRangeError
from ps2.matrix.partition import MatrixSpec, Partition
from ps2.ops.initial import fill_initial
from ps2.ops.mapped import MappedArray
from ps2.ops.slots import move_blocks, oldest
from ps2.ops.table import Array
from ps2.server.managed_keys import ManagedKeys
from ps2.server.memory import MemoryAccount
from ps2.server.shard import MIN_CAPACITY, Shard, outlier

# A full shard evicts more keys than needed: additionally 1/SLACK_DIVISOR of its limit, at most MAX_SLACK. So few
# requests must search for the least recently touched keys.
SLACK_DIVISOR, MAX_SLACK = 16, 4096
# Evictions begin at slots that are this far apart, modulo the number of slots; a prime, so that they begin all over the
# shard.
STRIDE = 1_000_003


class ManagedShard(Shard):
    """A sparse shard whose keys are admitted, expire and are evicted. Memory of removed keys returns to the system.

    The array grows and shrinks by remapping memory pages, so no request waits for a copy of the array. Slots have no
    gaps: when a key is removed, the key of the last slot moves into the free slot.
    """

    managed: ManagedKeys

    def __init__(self, spec: MatrixSpec, partition: Partition, memory: MemoryAccount, copy: bool = False) -> None:
        assert spec.key_policy is not None
        self._policy = spec.key_policy
        super().__init__(spec, partition, memory, copy)

    @property
    def value_bytes(self) -> int:
        """The size of the active keys' values in bytes; the same on a copy of the shard."""
        return self.live * self.rows * self.spec.np_dtype.itemsize

    def slots(self, columns: Int64s, create: bool) -> Int64s:
        """Return the slot of each key, -1 for a key without a slot.

        ``create``: also touch the keys. A key that is admitted by this touch gets a slot with initial values. Raises
        LimitError if new keys do not fit into memory, or if ``max_keys`` is below the number of keys in this call.
        """
        managed = self.managed
        slots = managed.index.lookup(columns)
        if not create:
            return slots
        absent_positions = np.flatnonzero(slots < 0)
        absent = columns[absent_positions]
        if absent.size and (absent.min() < 0 or int(absent.max()) >= self.spec.dim):
            raise OutOfRangeError(f"key {outlier(absent, 0)} is outside [0, {self.spec.dim})")
        self.count_now()
        distinct = _distinct(absent)
        touched = managed.admit(distinct) if distinct.size else None
        new = distinct if touched is None else distinct[touched.admitted]
        if new.size:
            try:
                if self._evict_for(new.size, slots):
                    slots = managed.index.lookup(columns)
                self._ensure_capacity(new.size)
            except (LimitError, BusyError):
                # The client sends the request again, and its touches must not count twice.
                managed.refuse(touched)
                raise
        managed.touch(slots, self.value_bytes)
        self.count_grown()
        if not new.size:
            return slots
        first = self.live
        managed.assign_slots(new)
        managed.counts.admitted += new.size
        self._write_initial(first)
        if distinct is absent:
            slots[absent_positions if touched is None else absent_positions[touched.admitted]] = np.arange(
                first, self.live
            )
        else:
            slots[absent_positions] = managed.index.lookup(absent)
        return slots

    def assign_slots(self, keys: Int64s) -> None:
        """Assign the next slots to distinct absent keys, regardless of ``admit_after``."""
        self._ensure_capacity(keys.size)
        self.managed.assign_slots(keys)

    def remove(self, slots: Int64s) -> None:
        """Remove the keys of ``slots``, distinct and descending; return memory to the system."""
        if not slots.size:
            return
        sources = self.managed.remove(slots)
        for flat in [self._flat(row) for row in range(self.rows)] if self.spec.layout == "row" else [self.array.T]:
            move_blocks(flat, slots, sources)
        self.layout += 1
        self.touched.drop_all()
        columns = int(self.array.shape[1])
        if self.live * 4 < columns * 3 and columns > self._rounded(MIN_CAPACITY):
            self._resize(self.rows, self._capacity(0))
        self.count_now()

    def evict(self, target: int, limit: int) -> int:
        """Remove least recently touched keys until ``target`` remain, at most ``limit``; return their number."""
        managed, count = self.managed, min(max(self.live - target, 0), limit)
        # Each eviction begins at another slot. A copy of the shard begins at the same slot.
        start = managed.counts.evicted * STRIDE % max(self.live, 1)
        slots = oldest(managed.ticks, count, managed.time.tick, start)
        self.remove(slots)
        managed.counts.evicted += slots.size
        return int(slots.size)

    def _evict_for(self, added: int, slots: Int64s) -> bool:
        """If ``added`` keys would exceed the limit, evict keys other than those of ``slots`` and return True."""
        max_keys = self.managed.max_keys
        if max_keys is None or self.live + added <= max_keys:
            return False
        num_present = int(np.unique(slots[slots >= 0]).size)
        if num_present + added > max_keys:
            raise LimitError(
                f"maxKeys: expected a limit of at least {num_present + added:,} keys in this partition, as one request "
                f"has, got {max_keys:,}"
            )
        self.managed.protect(slots)
        slack = min(max_keys // SLACK_DIVISOR, MAX_SLACK)
        self.evict(max(max_keys - added - slack, num_present), self.live)
        return True

    def _new_index(self) -> None:
        self.managed = ManagedKeys(self._policy, self.partition)
        self.index = self.managed.index

    def count_now(self) -> None:
        """Update the shard's size in the memory account after a change of the number of waiting keys."""
        total = self._bytes(self.rows, int(self.array.shape[1]))
        if total != self._counted:
            with self._counting(total, "keys that wait for their slots"):
                pass

    def count_grown(self) -> None:
        """Like ``count_now``, but ignore an error: the change is complete, and the next touch raises the error."""
        with suppress(LimitError, BusyError):
            self.count_now()

    def _ensure_capacity(self, added: int) -> None:
        count, columns = self.live + added, int(self.array.shape[1])
        self._resize(self.rows, self._capacity(added) if count > columns else columns, self.managed.nbytes_after(added))

    def _capacity(self, added: int) -> int:
        count = self.live + added
        return max(MIN_CAPACITY, count + count // 8)

    def _rounded(self, columns: int) -> int:
        return MappedArray.rounded(self.rows, columns, self.spec.np_dtype) if self.spec.layout == "row" else columns

    def _resize(self, rows: int, columns: int, index_bytes: int | None = None) -> None:
        columns = self._rounded(columns)
        purpose = f"{rows} rows of {columns:,} columns"
        with self._counting(self._bytes(rows, columns, index_bytes), purpose):
            if (rows, columns) == self.array.shape:
                return
            self.layout += 1
            if columns != self.array.shape[1]:
                self.touched.resize(columns)
            if rows != self.rows:
                old = self.array
                self.array = self._zeros(rows, columns)
                self.array[: len(old), : self.live] = old[:, : self.live]
            else:
                self._mapped.resize(columns if self.spec.layout == "row" else rows * columns)
                self.array = self._view(rows, columns)

    def _zeros(self, rows: int, columns: int) -> Array:
        shape = (rows, columns) if self.spec.layout == "row" else (1, rows * columns)
        self._mapped = MappedArray(*shape, self.spec.np_dtype)
        return self._view(rows, columns)

    def _view(self, rows: int, columns: int) -> Array:
        if self.spec.layout == "row":
            return self._mapped.array
        return self._mapped.array[0, : rows * columns].reshape(columns, rows).T

    def _bytes(self, rows: int, columns: int, index_bytes: int | None = None) -> int:
        shape = (rows, columns) if self.spec.layout == "row" else (1, rows * columns)
        key_bytes = self.managed.nbytes if index_bytes is None else index_bytes
        return MappedArray.size_bytes(*shape, self.spec.np_dtype) + key_bytes

    def _flat(self, row: int) -> Array:
        return self.array[row].reshape(-1, 1)

    def _write_initial(self, first: int) -> None:
        """Write the initial values of the keys in the slots from ``first`` on."""
        slots, rows = np.arange(first, self.live), np.arange(self.rows)
        if self.spec.layout == "row":
            flat, starts, offsets = self.array.reshape(-1), slots, rows * self.array.shape[1]
        else:
            flat, starts, offsets = self.array.T.reshape(-1), slots * self.rows, rows
        fill_initial(flat, self._policy.initial, self.managed.index.keys[first:], starts, rows, offsets)


def new_shard(spec: MatrixSpec, partition: Partition, memory: MemoryAccount, copy: bool = False) -> Shard:
    """Allocate the shard of a partition: a ``ManagedShard`` if the matrix has a ``KeyPolicy``, else a ``Shard``."""
    return (Shard if spec.key_policy is None else ManagedShard)(spec, partition, memory, copy)


def _distinct(keys: Int64s) -> Int64s:
    # Most requests have sorted, distinct keys.
    return keys if bool(np.all(keys[1:] > keys[:-1])) else np.unique(keys)
