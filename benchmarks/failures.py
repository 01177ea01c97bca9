"""Logistic regression whose tasks fail with probability 0, 0.01 and 0.1 (paper, section 6.5, Figure 13(c)).

docs/performance/failures.md says how to read it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from pyspark import TaskContext

from benchmarks import frame
from benchmarks.clicks import Clicks, Problem, gradient, minibatch
from benchmarks.frame import Benchmark, Check, Line, Part, option, take_turns
from benchmarks.local_spark import DAEMON, spark_and_servers
from ps2 import DCV, PS2Context
from ps2.data.rows import LocalRows

# Each probability, with the goal for its time over that of probability 0, and the paper's value.
PROBABILITIES = {0.0: (1.0, 1.0), 0.01: (1.15, 74 / 66), 0.1: (1.5, 127 / 66)}
ATTEMPTS = 8
# Share of a task's rows that a step uses: tasks are long enough that Spark's overhead does not dominate a retry.
FRACTION = 0.5
FIRST_STEPS = 10
# Number of steps that each training takes in one turn.
BLOCK_STEPS = 5
# Tolerance relative to the largest weight, for another order of additions in float64.
TOLERANCE = 1e-9
# Where a task fails: before it does anything, between its pull and its two additions, or just before it returns.
PLACES = ("start", "pulled", "added", "end")


@dataclass(frozen=True)
class Args(frame.Args):
    rounds: int = option(12, "Turns of five steps of each training.", least=2)
    features: int = option(1_000_000, "Features of the data set.", least=100)
    rows: int = option(640_000, "Rows of the data set.", least=100)
    tasks: int = option(16, "Tasks of a step.", least=1)
    preload: bool = option(True, "Import modules before workers are forked, or in each.")


def failures(args: Args) -> Part:
    """Let trainings whose tasks fail take turns with one whose tasks do not."""
    problem = Problem(rows=args.rows, fraction=FRACTION, partitions=args.tasks)
    settings = DAEMON if args.preload else {}
    with spark_and_servers("failures", args.memory, settings=settings, retries=ATTEMPTS) as (spark, ps):
        clicks = Clicks.make(spark.sparkContext, problem, args.features)
        warm_up = Training(ps, clicks, 0.1)
        warm_up.take(FIRST_STEPS)
        warm_up.close()
        trainings = {probability: Training(ps, clicks, probability) for probability in PROBABILITIES}
        variants = {probability: partial(training.take, BLOCK_STEPS) for probability, training in trainings.items()}
        seconds = take_turns(variants, args.rounds, warm_ups=0)
        weights = {probability: training.weights() for probability, training in trainings.items()}
    lines, checks, rows = [], [], []
    for probability, (goal, paper) in PROBABILITIES.items():
        difference = np.max(np.abs(weights[probability] - weights[0.0])) / np.max(np.abs(weights[0.0]))
        checks.append(Check(f"probability {probability:g}: difference of weights", difference, TOLERANCE))
        ratio = sum(seconds[probability]) / sum(seconds[0.0])
        rows.append(
            {
                "probability": f"{probability:g}",
                "seconds": sum(seconds[probability]),
                "ratio": f"{ratio:.2f}",
                "the paper's": f"{paper:.2f}",
                "failed attempts": trainings[probability].failed,
            }
        )
        what = f"{BLOCK_STEPS} steps, probability {probability:g}"
        lines.append(Line(what, "no failures", "s", 1 / goal, seconds[0.0], seconds[probability]))
    tasks = args.rounds * BLOCK_STEPS * args.tasks
    return Part(lines[1:], checks[1:], {"tasks": tasks}, rows)


class Mishap(RuntimeError):
    """The failure of a task."""


@dataclass(frozen=True)
class Fate:
    """Return where an attempt of a task fails, "" if it does not; depends on the arguments only."""

    place: str

    @staticmethod
    def draw(probability: float, seed: int, step: int, rdd_partition: int, attempt: int) -> Fate:
        sequence = np.random.SeedSequence(seed, spawn_key=(step, rdd_partition, attempt))
        random = np.random.default_rng(sequence)
        fails, position = random.random() < probability, PLACES[random.integers(len(PLACES))]
        return Fate(position if fails else "")

    def meet(self, place: str) -> None:
        """Raise Mishap at the planned place."""
        if place == self.place:
            raise Mishap(f"the benchmark lets this task fail here: {place}")


class Training:
    """One training from step 1, whose tasks fail with some probability."""

    def __init__(self, ps: PS2Context, clicks: Clicks, probability: float) -> None:
        self._probability = probability
        self._number, self.failed = 0, 0
        self._ps = ps
        self._clicks = clicks
        weight = DCV.dense(clicks.features, 4, dtype="float64")
        self._vectors = (weight, weight.derive(), weight.derive(), weight.derive())
        # Number of rows in the step's minibatch, and their loss.
        self._totals = DCV.dense(2, 1, dtype="float64")

    def take(self, steps: int) -> float:
        """Take steps: tasks pull weights and add gradients, the servers run Adam; return the seconds."""
        weight, velocity, square, gradients = self._vectors
        began_s = time.monotonic()
        for _ in range(steps):
            self._number += 1
            self.failed += sum(self._add_gradients(self._number))
            rows, _ = self._totals.pull()
            with self._ps.batch():
                gradients.mul(1.0 / rows)
                weight.zip(velocity, square, gradients).apply("adam", lr=self._clicks.problem.lr, step=self._number)
                gradients.zero()
                self._totals.zero()
        return time.monotonic() - began_s

    def weights(self) -> Any:
        """Return the weights, float64 of shape (features,)."""
        return self._vectors[0].pull()

    def close(self) -> None:
        for vector in (*self._vectors, self._totals):
            vector.free()

    def _add_gradients(self, number: int) -> list[int]:
        """Run the tasks of a step; return the number of failed attempts of each."""
        problem, probability = self._clicks.problem, self._probability
        weight, gradients, totals = self._vectors[0], self._vectors[3], self._totals

        def work(rdd_partition: int, blocks: Iterator[LocalRows]) -> Iterator[int]:
            context = TaskContext.get()
            assert context is not None
            attempt = context.attemptNumber()
            fate = Fate.draw(probability, problem.seed, number, rdd_partition, attempt)
            for block in blocks:
                fate.meet("start")
                rows = minibatch(problem, block, number, rdd_partition)
                w = weight.pull(rows.keys)
                fate.meet("pulled")
                g, loss = gradient(rows, w)
                gradients.add(g, rows.keys)
                fate.meet("added")
                totals.add([len(rows), loss])
                fate.meet("end")
            yield attempt

        return self._clicks.rdd.mapPartitionsWithIndex(work).collect()


BENCHMARK = Benchmark("failures", Args, {"failures": failures})

if __name__ == "__main__":
    BENCHMARK.main()
