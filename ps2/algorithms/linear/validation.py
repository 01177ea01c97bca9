"""Early stopping by the loss of held-out rows, as pyspark.ml's validationTol does."""

from __future__ import annotations

import math

from ps2.algorithms.linear.parameters import Parameters, Space
from ps2.algorithms.linear.problem import SolverOptions
from ps2.algorithms.linear.view import Sums
from ps2.client.batch import batch

# A loss this small counts as this large.
MIN_LOSS = 0.01


class Validation:
    """The losses of the held-out rows, and the model with the least."""

    def __init__(
        self, tol: float, model: Parameters, best: Parameters, losses: list[float], earlier: float = math.inf
    ) -> None:
        """Args:
        model: the one that is trained.
        best: keeps the model with the least loss.
        losses: so far; it grows.
        earlier: the least loss that an earlier driver found, if the training goes on.
        """
        self._tol, self._model, self._best = tol, model, best
        self._losses, self._earlier = losses, earlier

    @staticmethod
    def make(options: SolverOptions, space: Space, model: Parameters, losses: list[float]) -> Validation:
        best = space.new() if options.validate else model
        earlier = [one["validation"] for one in space.messages if "validation" in one]
        return Validation(options.validation_tol, model, best, losses, min(earlier, default=math.inf))

    @property
    def best(self) -> Parameters:
        """The model with the least loss; without held-out rows the trained one."""
        return self._model if math.isinf(self._least) else self._best

    def look(self, sums: Sums, model: Parameters) -> str | None:
        """Take in the loss of a model, if the workers have computed it; return the reason to stop, if there is one.

        Args:
            sums: what the workers reported.
            model: kept if it is the best so far.
        """
        if not sums["held_weight"]:
            return None
        loss, before = float(sums["held_loss"] / sums["held_weight"]), self._least
        self._losses.append(loss)
        if loss < before:
            with batch():
                self._best.copy(model)
        if before - loss < self._tol * max(loss, MIN_LOSS):
            return "the loss of the rows held out does not get better any more"
        return None

    @property
    def _least(self) -> float:
        return min([self._earlier, *self._losses])
