"""Ways of training logistic regression with Adam (paper, section 6.2.1).

All ways sample the same rows, compute gradients with the same function, and update with the same kernel. They differ in
where the weights are and in what is transferred.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from benchmarks.adam_report import StepTime
from benchmarks.clicks import Clicks, Problem, gradient, minibatch
from ps2 import DCV, PS2Context
from ps2.data.rows import LocalRows
from ps2.ops.optimizers import adam


@dataclass
class Laps:
    """A stopwatch for the phases of a step, first in one task, then in the driver.

    All processes are on one machine and share its monotonic clock, so the driver continues where a task stopped.

    Attributes:
        rows: of the task's minibatch.
        keys: number of features in the minibatch.
        last_s: end of the last lap.
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
        """Skip the time since the last lap: it belongs to no phase."""
        self.last_s = time.monotonic()

    def step_time(self, began_s: float, end_s: float | None = None) -> StepTime:
        """End the step, by default now; time without a phase belongs to the stage or run itself."""
        total_s = (time.monotonic() if end_s is None else end_s) - began_s
        return StepTime(total_s, {**self.phases_s, "stage": total_s - sum(self.phases_s.values())}, self.keys)


class Way(Protocol):
    """A way of training; ``steps`` takes steps ``first``, from 1, to ``first + count - 1`` in one run."""

    name: str

    def steps(self, first: int, count: int) -> list[StepTime]: ...

    def weights(self) -> Any: ...

    def close(self) -> None: ...


class _Staged:
    """A stage a step, whose tasks pull the weights they need and add their gradients; then the optimizer's step."""

    name: str

    def __init__(self, ps: PS2Context, clicks: Clicks) -> None:
        self._ps = ps
        self._clicks = clicks
        self._vectors = _new_vectors(clicks.features)

    def steps(self, first: int, count: int) -> list[StepTime]:
        return [self._step(number) for number in range(first, first + count)]

    def _step(self, number: int) -> StepTime:
        weight, _, _, gradients = self._vectors
        began_s = time.monotonic()
        tasks = _add_gradients(self._clicks, weight, gradients, number)
        laps = _longest(tasks)
        laps.skip()
        self._update(_scale(tasks), number)
        laps.lap("update")
        return laps.step_time(began_s)

    def _update(self, scale: float, number: int) -> None:
        """Take the optimizer's step with the summed gradients times ``scale``."""
        raise NotImplementedError

    def weights(self) -> Any:
        return self._vectors[0].pull()

    def close(self) -> None:
        _free(self._vectors)


class PS2Adam(_Staged):
    """The servers run Adam."""

    name = "PS2-Adam"

    def _update(self, scale: float, number: int) -> None:
        _update_on_servers(self._ps, self._vectors, scale, self._clicks.problem.lr, number)


class PSAdam(_Staged):
    """For Adam, a client pulls whole vectors from the servers and pushes them back."""

    name = "PS-Adam"

    def _update(self, scale: float, number: int) -> None:
        _update_in_driver(self._ps, self._vectors, scale, self._clicks.problem.lr, number)


class _Staying:
    """One run of long-lived workers instead of one stage a step; otherwise like the ways with stages.

    The first step of a run includes the start of the run.
    """

    name: str
    # Takes an optimizer step. Arguments: context, vectors, factor for the mean of the summed gradients, learning rate,
    # step.
    _update: Callable[[PS2Context, Sequence[DCV], float, float, int], None]

    def __init__(self, ps: PS2Context, clicks: Clicks) -> None:
        self._ps = ps
        self._clicks = clicks
        self._vectors = _new_vectors(clicks.features)
        self._rows = DCV.dense(1, 1, "float64")  # of a step's minibatches, over all workers

    def steps(self, first: int, count: int) -> list[StepTime]:
        updates_s: list[tuple[float, float]] = []

        def update(number: int) -> None:
            began_s = time.monotonic()
            rows = float(self._rows.pull()[0])
            self._rows.zero()
            type(self)._update(self._ps, self._vectors, 1.0 / rows, self._clicks.problem.lr, number)
            updates_s.append((began_s, time.monotonic()))

        began_s = time.monotonic()
        problem = self._clicks.problem
        of_workers = self._ps.run(
            self._clicks.rdd,
            _staying_work(problem, self._vectors, self._rows, first + count),
            workers=problem.partitions,
            onClock=update,
            firstClock=first,
        )
        times = []
        for (update_s, end_s), laps in zip(updates_s, zip(*of_workers, strict=True), strict=True):
            longest = _longest(laps)
            longest.phases_s["update"] = end_s - update_s
            longest.last_s = end_s
            times.append(longest.step_time(began_s, end_s))
            began_s = end_s
        return times

    def weights(self) -> Any:
        return self._vectors[0].pull()

    def close(self) -> None:
        _free([*self._vectors, self._rows])


def _staying_work(
    problem: Problem, vectors: Sequence[DCV], counted: DCV, end: int
) -> Callable[[Any, Iterator[LocalRows]], list[Laps]]:
    """Return a worker's function: its part of each step."""
    weight, _, _, gradients = vectors

    def work(worker: Any, blocks: Iterator[LocalRows]) -> list[Laps]:
        block = next(blocks)
        taken = []
        for number in worker.clocks(end):
            laps = _add_gradient(problem, block, weight, gradients, number, worker.rank)
            counted.add(np.array([float(laps.rows)]))
            laps.lap("push")
            taken.append(laps)
        return taken

    return work


class StayingPS2Adam(_Staying):
    """PS2-Adam with long-lived workers."""

    name = "PS2-Adam, ps.run"

    @staticmethod
    def _update(ps: PS2Context, vectors: Sequence[DCV], scale: float, lr: float, number: int) -> None:
        _update_on_servers(ps, vectors, scale, lr, number)


class StayingPSAdam(_Staying):
    """PS-Adam with long-lived workers."""

    name = "PS-Adam, ps.run"

    @staticmethod
    def _update(ps: PS2Context, vectors: Sequence[DCV], scale: float, lr: float, number: int) -> None:
        _update_in_driver(ps, vectors, scale, lr, number)


class SparkAdam:
    """Without servers: weights are broadcast, dense gradients are aggregated, and the driver runs Adam."""

    name = "Spark-Adam"

    def __init__(self, spark_context: Any, clicks: Clicks) -> None:
        self._spark_context = spark_context
        self._clicks = clicks
        self._w, self._v, self._s = (np.zeros(clicks.features, np.float32) for _ in range(3))

    def steps(self, first: int, count: int) -> list[StepTime]:
        return [self._step(number) for number in range(first, first + count)]

    def _step(self, number: int) -> StepTime:
        problem, features = self._clicks.problem, self._clicks.features
        began_s = time.monotonic()
        weight = self._spark_context.broadcast(self._w)
        broadcast_s = time.monotonic() - began_s

        def work(rdd_partition: int, blocks: Iterator[LocalRows]) -> Iterator[tuple[Any, list[Laps]]]:
            for block in blocks:
                laps = Laps.start()
                rows = minibatch(problem, block, number, rdd_partition)
                laps.rows, laps.keys = len(rows), len(rows.keys)
                laps.lap("gradient")
                w = weight.value
                laps.lap("pull")
                g, _ = gradient(rows, w[rows.keys])
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

        # The zero value is None, as Spark would send an array of zeros with every task.
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
        """There is nothing to free."""


def all_ways(ps: PS2Context, clicks: Clicks) -> list[Way]:
    """Return all ways at their first step; the first way is the reference."""
    return [
        StayingPS2Adam(ps, clicks),
        StayingPSAdam(ps, clicks),
        PS2Adam(ps, clicks),
        PSAdam(ps, clicks),
        SparkAdam(ps.sparkContext, clicks),
    ]


def _new_vectors(features: int) -> tuple[DCV, ...]:
    """Create weight, velocity, square and gradient, co-located."""
    weight = DCV.dense(features, 4)
    return weight, weight.derive(), weight.derive(), weight.derive()


def _free(vectors: Sequence[DCV]) -> None:
    for vector in vectors:
        vector.free()


def _add_gradients(clicks: Clicks, weight: DCV, gradients: DCV, number: int) -> list[Laps]:
    """Run the tasks of a step on the fleet."""
    problem = clicks.problem

    def work(rdd_partition: int, blocks: Iterator[LocalRows]) -> Iterator[Laps]:
        for block in blocks:
            yield _add_gradient(problem, block, weight, gradients, number, rdd_partition)

    return clicks.rdd.mapPartitionsWithIndex(work).collect()


def _add_gradient(
    problem: Problem, block: LocalRows, weight: DCV, gradients: DCV, number: int, rdd_partition: int
) -> Laps:
    """Do a task's or a worker's part of a step."""
    laps = Laps.start()
    rows = minibatch(problem, block, number, rdd_partition)
    laps.rows, laps.keys = len(rows), len(rows.keys)
    laps.lap("gradient")
    w = weight.pull(rows.keys)
    laps.lap("pull")
    g, _ = gradient(rows, w)
    laps.lap("gradient")
    gradients.add(g, rows.keys)
    laps.lap("push")
    return laps


def _update_on_servers(ps: PS2Context, vectors: Sequence[DCV], scale: float, lr: float, number: int) -> None:
    """Take a step of Adam on the servers."""
    weight, velocity, square, gradients = vectors
    with ps.batch():
        gradients.mul(scale)
        weight.zip(velocity, square, gradients).apply("adam", lr=lr, step=number)
        gradients.zero()


def _update_in_driver(ps: PS2Context, vectors: Sequence[DCV], scale: float, lr: float, number: int) -> None:
    """Pull all vectors, take a step of Adam, and push them back."""
    weight, velocity, square, gradients = vectors
    with ps.batch():
        pulled = [vector.pull() for vector in vectors]
    w, v, s, g = (one.result() for one in pulled)
    g *= scale
    adam(w, v, s, g, lr=lr, step=number)
    # Not a batch, which would copy the arrays once more.
    weight.push(w)
    velocity.push(v)
    square.push(s)
    gradients.zero()


def _scale(tasks: Sequence[Laps]) -> float:
    """Return the factor that turns summed gradients into their mean."""
    return 1.0 / sum(task.rows for task in tasks)


def _longest(tasks: Sequence[Laps]) -> Laps:
    """Return the slowest task of a step."""
    return max(tasks, key=lambda task: sum(task.phases_s.values()))
