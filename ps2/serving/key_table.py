"""Keys in ascending order with their values: looked up without the GIL, merged with newer ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from ps2.errors import CheckpointCorruptError
from ps2.ops.guards import readable
from ps2.ops.kernels import Int64s, kernel

Float32s = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

# What is known of a key.
UNKNOWN, PRESENT, REMOVED = 0, 1, 2
# Keys of one bucket, if they are spread evenly. Their binary search ends within one or two cache lines.
BUCKET_KEYS = 4


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
        """Write the values of keys whose ``known`` is UNKNOWN, and what is known of them now.

        Args:
            wanted: int64 of shape (m,), any order, read-only.
            known: uint8 of shape (m,).
            out: float32 of shape (m, width).
        """
        _look_up(self.keys, self.starts, self.shift, self.values, self.gone, wanted, known, out)


def key_table(keys: Int64s, values: Float32s, gone: Bytes | None = None, where: str = "keys") -> KeyTable:
    """Return the table of at least one key.

    Raises:
        CheckpointCorruptError: the keys do not ascend, or one is negative.
    """
    span, shift = int(keys[-1]) - int(keys[0]), 0
    while span >> shift > max(len(keys) // BUCKET_KEYS, 1):
        shift += 1
    starts = np.empty(max(span, 0) // (1 << shift) + 2, np.int64)
    keys = readable(keys)
    if not _index(keys, shift, starts):
        raise CheckpointCorruptError(f"{where}: expected distinct keys, ascending, none of them negative")
    gone = np.empty(0, np.uint8) if gone is None else gone
    return KeyTable(keys, readable(values), readable(gone), readable(starts), shift)


def found_in(keys: Int64s, wanted: Int64s) -> npt.NDArray[np.bool_]:
    """Return for each wanted key whether it is one of the keys, which ascend."""
    at = np.searchsorted(keys, wanted)
    at[at == len(keys)] = 0
    return keys[at] == wanted if len(keys) else np.zeros(len(wanted), np.bool_)


def with_removed(keys: Int64s, values: Float32s, removed: Int64s, where: str) -> KeyTable | None:
    """Return a delta as a table; None if it is empty. A key that is removed and has values was made anew."""
    removed = removed[~found_in(keys, removed)]
    if not len(removed):
        return key_table(keys, values, where=where) if len(keys) else None
    gone = np.zeros(len(keys) + len(removed), np.uint8)
    gone[len(keys) :] = 1
    every = np.concatenate([keys, removed])
    order = np.argsort(every, kind="stable")
    filled = np.concatenate([values, np.zeros((len(removed), values.shape[1]), np.float32)])
    return key_table(every[order], filled[order], gone[order], where)


def merged(older: KeyTable | None, newer: KeyTable | None) -> KeyTable | None:
    """Return the table that holds for each key what the newer one says, else the older one."""
    if older is None or newer is None:
        return newer if older is None else older
    kept = ~found_in(newer.keys, older.keys)
    keys = np.concatenate([older.keys[kept], newer.keys])
    order = np.argsort(keys, kind="stable")  # a merge of two ascending runs
    values = np.concatenate([older.values[kept], newer.values])[order]
    gone = np.concatenate([_gone(older)[kept], _gone(newer)])[order]
    return key_table(keys[order], values, gone if gone.any() else None)


def merged_all(tables: Sequence[KeyTable | None]) -> KeyTable | None:
    """Merge tables, of which later ones are newer: neighbours first, so that many small ones take no long time."""
    tables = list(tables)
    while len(tables) > 1:
        pairs = zip_longest(tables[::2], tables[1::2])
        tables = [merged(older, newer) for older, newer in pairs]
    return tables[0] if tables else None


def _gone(table: KeyTable) -> Bytes:
    return table.gone if table.gone.size else np.zeros(len(table), np.uint8)
