"""Checks of the model of each step: the objective, including penalties, and the loss of held-out rows.

In a step's clock, workers compute the loss of the model before the step. So solvers have one more clock, without a
step, that evaluates the last model.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from ps2.algorithms.frame.program import Ask
from ps2.algorithms.linear.parameters import Parameters, Space
from ps2.algorithms.linear.plan import LinearPlan
from ps2.algorithms.linear.solvers.solver import SolverContext
from ps2.algorithms.training.record import DIVERGED, WORSE, WORSE_SAMPLE
from ps2.client.batch import batch
from ps2.errors import DivergedError, InputError

log = logging.getLogger(__name__)

# Objectives below this fraction of the largest squared label are rounding errors. Class labels count as 1.
ROUNDING = 1e-9
# Improvements of the held-out loss are relative to the loss, or to this value if the loss is smaller.
MIN_LOSS = 0.01


class ObjectiveMonitor:
    """Computes and checks the objective. ``penalised`` returns a model's vectors that have the L2 penalty."""

    def __init__(
        self, context: SolverContext, penalised: Callable[[Parameters], tuple[Any, ...]] = lambda model: (model.weight,)
    ):
        self._context, self._penalised = context, penalised
        labels = context.facts.label_range if context.problem.classes is None else (0.0, 1.0)
        max_label = max(abs(labels[0]), abs(labels[1]))
        self._rounding = ROUNDING * max_label * max_label

    def penalty(self, model: Parameters) -> Callable[[], float]:
        """Request a model's penalties within ``batch()``; return a function that returns their sum after the batch."""
        l1, l2 = self._context.problem.l1, self._context.problem.l2
        terms: list[tuple[float, Any]] = [(l1, model.weight.norm1())] if l1 else []
        terms += [(l2 / 2.0, vector.dot(vector)) for vector in self._penalised(model)] if l2 else []
        return lambda: sum(factor * term.result() for factor, term in terms)

    def objective(self, step: int, loss: float, weight: float, penalty: float) -> float:
        """Return the objective of the model after ``step`` steps, NaN without rows; raise if it is not finite."""
        value = loss / weight + penalty if weight else math.nan
        if weight and not math.isfinite(value):
            if step == 0:
                raise too_large(value)
            raise diverged(
                self._context,
                f"after step {step} the objective is {value}, and it was {self._first_objective:g} before",
            )
        return value

    def check_end(self) -> None:
        """Warn if the last objective is worse than the first one; raise DivergedError if it is far worse."""
        factor, message = self._context.record.growth(self._rounding)
        if factor > DIVERGED:
            raise diverged(self._context, message)
        plan = self._context.plan
        is_sample = plan.solver == "minibatch" and plan.settings.miniBatchFraction < 1.0
        if factor > (WORSE_SAMPLE if is_sample else WORSE):
            log.warning("%s: %s; %s", _name(plan), message, _advice(self._context))

    @property
    def _first_objective(self) -> float:
        """The first objective that is not NaN; NaN if there is none."""
        return next((value for value in self._context.record.objective if not math.isnan(value)), math.nan)


def too_large(objective: float) -> InputError:
    """Return the error of an objective that is not finite before the first step."""
    return InputError(f"the objective is {objective} before the first step: labels, weights or features are too large")


def diverged(context: SolverContext, cause: str) -> DivergedError:
    """Return the error of a training that has diverged, with the cause and advice."""
    return DivergedError(f"{_name(context.plan)}: the training has diverged: {cause}; {_advice(context)}")


def _name(plan: LinearPlan) -> str:
    return f"solver {plan.solver!r}" + (f" with {plan.optimizer!r}" if plan.solver == "minibatch" else "")


def _advice(context: SolverContext) -> str:
    if context.plan.solver in ("l-bfgs", "normal"):
        return "scale features and labels"
    advice = f"stepSize {context.plan.settings.stepSize:g} is too large for these features and labels"
    if context.problem.l2:
        advice += f", or for regParam (an L2 penalty of {context.problem.l2:g})"
    return f"{advice}: take a smaller one, or scale them"


class Validation:
    """Early stopping as with pyspark.ml's validationTol; copies the best model. ``add_loss`` appends to ``losses``."""

    def __init__(self, tol: float, model: Parameters, best: Parameters, losses: list[float]) -> None:
        self._tol, self._model, self._best, self._losses = tol, model, best, losses

    @staticmethod
    def make(plan: LinearPlan, space: Space, model: Parameters, losses: list[float]) -> Validation:
        best = space.new() if plan.validate else model
        return Validation(plan.validation_tol, model, best, losses)

    @property
    def best(self) -> Parameters:
        """The model with the smallest held-out loss; the trained model if no held-out loss is known."""
        return self._best if self._losses else self._model

    def add_loss(self, ask: Ask, report: Any, model: Parameters) -> str:
        """Add the held-out loss, if the report has one; copy the best model. Return the reason to stop, or ""."""
        if not report.held_weight:
            return ""
        loss, min_loss = float(report.held_loss / report.held_weight), min(self._losses, default=math.inf)
        self._losses.append(loss)
        return ask(partial(self._copy_if_best, loss, min_loss, model))

    def _copy_if_best(self, loss: float, min_loss: float, model: Parameters) -> str:
        if loss < min_loss:
            with batch():
                self._best.copy(model)
        if min_loss - loss < self._tol * max(loss, MIN_LOSS):
            return "the loss of the rows held out does not get better any more"
        return ""
