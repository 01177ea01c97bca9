"""Server memory of LINE's tables: with ids as keys, and for the first order, which has one table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import psutil

from benchmarks.embeddings_part import SERVERS, Asked
from benchmarks.frame import Check, Part, answer, tell
from ps2 import PS2Context
from ps2.algorithms.embeddings.sampling import Sampler
from ps2.algorithms.embeddings.settings import EmbeddingSettings
from ps2.algorithms.embeddings.sliced_table import SlicedTable, put_aliases
from ps2.algorithms.embeddings.tables import MAX_KEYS, ServerTables, VectorTable
from ps2.algorithms.training.checkpoint_names import UNNAMED
from ps2.ops.kernels import Int64s

VERTICES, SIZE = 1_000_000, 64
# Number of vertices whose vectors change at a time.
BLOCK = 50_000
# Maximum memory for arbitrary ids, relative to ids from 0 on.
LIMIT = 1.1
SECOND = EmbeddingSettings(VERTICES, SIZE, total=1, architecture="edges", via="rows")
FIRST = replace(SECOND, order=1)
HASHED = replace(SECOND, keyed=True)
NUMBERED, NEAR, FAR = (f"second order, ids {how}" for how in ("numbered", "hashed, from 0 on", "hashed, from anywhere"))
FIRST_ROWS, FIRST_SERVERS = (f"first order, by {via}" for via in ("rows", "servers"))


def measure(asked: Asked) -> Part:
    """Measure each case on new servers, so that no memory of another case counts."""
    ids, rng = np.arange(VERTICES), np.random.default_rng(1)
    found = {
        NUMBERED: _taken(SECOND, ids),
        NEAR: _taken(HASHED, rng.permutation(ids)),
        FAR: _taken(HASHED, rng.integers(0, MAX_KEYS, VERTICES, endpoint=False)),
        FIRST_ROWS: _taken(FIRST, ids),
        FIRST_SERVERS: _taken(replace(FIRST, via="servers"), ids),
    }
    for what, (resident, counted) in found.items():
        tell(f"{what}: {resident:.0f} bytes a vertex in memory, {counted:.0f} of the servers' limits")
    return Part(
        checks=[Check("hashed ids from anywhere over those from 0 on: memory", found[FAR][0] / found[NEAR][0], LIMIT)],
        facts={"vertices": f"{VERTICES:,}", "d": SIZE}
        | {what: f"{resident:.0f} ({counted:.0f}) B" for what, (resident, counted) in found.items()},
    )


def _taken(settings: EmbeddingSettings, ids: Int64s) -> tuple[float, float]:
    """Change all vectors; return how many bytes a vertex the servers grow by: in memory, and by their own count."""
    with PS2Context.getOrCreate(servers=SERVERS, memoryLimit=3 << 30) as ps:
        _changed(ps, replace(settings, vocabulary=100), ids[:100]).free()  # threads, and what they have for requests
        before = _has(ps)
        _changed(ps, settings, ids)
        resident, counted = (_has(ps) - before) / len(ids)
    return float(resident), float(counted)


def _has(ps: Any) -> Any:
    resident = sum(psutil.Process(pid).memory_info().rss for pid in ps._coordinator.fleet.launcher.pids())
    return np.array([resident, sum(taken for _, taken in ps.memory())])


def _changed(ps: Any, settings: EmbeddingSettings, ids: Int64s) -> ServerTables:
    """Return tables as they are after a training."""
    fleet = ServerTables.make(settings, len(ps.servers), UNNAMED)
    if isinstance(fleet.vectors, SlicedTable) and isinstance(fleet.contexts, SlicedTable):
        fleet.vectors.fill(settings.seed)
        draws = Sampler.of(settings, np.ones(len(ids), np.int64))
        put_aliases(fleet.vectors, fleet.contexts, draws.thresholds, draws.aliases)
        return fleet
    for begin in range(0, len(ids), BLOCK):
        some = ids[begin : begin + BLOCK]
        known, words = (fleet.for_keys(some), np.arange(len(some))) if settings.keyed else (fleet, some)
        known.count(np.ones(len(some), np.int64))
        for table in (known.vectors, known.contexts):
            if isinstance(table, VectorTable):
                table.add(words, np.ones((len(some), settings.size), np.float32))
    ps.flush()
    return fleet


if __name__ == "__main__":
    answer(Asked, measure)
