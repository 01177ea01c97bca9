"""Logistic regression with Adam: PS2-Adam against PS-Adam and Spark-Adam (paper, section 6.2.1, Figure 9(a)).

    python -m benchmarks.adam --features 40000,1000000 --steps 12

docs/performance/linear.md says what is measured and how to read it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
import pyspark

from benchmarks.adam_report import Crossing, Report, SizeReport, StepTime, print_report, summarise
from benchmarks.clicks import Clicks, Problem
from benchmarks.frame import command, machine, publish, read_numbers
from benchmarks.local_spark import start_spark
from benchmarks.ways import Way, all_ways
from ps2 import PS2Context

SERVERS = 2
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
LOSSES = (0.6, 0.5, 0.4, 0.3, 0.2)
MAX_CONVERGENCE_STEPS = 150
CONVERGENCE_ROUNDS = 3


@command(
    click.option(
        "--features", default="40000,1000000,10000000", metavar="N,...", help="Numbers of features to measure."
    ),
    click.option("--steps", type=click.IntRange(1), default=12, help="Steps that the medians are of, in fours."),
    click.option("--convergence", type=click.IntRange(0), default=1_000_000, metavar="N", help="Features; 0: none."),
    click.option("--rows", type=click.IntRange(100), default=Problem.rows, help="Rows of the data set."),
)
def main(features: str, steps: int, convergence: int, rows: int, form: str, output: Path | None) -> None:
    """Compare ways of training logistic regression with Adam; exit with 1 if their weights differ."""
    sizes = read_numbers(features)
    problem = Problem(rows=rows)
    spark = _spark()
    try:
        with PS2Context.getOrCreate(spark, servers=SERVERS) as ps:
            click.echo(f"warming up, then {steps} steps at {features} features", err=True)
            _warm_up(ps, problem, min(sizes))
            measured = _measure(ps, problem, sizes, steps)
            click.echo(f"training until the loss is {min(LOSSES)}", err=True)
            crossings = _converge(ps, problem, convergence) if convergence else ()
    finally:
        spark.stop()
    report = Report(machine(pyspark=pyspark.__version__), asdict(problem), TOLERANCE, measured, convergence, crossings)
    publish(report.as_json(), form, output, lambda: print_report(report))
    sys.exit(0 if report.agrees else 1)


class _Contest:
    """All ways at one size, from step 1."""

    def __init__(self, ps: PS2Context, clicks: Clicks) -> None:
        self.features = clicks.features
        self.ways = all_ways(ps, clicks)
        self.times: dict[str, list[StepTime]] = {way.name: [] for way in self.ways}

    def run(self, round_: int, first: int, count: int) -> dict[str, list[StepTime]]:
        """Let each way take steps ``first`` to ``first + count - 1`` in one run; each round begins with another way."""
        at = round_ % len(self.ways)
        turn = [*self.ways[at:], *self.ways[:at]]
        return {way.name: way.steps(first, count) for way in turn}

    def measure(self, round_: int) -> None:
        for name, taken in self.run(round_, round_ * RUN_STEPS + 1, RUN_STEPS).items():
            self.times[name] += taken[SETTLE_STEPS:]

    def is_slow(self) -> bool:
        return any(step.total_s > SLOW_STEP_S for taken in self.times.values() for step in taken)

    def report(self) -> SizeReport:
        first = self.ways[0].weights()
        differences = {way.name: float(np.max(np.abs(way.weights() - first))) for way in self.ways}
        return summarise(self.features, self.times, differences)

    def close(self) -> None:
        for way in self.ways:
            way.close()


def _measure(ps: PS2Context, problem: Problem, sizes: Sequence[int], steps: int) -> tuple[SizeReport, ...]:
    """Measure all ways at all sizes in rounds, so that other load on the machine affects all alike."""
    data = [Clicks.make(ps.sparkContext, problem, features) for features in sizes]
    contests = [_Contest(ps, clicks) for clicks in data]
    for round_ in range(math.ceil(steps / COUNTED_STEPS)):
        for contest in contests:
            if not contest.is_slow():
                contest.measure(round_)
    reports = tuple(contest.report() for contest in contests)
    for contest, clicks in zip(contests, data, strict=True):
        contest.close()
        clicks.rdd.unpersist()
    return reports


def _warm_up(ps: PS2Context, problem: Problem, features: int) -> None:
    clicks = Clicks.make(ps.sparkContext, problem, features)
    contest = _Contest(ps, clicks)
    contest.run(0, 1, FIRST_STEPS)
    contest.close()
    clicks.rdd.unpersist()


def _converge(ps: PS2Context, problem: Problem, features: int) -> tuple[Crossing, ...]:
    """Find the steps that each loss takes, then time that many steps without the pauses of the search."""
    clicks = Clicks.make(ps.sparkContext, problem, features)
    needed = {way.name: _steps_to(way, clicks) for way in all_ways(ps, clicks)}
    count = max(max(step or MAX_CONVERGENCE_STEPS for step in steps.values()) for steps in needed.values())
    elapsed_s: dict[str, list[list[float]]] = {name: [] for name in needed}
    for round_ in range(CONVERGENCE_ROUNDS):
        contest = _Contest(ps, clicks)
        for name, taken in contest.run(round_, 1, count).items():
            elapsed_s[name].append(list(accumulate(step.total_s for step in taken)))
        contest.close()
    clicks.rdd.unpersist()

    def seconds(name: str, step: int | None) -> float | None:
        return None if step is None else median(run[step - 1] for run in elapsed_s[name])

    return tuple(
        Crossing(
            loss,
            {name: steps[loss] for name, steps in needed.items()},
            {name: seconds(name, steps[loss]) for name, steps in needed.items()},
        )
        for loss in LOSSES
    )


def _steps_to(way: Way, clicks: Clicks) -> dict[float, int | None]:
    """Train until the lowest of ``LOSSES``; return the number of steps after which each loss was first reached."""
    found: dict[float, int | None] = dict.fromkeys(LOSSES)
    for number in range(1, MAX_CONVERGENCE_STEPS + 1):
        way.steps(number, 1)
        now = clicks.loss(way.weights())
        for loss in LOSSES:
            if now <= loss and found[loss] is None:
                found[loss] = number
        if None not in found.values():
            break
    way.close()
    return found


def _spark() -> Any:
    # Whole gradients of Spark-Adam pass through the driver's JVM.
    return start_spark("local[2]", "benchmarks.adam", {"spark.driver.memory": "8g", "spark.driver.maxResultSize": "4g"})


if __name__ == "__main__":
    main()
