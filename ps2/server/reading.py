"""Reads the files of saved shards into shards with the same or other partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ps2.array_types import Int64s
from ps2.errors import CheckpointCorruptError
from ps2.matrix.partition import Partition, hash_bucket
from ps2.ops.table import Array
from ps2.server.applied import AppliedIds
from ps2.server.managed_keys import read_state
from ps2.server.memory import MemoryAccount
from ps2.server.reply_cache import CachedReply
from ps2.server.shard import Shard
from ps2.storage.manifest import LoadMatrix, SavedShard
from ps2.storage.shard_files import checked, count_keys, read_bytes, read_json, read_keys, read_values

# Number of files that are read at the same time.
READERS = 4

Shards = Mapping[tuple[int, int], Shard]


@dataclass(frozen=True)
class _Range:
    """Columns ``[begin, end)`` of a saved shard, to be copied to the columns of ``shard`` from ``first`` on."""

    shard: Shard
    begin: int
    end: int
    first: int

    def put(self, rows: Int64s, column: int, values: Array) -> None:
        """Copy the overlap of this range with ``values``, which begin at ``column`` of the saved shard."""
        begin, end = max(self.begin, column), min(self.end, column + values.shape[1])
        if begin < end:
            target = self.first + begin - self.begin
            self.shard.array[_as_slice(rows), target : target + end - begin] = values[:, begin - column : end - column]


@dataclass(frozen=True)
class _Selection:
    """Columns of a saved shard, int64, ascending, to be copied to the columns of ``shard`` from ``first`` on."""

    shard: Shard
    columns: Int64s
    first: int

    def put(self, rows: Int64s, column: int, values: Array) -> None:
        begin, end = map(int, np.searchsorted(self.columns, (column, column + values.shape[1])))
        if begin < end:
            selected = values[:, self.columns[begin:end] - column]
            self.shard.array[_as_slice(rows), self.first + begin : self.first + end] = selected


@dataclass(frozen=True)
class _Source:
    """A saved shard, its number of columns, and the columns to copy to each shard."""

    matrix: LoadMatrix
    saved: SavedShard
    columns: int
    parts: tuple[_Range | _Selection, ...]


@dataclass(frozen=True)
class Reader:
    """Reads shards from one folder.

    ``check`` is called with a shard, under the shard's lock, before each change of the shard; its errors end the read.
    """

    fs: Any
    root: str
    memory: MemoryAccount
    check: Callable[[Shard], None] = lambda shard: None

    def fill(self, matrices: Sequence[LoadMatrix], shards: Shards) -> None:
        """Read the saved keys and values into shards of zeros, without the applied ids."""
        with ExitStack() as counted:
            for matrix in matrices:
                self._count_key_indexes(matrix, counted)
            # Insert all keys first, because insertion may reallocate the arrays.
            sources_by_matrix = _run_in_parallel([partial(self._locate, matrix, shards) for matrix in matrices])
            _run_in_parallel([partial(self._read, source) for sources in sources_by_matrix for source in sources])
            for sources in sources_by_matrix:
                for source in sources:
                    self._read_managed_keys(source)

    def restore_ids(self, matrices: Sequence[LoadMatrix], shards: Shards) -> None:
        """Read the applied ids into the shards whose partitions have not changed; raises like ``fill``."""
        for matrix, saved in _unchanged_shards(matrices):
            path = f"{self.root}/{matrix.matrix:x}-{saved.partition.index}"
            if (file := saved.files.get("ids")) is None:
                raise CheckpointCorruptError(f"{path}: expected a file of applied ids, but there is none")
            content = read_json(self.fs, self.root, file)
            try:
                shard_id = (matrix.matrix, saved.partition.index)
                shards[shard_id].applied = AppliedIds.from_json(content["applied"])
                shards[shard_id].restored_replies = [CachedReply.from_json(data, shard_id) for data in content["kept"]]
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise CheckpointCorruptError(f"{self.root}/{file.name}: expected applied ids: {error!r}") from error

    def _count_key_indexes(self, matrix: LoadMatrix, counted: ExitStack) -> None:
        """Count the memory for the columns of keys (``_Selection``) in partitions that have changed."""
        for saved in matrix.sources if matrix.spec.kind == "sparse" else ():
            if saved.partition not in matrix.partitions:
                size = 8 * count_keys(self.fs, self.root, saved.files["keys"])
                self.memory.take_transient(size, "the index of a checkpoint's keys")
                counted.callback(self.memory.give_transient, size)

    def _locate(self, matrix: LoadMatrix, shards: Shards) -> list[_Source]:
        targets = [shards[matrix.matrix, partition.index] for partition in matrix.partitions]
        if matrix.spec.kind == "dense":
            return [_dense_source(matrix, saved, targets) for saved in matrix.sources]
        return [self._insert_keys(matrix, saved, targets) for saved in matrix.sources]

    def _insert_keys(self, matrix: LoadMatrix, saved: SavedShard, shards: Sequence[Shard]) -> _Source:
        """Insert the keys of a saved shard into the shards of their hash buckets; return the columns to copy."""
        first_columns = [shard.live for shard in shards]
        columns_by_shard: list[list[Int64s]] = [[] for _ in shards]
        count = 0
        with checked(self.fs, self.root, saved.files["keys"]) as file:
            for start, keys in read_keys(file):
                buckets = _buckets(file.path, matrix, saved.partition, keys)
                for shard, columns in zip(shards, columns_by_shard, strict=True):
                    is_in_shard = (buckets >= shard.partition.begin) & (buckets < shard.partition.end)
                    if not self._add(shard, keys[is_in_shard]):
                        raise CheckpointCorruptError(f"{file.path}: a key occurs twice")
                    if shard.partition != saved.partition:
                        columns.append(start + np.flatnonzero(is_in_shard))
                count = start + keys.size
        return _Source(
            matrix,
            saved,
            count,
            tuple(
                _Range(shard, 0, count, first_column)
                if shard.partition == saved.partition
                else _Selection(shard, np.concatenate([np.empty(0, np.int64), *columns]), first_column)
                for shard, first_column, columns in zip(shards, first_columns, columns_by_shard, strict=True)
            ),
        )

    def _add(self, shard: Shard, keys: Int64s) -> bool:
        """Add keys to a shard; return False if the shard already had one of the keys."""
        with shard.lock:
            self.check(shard)
            old_count = shard.live
            shard.assign_slots(keys)
            return shard.live - old_count == keys.size

    def _read_managed_keys(self, source: _Source) -> None:
        """Merge the state of a saved shard's managed keys into the shards."""
        if (file := source.saved.files.get("life")) is None:
            return
        with checked(self.fs, self.root, file) as state_file:
            state = read_state(state_file.path, read_bytes(state_file), source.columns)
        for part in source.parts:
            with part.shard.lock:
                self.check(part.shard)
                if part.shard.managed is not None:
                    slots = part.columns if isinstance(part, _Selection) else np.arange(part.begin, part.end)
                    part.shard.managed.copy_ticks(state, slots, part.first)
                    part.shard.managed.merge(state)

    def _read(self, source: _Source) -> None:
        """Read the values of a saved shard, and verify the checksum of its file of ids."""
        rows = np.array(source.matrix.rows, np.int64)
        with checked(self.fs, self.root, source.saved.files["values"]) as file:
            for block_rows, column, values in read_values(file, source.matrix.saved, rows, source.columns):
                for part in source.parts:
                    with part.shard.lock:
                        self.check(part.shard)
                        part.put(block_rows, column, values)
        if "ids" in source.saved.files:
            read_json(self.fs, self.root, source.saved.files["ids"])


def _as_slice(rows: Int64s) -> Int64s | slice:
    """Return ascending row ids as a slice if they are contiguous, because NumPy copies slices faster."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first == rows.size - 1 else rows


def _run_in_parallel(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run calls in parallel and return their results in order. If a call fails, wait for running calls, then raise."""
    with ThreadPoolExecutor(READERS, thread_name_prefix="ps2-read") as pool:
        futures = [pool.submit(call) for call in calls]
        try:
            return [call.result() for call in futures]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def check_fits(matrix: LoadMatrix) -> None:
    """Raise CheckpointCorruptError unless the saved shards fit the matrix and cover its partitions."""
    name = f"matrix {matrix.matrix:x}"
    for field in ("dim", "dtype", "kind", "layout"):
        expected, saved = getattr(matrix.spec, field), getattr(matrix.saved, field)
        if saved != expected:
            raise CheckpointCorruptError(f"{name}: expected {field} {expected!r}, the checkpoint has {saved!r}")
    if matrix.saved.rows > matrix.spec.rows:
        raise CheckpointCorruptError(
            f"{name}: expected at most {matrix.spec.rows} rows, the checkpoint has {matrix.saved.rows}"
        )
    ordered = sorted(matrix.sources, key=lambda saved: saved.partition.begin)
    for partition in matrix.partitions if ordered else ():
        column = partition.begin
        for saved in ordered:
            if saved.partition.begin <= column < saved.partition.end:
                column = saved.partition.end
        if column < partition.end:
            raise CheckpointCorruptError(
                f"{name}: expected its columns [{partition.begin}, {partition.end}), but no file has column {column}"
            )


def _dense_source(matrix: LoadMatrix, saved: SavedShard, shards: Sequence[Shard]) -> _Source:
    """Return the columns of a dense saved shard to copy to each shard."""
    source = saved.partition
    parts = []
    for shard in shards:
        begin = max(source.begin, shard.partition.begin)
        end = min(source.end, shard.partition.end)
        if begin < end:
            parts.append(_Range(shard, begin - source.begin, end - source.begin, begin - shard.partition.begin))
    return _Source(matrix, saved, source.width, tuple(parts))


def _buckets(path: str, matrix: LoadMatrix, partition: Partition, keys: Int64s) -> Int64s:
    """Return the hash bucket of each key; raise CheckpointCorruptError if a key does not belong to the partition."""
    if keys.min() < 0 or keys.max() >= matrix.spec.dim:
        raise CheckpointCorruptError(f"{path}: expected keys below {matrix.spec.dim}, got {keys.min()}..{keys.max()}")
    buckets = hash_bucket(keys)
    is_foreign = (buckets < partition.begin) | (buckets >= partition.end)
    if is_foreign.any():
        raise CheckpointCorruptError(f"{path}: key {keys[is_foreign][0]} belongs to another partition")
    return buckets


def _unchanged_shards(matrices: Sequence[LoadMatrix]) -> Iterator[tuple[LoadMatrix, SavedShard]]:
    """Yield the saved shards whose partitions have not changed."""
    for matrix in matrices:
        for saved in matrix.sources:
            if saved.partition in matrix.partitions:
                yield matrix, saved
