"""Rows of this server's shards in files: each shard writes its own part of a vector, and reads its own part of one.

What is read goes into the shards as mutations of this server's own, window by window: under their locks, at one route
version, onto the copies on another server, once however often it is asked for.

Whoever has the fleet's token may name any URL, as for checkpoints: a server reads and writes with its user's rights.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace

import numpy as np

from ps2.checkpoint import FILE_NAME, SavedFile
from ps2.errors import BusyError, LimitError, ProtocolError, StaleRouteError
from ps2.files import npy, place, write
from ps2.ops.table import Array
from ps2.saved_vectors import SavedPart, Window, kinds, read_part
from ps2.server.engine import Engine
from ps2.server.shard import Shard
from ps2.wire.messages import Operation, Request, RequestId

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RowPlace:
    """One row of some shards of this server, and the folder that it is saved in, at a route version."""

    matrix: int
    row: int
    partitions: tuple[int, ...]
    url: str
    route_version: int


class VectorFiles:
    """Writes and reads rows. Safe for threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def save(self, of: RowPlace, stem: str) -> list[SavedPart]:
        """Write a row, shard by shard, each as it is at one moment.

        A shard is copied in memory and let go before it is written; where there is no room for the copy, it is held.

        Args:
            stem: makes the names of the files unique.

        Raises:
            StaleRouteError: a shard is not here.
            RecoveryError: the file system refuses; what was written of other shards stays.
        """
        if not FILE_NAME.fullmatch(stem):
            raise ProtocolError(f"stem: expected a part of the name of a file, got {stem!r}")
        fs, root = place(of.url)
        parts = []
        for shard in self._shards(of):
            with self._still(shard, of.row) as arrays:
                files = {}
                for kind, array in arrays.items():
                    name = f"{kind}-{stem}-{shard.partition.index}.npy"
                    files[kind] = SavedFile(name, *write(fs, f"{root}/{name}", npy(array)))
                count = arrays["values"].size
            parts.append(SavedPart(shard.partition.begin, shard.partition.end, count, files))
        self._engine.fence.check(of.route_version)
        return parts

    def load(self, of: RowPlace, parts: Sequence[SavedPart], id: RequestId) -> None:
        """Overwrite a row with what parts of a saved vector hold for it.

        Args:
            parts: in the same order in every attempt.
            id: of the mutation that this is; its windows are numbered in a scope of their own.

        Raises:
            CheckpointCorruptError: a file is missing, is not what was saved, or does not fit the matrix; what was read
                before stays in the row.
            StaleRouteError: a shard is not here, or not any more.
            LimitError: there is no room for the keys.
        """
        fs, root = place(of.url)
        fs.invalidate_cache()
        shards = self._shards(of)
        scope = f"{id.scope}/{id.number}.{id.part}/load"
        numbers = [itertools.count() for _ in shards]
        for part in parts:
            with closing(read_part(fs, root, shards[0].spec, part)) as windows:
                for window in windows:
                    for shard, number in zip(shards, numbers, strict=True):
                        operation = _operation(of, shard, window)
                        if operation is not None:
                            at = next(number)
                            self._put(operation, replace(id, scope=scope, number=at, settled=at, part=0, parts=1), of)

    def _shards(self, of: RowPlace) -> list[Shard]:
        self._engine.fence.check_active()
        held = self._engine.shards()
        found = [held.get((of.matrix, index)) for index in of.partitions]
        for index, shard in zip(of.partitions, found, strict=True):
            if shard is None or shard.copy:
                raise StaleRouteError(f"this server does not hold partition {index} of matrix {of.matrix:x}")
        if not found:
            raise ProtocolError(f"no partition of matrix {of.matrix:x} is named")
        return [shard for shard in found if shard is not None]

    @contextmanager
    def _still(self, shard: Shard, row: int) -> Iterator[dict[str, Array]]:
        """The arrays of a row that nobody changes: copies of them, or where there is no room the shard's, held."""
        memory = self._engine.memory
        with ExitStack() as counted, ExitStack() as held:
            self._engine.meter.acquire(shard.lock)
            held.callback(shard.lock.release)
            arrays = {"values": shard.row(row)}
            if shard.index is not None:
                arrays["keys"] = shard.index.keys
            arrays = {kind: arrays[kind] for kind in kinds(shard.spec)}
            size = sum(array.nbytes for array in arrays.values())
            try:
                memory.borrow(size, "the copy of a row that is saved")
                counted.callback(memory.give_back, size)
                arrays = {kind: array.copy() for kind, array in arrays.items()}
            except (LimitError, BusyError, MemoryError) as error:
                log.warning("%s: requests wait until it is written", error)
            else:
                held.close()
            yield arrays

    def _put(self, operation: Operation, id: RequestId, of: RowPlace) -> None:
        size = operation.nbytes
        self._engine.memory.admit(size, "a part of a saved vector")
        try:
            self._engine.execute_own(Request((operation,), id, of.route_version))
        finally:
            self._engine.memory.leave(size)


def _operation(of: RowPlace, shard: Shard, window: Window) -> Operation | None:
    """Return what writes a shard's share of a window; None if it has none."""
    partition, values = shard.partition, window.values
    if window.keys is None or window.buckets is None:
        begin, end = max(partition.begin, window.start), min(partition.end, window.start + values.size)
        if begin >= end:
            return None
        mine = values[begin - window.start : end - window.start]
        params = {"start": begin - partition.begin}
        return Operation("push", of.matrix, partition.index, (of.row,), params, (mine,))
    chosen = np.flatnonzero((window.buckets >= partition.begin) & (window.buckets < partition.end))
    if not chosen.size:
        return None
    arrays = (window.keys[chosen], values[chosen])
    return Operation("scatter", of.matrix, partition.index, (of.row,), arrays=arrays)
