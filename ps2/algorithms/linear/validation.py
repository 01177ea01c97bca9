"""When to stop by the loss of held-out rows, as pyspark.ml's validationTol does."""

from __future__ import annotations

import math

from ps2.algorithms.linear.parameters import Float64Array, Parameters
from ps2.algorithms.training.tally import HELD_LOSS, HELD_WEIGHT
from ps2.client.batch import batch

# A loss this small counts as this large.
MIN_LOSS = 0.01


class Validation:
    """The losses of rows held out, and the model that had the smallest one."""

    def __init__(self, tol: float, best: Parameters, losses: list[float]) -> None:
        """Args:
        tol: a loss has to be smaller than the best before by this part of it, or training is over.
        best: where the best model is kept.
        losses: so far; it grows.
        """
        self._tol = tol
        self._best = best
        self._losses = losses

    def look(self, sums: Float64Array, model: Parameters) -> str | None:
        """Take in what the workers found of a model, if anything; return why training is over, if it is.

        Args:
            sums: the tally.
            model: kept if it is the best so far.
        """
        if not sums[HELD_WEIGHT]:
            return None
        loss, before = float(sums[HELD_LOSS] / sums[HELD_WEIGHT]), min(self._losses, default=math.inf)
        self._losses.append(loss)
        if loss < before:
            with batch():
                self._best.copy(model)
        if before - loss < self._tol * max(loss, MIN_LOSS):
            return "the loss of the rows held out does not get better any more"
        return None
