"""Sparse logistic regression by gradient descent with more and more features, compared with pyspark.ml's L-BFGS."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import psutil
from py4j.protocol import Py4JError

from benchmarks.clicks import Clicks, Problem, gradient
from benchmarks.frame import Part, answer
from benchmarks.local_spark import start_spark
from benchmarks.ratio import Found, in_unit
from benchmarks.run_part import Asked
from ps2 import DCV, PS2Context
from ps2.data.rows import LocalRows, Rows

SERVERS = 2
WORKERS = 2
PROBLEM = Problem(rows=100_000, fields=30, fraction=0.01, lr=0.5, partitions=WORKERS)
# The first steps of a run do not count.
SETTLE_STEPS = 10
STEPS = 100
# The time of further iterations is that of a training minus that of a training of one iteration. If iterations are
# short, the training has many.
ITERATIONS = (4, 40)
LONG_S = 2.0
# L-BFGS keeps float64 vectors of all features in the driver and in each task: its peak in bytes a feature, about.
SPARK = {"spark.driver.memory": "18g", "spark.driver.maxResultSize": "8g"}
MLLIB_BYTES = 300


class _Steps(NamedTuple):
    """A worker's statistics of its steps; ``keys`` is the median of a step."""

    seconds: float
    keys: float


def measure(asked: Asked) -> Part:
    """Let the sizes alternate with ps.run; then pyspark.ml trains at each size."""
    spark = start_spark(f"local[{WORKERS}]", "benchmarks.run_features", SPARK)
    step_ms: dict[int, list[float]] = {features: [] for features in asked.features}
    keys: dict[int, int] = {}
    try:
        tables = {features: _table(spark, features) for features in asked.features}
        with PS2Context.getOrCreate(spark, servers=SERVERS) as ps:
            # Writes to every page of a weight, so that all memory is allocated from now on.
            weights = {features: DCV.dense(features, rows=1).fill(0.0) for features in asked.features}
            for round_ in range(1 + asked.rounds):
                for features, table in tables.items():
                    found = ps.run(table, _training(weights[features], round_), workers=WORKERS)
                    step_ms[features].append(in_unit("ms", 1, max(steps.seconds for steps in found)))
                    keys[features] = int(sum(steps.keys for steps in found))
                taken = ", ".join(f"{taken[-1]:.2f}" for taken in step_ms.values())
                print(f"  ms a step: {taken}", file=sys.stderr, flush=True)
        iteration_s: dict[int, float | None] = dict.fromkeys(asked.features)
        if asked.mllib:
            smallest = min(asked.features)
            _iteration_s(tables[smallest], smallest)  # the JVM compiles it
            iteration_s = {features: _iteration_s(table, features) for features, table in tables.items()}
    finally:
        with suppress(Py4JError):  # see below
            spark.stop()
    smallest, largest = min(asked.features), max(asked.features)
    line = Found(
        f"LR with ps.run, {largest:,} features",
        f"{smallest:,} features",
        "ms",
        2.0,
        step_ms[smallest][1:],
        step_ms[largest][1:],
    )
    sizes = [
        {
            "features": features,
            "keys": keys[features],
            "step_ms": median(step_ms[features][1:]),
            "iteration_s": iteration_s[features],
        }
        for features in sorted(asked.features)
    ]
    facts = {"rows": PROBLEM.rows, "entries a row": PROBLEM.fields, "fraction": PROBLEM.fraction, "steps a turn": STEPS}
    return Part([line], facts=facts, sizes=sizes)


def _training(weight: DCV, round_: int) -> Callable[..., _Steps]:
    """Return a worker's function: w -= lr g, with the gradient of its minibatch."""

    def train(worker: Any, batches: Iterator[Any]) -> _Steps:
        mine = Rows.fromBatches(batches, dtype="float32").localize()
        counts = []
        began_s = 0.0
        for clock in worker.clocks(SETTLE_STEPS + STEPS):
            if clock == SETTLE_STEPS:
                began_s = time.monotonic()
            rows = mine.sample(PROBLEM.fraction, worker.rng(round_))
            g, _ = gradient(rows, weight.pull(rows.keys))
            weight.add(-PROBLEM.lr / (PROBLEM.fraction * PROBLEM.rows) * g, rows.keys)
            counts.append(len(rows.keys))
        return _Steps((time.monotonic() - began_s) / STEPS, median(counts))

    return train


def _table(spark: Any, features: int) -> Any:
    """Return generated rows as a cached DataFrame of labels and pyspark.ml vectors."""
    from pyspark.ml.linalg import SparseVector

    def vectors(block: LocalRows) -> Iterator[tuple[float, SparseVector]]:
        fields = PROBLEM.fields
        assert block.y is not None
        indices = block.keys[block.x.indices].reshape(-1, fields)
        ones = np.ones(fields)
        for label, columns in zip(block.y.tolist(), indices, strict=True):
            yield label, SparseVector(features, columns, ones)

    clicks = Clicks.make(spark.sparkContext, PROBLEM, features)
    table = spark.createDataFrame(clicks.rdd.flatMap(vectors), ["label", "features"]).persist()
    table.count()
    clicks.rdd.unpersist()
    return table


def _iteration_s(table: Any, features: int) -> float | None:
    """Return the seconds an iteration of pyspark.ml's L-BFGS; None if memory does not suffice."""
    from pyspark.ml.classification import LogisticRegression

    # Memory that the JVM has already taken is available to it.
    own = [child.memory_info().rss for child in psutil.Process().children() if child.name() == "java"]
    free = psutil.virtual_memory().available + sum(own)
    if free < features * MLLIB_BYTES:
        told = f"{features * MLLIB_BYTES >> 20} MiB are needed, {free >> 20} are free"
        print(f"  pyspark.ml: left out at {features:,} features: {told}", file=sys.stderr, flush=True)
        return None

    def fit(iterations: int) -> tuple[float, int]:
        began_s = time.monotonic()
        model = LogisticRegression(maxIter=iterations, tol=0.0).fit(table)
        return time.monotonic() - began_s, model.summary.totalIterations

    try:
        few_s, few = fit(1)
        for iterations in ITERATIONS:
            more_s, more = fit(iterations)
            if more_s - few_s > LONG_S:
                break
    except Py4JError:  # mostly its JVM has no memory left, and ends
        print(f"  pyspark.ml: failed at {features:,} features", file=sys.stderr, flush=True)
        return None
    print(
        f"  pyspark.ml: {few} iterations {few_s:.1f} s, {more} iterations {more_s:.1f} s", file=sys.stderr, flush=True
    )
    return (more_s - few_s) / (more - few)


if __name__ == "__main__":
    answer(Asked, measure)
