"""Linear regression in one clock: workers add up products of features, and the driver solves the normal equations.

If features are nearly collinear, their products determine only the first digits of the weights. Then a few more clocks
add digits: workers compute residuals from their rows, and the driver solves for the correction of the weights.

The penalties are those of pyspark.ml's solver "normal": its standard deviations are biased (divided by all rows'
weight).
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import Ask, DoTask, Steps, Task
from ps2.algorithms.linear.parameters import Center, ModelView, Parameters
from ps2.algorithms.linear.program import LinearProgram
from ps2.algorithms.linear.solvers.least_squares import (
    Products,
    Solution,
    objective,
    packed_size,
    products,
    residual_products,
    solve,
)
from ps2.algorithms.linear.solvers.solver import Data, SolverContext
from ps2.array_types import Float64s
from ps2.client.dcv import DCV

log = logging.getLogger(__name__)

# With a smaller pivot (``Solution``), the weights have fewer than 9 correct digits.
MIN_PIVOT = 1e-7
# The maximum of 1 / std in penalties, so that its square is finite.
MAX_INVERSE_STD = 1e140
# Each correction adds about as many correct digits as the first solution has.
MAX_CORRECTIONS = 4
# A correction below this fraction of the largest weight is the last one.
EXACT = 1e-10
SINGULAR_WARNING = (
    "feature %d is a linear combination of other features, to the precision of float64, so several weights minimise "
    "the objective: the model has the weights of minimum norm"
)


@dataclass(frozen=True)
class AddProducts(Task):
    """Add the products of all features to the sums on the servers."""


@dataclass(frozen=True)
class AddResiduals(Task):
    """Add the products of features with residuals (label minus prediction) to the sums on the servers."""


@dataclass(frozen=True, eq=False)
class NormalWork:
    """The workers' part of the solver; picklable."""

    sums: DCV
    residuals: DCV
    model: Parameters
    center: Center | None
    label_mean: float
    dim: int

    def __call__(self, data: Data) -> DoTask:
        def add(worker: Any, task: AddProducts | AddResiduals) -> None:
            view = ModelView(worker)
            mean = np.zeros(self.dim) if self.center is None else self.center.feature_means()
            w, _ = view.pull(self.model, np.arange(self.dim))
            if isinstance(task, AddProducts):
                vector, values = self.sums, products(data.rows, mean, self.label_mean).packed()
            else:
                vector, values = self.residuals, residual_products(data.rows, mean, self.label_mean, w)
            vector.add(values)
            view.moved_bytes += values.nbytes + mean.nbytes
            view.report(rows=len(data.rows))

        return add


@dataclass(frozen=True, eq=False)
class _Equations:
    """The normal equations, with sums divided by the weight of all rows, each weight's penalties, and the solution."""

    sums: Products
    l1: Float64s
    l2: Float64s
    solution: Solution


class Normal(LinearProgram):
    """The program of solver "normal"."""

    def __init__(self, context: SolverContext) -> None:
        super().__init__(context)
        problem = context.problem
        self._sums = context.space.new_small(packed_size(problem.dim))
        self._residuals = context.space.new_small(problem.dim)
        self._label_mean = context.facts.label_mean if problem.fit_intercept else 0.0
        self._equations: _Equations | None = None  # a cache: recomputed from the sums on the servers if it is None

    def drive(self, ask: Ask) -> Steps[Parameters]:
        yield from self.prepare(ask)
        yield from self.clock(AddProducts())
        is_exact = ask(self._solve)
        for _ in range(MAX_CORRECTIONS):
            if is_exact:
                break
            yield from self.clock(AddResiduals())
            is_exact = ask(self._correct)
        initial_objective, objective, min_pivot, feature, inverse_diagonal = ask(self._finish)
        ask.record_objective(initial_objective)
        ask.record_objective(objective)
        self.record.reason = "the normal equations were solved"
        if min_pivot == 0.0:  # the equations are singular
            self.record.reason += ", for the shortest weights"
            ask(partial(log.warning, SINGULAR_WARNING, feature))
        if len(inverse_diagonal):
            self.record.metrics["inverse_diagonal"] = tuple(inverse_diagonal.tolist())
        return self.model

    def _solve(self) -> bool:
        """Solve the equations; return whether the weights need no correction."""
        self._equations = None
        solution = self._read_equations().solution
        self._residuals.zero()
        self.model.weight.push(solution.w)
        return solution.factor is None or solution.pivot >= MIN_PIVOT

    def _correct(self) -> bool:
        """Correct the weights by the residuals; return whether they need no further correction."""
        equations, w = self._read_equations(), self.model.weight.pull()
        residual = self._residuals.pull() / self.context.facts.weight - equations.l2 * w
        corrected = replace(equations.solution, w=w).refined(residual).w
        self._residuals.zero()
        self.model.weight.push(corrected)
        return bool(np.abs(corrected - w).max() <= EXACT * np.abs(corrected).max())

    def _finish(self) -> tuple[float, float, float, int, Float64s]:
        """Set the intercept, and compute what the record needs.

        Returns:
            The objectives at weights of 0 and at the solution; the smallest pivot and its feature (``Solution``); the
            diagonal of the equations' inverse matrix, for unscaled features and the intercept, or an empty array.
        """
        context, equations, w = self.context, self._read_equations(), self.model.weight.pull()
        sums, solution, facts = equations.sums, equations.solution, context.facts
        mean = np.zeros(len(w)) if context.center is None else context.center.feature_means()
        self.model.bias.push(np.array([self._label_mean - mean @ w]))
        diagonal = np.empty(0)
        if solution.factor is not None and facts.label_std > 0.0:
            inverse_std = self._inverse_std()
            with np.errstate(over="ignore"):  # the variance of a weight above 1e154 overflows
                diagonal = np.where(inverse_std > 0.0, solution.inverse_diagonal() * inverse_std**2, math.inf)
            intercept = [1.0 + solution.inverse_form(mean)] if context.problem.fit_intercept else []
            diagonal = np.concatenate([diagonal, intercept]) / facts.weight
        value = objective(sums, w, equations.l1, equations.l2)
        return 0.5 * sums.yy, value, solution.pivot, solution.feature, diagonal

    def _read_equations(self) -> _Equations:
        """Return the equations; the sums on the servers do not change after the first clock."""
        if self._equations is None:
            sums = Products.unpacked(self._sums.pull() / self.context.facts.weight, self.context.problem.dim)
            l1, l2 = self._penalties(self._inverse_std())
            self._equations = _Equations(
                sums, l1, l2, solve(sums, l1, l2, self.plan.settings.maxIter, self.plan.settings.tol)
            )
        return self._equations

    def _inverse_std(self) -> Float64s:
        assert self.context.scale is not None
        return np.asarray(self.context.scale.pull())

    def _penalties(self, inverse_std: Float64s) -> tuple[Float64s, Float64s]:
        """Return the penalties' strengths, for features divided by their unbiased standard deviations: shape (dim,)."""
        problem, facts = self.context.problem, self.context.facts
        # pyspark.ml's biased standard deviations of features and label are the unbiased ones times this factor.
        ratio = math.sqrt(max(1.0 - facts.weight_squared / facts.weight / facts.weight, 0.0)) or 1.0
        if problem.standardize:
            return np.full(problem.dim, problem.l1 * ratio), np.full(problem.dim, problem.l2 * ratio)
        # A very large penalty makes a weight 0, as an infinite one would.
        squares = np.minimum(np.minimum(inverse_std, MAX_INVERSE_STD) ** 2 * (problem.l2 / ratio), MAX_INVERSE_STD**2)
        return problem.l1 * inverse_std, squares

    def solver_work(self) -> NormalWork:
        label_mean, dim = self._label_mean, self.context.problem.dim
        return NormalWork(self._sums, self._residuals, self.model, self.context.center, label_mean, dim)
