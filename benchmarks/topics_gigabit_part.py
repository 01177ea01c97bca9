"""The workers of ``benchmarks.topics_gigabit``: topics by rotation, in one slice and in two; their own process."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks import topics_data
from benchmarks.frame import Part, answer, tell
from benchmarks.local_spark import start_spark
from benchmarks.topics_fit import SAMPLING, fit
from benchmarks.topics_part import WORKERS
from ps2 import PS2Context
from ps2.algorithms.topics import blocks, trainer, worker

WORDS, LENGTH = 40_000, 100
# Iterations are not alike: the first are slower.
ITERATIONS = 12
WAYS = {"one slice": 1, "two slices": 2}


@dataclass(frozen=True)
class Asked:
    """What to measure.

    Attributes:
        addresses: of the servers.
        token_file: of the fleet.
        tokens: of the corpus.
        topics: how many.
        rounds: turns that the medians are of.
    """

    addresses: tuple[str, ...]
    token_file: str
    tokens: int
    topics: int
    rounds: int


class OneSlice(worker.SamplingProgram):
    """A worker whose blocks rotate in one slice: nothing travels while it samples."""

    def __call__(self, worker: Any, reading: Any) -> None:
        with patch.object(blocks, "SLICES", 1):
            super().__call__(worker, reading)


def measure(asked: Asked) -> Part:
    settings = {"spark.driver.memory": "2g", "spark.driver.host": "127.0.0.1"}
    spark = start_spark(f"local[{WORKERS}]", "benchmarks.topics_gigabit", settings)
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    try:
        with PS2Context.getOrCreate(spark, fleet=asked.addresses, tokenFile=asked.token_file):
            frame = topics_data.generated(spark, asked.tokens, WORDS, LENGTH, WORKERS)
            for _ in range(asked.rounds):
                for way, slices in WAYS.items():
                    program = OneSlice if slices == 1 else worker.SamplingProgram
                    with patch.object(blocks, "SLICES", slices), patch.object(trainer, "SamplingProgram", program):
                        params = {**SAMPLING, "sync": "rotation"}
                        model, _ = fit(frame, asked.topics, ITERATIONS, params)
                    taken[way].append(median(model.summary.history.seconds))
                    tell(f"{way}: {1e3 * taken[way][-1]:.0f} ms an iteration")
    finally:
        spark.stop()
    return Part(facts={way: median(seconds) for way, seconds in taken.items()})


if __name__ == "__main__":
    answer(Asked, measure)
