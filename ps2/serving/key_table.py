"""Keys in ascending order with their values: looked up without the GIL, merged with newer ones."""

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
# Keys of one bucket, if they are spread evenly. Their binary search ends within one or two cache lines.
BUCKET_KEYS = 4
# A table is merged into a newer one if it has at most so many times its keys, and so many bytes.
MERGED_RATIO = 2
MERGED_BYTES = 256 << 20

# Keys, values and marks of keys that are gone, as in ``KeyTable``.
Columns = tuple[Int64s, Float32s, Bytes]
_NONE_GONE: Bytes = np.empty(0, np.uint8)


@kernel
def _index(keys: Int64s, shift: int, starts: Int64s) -> bool:
    """Write where each bucket of keys begins; return whether the keys ascend and are not negative."""
    bucket = 0
    for i in range(keys.size):
        if keys[i] < 0 or (i > 0 and keys[i] <= keys[i - 1]):
            return False
        of_key = (keys[i] - keys[0]) >> shift
        while bucket <= of_key:
            starts[bucket] = i
            bucket += 1
    starts[bucket:] = keys.size
    return True


@kernel
def _look_up(  # noqa: PLR0913 - numba takes arrays one by one
    keys: Int64s, starts: Int64s, shift: int, values: Float32s, gone: Bytes, wanted: Int64s, known: Bytes, out: Float32s
) -> None:
    """Write the values of wanted keys that are UNKNOWN so far, and which of these are PRESENT or REMOVED here."""
    first, last = keys[0], keys[-1]
    for i in range(wanted.size):
        key = wanted[i]
        if known[i] != UNKNOWN or key < first or key > last:
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
            if gone.size > 0 and gone[low]:
                known[i] = REMOVED
                continue
            known[i] = PRESENT
            for j in range(values.shape[1]):
                out[i, j] = values[low, j]


@kernel
def _count_distinct(older: Int64s, newer: Int64s) -> int:
    """Return how many keys ``_merge`` writes."""
    i = j = count = 0
    while i < older.size or j < newer.size:
        of_newer = j < newer.size and (i == older.size or newer[j] <= older[i])
        if i < older.size and (j == newer.size or older[i] <= newer[j]):
            i += 1
        if of_newer:
            j += 1
        count += 1
    return count


@kernel
def _merge(  # noqa: PLR0913 - numba takes arrays one by one
    old_keys: Int64s,
    old_values: Float32s,
    old_gone: Bytes,
    new_keys: Int64s,
    new_values: Float32s,
    new_gone: Bytes,
    keys: Int64s,
    values: Float32s,
    gone: Bytes,
) -> bool:
    """Write each key once, with what the newer table says; return whether a key is gone. Such keys have zeros."""
    i = j = 0
    any_gone = False
    for at in range(keys.size):
        of_newer = j < new_keys.size and (i == old_keys.size or new_keys[j] <= old_keys[i])
        of_older = i < old_keys.size and (j == new_keys.size or old_keys[i] <= new_keys[j])
        if of_newer:
            keys[at] = new_keys[j]
            gone[at] = new_gone[j] if new_gone.size > 0 else 0
        else:
            keys[at] = old_keys[i]
            gone[at] = old_gone[i] if old_gone.size > 0 else 0
        any_gone |= gone[at] != 0
        for column in range(values.shape[1]):
            if gone[at] != 0:
                values[at, column] = 0
            else:
                values[at, column] = new_values[j, column] if of_newer else old_values[i, column]
        if of_newer:
            j += 1
        if of_older:
            i += 1
    return any_gone


@dataclass(frozen=True, eq=False)
class KeyTable:
    """Keys with values, of which some may say that a key is gone.

    Attributes:
        keys: int64 of shape (n,), ascending, n > 0.
        values: float32 of shape (n, width).
        gone: uint8 of shape (n,), 1: the key is gone; of shape (0,): none is.
        starts, shift: bucket ``(key - keys[0]) >> shift`` begins at ``starts[bucket]``.
    """

    keys: Int64s
    values: Float32s
    gone: Bytes
    starts: Int64s
    shift: int

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes + self.gone.nbytes + self.starts.nbytes

    def look_up(self, wanted: Int64s, known: Bytes, out: Float32s) -> None:
        """Write the values of keys whose ``known`` is UNKNOWN, and what is known of them now."""
        _look_up(self.keys, self.starts, self.shift, self.values, self.gone, wanted, known, out)


def key_table(keys: Int64s, values: Float32s, gone: Bytes | None = None, where: str = "keys") -> KeyTable:
    """Return the table of at least one key; CheckpointCorruptError: the keys do not ascend, or one is negative."""
    span, shift = int(keys[-1]) - int(keys[0]), 0
    while span >> shift > max(len(keys) // BUCKET_KEYS, 1):
        shift += 1
    starts = np.empty(max(span, 0) // (1 << shift) + 2, np.int64)
    keys = readable(keys)
    if not _index(keys, shift, starts):
        raise CheckpointCorruptError(f"{where}: expected distinct keys, ascending, none of them negative")
    gone = _NONE_GONE if gone is None else gone
    return KeyTable(keys, readable(values), readable(gone), readable(starts), shift)


def are_in(keys: Int64s, candidates: Int64s) -> npt.NDArray[np.bool_]:
    """Return for each candidate whether it is one of the keys, which ascend."""
    positions = np.searchsorted(keys, candidates)
    positions[positions == len(keys)] = 0
    return keys[positions] == candidates if len(keys) else np.zeros(len(candidates), np.bool_)


def with_removed(keys: Int64s, values: Float32s, removed: Int64s, where: str) -> KeyTable | None:
    """Return a delta as a table; None if it is empty. A key that is removed and has values was created again."""
    if not len(removed):
        return key_table(keys, values, where=where) if len(keys) else None
    gone = np.ones(len(removed), np.uint8)
    return _merged((removed, np.empty((0, values.shape[1]), np.float32), gone), (keys, values, _NONE_GONE), where)


def merged(older: KeyTable, newer: KeyTable) -> KeyTable:
    """Return the table that holds for each key what the newer one says, else the older one."""
    return _merged((older.keys, older.values, older.gone), (newer.keys, newer.values, newer.gone), "keys")


def stacked(tables: Sequence[KeyTable], newer: KeyTable | None) -> tuple[KeyTable, ...]:
    """Return tables, the newest first, that hold for each key what ``newer`` says, else the first of ``tables``.

    A table is merged into the newer one unless it is much larger. So a refresh takes no longer the more deltas came
    before, and there are few tables to look into.
    """
    if newer is None:
        return tuple(tables)
    count = 0
    for older in tables:
        if len(older) > MERGED_RATIO * len(newer) or older.nbytes > MERGED_BYTES:
            break
        newer, count = merged(older, newer), count + 1
    return newer, *tables[count:]


def merged_all(tables: Sequence[KeyTable | None]) -> KeyTable | None:
    """Merge tables, of which later ones are newer: neighbours first, so that many small ones take no long time."""
    filled = [table for table in tables if table is not None]
    while len(filled) > 1:
        pairs = zip_longest(filled[::2], filled[1::2])
        filled = [older if newer is None else merged(older, newer) for older, newer in pairs]
    return filled[0] if filled else None


def warm() -> None:
    """Compile all kernels of tables, or read them from the cache: the first refresh must not do so beside scores."""
    one = key_table(np.zeros(1, np.int64), np.zeros((1, 1), np.float32))
    merged(one, one).look_up(readable(one.keys), np.zeros(1, np.uint8), np.zeros((1, 1), np.float32))


def _merged(older: Columns, newer: Columns, where: str) -> KeyTable:
    """Merge keys, values and marks of two tables in one pass without the GIL, so that scores go on."""
    (old_keys, old_values, old_gone), (new_keys, new_values, new_gone) = (
        (readable(keys), readable(values), readable(gone)) for keys, values, gone in (older, newer)
    )
    count = _count_distinct(old_keys, new_keys)
    keys, gone = np.empty(count, np.int64), np.empty(count, np.uint8)
    values = np.empty((count, new_values.shape[1]), np.float32)
    any_gone = _merge(old_keys, old_values, old_gone, new_keys, new_values, new_gone, keys, values, gone)
    return key_table(keys, values, gone if any_gone else None, where)
