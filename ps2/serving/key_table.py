"""Tables of ascending keys with values. Look-ups and merges run in compiled code without the GIL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float32s, Int64s
from ps2.errors import CheckpointCorruptError
from ps2.ops.guards import readable
from ps2.ops.kernels import kernel

Bytes = npt.NDArray[np.uint8]

# The state of a key.
UNKNOWN, PRESENT, REMOVED = 0, 1, 2
# Mean number of keys in a bucket. A binary search in a bucket reads one or two cache lines.
BUCKET_KEYS = 4
# A table is merged into a newer table if it has at most MERGED_RATIO times as many keys, and at most MERGED_BYTES.
MERGED_RATIO = 2
MERGED_BYTES = 256 << 20

# The arrays ``keys``, ``values`` and ``removed`` of a ``KeyTable``.
Columns = tuple[Int64s, Float32s, Bytes]
_NONE_REMOVED: Bytes = np.empty(0, np.uint8)


@kernel
def _index(keys: Int64s, shift: int, starts: Int64s) -> bool:
    """Write the index of each bucket's first key into ``starts``; return False unless keys ascend from 0 or more."""
    bucket = 0
    for i in range(keys.size):
        if keys[i] < 0 or (i > 0 and keys[i] <= keys[i - 1]):
            return False
        bucket_of_key = (keys[i] - keys[0]) >> shift
        while bucket <= bucket_of_key:
            starts[bucket] = i
            bucket += 1
    starts[bucket:] = keys.size
    return True


@kernel
def _look_up(  # noqa: PLR0913 - numba takes arrays one by one
    keys: Int64s,
    starts: Int64s,
    shift: int,
    values: Float32s,
    removed: Bytes,
    requested: Int64s,
    states: Bytes,
    out: Float32s,
) -> None:
    """Write state and values of each requested key that the table has and whose state is UNKNOWN."""
    first, last = keys[0], keys[-1]
    for i in range(requested.size):
        key = requested[i]
        if states[i] != UNKNOWN or key < first or key > last:
            continue
        bucket = (key - first) >> shift
        low, high = starts[bucket], starts[bucket + 1]
        while low < high:
            middle = (low + high) >> 1
            if keys[middle] < key:
                low = middle + 1
            else:
                high = middle
        if low < keys.size and keys[low] == key:
            if removed.size > 0 and removed[low]:
                states[i] = REMOVED
                continue
            states[i] = PRESENT
            for j in range(values.shape[1]):
                out[i, j] = values[low, j]


@kernel
def _count_distinct(older: Int64s, newer: Int64s) -> int:
    """Return the number of distinct keys in two tables."""
    i = j = count = 0
    while i < older.size or j < newer.size:
        is_in_newer = j < newer.size and (i == older.size or newer[j] <= older[i])
        if i < older.size and (j == newer.size or older[i] <= newer[j]):
            i += 1
        if is_in_newer:
            j += 1
        count += 1
    return count


@kernel
def _merge(  # noqa: PLR0913 - numba takes arrays one by one
    old_keys: Int64s,
    old_values: Float32s,
    old_removed: Bytes,
    new_keys: Int64s,
    new_values: Float32s,
    new_removed: Bytes,
    keys: Int64s,
    values: Float32s,
    removed: Bytes,
) -> bool:
    """Write each key of two tables once, with the newer entry if there are two; return True if a key is removed.

    The values of removed keys are 0.
    """
    i = j = 0
    has_removed = False
    for row in range(keys.size):
        is_in_newer = j < new_keys.size and (i == old_keys.size or new_keys[j] <= old_keys[i])
        is_in_older = i < old_keys.size and (j == new_keys.size or old_keys[i] <= new_keys[j])
        if is_in_newer:
            keys[row] = new_keys[j]
            removed[row] = new_removed[j] if new_removed.size > 0 else 0
        else:
            keys[row] = old_keys[i]
            removed[row] = old_removed[i] if old_removed.size > 0 else 0
        has_removed |= removed[row] != 0
        for column in range(values.shape[1]):
            if removed[row] != 0:
                values[row, column] = 0
            else:
                values[row, column] = new_values[j, column] if is_in_newer else old_values[i, column]
        if is_in_newer:
            j += 1
        if is_in_older:
            i += 1
    return has_removed


@dataclass(frozen=True, eq=False)
class KeyTable:
    """A table of one or more ascending keys. Each key has values, or is marked as removed.

    Attributes:
        keys: int64 of shape (n,).
        values: float32 of shape (n, width).
        removed: uint8 of shape (n,), 1: the key is removed; shape (0,): no key is removed.
        starts: int64; the index of the first key of each bucket, and of the end of the last bucket.
        shift: a key is in the bucket ``(key - keys[0]) >> shift``.
    """

    keys: Int64s
    values: Float32s
    removed: Bytes
    starts: Int64s
    shift: int

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes + self.removed.nbytes + self.starts.nbytes

    def look_up(self, requested: Int64s, states: Bytes, out: Float32s) -> None:
        """Write state and values of each requested key that the table has and whose state is UNKNOWN."""
        _look_up(self.keys, self.starts, self.shift, self.values, self.removed, requested, states, out)


def key_table(keys: Int64s, values: Float32s, removed: Bytes | None = None, source: str = "keys") -> KeyTable:
    """Return a table of at least one key; raises CheckpointCorruptError unless the keys ascend from 0 or more."""
    span, shift = int(keys[-1]) - int(keys[0]), 0
    while span >> shift > max(len(keys) // BUCKET_KEYS, 1):
        shift += 1
    starts = np.empty(max(span, 0) // (1 << shift) + 2, np.int64)
    keys = readable(keys)
    if not _index(keys, shift, starts):
        raise CheckpointCorruptError(f"{source}: expected distinct non-negative keys in ascending order")
    removed = _NONE_REMOVED if removed is None else removed
    return KeyTable(keys, readable(values), readable(removed), readable(starts), shift)


def is_key(keys: Int64s, candidates: Int64s) -> npt.NDArray[np.bool_]:
    """Return a mask of the candidates that are among the ascending keys."""
    positions = np.searchsorted(keys, candidates)
    positions[positions == len(keys)] = 0
    return keys[positions] == candidates if len(keys) else np.zeros(len(candidates), np.bool_)


def delta_table(keys: Int64s, values: Float32s, removed: Int64s, source: str) -> KeyTable | None:
    """Return the table of a delta; None if it is empty. A key in ``keys`` and ``removed`` was created again."""
    if not len(removed):
        return key_table(keys, values, source=source) if len(keys) else None
    marks = np.ones(len(removed), np.uint8)
    removed_columns = (removed, np.empty((0, values.shape[1]), np.float32), marks)
    return _merge_columns(removed_columns, (keys, values, _NONE_REMOVED), source)


def merge(older: KeyTable, newer: KeyTable) -> KeyTable:
    """Return a table of the keys of both tables, each with the newer table's entry if that table has the key."""
    return _merge_columns((older.keys, older.values, older.removed), (newer.keys, newer.values, newer.removed), "keys")


def add_newest(tables: Sequence[KeyTable], newer: KeyTable | None) -> tuple[KeyTable, ...]:
    """Add a newer table to ``tables``, ordered from new to old; merge tables that are not much larger into it.

    So the time of a refresh does not grow with the number of deltas, and a look-up searches few tables.
    """
    if newer is None:
        return tuple(tables)
    count = 0
    for older in tables:
        if len(older) > MERGED_RATIO * len(newer) or older.nbytes > MERGED_BYTES:
            break
        newer, count = merge(older, newer), count + 1
    return newer, *tables[count:]


def merge_all(tables: Sequence[KeyTable | None]) -> KeyTable | None:
    """Merge tables, ordered from old to new. Merging in pairs takes n log(n) time for n tables, not n squared."""
    merged = [table for table in tables if table is not None]
    while len(merged) > 1:
        pairs = zip_longest(merged[::2], merged[1::2])
        merged = [older if newer is None else merge(older, newer) for older, newer in pairs]
    return merged[0] if merged else None


def warm() -> None:
    """Compile the kernels of this file or load them from the cache, which would otherwise delay the first scores."""
    table = key_table(np.zeros(1, np.int64), np.zeros((1, 1), np.float32))
    merge(table, table).look_up(readable(table.keys), np.zeros(1, np.uint8), np.zeros((1, 1), np.float32))


def _merge_columns(older: Columns, newer: Columns, source: str) -> KeyTable:
    """Merge two tables in one pass without the GIL, so that other threads can score rows at the same time."""
    (old_keys, old_values, old_removed), (new_keys, new_values, new_removed) = (
        (readable(keys), readable(values), readable(removed)) for keys, values, removed in (older, newer)
    )
    count = _count_distinct(old_keys, new_keys)
    keys, removed = np.empty(count, np.int64), np.empty(count, np.uint8)
    values = np.empty((count, new_values.shape[1]), np.float32)
    has_removed = _merge(old_keys, old_values, old_removed, new_keys, new_values, new_removed, keys, values, removed)
    return key_table(keys, values, removed if has_removed else None, source)
