"""FTSGD's experiments (Zhang et al., Figures 2, 3 and 5 to 9, 11): local iterations against MLlib's SGD.

The rows are those of MLlib's own ``LinearDataGenerator``, as in the paper. MLlib's SGD runs in Spark's JVM on rows that
the JVM holds in memory. ``localSearch="never"`` takes the same steps, so its history has MLlib's error after each one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from benchmarks.frame import Check, Part, answer, tell
from benchmarks.local_spark import local_spark
from benchmarks.ml_ftsgd_data import SLOTS, Points, linear_points
from benchmarks.ml_part import Asked, Line
from ps2 import PS2Context
from ps2.algorithms import LinearRegression

FEATURES, PARTITIONS, NOISE = 100, 2, 0.1
# As in the paper: iterations of MLlib's SGD, and the learning rate of both.
ITERATIONS, RATE = 15, 1.0
COUNTS, LOCAL = (2, 3, 4, 5, 6), 5
MLLIB = "Algorithm 1 (MLlib's SGD)"
# Of the paper: Algorithm 2 at the size of Figure 3; FTSGD at two sizes of Figure 7.
GOAL_OF_LOCAL, GOALS_OF_SIZES = 6.5, (4.3, 3.6)
SAME = 1e-6


@dataclass(frozen=True)
class Fitted:
    """A training of ours.

    Attributes:
        seconds: of ``fit``.
        step_s: of its steps.
        mse: before the first step and after each one, of all rows.
        w: weights.
    """

    seconds: float
    step_s: float
    mse: tuple[float, ...]
    w: Any

    def first(self, target: float) -> int | None:
        """Return the first step whose model has no larger error."""
        return next((step for step, value in enumerate(self.mse) if value <= target), None)


def fit(points: Points, **params: Any) -> Fitted:
    """Train by FTSGD, without penalty and intercept."""
    plain: dict[str, Any] = {"solver": "ftsgd", "regParam": 0.0, "fitIntercept": False, "standardization": False}
    estimator = LinearRegression(**plain, **{"stepSize": RATE, "numWorkers": points.partitions, **params})
    began_s = time.monotonic()
    model = estimator.fit(points.frame)
    seconds = time.monotonic() - began_s
    summary = model.summary
    mse = tuple(2.0 * value for value in summary.objectiveHistory)
    return Fitted(seconds, sum(summary.stepSeconds), mse, model.coefficients.toArray())


def measure(asked: Asked) -> Part:
    lines: list[Line] = []
    checks: list[Check] = []
    with (
        local_spark("ml_ftsgd", SLOTS, asked.memory, {"spark.python.daemon.module": "ps2.run.daemon"}) as spark,
        PS2Context.getOrCreate(spark, servers=2),
    ):
        sizes: list[dict[str, Any]] = []
        with linear_points(spark, asked.rows, FEATURES, NOISE, PARTITIONS) as points:
            found = _local_iterations(points)
            sizes += [_row("2, 3, 6", what, one, (1, 2, 5, 10, 15)) for what, one in found.items()]
            sizes += _rates(points) + _fractions(points)
            checks.append(_same_as_mllib(points, found[MLLIB]))  # it also lets the JVM compile MLlib's code
            lines.append(_best_of_local(points, found, asked.rounds))
        sizes += _noises(spark, asked.rows // 4) + _partitions(spark, asked.rows)
        for rows, goal in zip((asked.rows // 2, asked.rows), GOALS_OF_SIZES, strict=True):
            with linear_points(spark, rows, FEATURES, NOISE, PARTITIONS) as points:
                lines += _ftsgd_against_mllib(points, asked.rounds, goal)
    facts = {"rows": asked.rows, "features": FEATURES, "MLlib": f"{ITERATIONS} iterations at rate {RATE:g}"}
    return Part(lines, checks, facts, sizes)


def _row(figure: str, what: str, found: Fitted, steps: Sequence[int]) -> dict[str, Any]:
    """Return a row of the table: errors after some steps, and the seconds of a step."""
    errors = " ".join(f"{found.mse[min(step, len(found.mse) - 1)]:.4g}" for step in steps)
    row = {
        "figure": figure,
        "what": what,
        "steps": " ".join(map(str, steps)),
        "MSE": errors,
        "s a step": f"{found.step_s / max(1, len(found.mse) - 1):.3f}",
    }
    tell(", ".join(f"{name} {value}" for name, value in row.items()))
    return row


# -- against MLlib -----------------------------------------------------------------------------------------------------


def _same_as_mllib(points: Points, ours: Fitted) -> Check:
    theirs = points.mllib(ITERATIONS, RATE).w
    gap = float(np.linalg.norm(ours.w - theirs) / np.linalg.norm(theirs))
    return Check("localSearch='never': weights apart from MLlib's", gap, SAME)


def _best_of_local(points: Points, found: dict[str, Fitted], rounds: int) -> Line:
    """Figure 3: Algorithm 2 to the error of MLlib's 15 iterations, by the number of local iterations that is best."""
    target = found[MLLIB].mse[-1]
    steps = {count: found[f"Algorithm 2, {count} local"].first(target) or ITERATIONS for count in COUNTS}
    # A step of n local iterations computes about n gradients.
    best = min(COUNTS, key=lambda count: (count * steps[count], steps[count]))
    asked = {"adaptiveMomentum": False, "localSteps": best, "maxIter": steps[best]}
    theirs, ours = [], []
    for _ in range(rounds):
        theirs.append(points.mllib(ITERATIONS, RATE).seconds)
        ours.append(fit(points, **asked).step_s)
    what = f"Figure 3: to MSE {target:.4g}, Algorithm 2, {steps[best]} steps of {best} local iterations"
    return Line(what, "MLlib's SGD, 15 iterations", "s", GOAL_OF_LOCAL, theirs, ours)


def _ftsgd_against_mllib(points: Points, rounds: int, goal: float) -> list[Line]:
    """Figure 7: Algorithm 3 to the error of MLlib's 15 iterations; steps alone, and the whole call."""
    target = fit(points, maxIter=ITERATIONS, localSearch="never").mse[-1]
    steps = fit(points, maxIter=ITERATIONS, localSteps=LOCAL).first(target) or ITERATIONS
    sides: dict[str, list[float]] = {"theirs": [], "ours": [], "their call": [], "our call": []}
    for _ in range(rounds):
        sides["theirs"].append(points.mllib(ITERATIONS, RATE).seconds)
        found = fit(points, maxIter=steps, localSteps=LOCAL)
        sides["ours"].append(found.step_s)
        sides["our call"].append(found.seconds)
        sides["their call"].append(points.mllib_call_s(ITERATIONS, RATE))
    tell(f"{points.rows} rows: {steps} steps, medians { ({name: median(side) for name, side in sides.items()}) }")
    what = f"Figure 7: {points.rows:,} rows, FTSGD to the same MSE, {steps} steps"
    return [
        Line(what, "MLlib's SGD, 15 iterations", "s", goal, sides["theirs"], sides["ours"]),
        Line(f"{what}: fit", "pyspark.mllib's train", "s", None, sides["their call"], sides["our call"]),
    ]


# -- by local iterations, rates, fractions, noise, workers -------------------------------------------------------------


def _local_iterations(points: Points) -> dict[str, Fitted]:
    """Figures 2, 3 and 6: Algorithm 2 by the number of local iterations, and Algorithm 3."""
    found = {MLLIB: fit(points, maxIter=ITERATIONS, localSearch="never")}
    for count in COUNTS:
        name = f"Algorithm 2, {count} local"
        found[name] = fit(points, maxIter=ITERATIONS, adaptiveMomentum=False, localSteps=count)
    return {**found, f"Algorithm 3, {LOCAL} local": fit(points, maxIter=ITERATIONS, localSteps=LOCAL)}


def _rates(points: Points) -> list[dict[str, Any]]:
    return [
        _row("8", f"Algorithm 3, rate {rate:g}", fit(points, maxIter=15, stepSize=rate), (1, 2, 5, 10, 15))
        for rate in (0.01, 0.1, 0.5, 1.0, 10.0)
    ]


def _fractions(points: Points) -> list[dict[str, Any]]:
    return [
        _row("9", f"Algorithm 3, fraction {part:g}", fit(points, maxIter=10, miniBatchFraction=part), (1, 2, 5, 10))
        for part in (0.2, 0.4, 0.6, 0.8, 1.0)
    ]


def _noises(spark: Any, rows: int) -> list[dict[str, Any]]:
    made = []
    for noise in (0.1, 0.2, 0.5):
        with linear_points(spark, rows, FEATURES, noise, PARTITIONS) as points:
            found = fit(points, maxIter=15, adaptiveMomentum=False, localSteps=3)
            made.append(_row("5", f"Algorithm 2, 3 local, scaling factor {noise:g}", found, (1, 2, 5, 10, 15)))
    return made


def _partitions(spark: Any, rows: int) -> list[dict[str, Any]]:
    made = []
    for partitions in (1, 2, 4, 8):
        with linear_points(spark, rows, FEATURES, NOISE, partitions) as points:
            found = fit(points, maxIter=10)
            made.append(_row("11", f"Algorithm 3, {partitions} workers", found, (1, 2, 5, 10)))
    return made


if __name__ == "__main__":
    answer(Asked, measure)
