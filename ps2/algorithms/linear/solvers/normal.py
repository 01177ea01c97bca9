"""Linear regression in one clock: workers add up products of features, and the driver solves the normal equations.

Products of features that nearly explain each other tell the weights to few digits. Then a few more clocks bring the
others: workers compute of their rows what the weights leave, and the driver solves for the correction.

The penalties are those of pyspark.ml's solver "normal", whose standard deviations divide by the weight of all rows.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ps2.algorithms.linear.centering import Center
from ps2.algorithms.linear.parameters import Parameters
from ps2.algorithms.linear.solvers.least_squares import (
    Products,
    Solution,
    objective,
    packed_size,
    products,
    slopes,
    solve,
)
from ps2.algorithms.linear.solvers.solver import Data, SolverContext
from ps2.algorithms.linear.view import ModelView, Sums
from ps2.array_types import Float64s
from ps2.client.dcv import DCV
from ps2.run.message import Stop

log = logging.getLogger(__name__)

# As in pyspark.ml: their products are 64 MiB.
MAX_FEATURES = 4096
# A smaller pivot leaves fewer than 9 digits of the weights.
SMALL_PIVOT = 1e-7
# Penalties on weights of scaled features are no larger than its square.
LARGE = 1e140
# Each gains about as many digits as the equations have left.
MAX_CORRECTIONS = 4
# A correction that is smaller, as a part of the weights, is the last one.
EXACT = 1e-10


@dataclass(frozen=True, eq=False)
class NormalWorker:
    """The products of all of a worker's rows; then the residuals of their labels.

    Attributes:
        sums: where products are added up.
        rest: where that is.
        model: the weights so far.
        center: means of the features; None: they are not to be subtracted.
        label_mean: that is to be subtracted.
    """

    sums: DCV
    rest: DCV
    model: Parameters
    center: Center | None
    label_mean: float
    dim: int
    first_clock: int

    def __call__(self, worker: Any, data: Data, view: ModelView, clocks: int) -> None:
        everything = np.arange(self.dim)
        for clock in worker.clocks(clocks):
            mean = np.zeros(self.dim) if self.center is None else self.center.of_features()
            w, _ = view.pull(self.model, everything)
            if clock == self.first_clock:
                to, found = self.sums, products(data.rows, mean, self.label_mean).packed()
            else:
                to, found = self.rest, slopes(data.rows, mean, self.label_mean, w)
            to.add(found)
            view.moved_bytes += found.nbytes + mean.nbytes
            view.report(rows=len(data.rows))


class Normal:
    """The driver's program."""

    clocks = 1 + MAX_CORRECTIONS

    def __init__(self, context: SolverContext) -> None:
        problem = context.problem
        self._context = context
        self._sums, self._rest = context.space.small(packed_size(problem.dim)), context.space.small(problem.dim)
        self._label_mean = context.facts.label_mean if problem.fit_intercept else 0.0
        self._found: Solution | None = None
        self.worker = NormalWorker(
            self._sums,
            self._rest,
            context.beginning,
            context.center,
            self._label_mean,
            problem.dim,
            context.first_clock,
        )

    def on_clock(self, clock: int, sums: Sums) -> Stop | None:
        context, dim, weight = self._context, self._context.problem.dim, self._context.facts.weight
        assert context.scale is not None
        of = Products.unpacked(self._sums.pull() / weight, dim)
        inverse_std = np.asarray(context.scale.pull())
        l1, l2 = self._penalties(inverse_std)
        if clock == 0:
            self._rest.zero()
            found, is_over = solve(of, l1, l2, context.options.steps, context.options.tol), False
            is_over = found.factor is None or found.pivot >= SMALL_PIVOT
        else:
            assert self._found is not None
            before = replace(self._found, w=context.beginning.weight.pull())
            found = before.refined(self._rest.pull() / weight - l2 * before.w)
            self._rest.zero()
            change = np.abs(found.w - before.w).max()
            is_over = change <= EXACT * np.abs(found.w).max() or clock == MAX_CORRECTIONS
        self._found = found
        context.beginning.weight.push(found.w)
        if is_over:
            return self._end(of, found, objective(of, found.w, l1, l2), inverse_std)
        return None

    def _end(self, of: Products, found: Solution, value: float, inverse_std: Float64s) -> Stop:
        context, weight = self._context, self._context.facts.weight
        mean = np.zeros(len(found.w)) if context.center is None else context.center.of_features()
        context.beginning.bias.push(np.array([self._label_mean - mean @ found.w]))
        context.record.objective.append(0.5 * of.yy)
        context.record.step(value)
        over = context.stop("the normal equations were solved")
        if found.pivot == 0.0:
            context.record.reason += ", for the shortest weights"
            log.warning(
                "feature %d is, to the precision of float64, a sum of multiples of others, so many weights are as "
                "good: they are the shortest ones",
                found.feature,
            )
        if found.factor is not None and context.facts.label_std > 0.0:
            with np.errstate(over="ignore"):  # the variance of a weight beyond 1e154 is no number
                diagonal = np.where(inverse_std > 0.0, found.inverse_diagonal() * inverse_std**2, math.inf)
            of_intercept = [1.0 + found.inverse_form(mean)] if context.problem.fit_intercept else []
            context.record.metrics["inverse_diagonal"] = tuple(
                (np.concatenate([diagonal, of_intercept]) / weight).tolist()
            )
        return over

    def _penalties(self, inverse_std: Float64s) -> tuple[Float64s, Float64s]:
        """Return the strengths for the weights of features divided by their unbiased standard deviations."""
        problem, facts = self._context.problem, self._context.facts
        # How much smaller pyspark.ml's deviations are, of features and of the label.
        ratio = math.sqrt(max(1.0 - facts.weight_squared / facts.weight / facts.weight, 0.0)) or 1.0
        if problem.standardize:
            return np.full(problem.dim, problem.l1 * ratio), np.full(problem.dim, problem.l2 * ratio)
        # An infinite penalty makes a weight 0, and so does a nearly infinite one.
        squares = np.minimum(np.minimum(inverse_std, LARGE) ** 2 * (problem.l2 / ratio), LARGE**2)
        return problem.l1 * inverse_std, squares

    def result(self) -> Parameters:
        return self._context.beginning
