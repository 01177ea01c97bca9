"""The worker of ``benchmarks.gigabit``, in its own process: trains in each way, with servers on other hosts."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from benchmarks.frame import Part, answer, tell
from benchmarks.local_spark import start_spark
from ps2 import PS2Context
from ps2.algorithms.embeddings.corpus import BATCH_TOKENS, Batch
from ps2.algorithms.embeddings.cost_model import STRATEGIES
from ps2.algorithms.embeddings.program import EmbeddingProgram
from ps2.algorithms.embeddings.rows import batch_tokens
from ps2.algorithms.embeddings.sampling import Sampler
from ps2.algorithms.embeddings.schedule import EpochSchedule
from ps2.algorithms.embeddings.settings import EmbeddingSettings, Strategy
from ps2.algorithms.embeddings.sliced_table import SlicedTable, put_aliases
from ps2.algorithms.embeddings.strategy import choose
from ps2.algorithms.embeddings.tables import STALENESS, ServerTables
from ps2.algorithms.embeddings.worker_context import TrainingPlan
from ps2.algorithms.training.checkpoint_names import UNNAMED

SENTENCE = 40
# Words are as popular as vertices of a graph by degree: rank to this power, with the first ones about equal.
POWER, ALIKE = -0.75, 10
# Batches of a run, one a clock. The first batch does not count, nor does the last, which waits for all transfers.
BATCHES = 6
CLOSE = 1.2
# Of the worker.
THREADS = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Asked:
    """What to measure.

    Attributes:
        addresses: of all servers; a fleet consists of the first ones.
        servers: sizes of the fleet.
        columns: sizes of vectors.
        words: vectors of a table.
        window, negative: as in a training.
        ways: the ways to compare.
        token_file: of the fleet.
    """

    addresses: tuple[str, ...]
    servers: tuple[int, ...]
    columns: tuple[int, ...]
    words: int
    window: int
    negative: int
    ways: tuple[Strategy, ...]
    token_file: str


@dataclass(frozen=True)
class Case:
    """One fleet and one size of vectors: microseconds a token, as measured and as predicted by ``auto``.

    Attributes:
        chosen: the way that ``auto`` chooses of those compared.
    """

    servers: int
    columns: int
    measured: dict[str, float]
    expected: dict[str, float]
    chosen: str

    @property
    def loss(self) -> float:
        """Time of the chosen way over that of the fastest way."""
        return self.measured[self.chosen] / min(self.measured.values())

    def as_json(self) -> dict[str, Any]:
        ratio = self.measured["rows"] / self.measured["servers"] if {"rows", "servers"} <= set(self.measured) else None
        return {**asdict(self), "ratio": ratio, "loss": self.loss, "met": self.loss <= CLOSE}


def measure(asked: Asked) -> Part:
    """Measure all cases, one after the other."""
    spark = start_spark(
        "local[1]", "benchmarks.gigabit", {"spark.driver.memory": "1g", "spark.driver.host": "127.0.0.1"}
    )
    try:
        cases = [case for servers in asked.servers for case in _on_fleet(spark, asked, servers)]
    finally:
        spark.stop()
    facts = {"words": f"{asked.words:,}", "window": asked.window, "negative": asked.negative, "workers": 1}
    return Part(cases, facts=facts)


def _on_fleet(spark: Any, asked: Asked, servers: int) -> Iterator[Case]:
    fleet = asked.addresses[:servers]
    with PS2Context.getOrCreate(spark, fleet=fleet, tokenFile=asked.token_file) as ps:
        for way in asked.ways:  # the first time, connections are made and kernels loaded
            _trained(ps, replace(_settings(asked, min(asked.columns)), via=way))
        for columns in asked.columns:
            settings = _settings(asked, columns)
            expected = dict(
                zip(
                    STRATEGIES, 1e6 * choose(settings, _frequencies(settings), servers, 1, THREADS).seconds, strict=True
                )
            )
            measured: dict[str, float] = {way: _trained(ps, replace(settings, via=way)) for way in asked.ways}
            case = Case(
                servers,
                columns,
                measured,
                {way: float(expected[way]) for way in asked.ways},
                min(asked.ways, key=lambda way: expected[way]),
            )
            told = ", ".join(f"{way} {us:.1f} ({case.expected[way]:.1f})" for way, us in measured.items())
            tell(f"{servers} servers, d = {columns}: us a token (expected): {told}")
            yield case


@dataclass(frozen=True, eq=False)
class _Drawn:
    """Batches of one size with random words.

    Attributes:
        each: tokens of a batch.
        shares: relative frequency of each word.
    """

    each: int
    shares: Any

    @property
    def tokens(self) -> int:
        return BATCHES * self.each

    def batches(self, epoch: int) -> Iterator[Batch]:
        rng = np.random.default_rng(epoch)
        offsets = np.append(np.arange(0, self.each, SENTENCE), self.each)
        for _ in range(BATCHES):
            yield rng.choice(len(self.shares), self.each, p=self.shares).astype(np.int32), offsets


def _settings(asked: Asked, columns: int) -> EmbeddingSettings:
    total = BATCHES * BATCH_TOKENS
    return EmbeddingSettings(asked.words, columns, total, window=asked.window, negative=asked.negative, step_size=1e-3)


def _frequencies(settings: EmbeddingSettings) -> Any:
    return (1e9 * _shares(settings.vocabulary)).astype(np.int64) + 1


def _shares(words: int) -> Any:
    popular = (np.arange(words) + float(ALIKE)) ** POWER
    return popular / popular.sum()


def _trained(ps: Any, settings: EmbeddingSettings) -> float:
    """Train one worker on some batches; return microseconds a token."""
    frequencies = _frequencies(settings)
    # Longer vectors are pulled for fewer tokens at a time.
    drawn = _Drawn(batch_tokens(settings) if settings.via == "rows" else BATCH_TOKENS, _shares(settings.vocabulary))
    fleet = ServerTables.make(settings, len(ps.servers), UNNAMED)
    try:
        fleet.vectors.fill(settings.seed)
        if isinstance(fleet.vectors, SlicedTable) and isinstance(fleet.contexts, SlicedTable):
            draws = Sampler.of(settings, frequencies)
            put_aliases(fleet.vectors, fleet.contexts, draws.thresholds, draws.aliases)
        shared = ps.sparkContext.broadcast(frequencies)
        half = EmbeddingProgram(TrainingPlan(settings, EpochSchedule(1, BATCHES), fleet, THREADS), lambda: shared.value)
        ends: list[float] = []

        def clocked(clock: int) -> None:
            ends.append(time.perf_counter())

        rdd = ps.sparkContext.parallelize([0], 1)
        ps.run(rdd, half, 1, STALENESS, read=lambda worker, rows: drawn, onClock=clocked)
        return 1e6 * _between(ends) / drawn.each
    finally:
        fleet.free()


def _between(ends: Sequence[float]) -> float:
    return float(np.median(np.diff(ends[:-1])))


if __name__ == "__main__":
    answer(Asked, measure)
