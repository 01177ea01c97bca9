"""Solver "sap": coordinate descent by schedule (structure-aware parallelization: Xing et al., 2016, section 3.1).

A round minimises the objective over the weights of a set of features (coordinates). The servers draw the set; features
whose weights will change much are more probable. Workers add up the set's gradient and products of columns. The driver
then minimises over the set alone, so the features of a set may be correlated. Between rounds, a pass over all
columns predicts the weights' next changes, and bounds the distance of the objective from its minimum (the duality gap).
Features with weight 0 whose predicted change is 0 are not drawn.

Products of the squared loss do not change, so the driver caches them (covariance updates: Friedman, Hastie and
Tibshirani, 2010). The logistic loss is replaced by its quadratic model at the current weights; backtracking finds the
length of the step towards the quadratic model's minimum (proximal Newton, as in newGLMNET: Yuan, Ho and Lin, 2012).

A path of strengths is one training. Each model starts from the previous model; its first set is drawn from the features
that the strong rule does not exclude (Tibshirani et al., 2012).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import Ask, Steps
from ps2.algorithms.linear.coordinates import (
    NO_COLUMNS,
    NO_PRODUCTS,
    NO_SUPPORT,
    NO_VALUES,
    Strengths,
    Support,
    lower_bound,
    minimise,
)
from ps2.algorithms.linear.parameters import SPARSE_FROM, is_small
from ps2.algorithms.linear.plan import SCHEDULES, PathPoint, Problem
from ps2.algorithms.linear.program import LinearProgram, TrainedModel
from ps2.algorithms.linear.settings import PathSettings
from ps2.algorithms.linear.solvers.monitors import too_large
from ps2.algorithms.linear.solvers.sap_worker import (
    AddGradients,
    ColumnVectors,
    ComputeBlock,
    Describe,
    SapWork,
    TryLengths,
)
from ps2.algorithms.linear.solvers.solver import SolverContext
from ps2.algorithms.training.record import TrainingHistory
from ps2.array_types import Float64s, Int64s
from ps2.client.batch import batch
from ps2.errors import ConfigError, InputError

# The maxima for a set: the coordinates without cached products; all coordinates; the products in a report (48 MiB).
MAX_NEW, MAX_CACHED, MAX_PRODUCTS = 1024, 4096, 6 << 20
# MAX_NEW for the logistic loss, whose products are never cached. If the support is not larger, a set includes it.
MAX_NEW_LOGISTIC = 2048
# Coordinate descent along a set ends when a sweep changes all gradients by less than l1 times the maximum of: the first
# constant times the relative duality gap, the second times the gap's tolerance, and the third.
GAP_FACTOR, TOLERANCE_FACTOR, MIN_SWEEP_TOL = 1e-2, 0.1, 1e-12
# The maximum number of steps along one set with the logistic loss. A step is the last one along its set if it lowers
# the objective by less than this fraction of the gap.
MAX_REPEATS, MIN_GAIN = 8, 0.05
# Backtracking (Tseng and Yun, 2009): the fraction of the expected decrease that a step must reach; the number of
# lengths, each half of the previous one, that a clock tries after the first clock; the minimum length.
ARMIJO, HALVINGS, MIN_LENGTH = 0.01, 5, 2.0**-20
# The tolerance is relative to the objective, or to this fraction of the first objective if that is larger.
NEGLIGIBLE = 0.01
# From one pass to the next, the training has stalled if the objective falls by less than the first fraction of itself,
# which may be rounding, and the gap is still above the second fraction of the last gap.
ROUNDING, STALLED = 1e-14, 0.7
NO_PROGRESS = "no step lowers the objective beyond rounding"
# Upper bounds of the losses' second derivatives by the margin.
CURVATURE = {"squared": 1.0, "logistic": 0.25}
# The schedules that draw coordinates by their predicted or last changes.
SCHEDULES_BY_CHANGE = ("sap", "greedy")
# The path with one model, for the problem's own penalties.
SINGLE_MODEL_PATH = PathSettings(lambdaPath=[1.0])


def check_problem(problem: Problem) -> None:
    """Raise ConfigError for an objective that this solver does not minimise."""
    if problem.loss not in CURVATURE:
        loss = "the multinomial model" if problem.loss == "softmax" else f"loss {problem.loss!r}"
        raise ConfigError(
            f"solver: 'sap' is for linear regression and for logistic regression of two classes, got {loss}; 'l-bfgs' "
            "takes it"
        )
    if not problem.l1 > 0.0:
        raise ConfigError(f"solver: 'sap' is for L1 penalties, got l1={problem.l1:g}")
    if not is_small(problem):
        raise ConfigError(f"solver: 'sap' takes fewer than {SPARSE_FROM:,} features, got {problem.size:,}")


@dataclass(frozen=True, eq=False)
class _Move:
    """A change of the parameters: of the weights of ``columns``, and of the intercept."""

    columns: Int64s
    changes: Float64s
    intercept: float

    @property
    def changed(self) -> tuple[Int64s, Float64s]:
        """The features whose weights change, and these changes."""
        is_changed = self.changes != 0.0
        return self.columns[is_changed], self.changes[is_changed]


NO_MOVE = _Move(NO_COLUMNS, NO_VALUES, 0.0)
NO_STRENGTHS = Strengths(0.0, 0.0)


@dataclass
class _Fit:
    """The state of the training.

    Attributes:
        bias: the intercept, for dense features that are centred.
        strengths: the penalties of the current model of the path.
        value: the current objective.
        gap, value_at_pass: the duality gap and the objective at the last pass.
        steps: the number of steps of the current model.
        remaining_sets: the number of sets to draw before the next pass.
        cached_columns: the features whose products are cached.
        move: the last change of the parameters, which the next task will send to the workers.
    """

    bias: float
    strengths: Strengths = NO_STRENGTHS
    support: Support = NO_SUPPORT
    value: float = math.nan
    gap: float = math.inf
    value_at_pass: float = math.inf
    steps: int = 0
    remaining_sets: int = 0
    num_sets: int = 0
    cached_columns: Int64s = field(default_factory=lambda: NO_COLUMNS)
    move: _Move = NO_MOVE

    def start_model(self, strengths: Strengths) -> None:
        self.strengths, self.steps, self.remaining_sets = strengths, 0, 0
        self.gap = self.value_at_pass = math.inf

    def apply(self, move: _Move, value: float) -> None:
        self.support = self.support.replaced(move.columns, self.support.weights(move.columns) + move.changes)
        self.bias, self.value, self.steps, self.move = self.bias + move.intercept, value, self.steps + 1, move

    @property
    def change(self) -> tuple[Int64s, Float64s, float]:
        """The fields of ``MarginTask``: the changes that the workers' margins do not yet include, and the intercept."""
        return *self.move.changed, self.bias


def strengths_of(path: PathSettings, max_strength: float) -> tuple[float, ...]:
    """Return a path's strengths, descending; ``max_strength`` is the smallest strength with all weights 0."""
    if path.lambdaPath:
        return tuple(path.lambdaPath)
    ratios = path.lambdaRatio ** (np.arange(path.lambdaCount) / max(path.lambdaCount - 1, 1))
    return tuple((max_strength * ratios).tolist())


class Sap(LinearProgram):
    """The program of solver "sap"."""

    def __init__(self, context: SolverContext) -> None:
        check_problem(context.problem)
        super().__init__(context)
        self._vectors = ColumnVectors(*(context.space.new_weight() for _ in range(5)))
        self._path = context.plan.path or SINGLE_MODEL_PATH
        self._is_squared = context.problem.loss == "squared"
        self._by_change = context.plan.schedule in SCHEDULES_BY_CHANGE
        self._products = NO_PRODUCTS  # a cache of the last set's products; if it is lost, a pass follows

    def drive(self, ask: Ask) -> Steps[tuple[float, list[PathPoint]]]:
        yield from self.prepare(ask)
        yield from self.clock(Describe())
        dense, means, bias = ask(self._describe)
        fit, points = _Fit(bias), list[PathPoint]()
        report, initial_loss = yield from self._pass_over_columns(ask, fit)  # all weights are 0
        max_gradient = ask(partial(self._predict_changes, NO_STRENGTHS, 0.0))
        ask.record_objective(initial_loss)
        factors = strengths_of(self._path, (max_gradient or 1.0) / self.context.problem.l1)
        loss = initial_loss
        for stage, factor in enumerate(factors):
            fit.start_model(Strengths(self.context.problem.l1 * factor, self.context.problem.l2 * factor))
            first_value, first_step = loss + fit.strengths.penalty(fit.support.w), len(self.record.seconds)
            while True:
                screen = fit.strengths.l1 if fit.steps else self._strong_rule(factors, stage)
                max_gradient = ask(partial(self._predict_changes, fit.strengths, screen))
                reason = self._update_gap(fit, report, loss, max_gradient, initial_loss)
                task = None if reason else self._draw_set(ask, fit)
                if task is None:
                    break
                yield from self._minimise_along_sets(ask, fit, task)
                report, loss = yield from self._pass_over_columns(ask, fit)
            intercept = fit.bias - float(means @ fit.support.weights(dense))
            history = self._history_since(first_step, first_value, reason or NO_PROGRESS)
            points.append(self._path_point(ask, fit, factor, intercept, history))
        self.record.reason = points[-1].history.reason
        return intercept, points

    def _pass_over_columns(self, ask: Ask, fit: _Fit) -> Steps[tuple[Any, float]]:
        """Compute the gradient of all features; return the workers' report, and the loss."""
        ask(self._zero_gradient)
        report = yield from self.clock(AddGradients(*fit.change))
        fit.move = NO_MOVE
        loss = float(report.loss) / self.context.facts.weight
        if not math.isfinite(loss):
            raise too_large(loss)
        return report, loss

    def _minimise_along_sets(self, ask: Ask, fit: _Fit, task: ComputeBlock | None) -> Steps[None]:
        """Minimise over sets, one after the other, until a pass over all columns is due."""
        repeats = MAX_REPEATS
        while task is not None:
            step = yield from self.clock(task.then(partial(self._minimise, fit, task)))
            fit.move, fit.cached_columns = NO_MOVE, NO_COLUMNS
            if step.is_lost:
                return
            if self._caches_products(fit):
                fit.cached_columns = task.block
            if self._is_squared:
                move, value = _Move(task.block, step.change, step.intercept), fit.value - step.decrease
            else:
                direction = _Move(task.block, step.change, step.intercept)
                move, value = yield from self._search(fit, direction, step.expected)
            gain = fit.value - value
            fit.apply(move, value)
            ask(partial(self._push_weights, fit))
            ask.record_objective(value)
            repeats = repeats - 1 if gain > MIN_GAIN * fit.gap else 0
            if fit.steps >= self.plan.settings.maxIter:
                return
            if repeats > 0 and not self._is_squared:  # the same set again, at the new quadratic model
                task = ComputeBlock(*fit.change, block=move.columns, new=len(move.columns))
                continue
            task, repeats = self._draw_next_set(ask, fit), MAX_REPEATS

    def _search(self, fit: _Fit, direction: _Move, expected: float) -> Steps[tuple[_Move, float]]:
        """Return the longest step along a direction that lowers the objective enough, and the objective after it.

        ``expected`` is the first-order estimate of the objective's decrease along the direction.
        """
        lengths, support = np.ones(1), fit.support
        w = support.weights(direction.columns)
        while expected > 0.0:
            changes = direction.columns, direction.changes, direction.intercept
            task = TryLengths(NO_COLUMNS, NO_VALUES, fit.bias, *changes, lengths)
            report = yield from self.clock(task)
            for length, loss in zip(lengths, report.losses, strict=True):
                moved = support.replaced(direction.columns, w + length * direction.changes)
                value = float(loss) / self.context.facts.weight + fit.strengths.penalty(moved.w)
                if value <= fit.value * (1.0 + ROUNDING) - ARMIJO * length * expected:
                    return _Move(direction.columns, length * direction.changes, length * direction.intercept), value
            lengths = lengths[-1] * 0.5 ** np.arange(1, HALVINGS + 1)
            if lengths[-1] < MIN_LENGTH:
                break
        return NO_MOVE, fit.value

    def _describe(self) -> tuple[Int64s, Float64s, float]:
        """Bound the second derivatives; return the dense features, their means, and the initial intercept."""
        vectors, problem = self._vectors, self.context.problem
        dense, means = vectors.dense_means(problem)
        vectors.curvature.zip(vectors.mean).apply(
            "linear.curvature", factor=CURVATURE[problem.loss], centred=problem.fit_intercept
        )
        if not math.isfinite(vectors.curvature.norm1()):
            values = vectors.curvature.pull()
            feature = int(np.argmax(np.where(np.isfinite(values), values, np.inf)))
            raise InputError(f"the square of feature {feature} overflows: its values are too large, scale them")
        return dense, means, float(self.model.bias.pull()[0])

    def _strong_rule(self, factors: tuple[float, ...], stage: int) -> float:
        """Return the minimum absolute gradient at which a weight of 0 may change in a model's first set."""
        factor, l1 = factors[stage], self.context.problem.l1
        return l1 * (max(2.0 * factor - factors[stage - 1], 0.5 * factor) if stage else factor)

    def _zero_gradient(self) -> None:
        self._vectors.gradient.zero()

    def _predict_changes(self, strengths: Strengths, screen: float) -> float:
        """Let the servers predict the next step of each coordinate; return max |gradient - l2 w|.

        ``screen`` is the minimum absolute gradient at which a weight of 0 may change.
        """
        vectors = self._vectors
        rows = vectors.change.zip(self.model.weight, vectors.gradient, vectors.curvature)
        return float(rows.apply("linear.predict_changes", l1=strengths.l1, l2=strengths.l2, screen=screen))

    def _update_gap(self, fit: _Fit, report: Any, loss: float, max_gradient: float, initial_loss: float) -> str:
        """Compute objective and duality gap at a pass; return the reason to end the current model, or ""."""
        plan, w = self.plan, fit.support.w
        dual = float(report.dual) / self.context.facts.weight
        value = loss + fit.strengths.penalty(w)
        bound = lower_bound(dual, loss if self._is_squared else None, max_gradient, float(w @ w), fit.strengths)
        gap = value - bound + self._intercept_gap(report)
        if not math.isfinite(gap):
            raise InputError(f"the gradient overflows at an objective of {value:g}: features are too large, scale them")
        last_gap, last_value = fit.gap, fit.value_at_pass
        fit.value, fit.gap, fit.value_at_pass = value, gap, value
        if gap <= plan.settings.tol * max(value, NEGLIGIBLE * initial_loss):
            return "the duality gap is within the tolerance"
        if fit.steps >= plan.settings.maxIter:
            return f"all iterations were made; the duality gap is {gap / value:.1e} of the objective"
        if fit.steps and last_value - value <= ROUNDING * abs(value) and gap > STALLED * last_gap:
            return NO_PROGRESS
        return ""

    def _intercept_gap(self, report: Any) -> float:
        """Return the second-order estimate of the gap that is due to the intercept."""
        slope, curvature = float(report.down), float(report.curved)  # sums over all rows
        return slope * slope / curvature if self.context.problem.fit_intercept and curvature > 0.0 else 0.0

    def _history_since(self, step: int, value: float, reason: str) -> TrainingHistory:
        """Return the history of the steps from number ``step`` on; ``value`` is the objective before them."""
        record = self.record
        seconds = list(record.seconds[step:])
        objective = [value, *record.objective[len(record.objective) - len(seconds) :]] if seconds else [value]
        return TrainingHistory(objective, seconds, [], len(seconds), record.rows, record.bytes, reason)

    def _path_point(self, ask: Ask, fit: _Fit, factor: float, intercept: float, history: TrainingHistory) -> PathPoint:
        w, columns, scale = fit.support.w, fit.support.columns, self.context.scale
        if scale is not None:
            w = w * ask(lambda: scale.pull(columns))
        return PathPoint(factor, columns, w, intercept, history)

    def _draw_next_set(self, ask: Ask, fit: _Fit) -> ComputeBlock | None:
        """Draw another set after a step, by that step's changes; None: a pass is due, or the set is empty."""
        if fit.remaining_sets <= 0:
            return None
        if self._by_change:
            ask(partial(self._push_changes, fit))
        return self._draw_set(ask, fit)

    def _draw_set(self, ask: Ask, fit: _Fit) -> ComputeBlock | None:
        """Let the servers draw the next set; return the task for its products, None if the set is empty."""
        dim, support, cached = self.context.problem.dim, fit.support.columns, fit.cached_columns
        count, limit = self.plan.set_size, MAX_NEW if self._is_squared else MAX_NEW_LOGISTIC
        if self._by_change:
            count = min(max(count, len(support)), limit)
        columns, remaining_sets = ask(partial(self._draw_columns, count, fit.num_sets)), max(fit.remaining_sets - 1, 0)
        if not self._by_change:
            block, cached = columns, NO_COLUMNS
            remaining_sets = fit.remaining_sets - 1 if fit.remaining_sets else -(-dim // count) - 1
        else:
            new = columns[~np.isin(columns, cached)] if self._is_squared else np.union1d(columns, support)
            block_length = len(new) + len(cached)
            if len(new) > limit or block_length > MAX_CACHED or len(new) * block_length > MAX_PRODUCTS:
                new, cached = np.union1d(columns, support), NO_COLUMNS
            if len(new) > limit:  # the model is too large for one set
                new = ask(partial(self._draw_columns, limit, fit.num_sets))
                changing = ask(lambda: int(self._vectors.change.nnz()))
                remaining_sets = fit.remaining_sets - 1 if fit.remaining_sets else -(-changing // limit) - 1
            block = np.concatenate([new, cached])
        if not len(block):
            return None
        fit.cached_columns, fit.remaining_sets, fit.num_sets = cached, remaining_sets, fit.num_sets + 1
        return ComputeBlock(*fit.change, block=block, new=len(block) - len(cached))

    def _draw_columns(self, count: int, number: int) -> Int64s:
        """Let the servers draw coordinates for set ``number``; return at most ``count``, ascending."""
        plan = self.plan
        columns, keys = self._vectors.change.zip().apply(
            "linear.draw_coordinates",
            count=count,
            seed=plan.seed,
            round=number,
            dim=self.context.problem.dim,
            schedule=SCHEDULES.index(plan.schedule),
        )
        order = np.lexsort((columns, -keys))[:count]
        return np.sort(columns[order])

    def _minimise(self, fit: _Fit, task: ComputeBlock, report: Any) -> dict[str, Any]:
        """Minimise over a set; return the step. ``is_lost``: cached products are missing, as after a rollback."""
        volume = {"rows": report.rows, "bytes": report.bytes}
        cached = self._products.last(task.block[task.new :])
        if cached is None:
            return {**volume, "is_lost": True}
        curvature = float(report.curved) if self.context.problem.fit_intercept else 0.0
        products = cached.extended(task.block, report.products, report.entries, curvature)
        self._products = products if self._caches_products(fit) else NO_PRODUCTS
        w, strengths = fit.support.weights(task.block), fit.strengths
        tol = max(GAP_FACTOR * fit.gap / fit.value, TOLERANCE_FACTOR * self.plan.settings.tol, MIN_SWEEP_TOL)
        intercept = float(report.down), curvature
        step = minimise(products, report.gradient, w, intercept, strengths, tol * strengths.l1)
        expected = float(report.gradient @ step.change) + float(report.down) * step.intercept
        expected += strengths.penalty(w) - strengths.penalty(step.w)
        expected = max(expected, step.decrease)  # rounding errors of the penalties may exceed a small decrease
        move = {"change": step.change, "intercept": step.intercept, "decrease": step.decrease, "expected": expected}
        return {**volume, "is_lost": False, **move}

    def _caches_products(self, fit: _Fit) -> bool:
        """Return whether the next set may use the products of this one."""
        return self._is_squared and self._by_change and not fit.remaining_sets

    def _push_weights(self, fit: _Fit) -> None:
        """Push the changed weights and the intercept to the servers."""
        columns, _ = fit.move.changed
        with batch():
            self.model.weight.push(fit.support.weights(columns), columns)
            self.model.bias.push(np.array([fit.bias]))

    def _push_changes(self, fit: _Fit) -> None:
        """Push the scaled changes of the last step, by which the servers draw the next set."""
        columns, changes = fit.move.columns, fit.move.changes
        square = self._vectors.curvature.pull(columns) + fit.strengths.l2
        self._vectors.change.push(changes * np.sqrt(square), columns)

    def solver_work(self) -> SapWork:
        return SapWork(self.context.problem, self.context.facts, self.model, self._vectors)

    def result(self, returned: Any) -> TrainedModel:
        intercept, points = returned
        self.model.bias.push(np.array([intercept]))
        return replace(super().result(self.model), path=tuple(points))
