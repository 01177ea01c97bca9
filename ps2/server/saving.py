"""Rows of one matrix in files: each of this server's shards of it as it is at one moment.

Whoever has the fleet's token may name any URL, as for checkpoints: a server reads and writes with its user's rights.
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

    A shard is copied in memory and let go before it is written; where there is no room for the copy, it is held.

    Raises:
        StaleRouteError: a shard is not here.
        RecoveryError: the file system refuses; what was written of other shards stays.
    """
    if not FILE_NAME.fullmatch(of.stem):
        raise ProtocolError(f"stem: expected a part of the name of a file, got {of.stem!r}")
    engine.check_call(route_version)
    saved = []
    for shard in engine.own_shards(of.matrix, of.partitions).values():
        with _still(engine, of.matrix, shard, of.rows) as frozen:
            saved += write_shards(of.url, [frozen], of.stem)
    engine.check_call(route_version)
    return saved


@contextmanager
def _still(engine: Engine, matrix: int, shard: Shard, rows: Sequence[int]) -> Iterator[ShardSnapshot]:
    """Rows of a shard that nobody changes: copies of them, or where there is no room the shard's, held."""
    with ExitStack() as counted, ExitStack() as held:
        engine.meter.acquire(shard.lock)
        held.callback(shard.lock.release)
        shard.check_rows(np.array(rows, np.int64))
        frozen = freeze(matrix, shard, rows)
        if shard.spec.layout == "column":
            if rows[-1] - rows[0] >= len(rows):
                raise ProtocolError(f"rows: with layout 'column' expected some that follow each other, got {rows}")
            frozen = replace(frozen, arrays={**frozen.arrays, "values": (shard.blocks[:, rows[0] : rows[-1] + 1],)})
        copied = copies([frozen], engine.memory, "the copy of rows that are saved")
        if copied is not None:
            counted.callback(engine.memory.give_back, frozen.nbytes)
            held.close()
            (frozen,) = copied
        yield frozen
