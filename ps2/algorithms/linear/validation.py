"""Early stopping by the loss of held-out rows, as pyspark.ml's validationTol does."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from ps2.algorithms.frame.program import Ask
from ps2.algorithms.linear.parameters import Parameters, Space
from ps2.algorithms.linear.plan import LinearPlan
from ps2.client.batch import batch

# A loss this small counts as this large.
MIN_LOSS = 0.01


class Validation:
    """The losses of the held-out rows, and the model with the smallest one."""

    def __init__(self, tol: float, model: Parameters, best: Parameters, losses: list[float]) -> None:
        """Args:
        model: the trained model.
        best: a copy of the model with the smallest loss.
        losses: the losses so far; the list grows.
        """
        self._tol, self._model, self._best, self._losses = tol, model, best, losses

    @staticmethod
    def make(plan: LinearPlan, space: Space, model: Parameters, losses: list[float]) -> Validation:
        best = space.new() if plan.validate else model
        return Validation(plan.validation_tol, model, best, losses)

    @property
    def best(self) -> Parameters:
        """The model with the smallest loss; without held-out rows the trained one."""
        return self._best if self._losses else self._model

    def add_loss(self, ask: Ask, report: Any, model: Parameters) -> str:
        """Add the loss of a model, if the workers have computed it.

        Args:
            report: the workers' report.
            model: copied if it is the best so far.

        Returns:
            The reason to stop; "": there is none.
        """
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
