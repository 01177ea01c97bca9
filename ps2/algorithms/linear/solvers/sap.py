"""Coordinate descent by schedule (structure-aware parallelization: Xing et al., 2016, section 3.1), in the driver.

A round takes a set of coordinates. The servers draw it by what steps along the coordinates would change; workers add up
the set's gradient and products of columns, and the driver minimises along the whole set. So coordinates that depend on
each other may be in one set: inside it nothing is done at the same time. A pass over all columns, between rounds, finds
what coordinates would change, and bounds how far the objective is from its minimum (a duality gap). Coordinates that
are 0 and would stay 0 take part in nothing else.

Products of the squared loss do not change, so they are kept (covariance updates: Friedman, Hastie and Tibshirani,
2010). The logistic loss is taken by its quadratic model, and a step along its minimum by backtracking (proximal Newton,
as newGLMNET: Yuan, Ho and Lin, 2012).

A path of strengths is one training: each model begins with the one before, and its first set with what the strong rule
leaves (Tibshirani et al., 2012).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import Ask, Steps
from ps2.algorithms.linear.coordinates.columns import DENSE
from ps2.algorithms.linear.coordinates.path import PathOptions, PathPoint
from ps2.algorithms.linear.coordinates.subproblem import (
    NO_COLUMNS,
    NO_PRODUCTS,
    NO_SUPPORT,
    NO_VALUES,
    Strengths,
    Support,
    lower_bound,
    minimise,
)
from ps2.algorithms.linear.parameters import SPARSE_FROM
from ps2.algorithms.linear.problem import SCHEDULES, Problem
from ps2.algorithms.linear.program import LinearProgram, TrainedModel
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

# Coordinates of a round at most whose products are all computed, and whose products are kept at most; products that
# travel in a report: 48 MiB. Of the logistic loss all products are computed anew, so a set has the whole support while
# it can.
MAX_NEW, MAX_KEPT, MAX_PRODUCTS = 1024, 4096, 6 << 20
MAX_ANEW = 2048
# A round ends when a sweep changes gradients by less than this part of the gap, or of its tolerance, relatively; or by
# so little that it is rounding.
INEXACT, OF_TOLERANCE, EXACT = 1e-2, 0.1, 1e-12
# Rounds on one set of the logistic loss, and the part of the gap below which a further one is not worth it.
ROUNDS, WORTH = 8, 0.05
# Of the expected decrease that a step has to bring (Tseng and Yun, 2009); lengths that are tried in one clock.
ARMIJO, HALVINGS = 0.01, 5
SHORTEST = 2.0**-20
# Of the first objective: a smaller one is as good as 0.
REST = 0.01
# Differences below this part of the objective are rounding; then the gap has to get smaller than this part of it.
ROUNDING, STALLED = 1e-14, 0.7
NO_PROGRESS = "no step lowers the objective beyond rounding"
CURVATURE = {"squared": 1.0, "logistic": 0.25}
BY_CHANGE = ("sap", "greedy")


def check_problem(problem: Problem) -> None:
    """Raise ConfigError for an objective that this solver does not minimise."""
    if problem.loss not in CURVATURE:
        what = "the multinomial model" if problem.loss == "softmax" else f"loss {problem.loss!r}"
        raise ConfigError(
            f"solver: 'sap' is for linear regression and for logistic regression of two classes, got {what}; 'l-bfgs' "
            "takes it"
        )
    if not problem.l1 > 0.0:
        raise ConfigError(f"solver: 'sap' is for L1 penalties, got l1={problem.l1:g}")
    if problem.size >= SPARSE_FROM:
        raise ConfigError(f"solver: 'sap' takes fewer than {SPARSE_FROM:,} features, got {problem.size:,}")


@dataclass(frozen=True, eq=False)
class _Move:
    """A change of weights: of features, by how much, and that of the intercept."""

    columns: Int64s
    changes: Float64s
    intercept: float

    @property
    def changed(self) -> tuple[Int64s, Float64s]:
        """The features whose weights change, and by how much."""
        changed = self.changes != 0.0
        return self.columns[changed], self.changes[changed]


NOWHERE = _Move(NO_COLUMNS, NO_VALUES, 0.0)
NO_STRENGTHS = Strengths(0.0, 0.0)


@dataclass
class _Fit:
    """The model as it is trained, strength by strength.

    Attributes:
        bias: the intercept, where features that are dense have their means.
        strengths: of the penalties.
        support: weights that are not 0.
        value: the objective.
        gap: the duality gap at the last pass, and ``at_pass``: the objective then.
        steps: taken for this strength.
        rounds: sets left before the next pass.
        sets: number of sets so far.
        kept: features whose products are kept.
        move: the last change, of which the workers do not know.
    """

    bias: float
    strengths: Strengths = NO_STRENGTHS
    support: Support = NO_SUPPORT
    value: float = math.nan
    gap: float = math.inf
    at_pass: float = math.inf
    steps: int = 0
    rounds: int = 0
    sets: int = 0
    kept: Int64s = field(default_factory=lambda: NO_COLUMNS)
    move: _Move = NOWHERE

    def begin(self, strengths: Strengths) -> None:
        """Begin with a strength."""
        self.strengths, self.steps, self.rounds, self.gap, self.at_pass = strengths, 0, 0, math.inf, math.inf

    def take(self, move: _Move, value: float) -> None:
        """Take a step."""
        self.support = self.support.replaced(move.columns, self.support.at(move.columns) + move.changes)
        self.bias, self.value, self.steps, self.move = self.bias + move.intercept, value, self.steps + 1, move

    @property
    def change(self) -> tuple[Int64s, Float64s, float]:
        """What the workers' margins have to change by: the first fields of a task."""
        return *self.move.changed, self.bias


class Sap(LinearProgram):
    """Coordinate descent by schedule."""

    def __init__(self, context: SolverContext) -> None:
        check_problem(context.problem)
        super().__init__(context)
        self._vectors = ColumnVectors(*(context.space.weight() for _ in range(5)))
        self._path = context.options.path or PathOptions()
        self._is_squared = context.problem.loss == "squared"
        self._by_change = context.options.schedule in BY_CHANGE
        self._products = NO_PRODUCTS  # the newest that are kept; without them there is a pass

    # -- the algorithm -------------------------------------------------------------------------------------------------

    def drive(self, ask: Ask) -> Steps[tuple[float, list[PathPoint]]]:
        yield from self.prepare(ask)
        yield from self.clock(Describe())
        dense, means, bias = ask(self._describe)
        fit, points = _Fit(bias), list[PathPoint]()
        report, first = yield from self._pass(ask, fit)
        largest = ask(partial(self._predict, NO_STRENGTHS, 0.0))
        ask.evaluated(first)
        factors = self._path.resolved((largest or 1.0) / self.context.problem.l1)
        loss = first
        for stage, factor in enumerate(factors):
            fit.begin(Strengths(self.context.problem.l1 * factor, self.context.problem.l2 * factor))
            began = loss + fit.strengths.of(fit.support.w), len(self.record.seconds)
            while True:
                screen = fit.strengths.l1 if fit.steps else self._screen(factors, stage)
                largest = ask(partial(self._predict, fit.strengths, screen))
                reason = self._judge(fit, report, loss, largest, first)
                task = None if reason else self._draw(ask, fit)
                if task is None:
                    break
                yield from self._descend(ask, fit, task)
                report, loss = yield from self._pass(ask, fit)
            intercept = fit.bias - float(means @ fit.support.at(dense))
            points.append(self._point(ask, fit, factor, intercept, began, reason or NO_PROGRESS))
        self.record.reason = points[-1].history.reason
        return intercept, points

    def _pass(self, ask: Ask, fit: _Fit) -> Steps[tuple[Any, float]]:
        """Compute the gradient of all features; return the workers' report, and the loss."""
        ask(self._zero_gradient)
        report = yield from self.clock(AddGradients(*fit.change))
        fit.move = NOWHERE
        loss = float(report.loss) / self.context.facts.weight
        if not math.isfinite(loss):
            raise InputError(
                f"the objective is {loss} before the first step: labels, weights or features are too large"
            )
        return report, loss

    def _descend(self, ask: Ask, fit: _Fit, task: ComputeBlock | None) -> Steps[None]:
        """Minimise along sets, one after the other, until a pass over all columns is due."""
        again = ROUNDS
        while task is not None:
            step = yield from self.clock(task.then(partial(self._minimise, fit, task)))
            fit.move, fit.kept = NOWHERE, NO_COLUMNS
            if step.is_lost:
                return
            if self._keeps(fit):
                fit.kept = task.block
            if self._is_squared:
                move, value = _Move(task.block, step.change, step.intercept), fit.value - step.decrease
            else:
                direction = _Move(task.block, step.change, step.intercept)
                move, value = yield from self._search(fit, direction, step.expected)
            lowered = fit.value - value
            fit.take(move, value)
            ask(partial(self._push, fit))
            ask.evaluated(value)
            again = again - 1 if lowered > WORTH * fit.gap else 0
            if fit.steps >= self.options.steps:
                return
            if again > 0 and not self._is_squared:
                task = ComputeBlock(*fit.change, block=move.columns, new=len(move.columns))
                continue
            task, again = self._draw_next(ask, fit), ROUNDS

    def _search(self, fit: _Fit, direction: _Move, expected: float) -> Steps[tuple[_Move, float]]:
        """Find the longest step along a direction that lowers the objective enough; return it, and the objective.

        Args:
            expected: decrease of the objective along the direction, to first order.
        """
        lengths, support = np.ones(1), fit.support
        w = support.at(direction.columns)
        while expected > 0.0:
            changes = direction.columns, direction.changes, direction.intercept
            task = TryLengths(NO_COLUMNS, NO_VALUES, fit.bias, *changes, lengths)
            report = yield from self.clock(task)
            for length, loss in zip(lengths, report.losses, strict=True):
                moved = support.replaced(direction.columns, w + length * direction.changes)
                value = float(loss) / self.context.facts.weight + fit.strengths.of(moved.w)
                if value <= fit.value * (1.0 + ROUNDING) - ARMIJO * length * expected:
                    return _Move(direction.columns, length * direction.changes, length * direction.intercept), value
            lengths = lengths[-1] * 0.5 ** np.arange(1, HALVINGS + 1)
            if lengths[-1] < SHORTEST:
                break
        return NOWHERE, fit.value

    # -- passes over all columns ---------------------------------------------------------------------------------------

    def _describe(self) -> tuple[Int64s, Float64s, float]:
        """Bound the second derivatives; return the features that are dense, their means, and the first intercept."""
        vectors, problem = self._vectors, self.context.problem
        dense, means = NO_COLUMNS, NO_VALUES
        if problem.fit_intercept:
            dense, means = vectors.share.zip(vectors.mean).apply("linear.dense_columns", least=DENSE)
        vectors.curvature.zip(vectors.mean).apply(
            "linear.curvature", factor=CURVATURE[problem.loss], centred=problem.fit_intercept
        )
        if not math.isfinite(vectors.curvature.norm1()):
            values = vectors.curvature.pull()
            feature = int(np.argmax(np.where(np.isfinite(values), values, np.inf)))
            raise InputError(f"the square of feature {feature} overflows: its values are too large, scale them")
        return dense, means, float(self.model.bias.pull()[0])

    def _screen(self, factors: tuple[float, ...], stage: int) -> float:
        """Return the gradient that a weight of 0 has at least if it may change (the strong rule)."""
        factor, l1 = factors[stage], self.context.problem.l1
        return l1 * (max(2.0 * factor - factors[stage - 1], 0.5 * factor) if stage else factor)

    def _zero_gradient(self) -> None:
        self._vectors.gradient.zero()

    def _predict(self, now: Strengths, screen: float) -> float:
        """Let the servers predict changes; return max |gradient - l2 w|."""
        vectors = self._vectors
        rows = vectors.change.zip(self.model.weight, vectors.gradient, vectors.curvature)
        return float(rows.apply("linear.predict_changes", l1=now.l1, l2=now.l2, screen=screen))

    def _judge(self, fit: _Fit, report: Any, loss: float, largest: float, first: float) -> str:
        """Compute objective and duality gap at a pass; return the reason to end with this strength, "" to continue.

        Args:
            largest: max |gradient - l2 w|.
            first: the objective of the first model.
        """
        options, w = self.options, fit.support.w
        dual = float(report.dual) / self.context.facts.weight
        value = loss + fit.strengths.of(w)
        bound = lower_bound(dual, loss if self._is_squared else None, largest, float(w @ w), fit.strengths)
        gap = value - bound + self._of_intercept(report)
        if not math.isfinite(gap):
            raise InputError(f"the gradient overflows at an objective of {value:g}: features are too large, scale them")
        before, at_pass = fit.gap, fit.at_pass
        fit.value, fit.gap, fit.at_pass = value, gap, value
        if gap <= options.tol * max(value, REST * first):
            return "the duality gap is within the tolerance"
        if fit.steps >= options.steps:
            return f"all iterations were made; the duality gap is {gap / value:.1e} of the objective"
        if fit.steps and at_pass - value <= ROUNDING * abs(value) and gap > STALLED * before:
            return NO_PROGRESS
        return ""

    def _of_intercept(self, report: Any) -> float:
        """Return what an intercept that is not at its minimum may add to the gap, to second order."""
        down, curved = float(report.down), float(report.curved)
        return down * down / curved if self.context.problem.fit_intercept and curved > 0.0 else 0.0

    def _point(
        self, ask: Ask, fit: _Fit, factor: float, intercept: float, began: tuple[float, int], reason: str
    ) -> PathPoint:
        """Return the model of a strength.

        Args:
            began: the objective that its steps began with, and their number in the record.
        """
        record, (value, first) = self.record, began
        seconds = list(record.seconds[first:])
        objective = [value, *record.objective[len(record.objective) - len(seconds) :]] if seconds else [value]
        history = TrainingHistory(objective, seconds, [], len(seconds), record.rows, record.bytes, reason)
        w, columns, scale = fit.support.w, fit.support.columns, self.context.scale
        if scale is not None:
            w = w * ask(lambda: scale.pull(columns))
        return PathPoint(factor, columns, w, intercept, history)

    # -- sets ----------------------------------------------------------------------------------------------------------

    def _draw_next(self, ask: Ask, fit: _Fit) -> ComputeBlock | None:
        """Draw a further set after a step, by what the step has changed."""
        if fit.rounds <= 0:
            return None
        if self._by_change:
            ask(partial(self._push_changes, fit))
        return self._draw(ask, fit)

    def _draw(self, ask: Ask, fit: _Fit) -> ComputeBlock | None:
        """Let the servers draw the next set; return the task for its products, None if the set is empty."""
        dim, support, kept = self.context.problem.dim, fit.support.columns, fit.kept
        count, limit = self.options.set_size, MAX_NEW if self._is_squared else MAX_ANEW
        if self._by_change:
            count = min(max(count, len(support)), limit)
        drawn, rounds = ask(partial(self._drawn, count, fit.sets)), max(fit.rounds - 1, 0)
        if not self._by_change:
            block, kept = drawn, NO_COLUMNS
            rounds = fit.rounds - 1 if fit.rounds else -(-dim // count) - 1
        else:
            new = drawn[~np.isin(drawn, kept)] if self._is_squared else np.union1d(drawn, support)
            together = len(new) + len(kept)
            if len(new) > limit or together > MAX_KEPT or len(new) * together > MAX_PRODUCTS:
                new, kept = np.union1d(drawn, support), NO_COLUMNS
            if len(new) > limit:  # the model is too large for one set
                new = ask(partial(self._drawn, limit, fit.sets))
                changing = ask(lambda: int(self._vectors.change.nnz()))
                rounds = fit.rounds - 1 if fit.rounds else -(-changing // limit) - 1
            block = np.concatenate([new, kept])
        if not len(block):
            return None
        fit.kept, fit.rounds, fit.sets = kept, rounds, fit.sets + 1
        return ComputeBlock(*fit.change, block=block, new=len(block) - len(kept))

    def _drawn(self, count: int, number: int) -> Int64s:
        options = self.options
        columns, keys = self._vectors.change.zip().apply(
            "linear.draw_coordinates",
            count=count,
            seed=options.seed,
            round=number,
            dim=self.context.problem.dim,
            schedule=SCHEDULES.index(options.schedule),
        )
        order = np.lexsort((columns, -keys))[:count]
        return np.sort(columns[order])

    def _minimise(self, fit: _Fit, task: ComputeBlock, report: Any) -> dict[str, Any]:
        """Minimise along a set: return the step. ``is_lost``: products that were kept are lost, as after a rollback."""
        amounts = {"rows": report.rows, "bytes": report.bytes}
        kept = self._products.last(task.block[task.new :])
        if kept is None:
            return {**amounts, "is_lost": True}
        curved = float(report.curved) if self.context.problem.fit_intercept else 0.0
        products = kept.extended(task.block, report.products, report.entries, curved)
        self._products = products if self._keeps(fit) else NO_PRODUCTS
        w, strengths = fit.support.at(task.block), fit.strengths
        tol = max(INEXACT * fit.gap / fit.value, OF_TOLERANCE * self.options.tol, EXACT) * strengths.l1
        step = minimise(products, report.gradient, w, (float(report.down), curved), strengths, tol)
        expected = float(report.gradient @ step.change) + float(report.down) * step.intercept
        expected += strengths.of(w) - strengths.of(step.w)
        expected = max(expected, step.decrease)  # a small one is lost in the difference of penalties
        move = {"change": step.change, "intercept": step.intercept, "decrease": step.decrease, "expected": expected}
        return {**amounts, "is_lost": False, **move}

    def _keeps(self, fit: _Fit) -> bool:
        """Return whether products do not change, and the next set may need them."""
        return self._is_squared and self._by_change and not fit.rounds

    def _push(self, fit: _Fit) -> None:
        """Set the weights that have changed, and the intercept."""
        columns, _ = fit.move.changed
        with batch():
            self.model.weight.push(fit.support.at(columns), columns)
            self.model.bias.push(np.array([fit.bias]))

    def _push_changes(self, fit: _Fit) -> None:
        """Set what the last step has changed, for the servers to draw by."""
        columns, changes = fit.move.columns, fit.move.changes
        square = self._vectors.curvature.pull(columns) + fit.strengths.l2
        self._vectors.change.push(changes * np.sqrt(square), columns)

    # -- what the frame calls ------------------------------------------------------------------------------------------

    def solver_work(self) -> SapWork:
        return SapWork(self.context.problem, self.context.facts, self.model, self._vectors)

    def result(self, returned: Any) -> TrainedModel:
        intercept, points = returned
        self.model.bias.push(np.array([intercept]))
        return replace(super().result(self.model), path=tuple(points))
