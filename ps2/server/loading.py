"""Shards out of the files of a checkpoint, made beside those that the server has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ps2.checkpoint import LoadMatrix, SavedShard
from ps2.checkpoint_files import checked, count_keys, read_json, read_keys, read_values
from ps2.errors import CheckpointCorruptError, LimitError, RecoveryError
from ps2.files import place
from ps2.ops.table import Array
from ps2.partition import Int64Array, Partition, hash_bucket
from ps2.server.applied import AppliedIds
from ps2.server.engine import Engine
from ps2.server.shard import Shard

READERS = 4


@dataclass(frozen=True)
class _Range:
    """Columns ``[begin, end)`` of a saved shard, which go to columns from ``at`` on of a shard."""

    shard: Shard
    begin: int
    end: int
    at: int

    def put(self, rows: Int64Array, column: int, values: Array) -> None:
        """Take what is meant for the shard of the values of these rows, and of columns from that of the saved shard."""
        begin, end = max(self.begin, column), min(self.end, column + values.shape[1])
        if begin < end:
            at = self.at + begin - self.begin
            self.shard.array[rows, at : at + end - begin] = values[:, begin - column : end - column]


@dataclass(frozen=True)
class _Chosen:
    """Some columns of a saved shard, ascending, which go to columns from ``at`` on of a shard."""

    shard: Shard
    columns: Int64Array
    at: int

    def put(self, rows: Int64Array, column: int, values: Array) -> None:
        begin, end = map(int, np.searchsorted(self.columns, (column, column + values.shape[1])))
        if begin < end:
            self.shard.array[rows, self.at + begin : self.at + end] = values[:, self.columns[begin:end] - column]


@dataclass(frozen=True)
class _Source:
    """A saved shard, and where its columns go; ``columns`` is how many it has."""

    matrix: LoadMatrix
    saved: SavedShard
    columns: int
    parts: tuple[_Range | _Chosen, ...]


class Loading:
    """Reads shards, keeps them aside, and puts them in place. Safe for threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._loaded: dict[tuple[int, int], Shard] | None = None

    def load(self, url: str, matrices: Sequence[LoadMatrix], ids: bool) -> int:
        """Read matrices into new shards, all or none; those that were read before and not taken are dropped.

        Args:
            url: of the checkpoint's folder.
            ids: with the ids that had been applied, where a partition is that of its source.

        Returns:
            The bytes of the new shards.

        Raises:
            CheckpointMissingError: there is no such folder.
            CheckpointCorruptError: a file is missing, is not what was saved, or does not fit its matrix.
            RecoveryError: a file cannot be read.
            LimitError: there is no room for the new shards beside those that the server has.
        """
        fs, root = place(url)
        with self._lock:
            self._drop()
            shards: dict[tuple[int, int], Shard] = {}
            try:
                with ExitStack() as counted:
                    self._fill(fs, root, matrices, shards, counted)
                    if ids:
                        _restore_ids(fs, root, matrices, shards)
            except BaseException as error:
                _free(shards)
                if isinstance(error, LimitError) and self._engine.shards():
                    raise LimitError(
                        f"{error}; what this server has now stays until the checkpoint {root} is in its place"
                    ) from error
                raise
            self._loaded = shards
            return sum(shard.nbytes for shard in shards.values())

    def take(self) -> None:
        """Put what was read in the place of all shards of the server, copies of others' included.

        Raises:
            RecoveryError: nothing was read.
        """
        with self._lock:
            if self._loaded is None:
                raise RecoveryError("this server has read no checkpoint that could be put in place")
            loaded, self._loaded = self._loaded, None
            self._engine.replace_shards(loaded)

    def close(self) -> None:
        """Drop what was read and not taken."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        _free(self._loaded or {})
        self._loaded = None

    def _fill(
        self,
        fs: Any,
        root: str,
        matrices: Sequence[LoadMatrix],
        shards: dict[tuple[int, int], Shard],
        counted: ExitStack,
    ) -> None:
        """Make the shards, which are in ``shards`` also if this fails; ``counted`` gives memory back that it needs."""
        memory = self._engine.memory
        for matrix in matrices:
            _check(matrix)
            for partition in matrix.partitions:
                shards[matrix.matrix, partition.index] = Shard(matrix.spec, partition, memory)

        def locate(matrix: LoadMatrix) -> list[_Source]:
            mine = [shards[matrix.matrix, partition.index] for partition in matrix.partitions]
            if matrix.spec.kind == "dense":
                return [_columns_of(matrix, saved, mine) for saved in matrix.sources]
            return [_keys_of(fs, root, matrix, saved, mine) for saved in matrix.sources]

        for matrix in matrices:
            for saved in matrix.sources if matrix.spec.kind == "sparse" else ():
                if saved.partition not in matrix.partitions:
                    size = 8 * count_keys(fs, root, saved.files["keys"])
                    memory.borrow(size, "the places of a checkpoint's keys")
                    counted.callback(memory.give_back, size)
        # All keys first: while there come more of them, arrays move.
        sources = [source for found in _all([partial(locate, matrix) for matrix in matrices]) for source in found]
        _all([partial(_read, fs, root, source) for source in sources])
        for matrix in matrices:
            for partition in matrix.partitions:
                shard = shards[matrix.matrix, partition.index]
                shard.array[list(matrix.zeros)] = 0
                shard.retire_rows(list(matrix.unused))


def _all(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run calls, some at once; return their results in order. After an error none is under way."""
    with ThreadPoolExecutor(READERS, thread_name_prefix="ps2-read") as pool:
        under_way = [pool.submit(call) for call in calls]
        try:
            return [call.result() for call in under_way]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _check(matrix: LoadMatrix) -> None:
    """Raise CheckpointCorruptError unless the matrix can be made of what was saved."""
    name = f"matrix {matrix.matrix:x}"
    for field in ("dim", "dtype", "kind"):
        expected, found = getattr(matrix.spec, field), getattr(matrix.saved, field)
        if found != expected:
            raise CheckpointCorruptError(f"{name}: expected {field} {expected!r}, the checkpoint has {found!r}")
    if matrix.saved.rows > matrix.spec.rows:
        raise CheckpointCorruptError(
            f"{name}: expected at most {matrix.spec.rows} rows, the checkpoint has {matrix.saved.rows}"
        )
    ordered = sorted(matrix.sources, key=lambda saved: saved.partition.begin)
    for partition in matrix.partitions if ordered else ():
        at = partition.begin
        for saved in ordered:
            if saved.partition.begin <= at < saved.partition.end:
                at = saved.partition.end
        if at < partition.end:
            raise CheckpointCorruptError(
                f"{name}: expected its columns [{partition.begin}, {partition.end}), and {at} is in none of the files"
            )


def _columns_of(matrix: LoadMatrix, saved: SavedShard, shards: Sequence[Shard]) -> _Source:
    """Say where the columns of a dense shard go."""
    source = saved.partition
    parts = []
    for shard in shards:
        begin = max(source.begin, shard.partition.begin)
        end = min(source.end, shard.partition.end)
        if begin < end:
            parts.append(_Range(shard, begin - source.begin, end - source.begin, begin - shard.partition.begin))
    return _Source(matrix, saved, source.width, tuple(parts))


def _keys_of(fs: Any, root: str, matrix: LoadMatrix, saved: SavedShard, shards: Sequence[Shard]) -> _Source:
    """Add the keys of a sparse shard to those shards whose hash buckets they are in; say where their values go."""
    first = [shard.live for shard in shards]
    chosen: list[list[Int64Array]] = [[] for _ in shards]
    count = 0
    with checked(fs, root, saved.files["keys"]) as reading:
        for start, keys in read_keys(reading):
            buckets = _buckets(reading.path, matrix, saved.partition, keys)
            for shard, columns in zip(shards, chosen, strict=True):
                mine = (buckets >= shard.partition.begin) & (buckets < shard.partition.end)
                before = shard.live
                shard.slots(keys[mine], create=True)
                if shard.live - before != np.count_nonzero(mine):
                    raise CheckpointCorruptError(f"{reading.path}: a key is there twice")
                if shard.partition != saved.partition:
                    columns.append(start + np.flatnonzero(mine))
            count = start + keys.size
    return _Source(
        matrix,
        saved,
        count,
        tuple(
            _Range(shard, 0, count, at)
            if shard.partition == saved.partition
            else _Chosen(shard, np.concatenate([np.empty(0, np.int64), *columns]), at)
            for shard, at, columns in zip(shards, first, chosen, strict=True)
        ),
    )


def _buckets(path: str, matrix: LoadMatrix, partition: Partition, keys: Int64Array) -> Int64Array:
    """Return the hash bucket of each key; raise CheckpointCorruptError for one that cannot be in this partition."""
    if keys.min() < 0 or keys.max() >= matrix.spec.dim:
        raise CheckpointCorruptError(f"{path}: expected keys below {matrix.spec.dim}, got {keys.min()}..{keys.max()}")
    buckets = hash_bucket(keys)
    wrong = (buckets < partition.begin) | (buckets >= partition.end)
    if wrong.any():
        raise CheckpointCorruptError(f"{path}: key {keys[wrong][0]} belongs to another partition")
    return buckets


def _read(fs: Any, root: str, source: _Source) -> None:
    """Read the values of a saved shard, and compare its ids with their checksum."""
    rows = np.array(source.matrix.rows, np.int64)
    with checked(fs, root, source.saved.files["values"]) as reading:
        for row, column, values in read_values(reading, source.matrix.saved.np_dtype, rows.size, source.columns):
            for part in source.parts:
                part.put(rows[row : row + len(values)], column, values)
    read_json(fs, root, source.saved.files["ids"])


def _restore_ids(fs: Any, root: str, matrices: Sequence[LoadMatrix], shards: dict[tuple[int, int], Shard]) -> None:
    for matrix, saved in _same(matrices):
        content = read_json(fs, root, saved.files["ids"])
        try:
            shards[matrix.matrix, saved.partition.index].applied = AppliedIds.from_json(content["applied"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointCorruptError(
                f"{root}/{saved.files['ids'].name}: expected the ids that had been applied: {error!r}"
            ) from error


def _same(matrices: Sequence[LoadMatrix]) -> Iterator[tuple[LoadMatrix, SavedShard]]:
    """Yield the saved shards whose partitions are as they were."""
    for matrix in matrices:
        for saved in matrix.sources:
            if saved.partition in matrix.partitions:
                yield matrix, saved


def _free(shards: dict[tuple[int, int], Shard]) -> None:
    for shard in shards.values():
        shard.free()
