"""L-BFGS and, with an L1 penalty, OWL-QN (Andrew & Gao, 2007), with every vector on the servers; or between bounds.

One evaluation of the objective is one clock: the workers pull the trial point at their own keys and add their part of
the gradient. The driver then sends each server two requests: one for all inner products, on the chance that the point
is good, and one that computes the next direction and trial point as combinations of the vectors there.

With a ``center`` (means of the features), it searches in the space of centred features (``centering``).

Without ``standardize``, features are scaled all the same, so that the objective is about as curved along every weight;
its penalties are on the weights times that scale.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ps2.algorithms.linear.gradient_form import GradientForm
from ps2.algorithms.linear.losses.loss import Loss
from ps2.algorithms.linear.parameters import Parameters, columns_of, gram
from ps2.algorithms.linear.solvers.history import History
from ps2.algorithms.linear.solvers.line_search import LineSearch
from ps2.algorithms.linear.solvers.regions import Orthants, Region
from ps2.algorithms.linear.solvers.solver import Data, SolverContext
from ps2.algorithms.linear.validation import Validation
from ps2.algorithms.linear.view import ModelView, Sums
from ps2.algorithms.training.sent_gradients import FormChoice
from ps2.array_types import Float64s
from ps2.client.batch import batch
from ps2.errors import InputError
from ps2.run.message import Message, Stop

# Pairs of vectors that the direction is made of, as in pyspark.ml.
PAIRS = 10
# Objectives that convergence is judged by, as in pyspark.ml; within a region steps are cut short now and then.
WINDOW = 10
WINDOW_IN_REGION = 20
MIN_GRADIENT = 1e-8
# Of the first objective: a smaller one is as good as 0.
REST = 0.1
EVALUATIONS_PER_STEP = 3
NO_SHIFTS = np.empty(0)


@dataclass
class _State:
    """The driver's state between clocks; it rolls back with the fleet."""

    history: History = field(default_factory=lambda: History(PAIRS))
    search: LineSearch | None = None  # None: the first point is evaluated
    objectives: list[float] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class _Evaluation:
    """The evaluation of a trial point.

    Attributes:
        value: of the objective.
        slope: along the direction; 0 where steps keep to a region.
        decrease: expected change of the objective; None: follows from the slope.
        products: float64, shape (3, 2 * PAIRS + 1): for the history; 0 where a slot is free.
        sums: the workers' reports.
    """

    value: float
    slope: float
    decrease: float | None
    products: Float64s
    sums: Sums

    @property
    def square(self) -> float:
        """The inner product of the gradient with itself."""
        return float(self.products[2, -1])


@dataclass(frozen=True, eq=False)
class LbfgsWorker:
    """Loss and gradient of all of a worker's rows at the trial point, clock by clock."""

    loss: Loss
    form: GradientForm
    trial: Parameters
    gradient: Parameters

    def __call__(self, worker: Any, data: Data, view: ModelView, clocks: int) -> None:
        columns = columns_of(data.rows.keys, self.trial.width)
        for _ in worker.clocks(clocks):
            w, b = view.pull(self.trial, columns)
            shifts = view.told("shifts", NO_SHIFTS)
            b[: len(shifts)] -= shifts
            found, sent = self.form.gradient(self.gradient.weight, data.rows, w, b, columns)
            view.add(self.gradient, sent, found.db)
            held = data.held_loss(self.loss, w, b)
            view.report((found.loss, found.weight), held, len(data.rows), **self.form.choice.reported())


class Lbfgs:
    """The driver's program."""

    def __init__(self, context: SolverContext) -> None:
        self._context = context
        self._trial = context.beginning
        # The weights of features as they were given, where penalties are on those and not on the trial point's.
        self._unscaled = context.space.weight() if context.conditions else None
        made = context.space.several(4 + 2 * PAIRS)
        self._point, self._direction, self._gradient, self._gradient_at_trial = made[:4]
        self._steps, self._changes = made[4 : 4 + PAIRS], made[4 + PAIRS :]
        scale = context.scale if context.conditions else None
        orthants = Orthants(context.problem.l1, scale, self._unscaled) if context.problem.l1 else None
        self._region: Region | None = context.box or orthants
        if self._region is not None:
            self._pseudo, self._pseudo_at_trial = context.space.several(2)
        else:
            self._pseudo, self._pseudo_at_trial = self._gradient, self._gradient_at_trial
        self._basis = [*self._steps, *self._changes, self._pseudo]
        self._basis_at_trial = [*self._steps, *self._changes, self._pseudo_at_trial]
        self._validation = Validation.make(context.options, context.space, self._point, context.record.validation)
        facts, is_squared = context.facts, context.problem.loss == "squared"
        self._label_size = (facts.label_std or abs(facts.label_mean) or 1.0) if is_squared else 1.0
        self._states = [_State()]
        self.clocks = EVALUATIONS_PER_STEP * context.options.steps + 1
        form = GradientForm(context.loss, FormChoice(context.options.factors))
        self.worker = LbfgsWorker(context.loss, form, self._trial, self._gradient_at_trial)

    def result(self) -> Parameters:
        record, center = self._context.record, self._context.center
        record.reason = record.reason or "all evaluations were made"
        found = self._validation.best
        if center is not None:
            center.uncenter(found)
        return found

    def on_clock(self, clock: int, sums: Sums) -> Message | Stop | None:
        del self._states[clock + 1 :]
        state = copy.deepcopy(self._states[clock])
        self._states.append(state)
        found = self._evaluate(state, sums)
        if state.search is None:
            self._context.record.objective.append(float(found.value))
            state.history.begin(found.square)
            return self._accept(state, found)
        try:
            accepted = state.search.accepts(found.value, found.slope, found.decrease)
        except ArithmeticError as error:
            return self._give_up(state, str(error))
        if not accepted:
            return self._look(state.search.step, coefficients=None, keep=False)
        self._context.record.step(found.value)
        state.history.add(found.products)
        return self._accept(state, found)

    def _evaluate(self, state: _State, sums: Sums) -> _Evaluation:
        """Finish the gradient at the trial point, and ask for all inner products, on the chance that it is good."""
        context, problem = self._context, self._context.problem
        trial, gradient, pseudo = self._trial, self._gradient_at_trial, self._pseudo_at_trial
        mean = 1.0 / context.facts.weight
        penalised = trial.weight if self._unscaled is None else self._unscaled
        # Without a penalty the square of a scale may overflow.
        has_l2 = problem.l2 > 0.0
        terms, factors = [gradient.weight], [mean]
        if has_l2:
            terms.append(penalised)
            factors.append(problem.l2)
        slopes = None if context.center is None else mean * gradient.bias.pull()[: problem.outputs]
        slot = state.history.next_slot
        used = sorted({*state.history.slots, slot})
        basis = [*used, *(PAIRS + i for i in used), 2 * PAIRS]
        step, change = self._steps[slot], self._changes[slot]
        with batch():
            if self._unscaled is not None:
                penalised.copy(trial.weight).mul(context.scale)
            square: Any = penalised.dot(penalised) if has_l2 else None
            absolute: Any = penalised.norm1() if problem.l1 else None
            if self._unscaled is not None and has_l2:
                penalised.mul(context.scale)  # the penalty's gradient by the trial point's weights
            gradient.weight.combine(terms, factors)
            if context.center is not None and slopes is not None:
                context.center.correct(gradient, slopes)
            gradient.bias.mul(mean)
            step.combine([trial, self._point], [1.0, -1.0])
            change.combine([gradient, self._gradient], [1.0, -1.0])
            if self._region is not None:
                self._region.descend(pseudo, trial, gradient)
                # The expected change of the objective, to first order.
                slope = gram([self._pseudo], [step])
                self._region.remember(step, change, pseudo)
            else:
                slope = gram([gradient], [self._direction])
            dots = gram([step, change, pseudo], [self._basis_at_trial[i] for i in basis])
        products = np.zeros((3, 2 * PAIRS + 1))
        products[:, basis] = dots()
        value = sums["loss"] * mean
        if has_l2:
            value += 0.5 * problem.l2 * square.result()
        along = float(slope()[0, 0])
        if problem.l1:
            value += problem.l1 * absolute.result()
        if self._region is not None:
            return _Evaluation(value, 0.0, along, products, sums)
        return _Evaluation(value, along, None, products, sums)

    def _accept(self, state: _State, found: _Evaluation) -> Message | Stop | None:
        """Take the trial point; choose the next direction and trial point."""
        state.objectives.append(found.value)
        reason = self._reason_to_stop(state, found) or self._validation.look(found.sums, self._trial)
        if reason is None:
            return self._turn(state, keep=True)
        with batch():
            self._keep()
        return self._context.stop(reason)

    def _turn(self, state: _State, keep: bool) -> Message | None:
        """Choose a direction, and the first trial point along it; ``keep``: from the last trial point."""
        coefficients, slope = state.history.direction()
        if slope >= 0.0:  # rounding, or servers that lost a part of the vectors
            state.history.forget()
            coefficients, slope = state.history.direction()
        length = self._label_size / math.sqrt(-slope) if state.history.is_empty else 1.0
        if self._context.is_warm:
            length = min(length, 1.0)
        state.search = LineSearch(state.objectives[-1], slope, length, curvature=self._region is None)
        return self._look(length, coefficients, keep)

    def _keep(self) -> None:
        self._point.copy(self._trial)
        self._gradient.copy(self._gradient_at_trial)
        if self._region is not None:
            self._pseudo.copy(self._pseudo_at_trial)

    def _look(self, length: float, coefficients: Any, keep: bool) -> Message | None:
        """Let the workers evaluate ``point + length * direction``; within the region, if there is one.

        Args:
            coefficients: of a new direction; None: the direction stays.
            keep: whether the last trial point becomes the point before.
        """
        trial, point, direction = self._trial, self._point, self._direction
        center = self._context.center
        with batch():
            if keep:
                self._keep()
            if coefficients is not None:
                self._set_direction(coefficients)
            trial.combine([point, direction], [1.0, length])
            if self._region is not None:
                self._region.bring_back(trial, point, direction, self._pseudo, length)
            self._gradient_at_trial.zero()
            if center is not None:
                shifts = center.shifts(trial.weight)
        return None if center is None else center.message(shifts.result())

    def _set_direction(self, coefficients: Any) -> None:
        used = np.flatnonzero(coefficients)
        self._direction.combine([self._basis[i] for i in used], coefficients[used])
        if self._region is not None:
            self._region.align(self._direction, self._pseudo)

    def _reason_to_stop(self, state: _State, found: _Evaluation) -> str | None:
        """Judge as pyspark.ml does, by the gradient and by the last objectives."""
        options, objectives, value = self._context.options, state.objectives, found.value
        if not math.isfinite(value):
            raise InputError(
                f"the objective is {value} before the first step: labels, weights or features are too large"
            )
        if not math.isfinite(found.square):
            raise InputError(_too_steep(self._gradient_at_trial))
        # As if labels were of size 1: the loss is a power of that size, which no tolerance should know.
        steepness = math.sqrt(found.square) / self._label_size
        if steepness <= max(options.tol * abs(value) / self._label_size**2, MIN_GRADIENT):
            return "the gradient is 0 within the tolerance"
        window = objectives[-(WINDOW if self._region is None else WINDOW_IN_REGION) :]
        # Relative to the objective; where that goes to 0, as for separable rows, to its first value.
        scale = max(abs(value), REST * abs(objectives[0]))
        if len(objectives) > 1 and abs(value - max(window)) <= options.tol * scale:
            return "the objective does not change beyond the tolerance any more"
        if len(objectives) > options.steps:
            return "all iterations were made"
        return None

    def _give_up(self, state: _State, why: str) -> Message | Stop | None:
        """Search along the gradient, or stop at the point if it was that."""
        if state.history.is_empty:
            return self._context.stop(why)
        state.history.forget()
        return self._turn(state, keep=False)


def _too_steep(gradient: Parameters) -> str:
    """Name the weight whose gradient is too large for a finite square."""
    vector = gradient.weight
    columns, values = vector.pull() if vector.isSparse else (np.arange(vector.dim), vector.pull())
    sizes = np.abs(values)
    if not len(sizes) or sizes.max() < np.abs(gradient.bias.pull()).max():
        return "the gradient by the intercept overflows: labels are too large"
    at = int(np.argmax(np.where(np.isnan(sizes), np.inf, sizes)))
    feature = int(columns[at]) // gradient.width
    return f"the gradient by the weight of feature {feature} is {values[at]:g}: its values are too large, scale them"
