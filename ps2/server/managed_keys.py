"""``ManagedKeys``: slots and ticks of a shard's keys, the keys that wait for admission, and removed keys."""

from __future__ import annotations

import json
import math
import secrets
from dataclasses import dataclass

import numpy as np

from ps2.array_types import Int64s
from ps2.errors import CheckpointCorruptError, StaleMarkError
from ps2.matrix.key_policy import KeyPolicy
from ps2.matrix.matrix_time import MatrixTime
from ps2.matrix.partition import HASH_SPACE, Partition, hash_bucket
from ps2.ops.managed_index import MIN_SLOTS, ManagedIndex
from ps2.ops.mapped import MappedArray
from ps2.ops.slots import Ticks, move_blocks, stamp
from ps2.ops.table import Array
from ps2.ops.waiting import EXACT_KEYS, Touch, WaitingKeys

MIN_CAPACITY = 256
# Maximum number of stored removals. When there are more, the older half is dropped.
MAX_KEYS = 1 << 20


class RemovedKeys:
    """Removed keys in the order of their removal, from the first mark on.

    Attributes:
        complete_from: all removals in and after this tick are stored. None: no mark was made, so none are stored.
    """

    def __init__(self) -> None:
        self._keys, self._ticks, self._count = np.empty(0, np.int64), np.empty(0, np.int64), 0
        self.complete_from: int | None = None

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._ticks.nbytes

    def begin(self, tick: int) -> None:
        """Store removals from a tick on, unless they are stored already."""
        if self.complete_from is None:
            self.complete_from = tick

    def add(self, keys: Int64s, tick: int) -> None:
        """Record the removal of keys in a tick. Ticks must not decrease from call to call."""
        if self.complete_from is None:
            return
        if self._count + keys.size > MAX_KEYS:
            self._forget((self._count + 1) // 2 if keys.size <= MAX_KEYS // 2 else self._count)
        keys = keys[-MAX_KEYS:]
        if self._count + keys.size > len(self._keys):
            capacity = max(MIN_CAPACITY, 2 * (self._count + keys.size))
            self._keys, self._ticks = np.resize(self._keys, capacity), np.resize(self._ticks, capacity)
        self._keys[self._count : self._count + keys.size] = keys
        self._ticks[self._count : self._count + keys.size] = tick
        self._count += keys.size

    def since(self, tick: int) -> Int64s:
        """Return the keys removed in or after a tick, in order. Raise StaleMarkError if not all are stored."""
        if self.complete_from is None or tick < self.complete_from:
            available = "none are stored" if self.complete_from is None else f"stored from tick {self.complete_from} on"
            raise StaleMarkError(f"removals since tick {tick}: {available}; read all keys instead")
        begin = int(np.searchsorted(self._ticks[: self._count], tick))
        return self._keys[begin : self._count].copy()

    def state(self) -> dict[str, Array]:
        """Return the content as arrays by name, for ``merge``."""
        complete_from = np.array([-1 if self.complete_from is None else self.complete_from])
        return {
            "removed": self._keys[: self._count].copy(),
            "removed_at": self._ticks[: self._count].copy(),
            "removed_from": complete_from,
        }

    def merge(self, state: dict[str, Array], is_own: Array) -> None:
        """Add removals from another shard's ``state``; ``is_own``: mask of the keys that belong to this shard."""
        keys = np.append(self._keys[: self._count], state["removed"][is_own])
        ticks = np.append(self._ticks[: self._count], state["removed_at"][is_own])
        order = np.argsort(ticks, kind="stable")
        self._keys, self._ticks, self._count = keys[order], ticks[order], keys.size
        if (complete_from := int(state["removed_from"][0])) >= 0:
            self.complete_from = max(self.complete_from or 0, complete_from)

    def _forget(self, count: int) -> None:
        if not count:
            return
        self.complete_from = int(self._ticks[count - 1]) + 1
        self._keys, self._ticks = self._keys[count : self._count].copy(), self._ticks[count : self._count].copy()
        self._count -= count


# The sketch of waiting keys takes at most 1/SKETCH_DIVISOR of the size of the shard's values, but may always take
# SMALL_SKETCH_BYTES: a smaller sketch would admit rare keys too early, and their slots would take more memory.
SKETCH_DIVISOR, SMALL_SKETCH_BYTES = 6, 32 << 20
# With ``max_keys``, a tick begins after max_keys/TICKS_PER_LIMIT touches, which is the resolution of "least recently
# touched".
TICKS_PER_LIMIT = 64
# The tick of slots that an eviction must not remove.
PROTECTED = 2**32 - 1
# Ticks of slots have 32 bits. When the current tick reaches MAX_TICK, all ticks are lowered; it becomes TICK_SPAN.
MAX_TICK, TICK_SPAN = 2**31 - 1, 2**30


@dataclass
class KeyCounts:
    """Numbers of keys since the matrix was created that got slots, that expired, and that were evicted or removed."""

    admitted: int = 0
    expired: int = 0
    evicted: int = 0


class ManagedKeys:
    """The keys of a ``ManagedShard``. Not thread-safe: callers hold the shard's lock.

    Attributes:
        max_keys: the maximum number of keys of the shard; None: no limit.
        waiting: the touches of keys that have no slot yet.
        removed: the keys that were removed since the first mark.
        touched: the number of calls of ``touch``; the same on a copy.
        lineage: a random integer, chosen when the shard is created or read from files. A mark is valid only while the
            lineage is the same.
    """

    def __init__(self, policy: KeyPolicy, partition: Partition, exact_keys: int = EXACT_KEYS) -> None:
        self.policy = policy
        self._partition = partition
        self.max_keys = None if policy.max_keys is None else -(-policy.max_keys * partition.width // HASH_SPACE)
        self.index = ManagedIndex()
        self._ticks = MappedArray(1, MIN_SLOTS, np.uint32)
        self.time = MatrixTime()
        self.waiting = WaitingKeys(policy.admit_after, exact_keys)
        self.removed = RemovedKeys()
        self.counts = KeyCounts()
        self.touched = self.removals = 0
        self.lineage = secrets.randbits(62)
        self._window_s = 0.0  # time at which the current window of the waiting keys' sketch began
        self._touches = 0  # number of touches since ``touch`` last began a tick

    @property
    def ticks(self) -> Ticks:
        """The tick of each slot's last touch, uint32 of shape (slots,): a writable view, valid until keys change."""
        return self._ticks.array[0, : len(self.index)]

    @property
    def nbytes(self) -> int:
        return self.index.nbytes + self._ticks.nbytes + self.waiting.nbytes + self.removed.nbytes

    def nbytes_after(self, added: int) -> int:
        """Return an upper bound of ``nbytes`` after ``added`` keys are added."""
        ticks = self._ticks.nbytes_for(self._capacity(added)) if len(self.index) + added > self._ticks.columns else 0
        return self.nbytes - self.index.nbytes + self.index.nbytes_after(added) + ticks

    def first_fresh_tick(self, older_s: float | None) -> int:
        """Return the first tick whose touches are less than ``older_s`` seconds old; 0 for None."""
        return 0 if older_s is None else self.time.first_after(self.time.now_s - older_s)

    def advance(self, now_s: float, tick: int, value_bytes: int, touched: bool = False) -> None:
        """Advance the time of the matrix; see ``MatrixTime.advance``.

        ``value_bytes``: the size of the active keys' values, which limits the sketch of waiting keys.
        """
        self.time.advance(now_s, tick, touched)
        window_s, since_s = self.policy.expire_after_s, self.time.now_s - self._window_s
        if window_s is not None and since_s >= window_s:
            # With ``touched``, the current window contains recent touches, since the last advance.
            self.waiting.rotate(since_s >= 2 * window_s and not touched, _sketch_bytes(value_bytes))
            self._window_s = self.time.now_s
        elif window_s is not None and since_s > 0:
            self.waiting.expect(since_s / window_s, _sketch_bytes(value_bytes))
        self._lower_ticks()

    def mark(self, tick: int) -> int:
        """Begin a tick with the number ``tick`` or higher; return its number. From now on, removals are stored."""
        self.time.mark(tick)
        self._lower_ticks()
        self.removed.begin(self.time.tick)
        return self.time.tick

    def touch(self, slots: Int64s, value_bytes: int) -> None:
        """Set the ticks of slots to the current tick; slot -1 (absent key) is ignored."""
        self.touched += 1
        if self.max_keys is not None:
            self._touches += slots.size
            if self._touches * TICKS_PER_LIMIT >= self.max_keys:
                self._touches = 0
                self.time.mark(self.time.tick + 1)
                self._lower_ticks()
        stamp(self._ticks.array[0], slots, self.time.tick)
        self.waiting.settle(slots.size, _sketch_bytes(value_bytes))

    def protect(self, slots: Int64s) -> None:
        """Protect slots from eviction until ``touch`` or ``refuse``."""
        stamp(self._ticks.array[0], slots, PROTECTED)

    def admit(self, keys: Int64s) -> Touch | None:
        """Count a touch of distinct absent keys; return which are admitted now, or None if all are."""
        if self.policy.admit_after == 1:
            return None
        return self.waiting.touch(keys, self.time.tick, self.first_fresh_tick(self.policy.expire_after_s))

    def refuse(self, touched: Touch | None) -> None:
        """Undo ``admit`` and ``protect``, because there is no memory for the keys."""
        if touched is not None:
            self.waiting.take_back(touched)
        ticks = self.ticks
        ticks[ticks == PROTECTED] = self.time.tick

    def assign_slots(self, keys: Int64s) -> None:
        """Assign the next slots to distinct absent keys, in the order of ``keys``."""
        first = len(self.index)
        if first + keys.size > self._ticks.columns:
            self._ticks.resize(self._capacity(keys.size))
        self.index.insert(keys)
        self._ticks.array[0, first : first + keys.size] = self.time.tick

    def remove(self, slots: Int64s) -> Int64s:
        """Remove the keys of ``slots``, distinct and descending; return for each the slot whose key has moved there."""
        self.removals += 1
        self.removed.add(self.index.keys[slots], self.time.tick)
        sources = self.index.remove(slots)
        move_blocks(self._ticks.array.reshape(-1, 1), slots, sources)
        if len(self.index) * 4 < self._ticks.columns * 3 and self._ticks.columns > MIN_SLOTS:
            self._ticks.resize(self._capacity(0))
        return sources

    def _lower_ticks(self) -> None:
        """Lower all ticks if the current tick is too large for a slot's 32 bits. Earlier marks become stale."""
        offset = self.time.tick - TICK_SPAN
        if self.time.tick < MAX_TICK:
            return
        self.ticks[:] = np.maximum(self.ticks, offset + 1) - np.uint32(offset)
        self.time.lower(offset)
        self.waiting.lower(offset)
        self.removed = RemovedKeys()
        self.lineage = (self.lineage + 1) % 2**62  # not random, so that a copy gets the same lineage

    def _capacity(self, added: int) -> int:
        count = len(self.index) + added
        return max(MIN_SLOTS, count + count // 8)

    def state(self) -> tuple[Array, ...]:
        """Return everything except the keys as arrays of bytes, some of which are views.

        The first array contains the length of a JSON text, in 8 bytes, and the text: names, dtypes and shapes of the
        other arrays.
        """
        arrays = self.arrays()
        names = json.dumps([[name, array.dtype.str, array.shape] for name, array in arrays.items()]).encode()
        head = np.frombuffer(len(names).to_bytes(8, "little") + names, np.uint8)
        return head, *(np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays.values())

    def arrays(self) -> dict[str, Array]:
        """Return the content of ``state`` as arrays by name."""
        counts, time = self.counts, self.time
        values = [time.tick, self.lineage, counts.admitted, counts.expired, counts.evicted]
        values += [self._touches, self.touched]
        return {
            "numbers": np.array(values),
            "window_s": np.array([self._window_s]),
            "time_ticks": np.array(time.ticks),
            "times_s": np.array(time.times_s),
            "ticks": self.ticks,
            **self.waiting.state(),
            **self.removed.state(),
        }

    def restore(self, state: bytes) -> None:
        """Set the ``state`` of a copy of this shard, or of its primary, after the keys have got the same slots."""
        arrays = _arrays(state)
        self.ticks[:] = arrays["ticks"]
        # Writing the keys' values has counted as touches and admissions: forget these.
        self.time, self.counts = MatrixTime(), KeyCounts()
        self.merge(arrays)
        self.lineage = int(arrays["numbers"][1])
        self._touches, self.touched = arrays["numbers"][5:].tolist()

    def merge(self, arrays: dict[str, Array]) -> None:
        """Merge the ``arrays`` of another shard: time, counts, and the waiting and removed keys of this partition."""
        tick, _, admitted, expired, evicted, *_ = arrays["numbers"].tolist()
        if tick >= self.time.tick:
            self.time = MatrixTime(arrays["time_ticks"].tolist(), arrays["times_s"].tolist(), tick)
            self._window_s = float(arrays["window_s"][0])
        self.counts = KeyCounts(
            self.counts.admitted + admitted, self.counts.expired + expired, self.counts.evicted + evicted
        )
        self.waiting.adopt(arrays, self._is_in_partition(arrays["waiting"]))
        self.removed.merge(arrays, self._is_in_partition(arrays["removed"]))

    def copy_ticks(self, arrays: dict[str, Array], slots: Int64s, first: int) -> None:
        """Copy the ticks of another shard's ``slots`` to the slots from ``first`` on."""
        self.ticks[first : first + slots.size] = arrays["ticks"][slots]

    def _is_in_partition(self, keys: Int64s) -> Array:
        buckets = hash_bucket(keys)
        return (buckets >= self._partition.begin) & (buckets < self._partition.end)


def _sketch_bytes(value_bytes: int) -> int:
    """Return the maximum size of the sketch of waiting keys for a shard with ``value_bytes`` of values."""
    return max(value_bytes // SKETCH_DIVISOR, SMALL_SKETCH_BYTES)


def read_state(path: str, state: bytes, keys: int) -> dict[str, Array]:
    """Return the arrays of ``ManagedKeys.state``; raise CheckpointCorruptError if they are not for ``keys`` keys."""
    try:
        arrays = _arrays(state)
        sizes = {name: arrays[name].size for name in ("ticks", "numbers", "window_s")}
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointCorruptError(f"{path}: expected the state of managed keys: {error!r}") from error
    if sizes != {"ticks": keys, "numbers": 7, "window_s": 1}:
        raise CheckpointCorruptError(f"{path}: expected the ticks of {keys:,} keys, got {sizes['ticks']:,}")
    return arrays


def _arrays(state: bytes) -> dict[str, Array]:
    offset = 8 + int.from_bytes(state[:8], "little")
    arrays: dict[str, Array] = {}
    for name, dtype, shape in json.loads(state[8:offset]):
        arrays[name] = np.frombuffer(state, np.dtype(dtype), math.prod(shape), offset).reshape(shape)
        offset += arrays[name].nbytes
    return arrays
