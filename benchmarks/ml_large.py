"""Many features: seconds to pyspark.ml's objective after 20 iterations of L-BFGS, and seconds of single steps."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.frame import Part, answer, tell
from benchmarks.ml_data import Data, generate
from benchmarks.ml_fit import Reached, fit, fit_pyspark, plain, spark_and_servers, steps_to
from benchmarks.ml_part import Asked, Line

ITERATIONS = 20
# From here on the goal is the larger one.
HUGE = 60_000_000
GOALS = {10_000_000: 15.0, HUGE: 20.0}
STEP_GOALS = {"step": 55.0, "iteration": 5.0}
# What of ours may get there first, of at most as many passes over the rows.
WAYS: tuple[dict[str, Any], ...] = (
    {"solver": "ma-sgd", "stepSize": 0.3},
    {"solver": "l-bfgs", "tol": 0.0},
)
MAX_STEPS = 20
STEPS = {"ma-sgd": 5, "minibatch": 50, "l-bfgs": 20}
FRACTION = 0.01


@dataclass(frozen=True)
class _Theirs:
    """What pyspark.ml took: a training of 20 iterations, and one of them."""

    fit_s: float
    iteration_s: float


def measure(asked: Asked) -> Part:
    lines: list[Line] = []
    facts: dict[str, Any] = {"rows": asked.rows}
    with spark_and_servers(asked, "large") as spark:
        for features in asked.features:
            data = generate(spark, asked.rows, features)
            tell(f"{features:,} features, of which the rows use {len(data.keys):,}")
            facts[f"of {features:,} features used"] = f"{len(data.keys):,}"
            theirs, target = _pyspark(data, asked)
            lines += _contest(data, asked.rounds, theirs, target) + _steps(data, theirs)
            data.frame.unpersist()
            data.few.unpersist()
    return Part(lines, facts=facts)


def _pyspark(data: Data, asked: Asked) -> tuple[_Theirs | None, float]:
    """Return what pyspark.ml takes, and its objective; without it, the one asked for, or that of ours after 20."""
    strength = 1.0 / data.rows
    if not asked.pyspark:
        if asked.target is not None:
            return None, asked.target
        own = fit(data, plain(strength, solver="l-bfgs", tol=0.0, maxIter=ITERATIONS))
        return None, own.objectives[-1]

    def train(iterations: int) -> Reached:
        found = fit_pyspark(data, plain(strength, maxIter=iterations, tol=0.0))
        tell(f"pyspark.ml: {found.iterations} iterations, {found.seconds:.2f} s, {found.objectives[-1]:.6f}")
        return found

    train(1)  # its JVM compiles it
    few, many = train(1), train(ITERATIONS)
    iteration_s = (many.seconds - few.seconds) / (many.iterations - few.iterations)
    return _Theirs(many.seconds, iteration_s), many.objectives[-1]


def _contest(data: Data, rounds: int, theirs: _Theirs | None, target: float) -> list[Line]:
    """Time each of our ways to the objective."""
    strength = 1.0 / data.rows
    taken: dict[str, list[float]] = {}
    steps: dict[str, int] = {}
    for way in WAYS:
        solver = way["solver"]
        needed = steps_to(data, plain(strength, **way), target, MAX_STEPS)
        tell(f"objective {target:.6f}: {solver} takes {needed or 'too many'} steps")
        if needed is None:
            continue
        steps[solver], taken[solver] = needed, []
        for _ in range(rounds):
            found = fit(data, plain(strength, **way, maxIter=needed))
            tell(f"{solver}: {found.seconds:.2f} s, of which steps {sum(found.step_s):.2f} s")
            taken[solver].append(found.seconds)
    if theirs is None or not taken:
        return []
    best = min(taken, key=lambda solver: median(taken[solver]))
    goal = GOALS.get(data.features)
    return [
        Line(
            f"{data.features:,} features: fit to the same objective, {solver}, {steps[solver]} steps",
            f"pyspark.ml, {ITERATIONS} iterations",
            "s",
            goal if solver == best else None,
            [theirs.fit_s],
            seconds,
        )
        for solver, seconds in taken.items()
    ]


def _steps(data: Data, theirs: _Theirs | None) -> list[Line]:
    """Time single steps of each kind; the first one of a training does not count."""
    strength = 1.0 / data.rows
    lines = []
    ways: tuple[tuple[dict[str, Any], str, str | None], ...] = (
        ({"solver": "minibatch", "optimizer": "sgd", "miniBatchFraction": FRACTION}, f"{FRACTION:.0%} of rows", "step"),
        ({"solver": "ma-sgd"}, "a local pass over all rows", None),
        ({"solver": "l-bfgs", "tol": 0.0}, "all rows", "iteration"),
    )
    for way, words, kind in ways:
        found = fit(data, plain(strength, **way, maxIter=STEPS[way["solver"]]))
        step_s = found.step_s[1:]
        tell(f"{way['solver']}, {words}: {1e3 * median(step_s):.1f} ms a step")
        if theirs is None:
            continue
        goal = STEP_GOALS[kind] if kind is not None and data.features == HUGE else None
        what = f"{data.features:,} features: a step of {way['solver']}, {words}"
        lines.append(Line(what, "an iteration of pyspark.ml", "s", goal, [theirs.iteration_s], list(step_s)))
    return lines


if __name__ == "__main__":
    answer(Asked, measure)
