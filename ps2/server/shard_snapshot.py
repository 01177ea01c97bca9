"""Snapshots of shards, as views of a paused shard's arrays or as copies, and their files."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ps2.errors import BusyError, LimitError, RecoveryError
from ps2.matrix.partition import Partition
from ps2.ops.parallel import over_blocks
from ps2.ops.table import Array
from ps2.server.memory import MemoryAccount
from ps2.server.reply_cache import CachedReply
from ps2.server.shard import Shard
from ps2.storage.arrays import npy_bytes
from ps2.storage.files import recovery_errors, remove, resolve_url, write
from ps2.storage.manifest import SavedFile, SavedShard, file_name

log = logging.getLogger(__name__)

# Number of files that are written at the same time.
WRITERS = 4


@dataclass(frozen=True)
class ShardSnapshot:
    """The content of a shard's files: by kind, arrays to concatenate; and the applied ids as JSON (None: no file)."""

    matrix: int
    partition: Partition
    arrays: dict[str, tuple[Array, ...]]
    ids: bytes | None = None

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for arrays in self.arrays.values() for array in arrays)

    def copy(self) -> ShardSnapshot:
        copies = {kind: tuple(map(_copy, arrays)) for kind, arrays in self.arrays.items()}
        return ShardSnapshot(self.matrix, self.partition, copies, self.ids)

    def contents(self) -> dict[str, Callable[[], Iterator[Any]]]:
        """Return for each kind of file a function that yields the file's bytes."""
        contents: dict[str, Callable[[], Iterator[Any]]] = {
            kind: partial(npy_bytes, *arrays) for kind, arrays in self.arrays.items()
        }
        if (ids := self.ids) is not None:
            contents["ids"] = lambda: iter([ids])
        return contents


def view_snapshot(matrix: int, shard: Shard, rows: Sequence[int]) -> ShardSnapshot:
    """Return views of a shard's rows (with layout "column": all rows), without ids. The caller must hold the lock."""
    if rows and rows[-1] >= shard.rows:
        raise RecoveryError(f"matrix {matrix:x}: expected row {rows[-1]}, but this server has only {shard.rows} rows")
    if shard.spec.layout == "column":
        values: tuple[Array, ...] = (shard.blocks,)
    else:
        values = tuple(shard.array[begin:end, : shard.live] for begin, end in _runs(rows))
    arrays = {"values": values}
    if shard.index is not None:
        arrays["keys"] = (shard.index.keys,)
    if shard.managed is not None:
        arrays["life"] = shard.managed.state()
    return ShardSnapshot(matrix, shard.partition, arrays)


def ids_json(shard: Shard, replies: Sequence[CachedReply]) -> bytes:
    """Return a shard's applied ids, its unused rows and cached replies as JSON."""
    state = {"applied": shard.applied.to_json(), "unused": sorted(shard.unused)}
    return json.dumps({**state, "kept": [reply.to_json() for reply in replies]}).encode()


def copy_snapshots(
    snapshots: Sequence[ShardSnapshot], memory: MemoryAccount, purpose: str
) -> tuple[ShardSnapshot, ...] | None:
    """Return copies, as transient memory that the caller must release (``nbytes``); None if there is no memory."""
    size = sum(snapshot.nbytes for snapshot in snapshots)
    try:
        memory.take_transient(size, purpose)
    except (LimitError, BusyError) as error:
        log.warning("%s: requests wait until it is written", error)
        return None
    try:
        return tuple(snapshot.copy() for snapshot in snapshots)
    except MemoryError:
        memory.give_transient(size)
        log.warning("the system does not have %d bytes for %s: requests wait until it is written", size, purpose)
        return None


def write_shards(
    url: str, snapshots: Sequence[ShardSnapshot], stem: str = "", check: Callable[[], None] = lambda: None
) -> list[SavedShard]:
    """Write shards' files into a folder; remove them after an error, such as one of ``check`` before a block."""
    fs, root = resolve_url(url)
    with recovery_errors(root, "making the folder"):
        fs.makedirs(root, exist_ok=True)

    def save(name: str, content: Callable[[], Iterator[Any]]) -> SavedFile:
        def checked() -> Iterator[Any]:
            for part in content():
                check()
                yield part

        return SavedFile(name, *write(fs, f"{root}/{name}", checked()))

    with ThreadPoolExecutor(WRITERS, thread_name_prefix="ps2-write") as pool:
        futures = [
            {
                kind: pool.submit(save, file_name(stem, snapshot.matrix, snapshot.partition, kind), content)
                for kind, content in snapshot.contents().items()
            }
            for snapshot in snapshots
        ]
    try:
        return [
            SavedShard(snapshot.matrix, snapshot.partition, {kind: future.result() for kind, future in files.items()})
            for snapshot, files in zip(snapshots, futures, strict=True)
        ]
    except BaseException:
        for snapshot in snapshots:
            for kind in snapshot.contents():
                remove(fs, f"{root}/{file_name(stem, snapshot.matrix, snapshot.partition, kind)}")
        raise


def _runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending row ids as ranges [begin, end) of consecutive ids; at least one range, which may be empty."""
    row_ids = np.array(rows, np.int64)
    runs = np.split(row_ids, np.flatnonzero(np.diff(row_ids) > 1) + 1)
    return [(int(run[0]), int(run[-1]) + 1) if run.size else (0, 0) for run in runs]


def _copy(array: Array) -> Array:
    array_copy = np.empty_like(array, order="C")
    source, target = array, array_copy
    if array.ndim == 2 and array.shape[0] < array.shape[1]:
        # ``over_blocks`` splits the first axis, which must be the longer axis: here the columns.
        source, target = source.T, target.T
    over_blocks(np.copyto, (target, source), cost=source[:1].size)
    return array_copy
