"""Pulls by keys against whole pulls: Figure 10's gain of PS2 over Petuum, which "has to pull all of the model"."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.clicks import Problem, generate, gradient
from benchmarks.frame import Check, Part, answer, tell
from benchmarks.links_part import LOOPBACK, WORKERS, Asked, moved, spark_and_fleet
from benchmarks.ml_part import Line
from ps2 import DCV
from ps2.data.rows import LocalRows

PROBLEM = Problem(rows=100_000, fields=30, fraction=0.01, lr=0.5, partitions=WORKERS)
FEATURES = (40_000, 300_000, 3_000_000, 30_000_000, 60_000_000)
KEYS, WHOLE = "by keys", "whole"
# The first steps of a training do not count.
SETTLE_STEPS, COUNTED_STEPS = 2, 8
# A worker may see what the other one has already added in this clock, or not yet.
TOLERANCE = 1e-3
SAMPLE = 100_000


@dataclass(frozen=True, eq=False)
class Training:
    """What a training came to.

    Attributes:
        step_s: median.
        received_mb, sent_mb: of the workers' host in a step; 0 without a link.
        keys: of a minibatch, over all workers.
        weights: some of the model's at its end.
    """

    step_s: float
    received_mb: float
    sent_mb: float
    keys: float
    weights: npt.NDArray[np.float32]


def measure(asked: Asked) -> Part:
    lines: list[Line] = []
    checks: list[Check] = []
    sizes: list[dict[str, Any]] = []
    with spark_and_fleet(asked, "pulls") as (spark, ps):
        for features in FEATURES:
            rdd = spark.sparkContext.parallelize(range(WORKERS), WORKERS)
            rdd = rdd.map(lambda number, features=features: generate(PROBLEM, features, number)).cache()
            rdd.count()
            turns: dict[str, list[Training]] = {KEYS: [], WHOLE: []}
            for round_ in range(asked.rounds):
                for way, trainings in turns.items():
                    trainings.append(_train(ps, rdd, features, way, round_))
                    tell(f"{features:,} features, {way}: {trainings[-1].step_s:.4f} s a step")
            rdd.unpersist()
            what = f"{features:,} features: pulls by keys"
            step_s = {way: [one.step_s for one in trainings] for way, trainings in turns.items()}
            lines.append(Line(what, WHOLE, "s a step", None, step_s[WHOLE], step_s[KEYS]))
            if asked.rate != LOOPBACK:
                mb = {way: [one.received_mb + one.sent_mb for one in trainings] for way, trainings in turns.items()}
                lines.append(Line(what, WHOLE, "MB a step", None, mb[WHOLE], mb[KEYS]))
            differ = max(
                float(np.abs(one.weights - other.weights).max()) for one, other in zip(*turns.values(), strict=True)
            )
            checks.append(Check(f"{features:,} features: weights of both, largest difference", differ, TOLERANCE))
            sizes += [_size(asked, features, way, trainings) for way, trainings in turns.items()]
    facts = {"rows": f"{PROBLEM.rows:,}", "fraction": PROBLEM.fraction, "workers": WORKERS, "links": asked.rate}
    return Part(lines, checks, facts, sizes)


def _size(asked: Asked, features: int, way: str, trainings: list[Training]) -> dict[str, Any]:
    counted = asked.rate != LOOPBACK

    def figure(name: str) -> float:
        return float(np.median([getattr(one, name) for one in trainings]))

    return {
        "features": f"{features:,}",
        "pulls": way,
        "keys": f"{figure('keys'):,.0f}",
        "ms a step": f"{1e3 * figure('step_s'):.1f}",
        "MB received": f"{figure('received_mb'):.2f}" if counted else "-",
        "MB sent": f"{figure('sent_mb'):.2f}" if counted else "-",
    }


def _train(ps: Any, rdd: Any, features: int, way: str, round_: int) -> Training:
    weight = DCV.dense(features, 1).fill(0.0)
    ends: list[tuple[float, int, int]] = []

    def end(step: int) -> None:
        ends.append((time.perf_counter(), *moved()))

    counts = ps.run(rdd, _training(weight, way, round_), workers=WORKERS, onClock=end)
    step_s, sent, received = np.median(np.diff(np.array(ends), axis=0)[SETTLE_STEPS - 1 :], axis=0)
    weights = weight.pull(np.arange(0, features, max(1, features // SAMPLE)))
    weight.free()
    return Training(float(step_s), received / 1e6, sent / 1e6, float(sum(counts)), weights)


def _training(weight: DCV, way: str, round_: int) -> Callable[..., float]:
    """Return a worker's function: gradient descent whose changes by keys count from the next step on."""

    def train(worker: Any, blocks: Iterator[LocalRows]) -> float:
        (block,) = blocks
        counts = []
        for _ in worker.clocks(SETTLE_STEPS + COUNTED_STEPS):
            rows = block.sample(PROBLEM.fraction, worker.rng(round_))
            w = weight.pull(rows.keys) if way == KEYS else weight.pull()[rows.keys]
            g, _ = gradient(rows, w)
            weight.sub(PROBLEM.lr / (PROBLEM.fraction * PROBLEM.rows) * g, rows.keys, wait=False)
            counts.append(len(rows.keys))
        return float(np.median(counts))

    return train


if __name__ == "__main__":
    answer(Asked, measure)
