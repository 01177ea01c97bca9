"""A cache of key sets, by the hash of their bytes: clients send only the hash of keys that they use again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from ps2.array_types import Int64s
from ps2.errors import KeyMissError, ProtocolError
from ps2.protocol.messages import Operation, key_digest
from ps2.server.memory import MemoryAccount
from ps2.server.shard import Shard

# Maximum size of the cache.
CACHE_BYTES = 64 << 20

Name = tuple[int, int, bytes]  # matrix, partition, digest


@dataclass(eq=False)
class KeySet:
    """The keys of an operation on one shard. Guarded by the shard's lock.

    Attributes:
        columns: the keys in the request's order, int64; None after ``slots`` is set.
        slots: the keys' slots in ``slots_shard`` after all keys exist there; always None for managed keys, whose slots
            change.
        name: the name for the cache; None if the set has no digest or is in the cache already.
        slots_shard: the shard to which ``slots`` refer.
    """

    count: int
    columns: Int64s | None
    slots: Int64s | None = None
    name: Name | None = None
    slots_shard: Shard | None = None

    def slots_on(self, shard: Shard, create: bool) -> Int64s:
        """Return the slot of each key; -1 for an absent key unless ``create``."""
        if self.slots is not None:
            if self.slots_shard is not shard:
                raise KeyMissError(f"these {self.count:,} keys were cached for a shard that was replaced")
            return self.slots
        assert self.columns is not None
        slots = shard.slots(self.columns, create)
        if shard.managed is None and (shard.index is None or slots.min() >= 0):
            self.slots, self.columns, self.slots_shard = slots, None, shard
        return slots

    def columns_on(self, shard: Shard) -> Int64s:
        """Return the columns (dense) or keys (sparse) in the request's order."""
        if self.columns is not None:
            return self.columns
        assert self.slots is not None
        return self.slots + shard.partition.begin if shard.index is None else shard.index.keys[self.slots]


class KeyCache:
    """Key sets by name. Thread-safe.

    The least recently used sets are dropped when requests or shards need the memory (``MemoryAccount.take_cache``).
    """

    def __init__(self, memory: MemoryAccount, limit_bytes: int = CACHE_BYTES) -> None:
        self._memory = memory
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._sets: OrderedDict[Name, KeySet] = OrderedDict()
        self.nbytes = 0
        self.hits = 0
        self.misses = 0
        memory.cache_releasers.append(self.free_memory)

    def resolve(self, operations: tuple[Operation, ...]) -> list[KeySet | None]:
        """Return the keys of each operation, or None; raise KeyMissError if a hash is not in the cache."""
        resolved: list[KeySet | None] = []
        for position, operation in enumerate(operations):
            keys = operation.keys
            if keys is None:
                resolved.append(None)
                continue
            name = (operation.matrix, operation.partition, keys.digest) if keys.digest is not None else None
            if keys.columns is not None:
                if name is not None and key_digest(keys.columns) != keys.digest:
                    raise ProtocolError(f"operation {operation.name!r}: the hash does not match its keys")
                resolved.append(KeySet(keys.count, keys.columns, name=name))
            elif name is not None:
                resolved.append(self._get(operation.name, name, keys.count))
            else:
                previous = operations[position - 1] if position else None
                if previous is None or (previous.matrix, previous.partition) != (operation.matrix, operation.partition):
                    raise ProtocolError(f"operation {operation.name!r}: no operation before it has keys to reuse")
                if resolved[-1] is None or resolved[-1].count != keys.count:
                    raise ProtocolError(
                        f"operation {operation.name!r}: expected {keys.count:,} keys in the operation before it"
                    )
                resolved.append(resolved[-1])
        return resolved

    def store(self, keys: KeySet) -> None:
        """Store a key set if it has a name and memory is available."""
        name, keys.name = keys.name, None
        if name is None:
            return
        size = 8 * keys.count
        with self._lock:
            if name in self._sets or size > self._limit_bytes:
                return
            while self.nbytes + size > self._limit_bytes:
                self._drop(next(iter(self._sets)))
            if not self._memory.take_cache(size):
                return
            self._sets[name] = keys
            self.nbytes += size

    def forget(self, matrix: int) -> None:
        """Drop the key sets of a matrix."""
        with self._lock:
            for name in [name for name in self._sets if name[0] == matrix]:
                self._drop(name)

    def free_memory(self, size: int) -> None:
        """Drop key sets until ``size`` bytes are freed or the cache is empty."""
        with self._lock:
            target = self.nbytes - size
            while self._sets and self.nbytes > target:
                self._drop(next(iter(self._sets)))

    def _get(self, operation: str, name: Name, count: int) -> KeySet:
        with self._lock:
            keys = self._sets.get(name)
            if keys is None:
                self.misses += 1
                raise KeyMissError(f"operation {operation!r}: these {count:,} keys are not in this server's cache")
            self._sets.move_to_end(name)
            self.hits += 1
        if keys.count != count:
            raise ProtocolError(f"operation {operation!r}: the hash belongs to {keys.count} keys, not to {count}")
        return keys

    def _drop(self, name: Name) -> None:
        size = 8 * self._sets.pop(name).count
        self.nbytes -= size
        self._memory.give_cache(size)
