"""Rotation against SSP where a worker is program as fast as the other: how likely topics are after the same time."""

from __future__ import annotations

import time
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks import topics_data
from benchmarks.frame import Part, answer, tell
from benchmarks.topics_fit import SAMPLING, Curve, curve_of, fit
from benchmarks.topics_part import WORKERS, Asked, spark_and_servers
from benchmarks.trees_part import Score
from ps2.algorithms.topics import trainer, worker
from ps2.algorithms.topics.sampling_worker import SamplingWorker

TOKENS, WORDS, LENGTH = 3_000_000, 20_000, 100
TOPICS, ITERATIONS = 200, 30
SLOWER = 2.0
# About what the fast worker needs for a block.
BUDGET_S = 0.1
WAYS: dict[str, dict[str, Any]] = {
    "ssp": {"sync": "ssp", "staleness": 1},
    "rotation": {"sync": "rotation"},
    "rotation, budget": {"sync": "rotation", "budgetS": BUDGET_S},
}


class SlowProgram(worker.SamplingProgram):
    """The worker of rank 0 sleeps after all that it has sampled."""

    def __call__(self, worker: Any, reading: Any) -> None:
        sample = SamplingWorker.sample

        def slowly(self: SamplingWorker, *args: Any) -> None:
            began_s = time.monotonic()
            sample(self, *args)
            time.sleep((SLOWER - 1.0) * (time.monotonic() - began_s))

        with patch.object(SamplingWorker, "sample", slowly if worker.rank == 0 else sample):
            super().__call__(worker, reading)


def measure(asked: Asked) -> Part:
    curves: dict[str, list[Curve]] = {way: [] for way in WAYS}
    with spark_and_servers(asked, "rotation") as spark, patch.object(trainer, "SamplingProgram", SlowProgram):
        frame = topics_data.generated(spark, TOKENS, WORDS, LENGTH, WORKERS)
        for _ in range(asked.rounds):
            for way, params in WAYS.items():
                curves[way].append(curve_of(fit(frame, TOPICS, ITERATIONS, {**SAMPLING, **params})[0]))
                tell(f"{way}: {curves[way][-1].seconds[-1]:.1f} s")
    least_s = min(curve.seconds[-1] for turns in curves.values() for curve in turns)
    found = {way: float(np.median([_after(curve, least_s) for curve in turns])) for way, turns in curves.items()}
    lines = [
        Score(f"{way}: log-likelihood after {least_s:.1f} s", "ssp", "log p", found["ssp"], found["ssp"], found[way])
        for way in list(WAYS)[1:]
    ]
    sizes = [
        {"way": way, "s an iteration": f"{float(np.median([c.seconds[-1] for c in turns])) / ITERATIONS:.4f}"}
        for way, turns in curves.items()
    ]
    facts = {
        "tokens": f"{TOKENS:,}",
        "words": f"{WORDS:,}",
        "topics": TOPICS,
        "workers": f"{WORKERS}, one of them {SLOWER:g} times as slow",
    }
    return Part(lines, facts=facts, sizes=sizes)


def _after(curve: Curve, seconds: float) -> float:
    """Return the likelihood after some seconds."""
    return float(np.interp(seconds, curve.seconds, curve.likelihoods))


if __name__ == "__main__":
    answer(Asked, measure)
