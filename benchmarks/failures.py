"""Logistic regression whose tasks fail with probability 0, 0.01 and 0.1 (paper, section 6.5, Figure 13(c)).

    python -m benchmarks.failures --steps 60

docs/performance/failures.md says what is measured and how to read it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

import click
import numpy as np
import pyspark

from benchmarks.clicks import Clicks, Problem
from benchmarks.frame import command, facts, machine, publish
from benchmarks.local_spark import start_spark
from benchmarks.mishaps import Done, Training
from ps2 import PS2Context
from ps2.cli.output import print_table
from ps2.text_tables import Column

SERVERS = 2
# Each probability, with the goal for its time over that of probability 0, and the paper's value.
PROBABILITIES: tuple[tuple[float, float, float], ...] = ((0.0, 1.0, 1.0), (0.01, 1.15, 74 / 66), (0.1, 1.5, 127 / 66))
ATTEMPTS = 8
# Share of a task's rows that a step uses: tasks are long enough that Spark's overhead does not dominate a retry.
FRACTION = 0.5
FIRST_STEPS = 10
# Number of steps that each training takes in one run.
BLOCK_STEPS = 5
# Tolerance relative to the largest weight, for another order of additions in float64.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Line:
    """One training.

    Attributes:
        probability: with which an attempt of a task fails.
        seconds: of all steps.
        ratio: ``seconds`` over those of probability 0.
        spread: quartiles of the ratios of the single runs.
        goal: maximum of the ratio.
        paper: the ratio in the paper.
        tasks: number of tasks, without failed attempts.
        failed: number of failed attempts.
        difference: largest difference of a weight from probability 0, over the largest weight.
    """

    probability: float
    seconds: float
    ratio: float
    spread: tuple[float, float]
    goal: float
    paper: float
    tasks: int
    failed: int
    difference: float


@dataclass
class _Run:
    """A training in progress, with its runs so far."""

    training: Training
    stretches: list[list[Done]] = field(default_factory=list)

    def take(self, first: int) -> None:
        self.stretches.append([self.training.step(number) for number in range(first, first + BLOCK_STEPS)])

    def stretches_s(self) -> list[float]:
        return [sum(step.seconds for step in stretch) for stretch in self.stretches]

    def failed(self) -> int:
        return sum(step.failed for stretch in self.stretches for step in stretch)


@command(
    click.option("--steps", type=click.IntRange(2 * BLOCK_STEPS), default=60, help="Steps of each training, in fives."),
    click.option("--features", type=click.IntRange(100), default=1_000_000, help="Of the data set."),
    click.option("--rows", type=click.IntRange(100), default=640_000, help="Of the data set."),
    click.option("--tasks", type=click.IntRange(1), default=16, help="Of a step."),
    click.option("--seed", type=click.IntRange(0), default=Problem.seed, help="Of data, sampling and failures."),
    click.option("--preload/--no-preload", default=True, help="Import modules before workers are forked, or in each."),
    click.option("--strict", is_flag=True, help="Exit with 1 if a goal is missed, too."),
)
def main(
    steps: int,
    features: int,
    rows: int,
    tasks: int,
    seed: int,
    preload: bool,
    strict: bool,
    form: str,
    output: Path | None,
) -> None:
    """Train with failing tasks; exit with 1 if the weights differ from those without failures."""
    problem = Problem(rows=rows, fraction=FRACTION, seed=seed, partitions=tasks)
    settings = {"spark.driver.memory": "4g"} | ({"spark.python.daemon.module": "ps2.run.daemon"} if preload else {})
    spark = start_spark(f"local[2,{ATTEMPTS}]", "benchmarks.failures", settings)
    try:
        with PS2Context.getOrCreate(spark, servers=SERVERS) as ps:
            click.echo(f"{steps // BLOCK_STEPS} stretches of {BLOCK_STEPS} steps", err=True)
            lines = _measure(ps, Clicks.make(spark.sparkContext, problem, features), steps // BLOCK_STEPS)
    finally:
        spark.stop()
    agrees = all(line.difference <= TOLERANCE for line in lines)
    report: dict[str, Any] = {
        "machine": machine(pyspark=pyspark.__version__),
        "problem": {**asdict(problem), "features": features, "preload": preload},
        "tolerance": TOLERANCE,
        "agrees": agrees,
        "lines": [asdict(line) for line in lines],
    }
    publish(report, form, output, lambda: _print(report, lines))
    sys.exit(0 if agrees and not (strict and any(line.ratio > line.goal for line in lines)) else 1)


def _measure(ps: PS2Context, clicks: Clicks, stretches: int) -> list[Line]:
    """Let the trainings alternate, so that other load on the machine affects all alike."""
    warm_up = Training(ps, clicks, 0.1)
    for number in range(1, FIRST_STEPS + 1):
        warm_up.step(number)
    warm_up.close()
    runs = [_Run(Training(ps, clicks, probability)) for probability, _, _ in PROBABILITIES]
    for round_ in range(stretches):
        for at in range(len(runs)):
            runs[(round_ + at) % len(runs)].take(round_ * BLOCK_STEPS + 1)
    return _lines(runs, stretches * BLOCK_STEPS * clicks.problem.partitions)


def _lines(runs: Sequence[_Run], tasks: int) -> list[Line]:
    without_s, without = runs[0].stretches_s(), runs[0].training.weights()
    lines = []
    for run, (probability, goal, paper) in zip(runs, PROBABILITIES, strict=True):
        taken_s = run.stretches_s()
        low, _, high = quantiles(mine / other for mine, other in zip(taken_s, without_s, strict=True))
        difference = np.max(np.abs(run.training.weights() - without)) / np.max(np.abs(without))
        ratio = sum(taken_s) / sum(without_s)
        lines.append(
            Line(probability, sum(taken_s), ratio, (low, high), goal, paper, tasks, run.failed(), float(difference))
        )
    return lines


def _print(report: dict[str, Any], lines: Sequence[Line]) -> None:
    click.echo(facts(report["machine"]))
    click.echo(facts(report["problem"]) + "\n")
    titles = ("probability", "seconds", "ratio", "spread", "goal", "paper", "tasks", "failed", "difference")
    rows = [
        (
            f"{line.probability:g}",
            f"{line.seconds:.2f}",
            f"{line.ratio:.2f}",
            "{:.2f}-{:.2f}".format(*line.spread),
            f"{line.goal:g}",
            f"{line.paper:.2f}",
            str(line.tasks),
            str(line.failed),
            f"{line.difference:.1e}",
            "met" if line.ratio <= line.goal else "MISSED",
        )
        for line in lines
    ]
    print_table([*(Column(title, right=True) for title in titles), Column("")], rows)
    click.echo(f"\n{'the same weights' if report['agrees'] else 'DIFFERENT WEIGHTS'} ({TOLERANCE:g} may)")


if __name__ == "__main__":
    main()
