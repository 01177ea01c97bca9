"""Operations on managed keys: time, expiry, eviction, removal, and the keys that changed since a mark.

Expiry and eviction work in slices: one request examines and removes a limited number of keys, so other requests wait
only briefly. Scans go from the last slot to the first. A removal moves the last key into the freed slot, so a scan sees
every key that stays, even if other requests run between its slices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ps2.config import WireConfig
from ps2.errors import OutOfRangeError, ProtocolError, UsageError
from ps2.matrix.matrix_time import LATEST_S
from ps2.ops.slots import newer, older
from ps2.ops.table import Array
from ps2.protocol.messages import Operation
from ps2.server.keycache import KeySet
from ps2.server.managed_shard import ManagedShard
from ps2.server.removed_keys import MAX_KEYS
from ps2.server.shard import Shard

# Maximum number of slots that one request examines, and of keys that it removes: a few milliseconds.
SCANNED, REMOVED = 1 << 20, 1 << 13
# Number of keys by which each slice advances a rebuild of the index.
SETTLED = 1 << 14
# Maximum bytes of keys and values that one request returns.
CHANGED_BYTES = WireConfig.block_bytes
# Maximum bytes of each read's answer.
LARGEST = {"keys_state": 128, "keys_changed": CHANGED_BYTES + 64, "keys_removed": 8 * MAX_KEYS}

# The range of each parameter. Ticks fit the 32 bits of a slot's tick.
RANGES = {
    "since": (0, 2**32),
    "tick": (0, 2**31),
    "touched": (0, 1),
    "positions": (0, 2**31),
    "begin": (-1, 2**31),
    "keep": (0, 2**62),
    "now_s": (0, LATEST_S),
    "older_s": (0, LATEST_S),
}

Value = Array | tuple[Array, ...]
Params = Mapping[str, int | float]


def run_on_keys(operation: Operation, shard: Shard, keys: KeySet | None) -> Value:
    """Run an operation of ``KEY_READS`` or ``KEY_CHANGES``; the caller holds the shard's lock.

    Raises:
        UsageError: the keys of the matrix are not managed.
    """
    shard.check_rows(np.empty(0, np.int64))
    if not isinstance(shard, ManagedShard):
        raise UsageError(
            f"operation {operation.name!r}: the keys of this matrix are not managed: make it with DCV.sparse(..., "
            "admitAfter=, expireAfterS=, maxKeys= or init=)"
        )
    if operation.arrays or (keys is None) is (operation.name == "keys_remove"):
        raise ProtocolError(f"operation {operation.name!r} takes {'only' if keys is None else 'no'} keys")
    if keys is not None:
        return _remove(shard, keys)
    names, run = OPERATIONS[operation.name]
    if set(operation.params) != set(names):
        raise ProtocolError(f"operation {operation.name!r} takes {', '.join(names) or 'no parameters'}")
    for name, value in operation.params.items():
        low, high = RANGES[name]
        if not low <= value <= high:
            raise OutOfRangeError(f"operation {operation.name!r}: {name}: expected {low:g} to {high:g}, got {value!r}")
    return run(shard, operation.params)


def _state(shard: ManagedShard, params: Params) -> Value:
    """Return eight numbers, int64 of shape (8,), and the time in seconds, float64 of shape (1,).

    The numbers: tick; lineage; active keys; waiting keys; keys admitted, expired and evicted so far; the first tick
    since which all removals are known, or -1.
    """
    managed, counts = shard.managed, shard.managed.counts
    complete_from = managed.removed.complete_from
    numbers = [managed.time.tick, managed.lineage, shard.live, len(managed.waiting)]
    numbers += [counts.admitted, counts.expired, counts.evicted, -1 if complete_from is None else complete_from]
    return np.array(numbers), np.array([managed.time.now_s])


def _advance(shard: ManagedShard, params: Params) -> Value:
    shard.managed.advance(float(params["now_s"]), int(params["tick"]), shard.value_bytes, bool(params["touched"]))
    shard.count_grown()
    return np.array([shard.managed.time.tick])


def _mark(shard: ManagedShard, params: Params) -> Value:
    return np.array([shard.managed.mark(int(params["tick"]))])


def _expire(shard: ManagedShard, params: Params) -> Value:
    """Remove keys whose last touch is at least ``older_s`` ago; return (``begin`` of the next slice, keys removed)."""
    managed, begin = shard.managed, int(params["begin"])
    fresh = managed.fresh(float(params["older_s"]))
    slots, next_begin = older(managed.ticks, fresh, _end(shard, begin), SCANNED, REMOVED)
    shard.remove(slots)
    managed.counts.expired += slots.size
    managed.index.settle(SETTLED)
    if not next_begin:
        managed.waiting.expire(fresh)
        shard.count_now()
    return np.array([next_begin, slots.size])


def _evict(shard: ManagedShard, params: Params) -> Value:
    """Remove least recently touched keys; return (number of keys that still have to go, keys removed)."""
    keep = int(params["keep"])
    gone = shard.evict(keep, REMOVED)
    return np.array([max(0, shard.live - keep), gone])


def _remove(shard: ManagedShard, keys: KeySet) -> Value:
    slots = np.unique(shard.managed.index.lookup(keys.all(shard)))[::-1]
    slots = slots[slots >= 0]
    shard.remove(slots)
    shard.managed.counts.evicted += slots.size
    return np.array([slots.size])


def _changed(shard: ManagedShard, params: Params) -> Value:
    """Return (``begin`` of the next slice,), n keys touched since a tick, and their first rows' values, (n, rows)."""
    rows, end = int(params["positions"]), _end(shard, int(params["begin"]))
    if not 0 <= rows <= shard.rows:
        raise OutOfRangeError(f"rows: expected 0 to {shard.rows}, got {rows}")
    limit = max(1, CHANGED_BYTES // (8 + rows * shard.spec.np_dtype.itemsize))
    slots, next_begin = newer(shard.managed.ticks, int(params["since"]), end, SCANNED, limit)
    return np.array([next_begin]), shard.managed.index.keys[slots], np.ascontiguousarray(shard.array[:rows, slots].T)


def _removed(shard: ManagedShard, params: Params) -> Value:
    return shard.managed.removed.since(int(params["since"]))


def _end(shard: ManagedShard, begin: int) -> int:
    """Return the slot below which a slice scans: ``begin``, or the number of slots if ``begin`` is -1."""
    return shard.live if begin < 0 else min(begin, shard.live)


# The parameters of each operation.
OPERATIONS: Mapping[str, tuple[tuple[str, ...], Callable[[ManagedShard, Params], Value]]] = {
    "keys_state": ((), _state),
    "keys_changed": (("since", "positions", "begin"), _changed),
    "keys_removed": (("since",), _removed),
    "keys_advance": (("now_s", "tick", "touched"), _advance),
    "keys_mark": (("tick",), _mark),
    "keys_expire": (("older_s", "begin"), _expire),
    "keys_evict": (("keep",), _evict),
}
