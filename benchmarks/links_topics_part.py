"""Topics over slow links: rotation of blocks of words, averaging (BSP) and SSP."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import topics_data
from benchmarks.frame import Part, answer, tell
from benchmarks.links_part import BSP, ROTATION, WORKERS, Asked, compared, spark_and_fleet
from benchmarks.slow_part import Curve
from benchmarks.topics_fit import SAMPLING
from ps2.algorithms.clustering import LDA

TOKENS, WORDS, LENGTH, TOPICS, ITERATIONS = 2_000_000, 20_000, 100, 100, 10
GOAL = 3.0
WAYS: dict[str, dict[str, Any]] = {
    ROTATION: {"sync": "rotation"},
    BSP: {"sync": "average"},
    "ssp": {"sync": "ssp", "staleness": 1},
}


def measure(asked: Asked) -> Part:
    curves: dict[str, list[Curve]] = {way: [] for way in WAYS}
    given: dict[str, Any] = {"k": TOPICS, "numWorkers": WORKERS, **SAMPLING}
    with spark_and_fleet(asked, "topics") as (spark, _):
        frame = topics_data.generated(spark, TOKENS, WORDS, LENGTH, WORKERS)
        LDA(**given, maxIter=1).fit(frame)
        for _ in range(asked.rounds):
            for way, params in WAYS.items():
                history = LDA(**given, **params, maxIter=ITERATIONS).fit(frame).summary.history
                losses = -np.array(history.metrics["log_likelihood"]) / TOKENS
                curves[way].append(Curve(np.cumsum(history.seconds), losses))
                tell(f"{way}: {curves[way][-1].seconds[-1]:.1f} s, {losses[-1]:.4f}, {history.bytes / 1e6:.0f} MB read")
    facts = {"tokens": f"{TOKENS:,}", "words": f"{WORDS:,}", "topics": TOPICS, "links": asked.rate}
    return compared(curves, "-log p a token", GOAL, facts)


if __name__ == "__main__":
    answer(Asked, measure)
