"""Loads a checkpoint into new shards, which then replace the server's shards, or into the shards of one matrix."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ps2.errors import LimitError, RecoveryError, StaleRouteError
from ps2.protocol.messages import RequestId
from ps2.server.engine import Engine
from ps2.server.managed_shard import new_shard
from ps2.server.reading import Reader, check_fits
from ps2.server.shard import Shard
from ps2.storage.files import resolve_url
from ps2.storage.manifest import LoadMatrix


class CheckpointLoader:
    """Loads checkpoints. Thread-safe.

    ``load`` reads new shards, and ``activate`` replaces the server's shards by them. ``fill`` reads into the shards of
    a new matrix.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._transfers = itertools.count()
        self._lock = threading.Lock()
        self._loaded: dict[tuple[int, int], Shard] | None = None

    def load(self, url: str, matrices: Sequence[LoadMatrix], ids: bool) -> int:
        """Read matrices into new shards, all or none; return their size in bytes. Free the shards of an earlier call.

        ``ids``: also read the applied ids of partitions that have not changed. Raises LimitError if the new shards do
        not fit into memory together with the server's current shards.
        """
        fs, root = resolve_url(url)
        with self._lock:
            self._drop()
            shards: dict[tuple[int, int], Shard] = {}
            try:
                for matrix in matrices:
                    check_fits(matrix)
                    for partition in matrix.partitions:
                        shards[matrix.matrix, partition.index] = new_shard(matrix.spec, partition, self._engine.memory)
                reader = Reader(fs, root, self._engine.memory)
                reader.fill(matrices, shards)
                for matrix in matrices:
                    for partition in matrix.partitions:
                        shard = shards[matrix.matrix, partition.index]
                        shard.array[list(matrix.zeros)] = 0
                        shard.retire_rows(list(matrix.unused))
                if ids:
                    reader.restore_ids(matrices, shards)
            except BaseException as error:
                _free(shards)
                if isinstance(error, LimitError) and self._engine.shards():
                    raise LimitError(
                        f"{error}; the server keeps its current shards in memory until the checkpoint {root} is loaded"
                    ) from error
                raise
            self._loaded = shards
            return sum(shard.nbytes for shard in shards.values())

    def activate(self) -> None:
        """Replace all shards of the server, including copies of other servers' shards, by those of ``load``."""
        with self._lock:
            if self._loaded is None:
                raise RecoveryError("this server has loaded no checkpoint that could be activated")
            loaded, self._loaded = self._loaded, None
            self._engine.replace_shards(loaded)

    def fill(self, url: str, matrix: LoadMatrix, id: RequestId, route_version: int) -> None:
        """Read this server's partitions of a matrix that is not in use yet. The call is a mutation: retries count once.

        Other requests run at the same time. After an error the shards may be incomplete. Of two overlapping calls, the
        later call succeeds, and the earlier call raises StaleRouteError.
        """
        fs, root = resolve_url(url)
        fs.invalidate_cache()
        engine, transfer = self._engine, (route_version, next(self._transfers))
        present = engine.own_shards(matrix.matrix, [partition.index for partition in matrix.partitions])
        shards = {}
        for shard_id, shard in present.items():
            with shard.lock:
                engine.check_call(route_version, id)
                if id not in shard.applied:
                    shard.check_rows(np.array(matrix.rows, np.int64))
                    shard.reset(shard.rows)  # an earlier attempt may have written values
                    shard.newest_transfer = transfer
                    shards[shard_id] = shard
        if not shards:
            return

        def check(shard: Shard) -> None:
            engine.check_call(route_version, id)
            shard.check_rows(np.empty(0, np.int64))
            if shard.newest_transfer != transfer:
                raise StaleRouteError(f"matrix {matrix.matrix:x}: a later call loads it now")

        partitions = [shard.partition for shard in shards.values()]
        spec = next(replace(shard.spec, rows=shard.rows) for shard in shards.values())
        target = replace(matrix, spec=spec, partitions=tuple(partitions))
        check_fits(target)
        Reader(fs, root, engine.memory, check).fill([target], shards)
        for shard in shards.values():
            with shard.lock:
                check(shard)
                shard.applied.add(id)
        if engine.replicator is not None:
            engine.replicator.send_now(shards)

    def close(self) -> None:
        """Free shards that were loaded and not activated."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        _free(self._loaded or {})
        self._loaded = None


def _free(shards: dict[tuple[int, int], Shard]) -> None:
    for shard in shards.values():
        shard.free()
