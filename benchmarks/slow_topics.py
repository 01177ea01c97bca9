"""Topics with slow workers: the likelihood over time, by rotation, SSP and averaging."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks import topics_data
from benchmarks.frame import Part, answer, tell
from benchmarks.local_spark import start_spark
from benchmarks.slow_part import CONTROLLED, PLAIN, SLOWNESS, Asked, Curve, compared, slowly
from benchmarks.topics_fit import SAMPLING
from ps2 import PS2Context
from ps2.algorithms.clustering import LDA
from ps2.algorithms.topics import trainer, worker
from ps2.algorithms.topics.sampling_worker import SamplingWorker

TOKENS, WORDS, LENGTH = 3_000_000, 20_000, 100
TOPICS = 100
SERVERS, WORKERS = 2, len(SLOWNESS)


@dataclass(frozen=True)
class Way:
    """A way to train.

    Attributes:
        iterations: with time control an iteration has a part of the tokens.
    """

    iterations: int
    params: dict[str, Any]


WAYS = {
    PLAIN: Way(6, {"sync": "rotation"}),
    "rotation, fixed budget": Way(25, {"sync": "rotation", "budgetS": 0.08}),
    CONTROLLED: Way(25, {"sync": "rotation", "budgetS": "auto"}),
    "ssp": Way(6, {"sync": "ssp", "staleness": 1}),
    "averaging": Way(6, {"sync": "average"}),
}


class SlowProgram(worker.SamplingProgram):
    """A worker that sleeps after all that it has sampled, as long as its rank says."""

    def __call__(self, worker: Any, reading: Any) -> None:
        with slowly(SamplingWorker, "sample", worker.rank):
            super().__call__(worker, reading)


def measure(asked: Asked) -> Part:
    """Let the ways alternate; each trains until it is as likely as rotation without control at its end."""
    curves: dict[str, list[Curve]] = {way: [] for way in WAYS}
    with _spark_and_servers(asked) as spark, patch.object(trainer, "SamplingProgram", SlowProgram):
        frame = topics_data.generated(spark, TOKENS, WORDS, LENGTH, WORKERS)
        given: dict[str, Any] = {"k": TOPICS, "numWorkers": WORKERS, **SAMPLING}
        LDA(**given, maxIter=1).fit(frame)
        for _ in range(asked.rounds):
            for name, way in WAYS.items():
                history = LDA(**given, **way.params, maxIter=way.iterations).fit(frame).summary.history
                losses = -np.array(history.metrics["log_likelihood"]) / TOKENS
                curve = Curve(np.cumsum(history.seconds), losses)
                curves[name].append(curve)
                tell(f"{name}: {curve.seconds[-1]:.1f} s, {curve.losses[-1]:.4f}")
    facts = {"tokens": f"{TOKENS:,}", "words": f"{WORDS:,}", "topics": TOPICS}
    return compared(curves, "-log p a token", facts)


@contextmanager
def _spark_and_servers(asked: Asked) -> Iterator[Any]:
    settings = {"spark.driver.memory": asked.memory, "spark.driver.maxResultSize": "0"}
    spark = start_spark(f"local[{WORKERS}]", "benchmarks.slow_topics", settings)
    try:
        with PS2Context.getOrCreate(spark, servers=SERVERS):
            yield spark
    finally:
        spark.stop()


if __name__ == "__main__":
    answer(Asked, measure)
