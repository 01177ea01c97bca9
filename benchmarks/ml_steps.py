"""Communication steps to the optimum: model averaging against gradients of minibatches (MLlib*, Zhang et al. 2019)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.frame import Part, answer, tell
from benchmarks.ml_data import Data
from benchmarks.ml_fit import Array, fit, plain, spark_and_servers
from benchmarks.ml_part import Asked, Line
from benchmarks.ml_sets import A9A, NEWS20, Set
from ps2.errors import DivergedError

# How near to the optimum, in mean loss and penalty, as in the paper.
NEAR = 0.01
GOAL = 20.0
# Of both, the step size that takes the fewest steps counts. Gradients are of all rows: those of fewer take more steps.
# The best come first: no way is tried for longer than the best one before took. Twice the largest diverges.
GRADIENT_STEP_SIZES = {"a9a": (2.0, 1.0, 0.5), "news20-bigram": (128.0, 64.0, 32.0)}
AVERAGING_STEP_SIZES = {"a9a": (0.01, 0.003, 0.03), "news20-bigram": (3.0, 1.0, 10.0)}
MAX_GRADIENT_STEPS = 500
MAX_AVERAGING_STEPS = 40


def measure(asked: Asked) -> Part:
    lines: list[Line] = []
    facts: dict[str, Any] = {"near": NEAR}
    with spark_and_servers(asked, "steps") as spark:
        for one in (A9A, NEWS20):
            data = one.load(spark, asked.data_dir)
            search = _Search(data, one)
            gradients = [
                {"solver": "minibatch", "optimizer": "sgd", "stepSize": size} for size in GRADIENT_STEP_SIZES[one.name]
            ]
            averaging = [{"solver": "ma-sgd", "stepSize": size} for size in AVERAGING_STEP_SIZES[one.name]]
            theirs, their_steps = search.best(gradients, MAX_GRADIENT_STEPS)
            ours, our_steps = search.best(averaging, MAX_AVERAGING_STEPS)
            facts |= {f"{one.name}, {way['solver']}": f"step size {way['stepSize']:g}" for way in (theirs, ours)}
            lines.append(
                Line(
                    f"{one.name}: ma-sgd to within {NEAR} of the optimum",
                    "gradients of minibatches, sgd",
                    "steps",
                    GOAL,
                    [float(their_steps)],
                    [float(our_steps)],
                )
            )
            data.frame.unpersist()
    return Part(lines, facts=facts)


class _Search:
    """Steps that ways of training take on one data set."""

    def __init__(self, data: Data, one: Set) -> None:
        self._data = data
        self._name = one.name
        self._strength = 1.0 / data.rows
        self._target = one.logistic.objective / data.rows + NEAR

    def best(self, ways: list[dict[str, Any]], most: int) -> tuple[dict[str, Any], float]:
        """Return the way that takes the fewest steps, and how many; infinite if none gets there within ``most``.

        The objectives that each step told say when a training may be near enough; those of minibatches are estimates.
        For the best of the ways, models of so many steps, or some more, decide.
        """
        chosen, fewest = ways[0], math.inf
        for way in ways:
            steps = self._first(way, int(min(most, fewest)))
            tell(f"{self._name}: {way}: {steps or 'too many'} steps by its own account")
            if steps is not None and steps < fewest:
                chosen, fewest = way, steps
        if math.isinf(fewest):
            return chosen, fewest
        too_few, enough = int(fewest) - 1, max(int(fewest), 1)
        while not self._is_near(chosen, enough):
            too_few, enough = enough, 2 * enough
            if enough > most:
                return chosen, math.inf
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            if self._is_near(chosen, middle):
                enough = middle
            else:
                too_few = middle
        return chosen, enough

    def _is_near(self, way: dict[str, Any], steps: int) -> bool:
        found = self._fit(way, steps)
        gap = self._data.objective("logistic", found.w, self._strength) - self._target + NEAR
        tell(f"{self._name}: {way}: {gap:.5f} above the optimum after {steps} steps")
        return gap <= NEAR

    def _first(self, way: dict[str, Any], most: int) -> int | None:
        try:
            objectives: Array = np.array(self._fit(way, most).objectives)
        except DivergedError as error:
            tell(f"{self._name}: {way}: {error}")
            return None
        near = np.flatnonzero(objectives <= self._target)
        return int(near[0]) if len(near) else None

    def _fit(self, way: dict[str, Any], steps: int) -> Any:
        return fit(self._data, plain(self._strength, **way, maxIter=steps), warm=False)


if __name__ == "__main__":
    answer(Asked, measure)
