"""Linear models against pyspark.ml's: steps to the optimum, seconds to equal objectives.

docs/performance/linear.md says how to read it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks import frame
from benchmarks.frame import Benchmark, Check, Line, Part, option, take_turns, tell
from benchmarks.local_spark import spark_and_servers
from benchmarks.ml_data import A9A, NEWS20, Array, Data, Set, generate
from ps2.errors import DivergedError

Params = dict[str, Any]
# -- of the part steps
# How near to the optimum, in mean loss and penalty, as in the paper.
NEAR = 0.01
STEPS_GOAL = 20.0
# Of both, the step size that takes the fewest steps counts. Gradients are of all rows: those of fewer take more steps.
# The best come first: no way is tried for longer than the best one before took. Twice the largest diverges.
GRADIENT_STEP_SIZES = {"a9a": (2.0, 1.0, 0.5), "news20-bigram": (128.0, 64.0, 32.0)}
AVERAGING_STEP_SIZES = {"a9a": (0.01, 0.003, 0.03), "news20-bigram": (3.0, 1.0, 10.0)}
MAX_GRADIENT_STEPS = 500
MAX_AVERAGING_STEPS = 40
# -- of the part a9a: how far the objective may be above pyspark.ml's, relatively.
A9A_GAP = 1e-3
# -- of the parts news20 and large: pyspark.ml's iterations, trainings of ours that may get to its objective, and of at
# most how many steps. For information: a training that ends nearer to the optimum.
NEWS20_ITERATIONS, LARGE_ITERATIONS, NEWS20_GOAL = 50, 20, 5.0
LBFGS: Params = {"solver": "l-bfgs", "tol": 0.0}
MAX_STEPS = {"l-bfgs": 100, "ma-sgd": 20}
BEYOND, SAME = 1e-3, 1e-6
LARGE_GOALS = {10_000_000: 15.0, 60_000_000: 20.0}
# Single steps: words, params, steps of the training, and the goal at 60M features.
SINGLE: tuple[tuple[str, Params, float | None], ...] = (
    (
        "minibatch, 1% of rows",
        {"solver": "minibatch", "optimizer": "sgd", "miniBatchFraction": 0.01, "maxIter": 50},
        55.0,
    ),
    ("ma-sgd, a local pass over all rows", {"solver": "ma-sgd", "maxIter": 5}, None),
    ("l-bfgs, all rows", {**LBFGS, "maxIter": 20}, 5.0),
)


@dataclass(frozen=True)
class Args(frame.Args):
    rounds: int = option(5, "Turns that the medians are of.", least=2)
    features: tuple[int, ...] = option((1_000_000,), "Sizes of the part large.", least=1000)
    rows: int = option(200_000, "Rows of the part large.", least=1000)
    pyspark: bool = option(True, "Let pyspark.ml train in the part large, too.")
    target: float = option(0.0, "Objective to reach in the part large; default: pyspark.ml's after 20 iterations.")
    memory: str = option("6g", "Memory of Spark's JVM; pyspark.ml wants 18g for 60M features.")


def plain(strength: float, **params: Any) -> dict[str, Any]:
    """Return params for the objective that the reference values are of: no intercept, features as they are."""
    return {"regParam": strength, "fitIntercept": False, "standardization": False, **params}


@dataclass(frozen=True, eq=False)
class Fitted:
    """A model of ours.

    Attributes:
        seconds: of ``fit``.
        w: float64, shape (k,): weights at the data's keys.
        objectives: as ``model.summary`` has them.
        step_s: seconds of each step.
    """

    seconds: float
    w: Array
    objectives: tuple[float, ...]
    step_s: tuple[float, ...]


@dataclass(frozen=True)
class Reached:
    """A training of pyspark.ml's.

    Attributes:
        seconds: of ``fit``.
        objectives: before the first iteration and after each one.
        model: what came of it.
    """

    seconds: float
    objectives: tuple[float, ...]
    model: Any

    @property
    def iterations(self) -> int:
        return len(self.objectives) - 1


def fit(data: Data, params: dict[str, Any], estimator: str = "LogisticRegression", warm: bool = True) -> Fitted:
    """Train with ours.

    Args:
        warm: let Spark's Python workers train on a few rows first: Spark ends those that idle for a minute, and new
            ones begin with imports.
    """
    from ps2 import algorithms

    cls = getattr(algorithms, estimator)
    if warm:
        _free(cls(**{**params, "maxIter": 2}).fit(data.few))
    began_s = time.monotonic()
    model = cls(**params).fit(data.frame)
    seconds = time.monotonic() - began_s
    w = weights_at(model, data.keys)
    result = Fitted(seconds, w, tuple(model.summary.objectiveHistory), tuple(model.summary.stepSeconds))
    _free(model)
    return result


def fit_pyspark(data: Data, params: dict[str, Any]) -> Reached:
    """Train with pyspark.ml's L-BFGS."""
    from pyspark.ml.classification import LogisticRegression

    began_s = time.monotonic()
    model = LogisticRegression(**params).fit(data.frame)
    seconds = time.monotonic() - began_s
    return Reached(seconds, tuple(model.summary.objectiveHistory), model)


def weights_at(model: Any, keys: Array) -> Array:
    """Return a model's weights at some features, wherever it has them."""
    if _is_on_fleet(model):
        return np.asarray(model.weightVector.pull(keys), np.float64)
    return np.asarray(model.coefficients.toArray()[keys])


def steps_to(data: Data, params: dict[str, Any], target: float, most: int) -> int | None:
    """Return the smallest ``maxIter`` with which logistic regression gets to an objective; None: more than ``most``.

    Trainings that differ in ``maxIter`` alone take the same steps, and tell their objective after each one.
    """
    objectives = fit(data, {**params, "maxIter": most}).objectives
    return next((step for step, value in enumerate(objectives) if value <= target), None)


def _is_on_fleet(model: Any) -> bool:
    from ps2.algorithms.linear.model import MAX_IN_DRIVER

    return int(model.numFeatures) > MAX_IN_DRIVER


def _free(model: Any) -> None:
    if _is_on_fleet(model):
        model.weightVector.free()


# -- parts -------------------------------------------------------------------------------------------------------------


def steps(args: Args) -> Part:
    """Compare communication steps of model averaging with those of gradients of minibatches (MLlib*)."""
    lines: list[Line] = []
    facts: dict[str, Any] = {"near": NEAR}
    with spark_and_servers("ml_steps", args.memory) as (spark, _):
        for one in (A9A, NEWS20):
            data = one.load(spark, args.data_dir)
            sgd, averaging = {"solver": "minibatch", "optimizer": "sgd"}, {"solver": "ma-sgd"}
            theirs, their_steps = _fewest(
                data, one, [{**sgd, "stepSize": size} for size in GRADIENT_STEP_SIZES[one.name]], MAX_GRADIENT_STEPS
            )
            ours, our_steps = _fewest(
                data,
                one,
                [{**averaging, "stepSize": size} for size in AVERAGING_STEP_SIZES[one.name]],
                MAX_AVERAGING_STEPS,
            )
            facts |= {
                f"{one.name}, {variant['solver']}": f"step size {variant['stepSize']:g}" for variant in (theirs, ours)
            }
            what = f"{one.name}: ma-sgd to within {NEAR} of the optimum"
            sides = [float(their_steps)], [float(our_steps)]
            lines.append(Line(what, "gradients of minibatches, sgd", "steps", STEPS_GOAL, *sides))
    return Part(lines, facts=facts)


def _fewest(data: Data, one: Set, ways: Sequence[Params], most: int) -> tuple[Params, float]:
    """Return the way that takes the fewest steps, and how many; infinite if none gets there within ``most``."""
    strength, target = 1.0 / data.rows, one.logistic.objective / data.rows + NEAR
    chosen, fewest = ways[0], math.inf
    for variant in ways:
        try:
            steps = steps_to(data, plain(strength, **variant), target, int(min(most, fewest)))
        except DivergedError as error:
            tell(f"{one.name}: {variant}: {error}")
            continue
        tell(f"{one.name}: {variant}: {steps or 'too many'} steps")
        if steps is not None and steps < fewest:
            chosen, fewest = variant, steps
    return chosen, fewest


def a9a(args: Args) -> Part:
    """Compare seconds of ``fit`` with default params: maxIter 100, tol 1e-6, no penalty, an intercept."""
    variants: Mapping[str, Callable[[], Any]]
    with spark_and_servers("ml_a9a", args.memory) as (spark, _):
        data = A9A.load(spark, args.data_dir)
        variants = {"pyspark.ml": lambda: fit_pyspark(data, {}), "ours": lambda: fit(data, {})}
        turns = take_turns(variants, args.rounds, warm_ups=3)
    gap = turns["ours"][-1].objectives[-1] / turns["pyspark.ml"][-1].objectives[-1] - 1.0
    theirs, ours = ([one.seconds for one in taken] for taken in turns.values())
    line = Line("a9a: fit with default params", "pyspark.ml", "s", 1.0, theirs, ours)
    return Part([line], [Check("a9a: final objective above pyspark.ml's", gap, A9A_GAP)])


def news20(args: Args) -> Part:
    """Compare seconds until the objective that pyspark.ml's L-BFGS has after 50 iterations."""
    with spark_and_servers("ml_news20", args.memory) as (spark, _):
        data = NEWS20.load(spark, args.data_dir)
        strength = 1.0 / data.rows
        their_params = plain(strength, maxIter=NEWS20_ITERATIONS, tol=0.0)
        first = fit_pyspark(data, their_params)
        target = first.objectives[-1]
        evaluated = data.objective("logistic", first.model.coefficients.toArray()[data.keys], strength)
        near = NEWS20.logistic.objective / data.rows * (1.0 + BEYOND)
        ours = {
            **_reaching(data, (LBFGS, {"solver": "ma-sgd", "stepSize": 3.0}), target, "the same objective"),
            **_reaching(data, (LBFGS,), near, f"{BEYOND:.1%} of the optimum"),
        }
        variants: dict[str, Callable[[], float]] = {"pyspark.ml": lambda: fit_pyspark(data, their_params).seconds}
        variants |= {words: partial(_fit_s, data, params) for words, params in ours.items()}
        turns = take_turns(variants, args.rounds)
    lines = _lines("news20-bigram", f"pyspark.ml, {NEWS20_ITERATIONS} iterations", turns, NEWS20_GOAL)
    check = Check("pyspark.ml's objective, by its own account and by ours", abs(evaluated / target - 1.0), SAME)
    return Part(lines, [check], {"rows": data.rows, "pyspark.ml's objective": data.rows * target})


def large(args: Args) -> Part:
    """Compare many features: seconds to pyspark.ml's objective after 20 iterations, and seconds of single steps."""
    lines: list[Line] = []
    facts: dict[str, Any] = {}
    with spark_and_servers("ml_large", args.memory) as (spark, _):
        for features in args.features:
            data = generate(spark, args.rows, features)
            strength = 1.0 / data.rows
            facts[f"of {features:,} features used"] = len(data.keys)
            turns: dict[str, list[float]] = {}
            iteration_s = None
            if args.pyspark:
                fit_pyspark(data, plain(strength, maxIter=1, tol=0.0))  # its JVM compiles it
                few, many = (fit_pyspark(data, plain(strength, maxIter=n, tol=0.0)) for n in (1, LARGE_ITERATIONS))
                iteration_s = (many.seconds - few.seconds) / (many.iterations - few.iterations)
                turns, target = {"pyspark.ml": [many.seconds]}, many.objectives[-1]
            else:
                target = args.target or fit(data, plain(strength, **LBFGS, maxIter=LARGE_ITERATIONS)).objectives[-1]
            ours = _reaching(data, ({"solver": "ma-sgd", "stepSize": 0.3}, LBFGS), target, f"objective {target:.6f}")
            turns |= take_turns(
                {words: partial(_fit_s, data, params) for words, params in ours.items()}, args.rounds, warm_ups=0
            )
            if iteration_s is not None:
                against = f"pyspark.ml, {LARGE_ITERATIONS} iterations"
                lines += _lines(f"{features:,} features", against, turns, LARGE_GOALS.get(features))
            for words, params, goal in SINGLE:
                step_s = list(fit(data, plain(strength, **params)).step_s[1:])
                tell(f"{words}: {1e3 * median(step_s):.1f} ms a step")
                if iteration_s is not None:
                    what, goal = (
                        f"{features:,} features: a step of {words}",
                        goal if features == max(LARGE_GOALS) else None,
                    )
                    lines.append(Line(what, "an iteration of pyspark.ml", "s", goal, [iteration_s], step_s))
            data.frame.unpersist()
            data.few.unpersist()
    return Part(lines, facts=facts)


def _reaching(data: Data, ways: Sequence[Params], target: float, words: str) -> dict[str, Params]:
    """Return the trainings that get to an objective, by words, with the ``maxIter`` that they take."""
    result = {}
    for variant in ways:
        params = plain(1.0 / data.rows, **variant)
        needed = steps_to(data, params, target, MAX_STEPS[variant["solver"]])
        tell(f"objective {target:.6f}: {variant['solver']} takes {needed or 'too many'} steps")
        if needed is not None:
            result[f"fit to {words}, {variant['solver']}, {needed} steps"] = {**params, "maxIter": needed}
    return result


def _fit_s(data: Data, params: Params) -> float:
    return fit(data, params).seconds


def _lines(what: str, against: str, turns: dict[str, list[float]], goal: float | None) -> list[Line]:
    """Compare ours with pyspark.ml; the fastest of ours has the goal."""
    theirs = turns.pop("pyspark.ml")
    best = min(turns, key=lambda words: median(turns[words]), default="")
    return [
        Line(f"{what}: {words}", against, "s", goal if words == best else None, theirs, seconds)
        for words, seconds in turns.items()
    ]


FILES = {"a9a": "a9a.libsvm.gz and a9a.t.libsvm.gz", "news20": "news20-bigram.train.libsvm.gz and .test.libsvm.gz"}
FILES["steps"] = f"{FILES['a9a']}, {FILES['news20']}"
PARTS = {"steps": steps, "a9a": a9a, "news20": news20, "large": large}
BENCHMARK = Benchmark("ml", Args, PARTS, FILES)

if __name__ == "__main__":
    BENCHMARK.main()
