"""Logistic regression with Adam: PS2-Adam against PS-Adam and Spark-Adam (paper, section 6.2.1, Figure 9(a)).

All ways sample the same rows, compute gradients with the same function, and update with the same kernel. They differ in
where the weights are and in what is transferred. docs/performance/linear.md says how to read it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

import numpy as np

from benchmarks import frame
from benchmarks.clicks import Clicks, Problem, gradient, minibatch
from benchmarks.frame import Benchmark, Check, Line, Part, option
from benchmarks.local_spark import spark_and_servers
from ps2 import DCV, PS2Context
from ps2.data.rows import LocalRows
from ps2.ops.optimizers import adam

# Steps before any measurement, while the JVM compiles its scheduler and every process its kernels.
FIRST_STEPS = 20
# Number of steps that a run takes without a pause. Spark launches a stage about twice as fast after a pause as right
# after another stage. So the first steps, which follow those of another way, do not count.
SETTLE_STEPS = 2
COUNTED_STEPS = 4
RUN_STEPS = SETTLE_STEPS + COUNTED_STEPS
# If a step takes longer than this, one run has to be enough.
SLOW_STEP_S = 20.0
# All ways add the same float32 numbers, so that results differ by little more than rounding.
TOLERANCE = 1e-5
PHASES = ("pull", "gradient", "push", "update")
Update = Callable[[PS2Context, Sequence[DCV], float, float, int], None]


@dataclass(frozen=True)
class Args(frame.Args):
    rounds: int = option(3, "Turns of four counted steps of each way.", least=1)
    features: tuple[int, ...] = option((40_000, 1_000_000, 10_000_000), "Numbers of features to measure.", least=100)
    rows: int = option(Problem.rows, "Rows of the data set.", least=100)
    memory: str = option("8g", "Memory of Spark's JVM; whole gradients of Spark-Adam pass through it.")


def steps(args: Args) -> Part:
    """Compare the seconds of single steps, and the weights after the last one."""
    lines, checks, rows = [], [], []
    with spark_and_servers("adam", args.memory) as (spark, ps):
        _warm_up(ps, args)
        for features in args.features:
            clicks = Clicks.make(spark.sparkContext, Problem(rows=args.rows), features)
            variants = all_ways(ps, clicks)
            turns = _turns(variants, args.rounds)
            weights = {variant.name: variant.weights() for variant in variants}
            for variant in variants:
                variant.close()
            clicks.rdd.unpersist()
            first = variants[0].name
            for name, taken in turns.items():
                differ = float(np.max(np.abs(weights[name] - weights[first])))
                checks.append(Check(f"{features:,} features, {name}: weights from those of {first}", differ, TOLERANCE))
                rows.append(_row(features, name, taken))
                if name != first:
                    totals = ([step.total_s for step in turns[variant]] for variant in (name, first))
                    lines.append(Line(f"{features:,} features: a step of {first}", name, "s", None, *totals))
    return Part(lines, checks, table=rows)


def _warm_up(ps: PS2Context, args: Args) -> None:
    clicks = Clicks.make(ps.sparkContext, Problem(rows=args.rows), min(args.features))
    for variant in all_ways(ps, clicks):
        variant.steps(1, FIRST_STEPS)
        variant.close()
    clicks.rdd.unpersist()


def _rotated(ways: Sequence[Way], turn: int) -> Sequence[Way]:
    """Return the ways in the order of a turn: each turn begins with another one."""
    begin = turn % len(ways)
    return [*ways[begin:], *ways[:begin]]


def _turns(ways: Sequence[Way], rounds: int) -> dict[str, list[StepTime]]:
    """Let each way take steps in a row, then the next one; return the steps that count."""
    times: dict[str, list[StepTime]] = {variant.name: [] for variant in ways}
    for turn in range(rounds):
        for variant in _rotated(ways, turn):
            times[variant.name] += variant.steps(turn * RUN_STEPS + 1, RUN_STEPS)[SETTLE_STEPS:]
        if any(step.total_s > SLOW_STEP_S for taken in times.values() for step in taken):
            break
    return times


def _row(features: int, name: str, taken: Sequence[StepTime]) -> dict[str, Any]:
    """Return the medians of a way's steps; medians need not add up."""
    phases = {phase: f"{median(step.phases_s[phase] for step in taken):.4f}" for phase in (*PHASES, "stage")}
    keys = int(median(step.keys for step in taken))
    step_s = f"{median(step.total_s for step in taken):.4f}"
    return {"way": name, "features": features, "keys": keys, "steps": len(taken), "step s": step_s, **phases}


@dataclass(frozen=True)
class StepTime:
    """One step.

    Attributes:
        total_s: the whole step, as its driver waits for it.
        phases_s: its time by phase, in the task that took longest.
        keys: number of features in the minibatch of that task.
    """

    total_s: float
    phases_s: dict[str, float]
    keys: int


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
        return Laps(0, 0, time.monotonic(), dict.fromkeys(PHASES, 0.0))

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


class _OnServers:
    """Weights on the servers: tasks or workers pull those they need and add their gradients; then comes the update."""

    def __init__(self, name: str, ps: PS2Context, clicks: Clicks, update: Update) -> None:
        self.name, self._ps, self._clicks, self._update = name, ps, clicks, update
        weight = DCV.dense(clicks.features, 4)
        self._vectors = (weight, weight.derive(), weight.derive(), weight.derive())

    def weights(self) -> Any:
        return self._vectors[0].pull()

    def close(self) -> None:
        for vector in self._vectors:
            vector.free()


class Staged(_OnServers):
    """A stage a step."""

    def steps(self, first: int, count: int) -> list[StepTime]:
        return [self._step(number) for number in range(first, first + count)]

    def _step(self, number: int) -> StepTime:
        problem, (weight, _, _, gradients) = self._clicks.problem, self._vectors

        def work(rdd_partition: int, blocks: Iterator[LocalRows]) -> Iterator[Laps]:
            for block in blocks:
                yield _add_gradient(problem, block, weight, gradients, number, rdd_partition)

        began_s = time.monotonic()
        tasks = self._clicks.rdd.mapPartitionsWithIndex(work).collect()
        laps = _longest(tasks)
        laps.skip()
        self._update(self._ps, self._vectors, _scale(tasks), problem.lr, number)
        laps.lap("update")
        return laps.step_time(began_s)


class Staying(_OnServers):
    """One run of long-lived workers instead of a stage a step; the first step of a run includes the run's start."""

    def __init__(self, name: str, ps: PS2Context, clicks: Clicks, update: Update) -> None:
        super().__init__(name, ps, clicks, update)
        self._rows = DCV.dense(1, 1, "float64")  # of a step's minibatches, over all workers

    def steps(self, first: int, count: int) -> list[StepTime]:
        updates_s: list[tuple[float, float]] = []
        problem, counted, (weight, _, _, gradients) = self._clicks.problem, self._rows, self._vectors

        def update(number: int) -> None:
            began_s = time.monotonic()
            rows = float(counted.pull()[0])
            counted.zero()
            self._update(self._ps, self._vectors, 1.0 / rows, problem.lr, number)
            updates_s.append((began_s, time.monotonic()))

        def work(worker: Any, blocks: Iterator[LocalRows]) -> list[Laps]:
            block = next(blocks)
            taken = []
            for number in worker.clocks(first + count):
                laps = _add_gradient(problem, block, weight, gradients, number, worker.rank)
                counted.add(np.array([float(laps.rows)]))
                laps.lap("push")
                taken.append(laps)
            return taken

        began_s = time.monotonic()
        by_worker = self._ps.run(self._clicks.rdd, work, workers=problem.partitions, onClock=update, firstClock=first)
        times = []
        for (update_s, end_s), laps in zip(updates_s, zip(*by_worker, strict=True), strict=True):
            longest = _longest(laps)
            longest.phases_s["update"] = end_s - update_s
            times.append(longest.step_time(began_s, end_s))
            began_s = end_s
        return times

    def close(self) -> None:
        super().close()
        self._rows.free()


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
        Staying("PS2-Adam, ps.run", ps, clicks, _update_on_servers),
        Staying("PS-Adam, ps.run", ps, clicks, _update_in_driver),
        Staged("PS2-Adam", ps, clicks, _update_on_servers),
        Staged("PS-Adam", ps, clicks, _update_in_driver),
        SparkAdam(ps.sparkContext, clicks),
    ]


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


BENCHMARK = Benchmark("adam", Args, {"steps": steps})

if __name__ == "__main__":
    BENCHMARK.main()
