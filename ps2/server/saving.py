"""Saves rows of one matrix to files. The saved state of each shard is consistent.

A peer with the fleet's token may name any URL, as for checkpoints. The server accesses it with its own user's rights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np

from ps2.errors import ProtocolError
from ps2.server.engine import Engine
from ps2.server.shard import Shard
from ps2.server.shard_snapshot import ShardSnapshot, copies, freeze, write_shards
from ps2.storage.manifest import FILE_NAME, SavedShard, SaveMatrix


def save(engine: Engine, of: SaveMatrix, route_version: int) -> list[SavedShard]:
    """Write rows, shard by shard.

    The server copies a shard in memory and writes the copy. Without memory for a copy, it writes the locked shard.

    Raises:
        StaleRouteError: this server does not hold a shard.
        RecoveryError: the file system refuses; the files of other shards stay.
    """
    if not FILE_NAME.fullmatch(of.stem):
        raise ProtocolError(f"stem: expected a prefix of a file name, got {of.stem!r}")
    engine.check_call(route_version)
    saved = []
    for shard in engine.own_shards(of.matrix, of.partitions).values():
        with _snapshot_of(engine, of.matrix, shard, of.rows) as frozen:
            saved += write_shards(of.url, [frozen], of.stem)
    engine.check_call(route_version)
    return saved


@contextmanager
def _snapshot_of(engine: Engine, matrix: int, shard: Shard, rows: Sequence[int]) -> Iterator[ShardSnapshot]:
    """Yield a snapshot of a shard's rows: copies, or without memory for them, views of the locked shard."""
    with ExitStack() as counted, ExitStack() as held:
        engine.meter.acquire(shard.lock)
        held.callback(shard.lock.release)
        shard.check_rows(np.array(rows, np.int64))
        frozen = freeze(matrix, shard, rows)
        if shard.spec.layout == "column":
            if rows[-1] - rows[0] >= len(rows):
                raise ProtocolError(f"rows: with layout 'column' expected consecutive rows, got {rows}")
            frozen = replace(frozen, arrays={**frozen.arrays, "values": (shard.blocks[:, rows[0] : rows[-1] + 1],)})
        copied = copies([frozen], engine.memory, "the copy of rows that are saved")
        if copied is not None:
            counted.callback(engine.memory.give_transient, frozen.nbytes)
            held.close()
            (frozen,) = copied
        yield frozen
