"""The objective of each step's model, penalties included, and whether the training diverges.

In a step, workers compute the loss of the model before the step. So the last clock of a solver evaluates the last
model, and takes no step.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

from ps2.algorithms.linear.parameters import Parameters
from ps2.algorithms.linear.plan import LinearPlan
from ps2.algorithms.linear.solvers.solver import SolverContext
from ps2.errors import DivergedError, InputError

log = logging.getLogger(__name__)

# Growth of the objective since the first step that counts as divergence.
DIVERGED = 1000.0
# Growth that is worth a warning: of the objective of all rows; of minibatches, which are samples.
WORSE, WORSE_THAN_SAMPLE = 1.01, 2.0
# Objectives below this share of the largest squared label (classes: of 1) are rounding.
ROUNDING = 1e-9


class ObjectiveMonitor:
    """The objective from clock to clock."""

    def __init__(
        self, context: SolverContext, penalised: Callable[[Parameters], tuple[Any, ...]] = lambda model: (model.weight,)
    ):
        """Args:
        penalised: returns the vectors of a model to which the L2 penalty applies.
        """
        self._context, self._penalised = context, penalised
        labels = context.facts.label_range if context.problem.classes is None else (0.0, 1.0)
        size = max(abs(labels[0]), abs(labels[1]))
        self._rounding = ROUNDING * size * size

    def penalty(self, model: Parameters) -> Callable[[], float]:
        """Request the penalties of a model within ``batch()``; the returned function returns them after it."""
        l1, l2 = self._context.problem.l1, self._context.problem.l2
        sizes: list[tuple[float, Any]] = [(l1, model.weight.norm1())] if l1 else []
        squares: list[tuple[float, Any]] = [(l2 / 2.0, v.dot(v)) for v in self._penalised(model)] if l2 else []
        return lambda: sum(strength * size.result() for strength, size in [*sizes, *squares])

    def objective(self, step: int, loss: float, weight: float, penalty: float) -> float:
        """Return the objective of the model after a number of steps.

        Args:
            loss: the weighted sum of the rows' losses.
            weight: the sum of their weights; 0: there was no row, and the objective is NaN.

        Raises:
            DivergedError: it is not finite.
            InputError: it is not finite before the first step.
        """
        value = loss / weight + penalty if weight else math.nan
        if weight and not math.isfinite(value):
            if step == 0:
                raise InputError(
                    f"the objective is {value} before the first step: labels, weights or features are too large"
                )
            raise diverged(
                self._context, f"after step {step} the objective is {value}, and it was {self._first:g} before"
            )
        return value

    def end(self) -> None:
        """Warn if the objective of the last model is worse than that of the first one.

        Raises:
            DivergedError: it is far worse.
        """
        first, last = self._first, self._context.record.objective[-1]
        before = max(first, self._rounding)
        message = f"the objective has grown from {first:g} to {last:g}"
        if last > DIVERGED * before:
            raise diverged(self._context, message)
        plan = self._context.plan
        is_sample = plan.solver == "minibatch" and plan.settings.miniBatchFraction < 1.0
        if last > (WORSE_THAN_SAMPLE if is_sample else WORSE) * before:
            log.warning("%s: %s; %s", _name(plan), message, _advice(self._context))

    @property
    def _first(self) -> float:
        """The first objective that is known."""
        return next((value for value in self._context.record.objective if not math.isnan(value)), math.nan)


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
