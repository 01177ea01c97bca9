"""Logistic regression with Adam on news20-bigram: long-lived workers compared with the same loop with one stage a step.

Both sample the same rows in each step and call the same functions, so their weights must be equal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import libsvm
from benchmarks.clicks import Clicks, Problem, gradient
from benchmarks.frame import Check, Part, answer
from benchmarks.local_spark import start_spark
from benchmarks.ratio import Found
from benchmarks.run_part import Asked
from ps2 import DCV, PS2Context
from ps2.data.rows import LocalRows, Rows

SERVERS = 2
WORKERS = 2
FRACTION = 0.01
LR = 0.05
SEED = 0
STEPS = 40
# The first steps of each run do not count.
SETTLE_STEPS = 5
# Data without --data: about as many rows, features and entries as news20-bigram.
LIKE_NEWS20 = Problem(rows=16_000, fields=450, partitions=WORKERS)
LIKE_NEWS20_FEATURES = 1_350_000
TOLERANCE = 1e-6


@dataclass(frozen=True)
class _Data:
    """Rows as an RDD of one LocalRows a partition, cached."""

    rdd: Any
    rows: int
    features: int


@dataclass(frozen=True)
class _Model:
    """The vectors of one training."""

    rows: int
    weight: DCV
    velocity: DCV
    square: DCV
    gradient: DCV

    @staticmethod
    def make(data: _Data) -> _Model:
        weight = DCV.dense(data.features, rows=4)
        return _Model(data.rows, weight, weight.derive(), weight.derive(), weight.derive())

    def add_gradient(self, block: LocalRows, step: int, rdd_partition: int) -> None:
        """Do a worker's or a task's part of a step: add the mean gradient of its sampled rows."""
        rows = block.sample(FRACTION, np.random.default_rng([SEED, step, rdd_partition]))
        g, _ = gradient(rows, self.weight.pull(rows.keys))
        self.gradient.add(g / (FRACTION * self.rows), rows.keys)

    def update(self, ps: PS2Context, step: int) -> None:
        """Take the optimizer step at columns whose gradient is not 0."""
        with ps.batch():
            self.weight.zip(self.velocity, self.square, self.gradient).apply("adam", lr=LR, step=step + 1, lazy=True)
            self.gradient.zero()


def measure(asked: Asked) -> Part:
    """Let the two loops alternate; the first round does not count."""
    spark = start_spark("local[2]", "benchmarks.run_news20", {"spark.driver.memory": "4g"})
    stay, whole, stages = [], [], []
    try:
        with PS2Context.getOrCreate(spark, servers=SERVERS) as ps:
            data = _data(spark, asked.data)
            ours, other = _Model.make(data), _Model.make(data)
            for round_ in range(1 + asked.rounds):
                began_s = time.monotonic()
                stay.append(_stay(ps, data, ours, round_ * STEPS))
                whole.append(STEPS / (time.monotonic() - began_s))
                stages.append(_stages(ps, data, other, round_ * STEPS))
                print(f"  {stay[-1]:.1f} against {stages[-1]:.1f} steps/s", file=sys.stderr, flush=True)
            w, expected = ours.weight.pull(), other.weight.pull()
    finally:
        spark.stop()

    def line(what: str, target: float | None, rates: Sequence[float]) -> Found:
        return Found(what, "a stage a step", "steps/s", target, stages[1:], rates[1:])

    return Part(
        [
            line("LR-Adam with ps.run", 5.0, stay),
            line(f"the same, runs of {STEPS} steps from call to return", None, whole),
        ],
        [Check("largest difference of a weight", float(np.max(np.abs(w - expected))), TOLERANCE)],
        {
            "rows": data.rows,
            "features": data.features,
            "fraction": FRACTION,
            "steps a turn": STEPS,
            "weights changed": int(np.count_nonzero(w)),
        },
    )


def _stay(ps: PS2Context, data: _Data, model: _Model, first: int) -> float:
    """Train with long-lived workers; return steps a second after their start."""

    def train(worker: Any, blocks: Iterator[LocalRows]) -> float:
        block = next(blocks)
        began_s = 0.0
        for clock in worker.clocks(first + STEPS):
            if clock == first + SETTLE_STEPS:
                began_s = time.monotonic()
            model.add_gradient(block, clock, worker.rank)
        return time.monotonic() - began_s

    def update(clock: int) -> None:
        model.update(ps, clock)

    taken_s = ps.run(data.rdd, train, workers=WORKERS, onClock=update, firstClock=first)
    return (STEPS - SETTLE_STEPS) / max(taken_s)


def _stages(ps: PS2Context, data: _Data, model: _Model, first: int) -> float:
    """Train with a Spark stage in each step; return steps a second."""
    began_s = 0.0
    for step in range(first, first + STEPS):
        if step == first + SETTLE_STEPS:
            began_s = time.monotonic()
        data.rdd.mapPartitionsWithIndex(_task(model, step)).count()
        model.update(ps, step)
    return (STEPS - SETTLE_STEPS) / (time.monotonic() - began_s)


def _task(model: _Model, step: int) -> Callable[[int, Iterator[LocalRows]], Iterator[None]]:
    def work(rdd_partition: int, blocks: Iterator[LocalRows]) -> Iterator[None]:
        for block in blocks:
            model.add_gradient(block, step, rdd_partition)
            yield None

    return work


def _data(spark: Any, path: str | None) -> _Data:
    if path is None:
        clicks = Clicks.make(spark.sparkContext, LIKE_NEWS20, LIKE_NEWS20_FEATURES)
        return _Data(clicks.rdd, LIKE_NEWS20.rows, clicks.features)
    rows = libsvm.collected(libsvm.read(spark, Path(path)))
    assert rows.y is not None
    parts = [Rows(rows.x[worker::WORKERS], rows.y[worker::WORKERS]).localize() for worker in range(WORKERS)]
    rdd = spark.sparkContext.parallelize(parts, WORKERS).persist()
    return _Data(rdd, len(rows), rows.x.shape[1])


if __name__ == "__main__":
    answer(Asked, measure)
