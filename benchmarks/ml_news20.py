"""news20-bigram: seconds until the objective that pyspark.ml's L-BFGS has after 50 iterations."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.frame import Check, Part, answer, tell
from benchmarks.ml_data import Data
from benchmarks.ml_fit import fit, fit_pyspark, plain, spark_and_servers, steps_to
from benchmarks.ml_part import Asked, Line
from benchmarks.ml_sets import NEWS20

ITERATIONS = 50
GOAL = 5.0
WARM_UPS = 1
# What of ours may get there first.
LBFGS: dict[str, Any] = {"solver": "l-bfgs", "tol": 0.0}
AVERAGING: dict[str, Any] = {"solver": "ma-sgd", "stepSize": 3.0}
MAX_STEPS = {"l-bfgs": 100, "ma-sgd": 12}
# For information: a training that ends so near to the optimum, relatively.
NEAR = 1e-3
# What two ways of adding the same numbers may differ by, relatively.
SAME = 1e-6


@dataclass
class _Way:
    """A training of ours to some objective.

    Attributes:
        words: which objective.
        params: with the ``maxIter`` that it takes.
        seconds: of ``fit``.
    """

    words: str
    params: dict[str, Any]
    seconds: list[float] = field(default_factory=list)

    def line(self, theirs: list[float], goal: float | None) -> Line:
        what = f"news20-bigram, LR C=1: fit to {self.words}, {self.params['solver']}, {self.params['maxIter']} steps"
        return Line(what, f"pyspark.ml, {ITERATIONS} iterations", "s", goal, theirs, self.seconds)


def measure(asked: Asked) -> Part:
    """Find the steps that each of our ways takes, then let pyspark.ml and ours take turns."""
    theirs = []
    with spark_and_servers(asked, "news20") as spark:
        data = NEWS20.load(spark, asked.data_dir)
        strength = 1.0 / data.rows
        their_params = plain(strength, maxIter=ITERATIONS, tol=0.0)
        first = fit_pyspark(data, their_params)
        target = first.objectives[-1]
        evaluated = data.objective("logistic", first.model.coefficients.toArray()[data.keys], strength)
        same = [
            _Way("the same objective", params)
            for params in (_reaching(data, way, target) for way in (LBFGS, AVERAGING))
            if params is not None
        ]
        near = _reaching(data, LBFGS, NEWS20.logistic.objective / data.rows * (1.0 + NEAR))
        beyond = [] if near is None else [_Way(f"{NEAR:.1%} of the optimum", near)]
        for round_ in range(WARM_UPS + asked.rounds):
            their_s = fit_pyspark(data, their_params).seconds
            tell(f"pyspark.ml {their_s:.2f} s")
            if round_ >= WARM_UPS:
                theirs.append(their_s)
            for way in [*same, *beyond]:
                found = fit(data, way.params)
                tell(f"{way.params['solver']} {found.seconds:.2f} s, of which steps {sum(found.step_s):.2f} s")
                if round_ >= WARM_UPS:
                    way.seconds.append(found.seconds)
    best = min(same, key=lambda way: median(way.seconds), default=None)
    lines = [way.line(theirs, GOAL if way is best else None) for way in [*same, *beyond]]
    check = Check("pyspark.ml's objective, by its own account and by ours", abs(evaluated / target - 1.0), SAME)
    facts = {"rows": data.rows, "features": data.features, "pyspark.ml's objective": round(data.rows * target, 3)}
    return Part(lines, [check], facts)


def _reaching(data: Data, way: dict[str, Any], target: float) -> dict[str, Any] | None:
    """Return params with the ``maxIter`` that gets to an objective; None: it takes too many."""
    strength = 1.0 / data.rows
    params = plain(strength, **way)
    needed = steps_to(data, params, target, MAX_STEPS[way["solver"]])
    tell(f"objective {data.rows * target:.3f}: {way['solver']} takes {needed or 'too many'} steps")
    return None if needed is None else {**params, "maxIter": needed}


if __name__ == "__main__":
    answer(Asked, measure)
