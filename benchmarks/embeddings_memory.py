"""Server memory of two tables of vectors during training, relative to the vectors alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

from benchmarks.embeddings_part import SERVERS, Asked, spark_and_servers
from benchmarks.frame import Check, Part, answer, tell
from ps2 import PS2Context
from ps2.algorithms.embeddings.corpus import BATCH_TOKENS, Batch
from ps2.algorithms.embeddings.program import EmbeddingProgram
from ps2.algorithms.embeddings.sampling import Sampler
from ps2.algorithms.embeddings.schedule import EpochSchedule
from ps2.algorithms.embeddings.settings import EmbeddingSettings, Strategy
from ps2.algorithms.embeddings.sliced_table import SlicedTable, put_aliases
from ps2.algorithms.embeddings.tables import STALENESS, ServerTables
from ps2.algorithms.embeddings.worker_context import TrainingPlan
from ps2.algorithms.training.checkpoint_names import UNNAMED

SIZE, SENTENCE, BATCHES = 64, 40, 3
WAYS: tuple[Strategy, ...] = ("rows", "servers")
# Maximum relative to the size of vectors and contexts in float32.
MAX_RATIO = 1.2


@dataclass(frozen=True)
class Drawn:
    """Sentences of equally likely words, so that training touches tables everywhere.

    Attributes:
        words: number of distinct words.
    """

    words: int

    @property
    def tokens(self) -> int:
        return BATCHES * BATCH_TOKENS

    def batches(self, epoch: int) -> Iterator[Batch]:
        rng = np.random.default_rng(epoch)
        for _ in range(BATCHES):
            yield rng.integers(0, self.words, BATCH_TOKENS).astype(np.int32), np.arange(0, BATCH_TOKENS + 1, SENTENCE)


def measure(asked: Asked) -> Part:
    """Measure one way after the other; "servers" is last, so that leftovers of the others count, too."""
    checks = []
    with spark_and_servers(asked, "memory"):
        ps = PS2Context.getOrCreate()
        for via in WAYS:
            settings = EmbeddingSettings(asked.vertices, SIZE, total=BATCHES * BATCH_TOKENS, via=via)
            taken = _taken(ps, settings)
            tell(f"{via}: {taken / 1e9:.2f} GB on {SERVERS} servers, at most")
            checks.append(
                Check(f"{via}: memory of the servers over both tables'", taken / (2 * settings.table_bytes), MAX_RATIO)
            )
    return Part(
        checks=checks, facts={"vectors": f"{asked.vertices:,}", "d": SIZE, "GB": 2 * settings.table_bytes / 1e9}
    )


def _taken(ps: Any, settings: EmbeddingSettings) -> int:
    """Train on some batches; return the servers' peak memory in bytes while both tables exist."""
    most, drawn = 0, Drawn(settings.vocabulary)
    frequencies = np.ones(settings.vocabulary, np.int64)
    fleet = ServerTables.make(settings, len(ps.servers), UNNAMED)

    def look(clock: int = 0) -> None:
        nonlocal most
        most = max(most, sum(psutil.Process(pid).memory_info().rss for pid in ps._coordinator.fleet.launcher.pids()))

    try:
        for table in (fleet.vectors, fleet.contexts):
            assert table is not None
            table.fill(settings.seed)  # also contexts, which are 0 else: what nobody has written to takes no memory
            look()
        if isinstance(fleet.vectors, SlicedTable) and isinstance(fleet.contexts, SlicedTable):
            draws = Sampler.of(settings, frequencies)
            put_aliases(fleet.vectors, fleet.contexts, draws.thresholds, draws.aliases)
            del draws
        shared = ps.sparkContext.broadcast(frequencies)
        half = EmbeddingProgram(TrainingPlan(settings, EpochSchedule(1, BATCHES), fleet, 1), lambda: shared.value)
        ps.run(ps.sparkContext.parallelize([0], 1), half, 1, STALENESS, read=lambda worker, rows: drawn, onClock=look)
        shared.destroy()
        return most
    finally:
        fleet.free()


if __name__ == "__main__":
    answer(Asked, measure)
