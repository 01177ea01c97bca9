"""Logistic regression with Adam in float64, with tasks that fail (paper, section 6.5)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyspark import TaskContext

from benchmarks.clicks import Clicks, gradient, minibatch
from ps2 import DCV, PS2Context
from ps2.data.rows import LocalRows

# Where a task fails: before it does anything, between its pull and its two additions, or just before it returns.
PLACES = ("start", "pulled", "added", "end")


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
        fails, place = random.random() < probability, PLACES[random.integers(len(PLACES))]
        return Fate(place if fails else "")

    def meet(self, place: str) -> None:
        """Raise Mishap at the planned place."""
        if place == self.place:
            raise Mishap(f"the benchmark lets this task fail here: {place}")


@dataclass(frozen=True)
class Done:
    """One step: its duration for the driver, in seconds, and the number of failed attempts of its tasks."""

    seconds: float
    failed: int


class Training:
    """One training from step 1, whose tasks fail with some probability."""

    def __init__(self, ps: PS2Context, clicks: Clicks, probability: float) -> None:
        self.probability = probability
        self._ps = ps
        self._clicks = clicks
        weight = DCV.dense(clicks.features, 4, dtype="float64")
        self._vectors = (weight, weight.derive(), weight.derive(), weight.derive())
        # Number of rows in the step's minibatch, and their loss.
        self._totals = DCV.dense(2, 1, dtype="float64")

    def step(self, number: int) -> Done:
        """Take step ``number``, from 1: tasks pull weights and add gradients, the servers run Adam."""
        weight, velocity, square, gradients = self._vectors
        began_s = time.monotonic()
        failed = sum(self._add_gradients(number))
        rows, _ = self._totals.pull()
        with self._ps.batch():
            gradients.mul(1.0 / rows)
            weight.zip(velocity, square, gradients).apply("adam", lr=self._clicks.problem.lr, step=number)
            gradients.zero()
            self._totals.zero()
        return Done(time.monotonic() - began_s, failed)

    def weights(self) -> Any:
        """Return the weights, float64 of shape (features,)."""
        return self._vectors[0].pull()

    def close(self) -> None:
        for vector in (*self._vectors, self._totals):
            vector.free()

    def _add_gradients(self, number: int) -> list[int]:
        """Run the tasks of a step; return the number of failed attempts of each."""
        problem, probability = self._clicks.problem, self.probability
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
