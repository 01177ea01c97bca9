"""Snapshots of shards, which are views of a paused shard's arrays or copies, and their files."""

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
from ps2.storage.arrays import npy
from ps2.storage.files import remove, reported, resolve_url, write
from ps2.storage.manifest import SavedFile, SavedShard, file_name

log = logging.getLogger(__name__)

WRITERS = 4


@dataclass(frozen=True)
class ShardSnapshot:
    """The content of a shard's files: pieces of arrays by kind of file, and the applied ids as JSON (None: no file)."""

    matrix: int
    partition: Partition
    arrays: dict[str, tuple[Array, ...]]
    ids: bytes | None = None

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for pieces in self.arrays.values() for piece in pieces)

    def copy(self) -> ShardSnapshot:
        copies = {kind: tuple(map(_copy, pieces)) for kind, pieces in self.arrays.items()}
        return ShardSnapshot(self.matrix, self.partition, copies, self.ids)

    def contents(self) -> dict[str, Callable[[], Iterator[Any]]]:
        """Return, for each kind of file, a function that yields its bytes."""
        contents: dict[str, Callable[[], Iterator[Any]]] = {
            kind: partial(npy, *pieces) for kind, pieces in self.arrays.items()
        }
        if (ids := self.ids) is not None:
            contents["ids"] = lambda: iter([ids])
        return contents


def freeze(matrix: int, shard: Shard, rows: Sequence[int]) -> ShardSnapshot:
    """Return views of a shard's rows, without its ids; the caller holds its lock. With layout "column", of all rows."""
    if rows and rows[-1] >= shard.rows:
        raise RecoveryError(f"matrix {matrix:x}: row {rows[-1]} is in use, and this server has {shard.rows} rows of it")
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
    """Return a shard's applied ids, its unused rows and its kept replies as JSON."""
    state = {"applied": shard.applied.to_json(), "unused": sorted(shard.unused)}
    return json.dumps({**state, "kept": [reply.to_json() for reply in replies]}).encode()


def copies(frozen: Sequence[ShardSnapshot], memory: MemoryAccount, purpose: str) -> tuple[ShardSnapshot, ...] | None:
    """Return copies of all snapshots, or None if there is no memory for them.

    Their ``nbytes`` are counted as transient memory; the caller gives them back.
    """
    size = sum(snapshot.nbytes for snapshot in frozen)
    try:
        memory.take_transient(size, purpose)
    except (LimitError, BusyError) as error:
        log.warning("%s: requests wait until it is written", error)
        return None
    try:
        return tuple(snapshot.copy() for snapshot in frozen)
    except MemoryError:
        memory.give_transient(size)
        log.warning("the system does not have %d bytes for %s: requests wait until it is written", size, purpose)
        return None


def write_shards(
    url: str, frozen: Sequence[ShardSnapshot], stem: str = "", check: Callable[[], None] = lambda: None
) -> list[SavedShard]:
    """Write shards into a folder, one file per array; if that fails, remove them.

    ``check`` is called before each block is written; its exceptions abort the futures.
    """
    fs, root = resolve_url(url)
    with reported(root, "making the folder"):
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
            for snapshot in frozen
        ]
    try:
        return [
            SavedShard(snapshot.matrix, snapshot.partition, {kind: future.result() for kind, future in files.items()})
            for snapshot, files in zip(frozen, futures, strict=True)
        ]
    except BaseException:
        for snapshot in frozen:
            for kind in snapshot.contents():
                remove(fs, f"{root}/{file_name(stem, snapshot.matrix, snapshot.partition, kind)}")
        raise


def _runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending numbers as intervals [begin, end), at least one."""
    numbers = np.array(rows, np.int64)
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    return [(int(run[0]), int(run[-1]) + 1) if run.size else (0, 0) for run in runs]


def _copy(array: Array) -> Array:
    copied = np.empty_like(array, order="C")
    source, target = array, copied
    if array.ndim == 2 and array.shape[0] < array.shape[1]:
        # ``over_blocks`` cuts the first axis, which should be the longer one: here the columns.
        source, target = source.T, target.T
    over_blocks(np.copyto, (target, source), cost=source[:1].size)
    return copied
