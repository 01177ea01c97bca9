"""Against pyspark.ml's LDA, em and online: seconds to the perplexity of documents held out that it comes to itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from click import ClickException

from benchmarks import topics_data
from benchmarks.frame import Part, answer, tell
from benchmarks.ml_part import Line
from benchmarks.topics_fit import SAMPLING, fit, perplexity
from benchmarks.topics_part import Asked, spark_and_servers

TOPICS, ITERATIONS = 100, 50
# Numbers of iterations that ours tries, until it is as good.
TRIED = (5, 10, 20, 30, 50, 100, 200)
GOALS = {("em", "cgs"): 17.0, ("online", "cgs"): 17.0, ("online", "online"): 5.0}
# Of the optimizer online: a twentieth of the documents in each step, as pyspark.ml's default.
OURS: dict[str, Mapping[str, Any]] = {"cgs": SAMPLING, "online": {"optimizer": "online"}}
# What "online" comes to depends on how it begins, theirs and ours: medians of these.
SEEDS = {"em": (1,), "cgs": (1,), "online": (1, 2, 3)}

Score = Callable[[Any], float]


def measure(asked: Asked) -> Part:
    counts, held = topics_data.parted(topics_data.kos(asked.data_dir))
    observed, scored = topics_data.halves(held)
    with spark_and_servers(asked, "pyspark") as spark:
        frame = topics_data.framed(spark, counts, 2)

        def score(model: Any) -> float:
            weights = model.topicsMatrix().toArray()
            return perplexity(weights, np.array(model.estimatedDocConcentration().toArray()), observed, scored)

        lines, sizes = [], []
        for theirs in ("em", "online"):
            seconds, target = _pyspark(frame, theirs, score)
            for ours in OURS:
                if (theirs, ours) not in GOALS:
                    continue
                taken, found, iterations = _ours(frame, ours, score, target)
                goal = GOALS[theirs, ours]
                lines.append(
                    Line(f"{ours}: s to its perplexity", f"pyspark.ml {theirs}", "s", goal, [seconds], [taken])
                )
                sizes.append(
                    {
                        "ours": ours,
                        "iterations": str(iterations),
                        "perplexity": f"{found:.1f}",
                        "pyspark.ml": theirs,
                        "its perplexity": f"{target:.1f}",
                    }
                )
    return Part(lines, facts={"corpus": "KOS", "topics": TOPICS, "held out": held.shape[0]}, sizes=sizes)


def _pyspark(frame: Any, optimizer: str, score: Score) -> tuple[float, float]:
    """Return seconds and perplexity of pyspark.ml's."""
    from pyspark.ml.clustering import LDA, DistributedLDAModel, LDAModel

    LDA(k=2, maxIter=1, optimizer=optimizer).fit(frame)
    turns = []
    for seed in SEEDS[optimizer]:
        began_s = time.monotonic()
        model: LDAModel = LDA(k=TOPICS, maxIter=ITERATIONS, optimizer=optimizer, seed=seed).fit(frame)
        seconds = time.monotonic() - began_s
        if isinstance(model, DistributedLDAModel):
            model = model.toLocal()
        turns.append((seconds, score(model)))
        tell(f"pyspark.ml, {optimizer}: {seconds:.1f} s, perplexity {turns[-1][1]:.1f}")
    return _medians(turns)


def _ours(frame: Any, optimizer: str, score: Score, target: float) -> tuple[float, float, int]:
    """Return seconds of ``fit``, perplexity and iterations of the shortest training that comes to a perplexity."""
    for iterations in TRIED:
        turns = []
        for seed in SEEDS[optimizer]:
            model, seconds = fit(frame, TOPICS, iterations, {**OURS[optimizer], "seed": seed})
            turns.append((seconds, score(model)))
        seconds, found = _medians(turns)
        tell(f"ours, {optimizer}, {iterations} iterations: {seconds:.1f} s, perplexity {found:.1f}")
        if found <= target:
            return seconds, found, iterations
    raise ClickException(f"{optimizer}: {found:.1f} is above {target:.1f} after {iterations} iterations")


def _medians(turns: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the median of seconds, and that of perplexities."""
    seconds, found = np.median(np.array(turns), axis=0)
    return float(seconds), float(found)


if __name__ == "__main__":
    answer(Asked, measure)
