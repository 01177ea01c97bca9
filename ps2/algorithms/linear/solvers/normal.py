"""Linear regression in one clock: workers add up products of features, and the driver solves the normal equations.

The penalties are those of pyspark.ml's solver "normal", whose standard deviations divide by the weight of all rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.linear.parameters import Float64Array, Parameters
from ps2.algorithms.linear.solvers.least_squares import Products, objective, packed_size, products, solve
from ps2.algorithms.linear.solvers.solver import Bench, Data
from ps2.algorithms.linear.view import TALLY, ModelView
from ps2.algorithms.training.tally import BYTES, ROWS
from ps2.client.batch import batch
from ps2.client.dcv import DCV

# As in pyspark.ml: their products are 64 MiB.
MOST_FEATURES = 4096


@dataclass(frozen=True, eq=False)
class NormalPart:
    """The products of all of a worker's rows.

    Attributes:
        sums: where they are added up.
        center: means of the features; None: they are not to be subtracted.
        label_mean: that is to be subtracted.
    """

    sums: DCV
    tally: DCV
    center: DCV | None
    label_mean: float
    dim: int

    def __call__(self, worker: Any, data: Data, view: ModelView, clocks: int) -> None:
        for _ in worker.clocks(clocks):
            mean = np.zeros(self.dim) if self.center is None else self.center.pull()
            packed = products(data.rows, mean, self.label_mean).packed()
            tally = np.zeros(TALLY)
            tally[ROWS], tally[BYTES] = len(data.rows), packed.nbytes + mean.nbytes
            with batch():
                self.sums.add(packed)
                self.tally.add(tally)


class Normal:
    """The driver's half."""

    clocks = 1

    def __init__(self, bench: Bench) -> None:
        problem = bench.problem
        self._bench = bench
        self._sums = bench.space.small(packed_size(problem.dim))
        self._label_mean = bench.facts.label_mean if problem.fit_intercept else 0.0
        self.part = NormalPart(self._sums, bench.tally.sums, bench.center, self._label_mean, problem.dim)

    def on_clock(self, clock: int) -> None:
        bench, dim, weight = self._bench, self._bench.problem.dim, self._bench.facts.weight
        assert bench.scale is not None
        bench.record.add(bench.tally.take())
        of = Products.unpacked(self._sums.pull() / weight, dim)
        inverse_std = np.asarray(bench.scale.pull())
        mean = np.zeros(dim) if bench.center is None else bench.center.pull()
        l1, l2 = self._penalties(inverse_std)
        found = solve(of, l1, l2, bench.recipe.steps, bench.recipe.tol)
        bench.beginning.weight.push(found.w)
        bench.beginning.bias.push(np.array([self._label_mean - mean @ found.w]))
        bench.record.objective.append(0.5 * of.yy)
        bench.record.step(objective(of, found.w, l1, l2))
        bench.record.reason = "the normal equations were solved"
        if found.factor is not None and bench.facts.label_std > 0.0:
            diagonal = np.where(inverse_std > 0.0, found.inverse_diagonal() * inverse_std**2, math.inf)
            of_intercept = [1.0 + found.inverse_form(mean)] if bench.problem.fit_intercept else []
            bench.record.told["inverse_diagonal"] = tuple((np.concatenate([diagonal, of_intercept]) / weight).tolist())

    def _penalties(self, inverse_std: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Return the strengths for the weights of features divided by their unbiased standard deviations."""
        problem, facts = self._bench.problem, self._bench.facts
        # How much smaller pyspark.ml's deviations are, of features and of the label.
        ratio = math.sqrt(max(1.0 - facts.weight_squared / facts.weight**2, 0.0)) or 1.0
        if problem.standardize:
            return np.full(problem.dim, problem.l1 * ratio), np.full(problem.dim, problem.l2 * ratio)
        return problem.l1 * inverse_std, problem.l2 / ratio * inverse_std**2

    def result(self) -> Parameters:
        return self._bench.beginning
