"""Operations on managed keys, and an upper bound of a reply's size, computed before the request's arrays are received.

Expiry, and the reads of changed keys, run in slices: one request scans and removes a limited number of keys, so other
requests wait only briefly. A scan goes from the last slot to the first. A removal moves the last key into the freed
slot, so a scan sees every key that stays, even if other requests run between its slices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ps2.config import WireConfig
from ps2.errors import NotFoundError, OutOfRangeError, ProtocolError, UsageError
from ps2.matrix.matrix_time import LATEST_S
from ps2.ops.all import KEY_READS, lookup
from ps2.ops.operands import BLOCK, COLUMNS, SLOTS, Axis
from ps2.ops.packing import MIN_NARROWED_BYTES
from ps2.ops.slots import newer, older
from ps2.ops.table import Array
from ps2.protocol.drafts import RequestDraft
from ps2.protocol.messages import Operation, Outline, ShardId
from ps2.server.keycache import KeySet
from ps2.server.managed_keys import MAX_KEYS
from ps2.server.managed_shard import ManagedShard
from ps2.server.shard import Shard

# Maximum number of slots that a request scans, and of keys that it removes; both take a few milliseconds.
MAX_SCANNED, MAX_REMOVED = 1 << 20, 1 << 13
# Number of keys that each slice of an expiry moves, if a rebuild of the index is in progress.
REBUILD_KEYS = 1 << 14
# Maximum size of the keys and values that a request returns.
CHANGED_BYTES = WireConfig.block_bytes
# Maximum size of the answer in bytes, by operation.
MAX_ANSWER_BYTES = {"keys_state": 128, "keys_changed": CHANGED_BYTES + 64, "keys_removed": 8 * MAX_KEYS}

# The valid range of each parameter. Ticks must fit into the 32 bits of a slot's tick.
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
    """Run an operation of ``KEY_READS`` or ``KEY_CHANGES``; the caller must hold the shard's lock."""
    shard.check_rows(np.empty(0, np.int64))
    if not isinstance(shard, ManagedShard):
        raise UsageError(
            f"operation {operation.name!r}: the keys of this matrix are not managed: create it with DCV.sparse(..., "
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
    """Return eight integers, int64 of shape (8,), and the matrix's time in seconds, float64 of shape (1,).

    The integers: tick; lineage; active keys; waiting keys; keys admitted, expired and evicted so far; the first tick
    from which on all removals are stored, or -1.
    """
    managed, counts = shard.managed, shard.managed.counts
    complete_from = managed.removed.complete_from
    values = [managed.time.tick, managed.lineage, shard.live, len(managed.waiting)]
    values += [counts.admitted, counts.expired, counts.evicted, -1 if complete_from is None else complete_from]
    return np.array(values), np.array([managed.time.now_s])


def _advance(shard: ManagedShard, params: Params) -> Value:
    shard.managed.advance(float(params["now_s"]), int(params["tick"]), shard.value_bytes, bool(params["touched"]))
    shard.count_grown()
    return np.array([shard.managed.time.tick])


def _mark(shard: ManagedShard, params: Params) -> Value:
    return np.array([shard.managed.mark(int(params["tick"]))])


def _expire(shard: ManagedShard, params: Params) -> Value:
    """Remove keys last touched ``older_s`` or more ago; return (``begin`` of the next slice, removed keys)."""
    managed, begin = shard.managed, int(params["begin"])
    min_tick = managed.first_fresh_tick(float(params["older_s"]))
    slots, next_begin = older(managed.ticks, min_tick, _scan_end(shard, begin), MAX_SCANNED, MAX_REMOVED)
    shard.remove(slots)
    managed.counts.expired += slots.size
    managed.index.settle(REBUILD_KEYS)
    if not next_begin:
        managed.waiting.expire(min_tick)
        shard.count_now()
    return np.array([next_begin, slots.size])


def _evict(shard: ManagedShard, params: Params) -> Value:
    """Remove least recently touched keys; return (number of keys still to be removed, number of removed keys)."""
    keep = int(params["keep"])
    num_removed = shard.evict(keep, MAX_REMOVED)
    return np.array([max(0, shard.live - keep), num_removed])


def _remove(shard: ManagedShard, keys: KeySet) -> Value:
    slots = np.unique(shard.managed.index.lookup(keys.columns_on(shard)))[::-1]
    slots = slots[slots >= 0]
    shard.remove(slots)
    shard.managed.counts.evicted += slots.size
    return np.array([slots.size])


def _changed(shard: ManagedShard, params: Params) -> Value:
    """Return (``begin`` of the next slice,), the n keys touched since a tick, and their values, (n, first rows)."""
    rows, end = int(params["positions"]), _scan_end(shard, int(params["begin"]))
    if not 0 <= rows <= shard.rows:
        raise OutOfRangeError(f"rows: expected 0 to {shard.rows}, got {rows}")
    limit = max(1, CHANGED_BYTES // (8 + rows * shard.spec.np_dtype.itemsize))
    slots, next_begin = newer(shard.managed.ticks, int(params["since"]), end, MAX_SCANNED, limit)
    return np.array([next_begin]), shard.managed.index.keys[slots], np.ascontiguousarray(shard.array[:rows, slots].T)


def _removed(shard: ManagedShard, params: Params) -> Value:
    return shard.managed.removed.since(int(params["since"]))


def _scan_end(shard: ManagedShard, begin: int) -> int:
    """Return the exclusive upper slot of a slice: ``begin``, or the number of slots if ``begin`` is -1."""
    return shard.live if begin < 0 else min(begin, shard.live)


# The parameters and the function of each operation.
OPERATIONS: Mapping[str, tuple[tuple[str, ...], Callable[[ManagedShard, Params], Value]]] = {
    "keys_state": ((), _state),
    "keys_changed": (("since", "positions", "begin"), _changed),
    "keys_removed": (("since",), _removed),
    "keys_advance": (("now_s", "tick", "touched"), _advance),
    "keys_mark": (("tick",), _mark),
    "keys_expire": (("older_s", "begin"), _expire),
    "keys_evict": (("keep",), _evict),
}


# Bytes of a value that is sent as a 16-bit float.
PACKED_VALUE_BYTES = 2
# Assumed length of an axis whose length is not known in advance; memory of longer axes is underestimated.
DEFAULT_LENGTH = 1 << 16


def reply_bytes(draft: RequestDraft, shards: Mapping[ShardId, Shard], copies: int = 0) -> int:
    """Return the maximum size of a reply's arrays in memory. Results of users' functions are not included.

    ``copies``: the number of additional copies of the sent bytes.
    """
    total = 0
    for outline in draft.outlines(ARRAY_OPERATIONS):
        shard = shards.get((outline.matrix, outline.partition))
        if shard is None:
            continue
        for count, dtype in _arrays(outline, shard):
            size = count * dtype.itemsize
            sent_bytes = count * PACKED_VALUE_BYTES if outline.wire is not None else size
            total += size + copies * sent_bytes
            # Packed or narrowed values are additional arrays.
            if outline.wire is not None:
                total += sent_bytes
            elif dtype.kind == "i" and size >= MIN_NARROWED_BYTES:
                total += size // 2
    return total


class _ArrayOperations:
    """The names of operations that return arrays, including those of families that are loaded later."""

    def __contains__(self, name: object) -> bool:
        if name == "keys" or name in KEY_READS:
            return True
        try:
            return bool(lookup(str(name)).answers)
        except NotFoundError:
            return False


ARRAY_OPERATIONS = _ArrayOperations()


def _arrays(outline: Outline, shard: Shard) -> Iterator[tuple[int, np.dtype[Any]]]:
    """Yield the maximum number of elements and the dtype of each array of a result."""
    if outline.name in KEY_READS:
        yield MAX_ANSWER_BYTES[outline.name], np.dtype(np.uint8)
        return
    if outline.name in ("pull", "keys"):
        start, stop = (outline.params.get(name) for name in ("start", "stop"))
        start = start if isinstance(start, int) else 0
        stop = stop if isinstance(stop, int) and stop != -1 else shard.live
        dtype = np.dtype(np.int64) if outline.name == "keys" else shard.spec.np_dtype
        yield max(0, min(stop, shard.live) - max(start, 0)), dtype
        return
    op = lookup(outline.name)
    # A scalar with the name of an axis is the axis's length.
    axis_lengths: dict[Axis, int] = {name: value for name, value in outline.params.items() if isinstance(value, int)}
    axis_lengths |= {COLUMNS: int(shard.array.shape[1]), BLOCK: shard.rows}
    shapes = iter(outline.shapes)
    for _, kind, along in op.request_operands:
        if kind == SLOTS and outline.keys is not None:
            axis_lengths[SLOTS] = outline.keys
        else:
            axis_lengths |= dict(zip(along.axes, next(shapes, ()), strict=False))
    for answer in op.answers:
        axes = [axis if isinstance(axis, int) else axis_lengths.get(axis) for axis in answer.axes]
        count = math.prod(axis for axis in axes if axis is not None) * (DEFAULT_LENGTH if None in axes else 1)
        yield count, answer.dtype or shard.spec.np_dtype
