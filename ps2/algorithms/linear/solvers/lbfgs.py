"""L-BFGS with all vectors on the servers; with an L1 penalty OWL-QN (Andrew & Gao, 2007); with bounds, projected steps.

One evaluation of the objective is one clock: the workers pull the trial point at their keys, and add their part of the
gradient. Then the driver sends each server two requests. The first returns all inner products that the history needs if
the point is accepted. The second computes the next direction and trial point as linear combinations of vectors.

With a ``center``, the parameters are those of a model of centred features (``Center``).

Without ``standardize``, features are scaled nevertheless, as a preconditioner: the objective then has similar second
derivatives along all weights. The penalties are on the weights times the scale, the weights of unscaled features.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import Ask, DoTask, Steps, Task
from ps2.algorithms.linear.losses import Loss
from ps2.algorithms.linear.parameters import ModelView, Parameters, gram
from ps2.algorithms.linear.program import NO_SHIFTS, LinearProgram, TrainedModel
from ps2.algorithms.linear.solvers.descent import PAIRS, History, LineSearch
from ps2.algorithms.linear.solvers.monitors import Validation, too_large
from ps2.algorithms.linear.solvers.regions import Box, Orthants
from ps2.algorithms.linear.solvers.solver import Data, GradientForm, SolverContext
from ps2.algorithms.training.sent_gradients import FormChoice
from ps2.array_types import Float64s
from ps2.client.batch import batch
from ps2.errors import InputError

# L-BFGS stops if the objective is within the tolerance of its maximum over this number of last steps, as in pyspark.ml.
# With an L1 penalty or bounds, the number is larger, because projections make some steps short.
WINDOW = 10
WINDOW_IN_REGION = 20
# The minimum tolerance of the gradient's norm, for labels of unit size.
MIN_GRADIENT = 1e-8
# The tolerance is relative to the objective, or to this fraction of the first objective if that is larger.
NEGLIGIBLE = 0.1
# A training takes at most this many evaluations for each of ``maxIter`` steps.
EVALUATIONS_PER_STEP = 3


@dataclass(frozen=True, eq=False)
class Evaluate(Task):
    """Report the loss and add the gradient at the trial point, after subtracting ``shifts`` from the intercepts."""

    shifts: Float64s


@dataclass(frozen=True, eq=False)
class LbfgsWork:
    """The workers' part of the solver; picklable."""

    loss: Loss
    form: GradientForm
    trial: Parameters
    gradient: Parameters

    def __call__(self, data: Data) -> DoTask:
        def evaluate(worker: Any, task: Evaluate) -> None:
            view = ModelView(worker)
            w, b = view.pull(self.trial, data.columns)
            b[: len(task.shifts)] -= task.shifts
            sums, sent = self.form.gradient(self.gradient.weight, data.rows, w, b, data.columns)
            view.add(self.gradient, sent, sums.db)
            loss, held_out_loss = (sums.loss, sums.weight), data.held_out_loss(self.loss, w, b)
            view.report(loss, held_out_loss, len(data.rows), **self.form.choice.take_report())

        return evaluate


@dataclass(frozen=True, eq=False)
class _Evaluation:
    """The evaluation of a trial point.

    Attributes:
        value: the objective at the trial point.
        slope: the slope of the objective along the direction; 0 (not needed) if there is a region.
        decrease: the expected change of the objective; None: length times slope.
        products: the argument of ``History.add``, shape (3, 2 * PAIRS + 1); 0 for free slots.
    """

    value: float
    slope: float
    decrease: float | None
    products: Float64s
    report: Any

    @property
    def square(self) -> float:
        """The inner product of the gradient with itself."""
        return float(self.products[2, -1])


class Lbfgs(LinearProgram):
    """The program of L-BFGS. ``_pseudo`` is the pseudo-gradient (``regions``); without a region, the gradient."""

    def __init__(self, context: SolverContext) -> None:
        super().__init__(context)
        self._trial = self.model
        # The weights times the scale, if the scale is only a preconditioner; the penalties are on these.
        self._unscaled = context.space.new_weight() if context.is_preconditioned else None
        vectors = context.space.new_list(4 + 2 * PAIRS)
        self._point, self._direction, self._gradient, self._gradient_at_trial = vectors[:4]
        self._steps, self._changes = vectors[4 : 4 + PAIRS], vectors[4 + PAIRS :]
        scale = context.scale if context.is_preconditioned else None
        orthants = Orthants(context.problem.l1, scale, self._unscaled) if context.problem.l1 else None
        self._region: Box | Orthants | None = context.box or orthants
        if self._region is not None:
            self._pseudo, self._pseudo_at_trial = context.space.new_list(2)
        else:
            self._pseudo, self._pseudo_at_trial = self._gradient, self._gradient_at_trial
        self._basis = [*self._steps, *self._changes, self._pseudo]
        self._basis_at_trial = [*self._steps, *self._changes, self._pseudo_at_trial]
        self._validation = Validation.make(context.plan, context.space, self._point, context.record.validation)
        facts, is_squared = context.facts, context.problem.loss == "squared"
        self._label_size = (facts.label_std or abs(facts.label_mean) or 1.0) if is_squared else 1.0

    def drive(self, ask: Ask) -> Steps[Parameters]:
        shifts = yield from self.prepare(ask)
        history, objectives = History(PAIRS), list[float]()
        evaluations = iter(range(EVALUATIONS_PER_STEP * self.plan.settings.maxIter))  # shared by all line searches
        trial = yield from self._evaluate(ask, history, shifts)
        history.set_gradient_square(trial.square)
        while True:
            objectives.append(trial.value)
            ask.record_objective(trial.value)
            reason = self._reason_to_stop(trial, objectives)
            reason = reason or self._validation.add_loss(ask, trial.report, self._trial)
            if reason:
                ask(self._accept_trial)
                break
            next_trial = yield from self._search(ask, history, trial.value, evaluations)
            if isinstance(next_trial, str):  # no better point: the current point is the result
                reason = next_trial
                break
            trial = next_trial
            history.add(trial.products)
        self.record.reason = reason
        return self._validation.best

    def _search(self, ask: Ask, history: History, value: float, evaluations: Iterator[int]) -> Steps[_Evaluation | str]:
        """Accept the last trial point, whose objective is ``value``. Evaluate points along a direction from that point.

        Return the first evaluation that the line search accepts, or the reason why there is none.
        """
        search, shifts = self._choose_direction(ask, history, value, accept=True)
        for _ in evaluations:
            trial = yield from self._evaluate(ask, history, shifts)
            try:
                if search.accepts(trial.value, trial.slope, trial.decrease):
                    return trial
            except ArithmeticError as error:
                if history.is_empty:
                    return str(error)
                history.clear()  # search again, along the gradient
                search, shifts = self._choose_direction(ask, history, value, accept=False)
            else:
                shifts = ask(partial(self._move_trial, search.step))
        return "all evaluations were made"

    def _evaluate(self, ask: Ask, history: History, shifts: Float64s) -> Steps[_Evaluation]:
        """Evaluate the objective and its gradient at the trial point."""
        report = yield from self.clock(Evaluate(shifts))
        return _Evaluation(*ask(partial(self._finish_gradient, report.loss, history)), report)

    def _choose_direction(self, ask: Ask, history: History, value: float, accept: bool) -> tuple[LineSearch, Float64s]:
        """Choose a direction and the first trial point along it; return the line search, and the trial point's shifts.

        ``value`` is the objective at the current point. With ``accept``, this is the last trial point.
        """
        coefficients, slope = history.direction()
        if slope >= 0.0:  # an ascent: rounding errors, or servers lost a part of the vectors
            history.clear()
            coefficients, slope = history.direction()
        length = self._label_size / math.sqrt(-slope) if history.is_empty else 1.0
        if self.context.start is not None:  # near a trained model, good first steps are short
            length = min(length, 1.0)
        shifts = ask(partial(self._move_trial, length, coefficients, accept))
        return LineSearch(value, slope, length, curvature=self._region is None), shifts

    def _reason_to_stop(self, trial: _Evaluation, objectives: list[float]) -> str:
        """Return the reason to stop, from the gradient and the last objectives, as in pyspark.ml; "": go on."""
        plan, value = self.context.plan, trial.value
        if not math.isfinite(value):
            raise too_large(value)
        if not math.isfinite(trial.square):
            raise InputError(_too_steep(self._gradient_at_trial))
        # Divide by the label's size: the tolerance must not depend on the unit of the labels.
        gradient_norm = math.sqrt(trial.square) / self._label_size
        if gradient_norm <= max(plan.settings.tol * abs(value) / self._label_size**2, MIN_GRADIENT):
            return "the gradient is 0 within the tolerance"
        window = objectives[-(WINDOW if self._region is None else WINDOW_IN_REGION) :]
        # The objective may converge to 0, as for separable rows; so the scale has a lower limit.
        scale = max(abs(value), NEGLIGIBLE * abs(objectives[0]))
        if len(objectives) > 1 and abs(value - max(window)) <= plan.settings.tol * scale:
            return "the objective changes by less than the tolerance"
        if len(objectives) > plan.settings.maxIter:
            return "all iterations were made"
        return ""

    def _finish_gradient(self, loss: float, history: History) -> tuple[float, float, float | None, Float64s]:
        """Complete the gradient at the trial point; return the fields of ``_Evaluation`` before ``report``."""
        context, problem = self.context, self.context.problem
        trial, gradient, pseudo = self._trial, self._gradient_at_trial, self._pseudo_at_trial
        mean = 1.0 / context.facts.weight
        penalised = trial.weight if self._unscaled is None else self._unscaled
        has_l2 = problem.l2 > 0.0  # if not, skip scale^2 below, which may overflow
        terms, factors = [gradient.weight], [mean]
        if has_l2:
            terms.append(penalised)
            factors.append(problem.l2)
        slopes = None if context.center is None else mean * gradient.bias.pull()[: problem.outputs]
        slot = history.next_slot
        used = sorted({*history.slots, slot})
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
                self._region.set_pseudo_gradient(pseudo, trial, gradient)
                slope = gram([self._pseudo], [step])  # the expected change of the objective, to first order
                self._region.project_curvature(step, change, pseudo)
            else:
                slope = gram([gradient], [self._direction])
            dots = gram([step, change, pseudo], [self._basis_at_trial[i] for i in basis])
        products = np.zeros((3, 2 * PAIRS + 1))
        products[:, basis] = dots()
        value = loss * mean
        if has_l2:
            value += 0.5 * problem.l2 * square.result()
        slope_along_step = float(slope()[0, 0])
        if problem.l1:
            value += problem.l1 * absolute.result()
        if self._region is not None:
            return value, 0.0, slope_along_step, products
        return value, slope_along_step, None, products

    def _accept_trial(self) -> None:
        with batch():
            self._copy_trial_to_point()

    def _copy_trial_to_point(self) -> None:
        self._point.copy(self._trial)
        self._gradient.copy(self._gradient_at_trial)
        if self._region is not None:
            self._pseudo.copy(self._pseudo_at_trial)

    def _move_trial(self, length: float, coefficients: Float64s | None = None, accept: bool = False) -> Float64s:
        """Set the trial point to ``point + length * direction``, projected onto the region; return its shifts.

        With ``accept``, the last trial point first becomes the point. ``coefficients`` define a new direction.
        """
        trial, point, direction = self._trial, self._point, self._direction
        center = self.context.center
        with batch():
            if accept:
                self._copy_trial_to_point()
            if coefficients is not None:
                self._set_direction(coefficients)
            trial.combine([point, direction], [1.0, length])
            if self._region is not None:
                self._region.project(trial, point, direction, self._pseudo, length)
            self._gradient_at_trial.zero()
            if center is not None:
                shifts = center.shifts(trial.weight)
        return NO_SHIFTS if center is None else np.asarray(shifts.result())

    def _set_direction(self, coefficients: Float64s) -> None:
        used = np.flatnonzero(coefficients)
        self._direction.combine([self._basis[i] for i in used], coefficients[used])
        if self._region is not None:
            self._region.align(self._direction, self._pseudo)

    def solver_work(self) -> LbfgsWork:
        form = GradientForm(self.context.loss, FormChoice(self.plan.factors))
        return LbfgsWork(self.context.loss, form, self._trial, self._gradient_at_trial)

    def result(self, parameters: Parameters) -> TrainedModel:
        if self.context.center is not None:
            self.context.center.uncenter(parameters)
        return super().result(parameters)


def _too_steep(gradient: Parameters) -> str:
    """Return the error text for a gradient whose squared norm overflows."""
    vector = gradient.weight
    columns, values = vector.pull() if vector.isSparse else (np.arange(vector.dim), vector.pull())
    magnitudes = np.abs(values)
    if not len(magnitudes) or magnitudes.max() < np.abs(gradient.bias.pull()).max():
        return "the gradient by the intercept overflows: labels are too large"
    index = int(np.argmax(np.where(np.isnan(magnitudes), np.inf, magnitudes)))
    feature = int(columns[index]) // gradient.width
    return f"the gradient by the weight of feature {feature} is {values[index]:g}: its values are too large, scale them"
