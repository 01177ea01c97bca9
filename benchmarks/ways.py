"""Three ways of training logistic regression with Adam (paper, section 6.2.1).

They sample the same rows, compute gradients with the same function, and update with the same kernel; they differ in
where the weights live and in what moves.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from benchmarks.adam_report import StepTime
from benchmarks.clicks import Clicks, minibatch
from ps2 import DCV, PS2Context
from ps2.algorithms.logistic_math import LocalBlock, gradient
from ps2.ops.optimizers import adam


@dataclass
class Laps:
    """A stopwatch: what each phase took in one task, and then in the driver.

    All processes are on one machine and share its monotonic clock, so the driver goes on where a task stopped.

    Attributes:
        rows: of the task's minibatch.
        keys: features that they use.
        last_s: when the last lap ended.
        phases_s: seconds by phase.
    """

    rows: int
    keys: int
    last_s: float
    phases_s: dict[str, float]

    @staticmethod
    def start() -> Laps:
        return Laps(0, 0, time.monotonic(), dict.fromkeys(("pull", "gradient", "push", "update"), 0.0))

    def lap(self, phase: str) -> None:
        """Add the time since the last lap to a phase."""
        now_s = time.monotonic()
        self.phases_s[phase] += now_s - self.last_s
        self.last_s = now_s

    def skip(self) -> None:
        """Count the time since the last lap as no phase's."""
        self.last_s = time.monotonic()

    def step_time(self, began_s: float) -> StepTime:
        """End the step; what no phase has is the stage's own."""
        total_s = time.monotonic() - began_s
        return StepTime(total_s, {**self.phases_s, "stage": total_s - sum(self.phases_s.values())}, self.keys)


class Way(Protocol):
    """A way of training; ``step`` takes step ``number``, from 1."""

    name: str

    def step(self, number: int) -> StepTime: ...

    def weights(self) -> Any: ...

    def close(self) -> None: ...


class PS2Adam:
    """Tasks pull the weights they need and add their gradients; the servers run Adam."""

    name = "PS2-Adam"

    def __init__(self, ps: PS2Context, clicks: Clicks) -> None:
        self._ps = ps
        self._clicks = clicks
        self._vectors = _new_vectors(clicks.features)

    def step(self, number: int) -> StepTime:
        weight, velocity, square, gradients = self._vectors
        began_s = time.monotonic()
        tasks = _add_gradients(self._clicks, weight, gradients, number)
        laps = _longest(tasks)
        laps.skip()
        with self._ps.batch():
            gradients.mul(_scale(tasks))
            weight.zip(velocity, square, gradients).apply("adam", lr=self._clicks.problem.lr, step=number)
            gradients.zero()
        laps.lap("update")
        return laps.step_time(began_s)

    def weights(self) -> Any:
        return self._vectors[0].pull()

    def close(self) -> None:
        _free(self._vectors)


class PSAdam:
    """Tasks do as with PS2-Adam; for Adam, whole vectors come from the servers to a client, and go back."""

    name = "PS-Adam"

    def __init__(self, ps: PS2Context, clicks: Clicks) -> None:
        self._ps = ps
        self._clicks = clicks
        self._vectors = _new_vectors(clicks.features)

    def step(self, number: int) -> StepTime:
        weight, velocity, square, gradients = self._vectors
        began_s = time.monotonic()
        tasks = _add_gradients(self._clicks, weight, gradients, number)
        laps = _longest(tasks)
        laps.skip()
        with self._ps.batch():
            pulled = [vector.pull() for vector in self._vectors]
        w, v, s, g = (one.result() for one in pulled)
        g *= _scale(tasks)
        adam(w, v, s, g, lr=self._clicks.problem.lr, step=number)
        # Not a batch: it would copy the arrays once more.
        weight.push(w)
        velocity.push(v)
        square.push(s)
        gradients.zero()
        laps.lap("update")
        return laps.step_time(began_s)

    def weights(self) -> Any:
        return self._vectors[0].pull()

    def close(self) -> None:
        _free(self._vectors)


class SparkAdam:
    """Without servers: the weights are broadcast, dense gradients are aggregated, the driver runs Adam."""

    name = "Spark-Adam"

    def __init__(self, spark_context: Any, clicks: Clicks) -> None:
        self._spark_context = spark_context
        self._clicks = clicks
        self._w, self._v, self._s = (np.zeros(clicks.features, np.float32) for _ in range(3))

    def step(self, number: int) -> StepTime:
        problem, features = self._clicks.problem, self._clicks.features
        began_s = time.monotonic()
        weight = self._spark_context.broadcast(self._w)
        broadcast_s = time.monotonic() - began_s

        def work(rdd_partition: int, blocks: Iterator[LocalBlock]) -> Iterator[tuple[Any, list[Laps]]]:
            for block in blocks:
                laps = Laps.start()
                rows = minibatch(problem, block, number, rdd_partition)
                laps.rows, laps.keys = len(rows.y), len(rows.keys)
                laps.lap("gradient")
                w = weight.value
                laps.lap("pull")
                g, _, _ = gradient(rows, w[rows.keys])
                laps.lap("gradient")
                dense = np.zeros(features, np.float32)
                dense[rows.keys] = g
                laps.lap("push")
                yield dense, [laps]

        def merge(left: tuple[Any, list[Laps]] | None, right: tuple[Any, list[Laps]]) -> tuple[Any, list[Laps]]:
            if left is None:
                return right
            np.add(left[0], right[0], out=left[0])
            return left[0], left[1] + right[1]

        # The zero value is None: an array of zeros would travel with every task.
        g, tasks = self._clicks.rdd.mapPartitionsWithIndex(work).treeAggregate(None, merge, merge)
        laps = _longest(tasks)
        laps.lap("push")
        laps.phases_s["pull"] += broadcast_s
        g *= _scale(tasks)
        adam(self._w, self._v, self._s, g, lr=problem.lr, step=number)
        laps.lap("update")
        weight.destroy()
        return laps.step_time(began_s)

    def weights(self) -> Any:
        return self._w

    def close(self) -> None:
        """There is nothing to give back."""


def all_ways(ps: PS2Context, clicks: Clicks) -> list[Way]:
    """Return the three ways at their first step; the others are compared with the first."""
    return [PS2Adam(ps, clicks), PSAdam(ps, clicks), SparkAdam(ps.sparkContext, clicks)]


def _new_vectors(features: int) -> tuple[DCV, ...]:
    """Make weight, velocity, square and gradient, co-located."""
    weight = DCV.dense(features, 4)
    return weight, weight.derive(), weight.derive(), weight.derive()


def _free(vectors: Sequence[DCV]) -> None:
    for vector in vectors:
        vector.free()


def _add_gradients(clicks: Clicks, weight: DCV, gradients: DCV, number: int) -> list[Laps]:
    """Run the tasks of a step on the fleet."""
    problem = clicks.problem

    def work(rdd_partition: int, blocks: Iterator[LocalBlock]) -> Iterator[Laps]:
        for block in blocks:
            laps = Laps.start()
            rows = minibatch(problem, block, number, rdd_partition)
            laps.rows, laps.keys = len(rows.y), len(rows.keys)
            laps.lap("gradient")
            w = weight.pull(rows.keys)
            laps.lap("pull")
            g, _, _ = gradient(rows, w)
            laps.lap("gradient")
            gradients.add(g, rows.keys)
            laps.lap("push")
            yield laps

    return clicks.rdd.mapPartitionsWithIndex(work).collect()


def _scale(tasks: Sequence[Laps]) -> float:
    """Return what makes a mean of the summed gradients."""
    return 1.0 / sum(task.rows for task in tasks)


def _longest(tasks: Sequence[Laps]) -> Laps:
    """Return the task that the step waited for."""
    return max(tasks, key=lambda task: sum(task.phases_s.values()))
