"""Rotation with time control against without, and SSP, where workers are slow programs: seconds to equal topics."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks import topics_data
from benchmarks.frame import Part, answer, tell
from benchmarks.ratio import Found
from benchmarks.topics_fit import SAMPLING, Curve, curve_of
from benchmarks.topics_part import Asked, spark_and_servers
from ps2.algorithms.clustering import LDA
from ps2.algorithms.topics import trainer, worker
from ps2.algorithms.topics.sampling_worker import SamplingWorker

TOKENS, WORDS, LENGTH = 3_000_000, 20_000, 100
TOPICS = 100
# By rank: how many times as long as the first a worker takes. As in the paper, one is ten times as slow.
SLOWNESS = (1.0, 3.0, 3.0, 10.0)
# Times as long as sampling takes: the first worker sleeps, too, so that four have enough cores here.
ALL_SLOWER = 4.0
GOAL = 1.7


@dataclass(frozen=True)
class Way:
    """A way to train.

    Attributes:
        iterations: with time control an iteration has a part of the tokens.
    """

    iterations: int
    params: dict[str, Any]


WAYS = {
    "rotation": Way(6, {"sync": "rotation"}),
    "ssp": Way(7, {"sync": "ssp", "staleness": 1}),
    "rotation, auto": Way(25, {"sync": "rotation", "budgetS": "auto"}),
}


class SlowProgram(worker.SamplingProgram):
    """A worker that sleeps after all that it has sampled, as long as its rank says."""

    def __call__(self, worker: Any, reading: Any) -> None:
        sample, slower = SamplingWorker.sample, ALL_SLOWER * SLOWNESS[worker.rank]

        def slowly(self: SamplingWorker, *args: Any) -> None:
            began_s = time.thread_time()
            sample(self, *args)
            time.sleep((slower - 1.0) * (time.thread_time() - began_s))

        with patch.object(SamplingWorker, "sample", slowly):
            super().__call__(worker, reading)


def measure(asked: Asked) -> Part:
    """Let the ways alternate; each trains until it is as likely as rotation without control at its end."""
    curves: dict[str, list[Curve]] = {way: [] for way in WAYS}
    workers = len(SLOWNESS)
    with spark_and_servers(asked, "rotation", workers) as spark, patch.object(trainer, "SamplingProgram", SlowProgram):
        frame = topics_data.generated(spark, TOKENS, WORDS, LENGTH, workers)
        given = {"k": TOPICS, "numWorkers": workers, **SAMPLING}
        LDA(**given, maxIter=1).fit(frame)
        for _ in range(asked.rounds):
            for name, way in WAYS.items():
                model = LDA(**given, **way.params, maxIter=way.iterations).fit(frame)
                curves[name].append(curve_of(model))
                curve = curves[name][-1]
                tell(f"{name}: {curve.seconds[-1]:.1f} s, log-likelihood {curve.likelihoods[-1]:,.0f}")
    taken: dict[str, list[float]] = {name: [] for name in WAYS}
    for turn in range(asked.rounds):
        target = curves["rotation"][turn].likelihoods[-1]
        for name in WAYS:
            taken[name].append(_seconds_to(curves[name][turn], target))
            tell(f"{name}: {taken[name][-1]:.1f} s to {target:,.0f}")
    rates = {name: [1 / seconds for seconds in turns] for name, turns in taken.items()}
    lines = [
        Found("topics as likely, rotation with budgetS auto", other, "1/s", GOAL, rates[other], rates["rotation, auto"])
        for other in WAYS
        if other != "rotation, auto"
    ]
    facts = {
        "tokens": f"{TOKENS:,}",
        "words": f"{WORDS:,}",
        "topics": TOPICS,
        "workers": f"{workers}, which take {', '.join(f'{slower:g}' for slower in SLOWNESS)} times as long",
    }
    return Part(lines, facts=facts)


def _seconds_to(curve: Curve, likelihood: float) -> float:
    """Return when a likelihood was reached; of a curve that ends before, when it would at the pace of its end."""
    if curve.likelihoods[-1] >= likelihood:
        return float(np.interp(likelihood, np.maximum.accumulate(curve.likelihoods), curve.seconds))
    half = len(curve.seconds) // 2
    pace = (curve.likelihoods[-1] - curve.likelihoods[half]) / (curve.seconds[-1] - curve.seconds[half])
    return float(curve.seconds[-1] + (likelihood - curve.likelihoods[-1]) / pace)


if __name__ == "__main__":
    answer(Asked, measure)
