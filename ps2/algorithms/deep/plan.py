"""The plan of a training of a deep model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ps2.algorithms.deep.settings import DeepSettings
from ps2.algorithms.frame.settings import Plan
from ps2.errors import ConfigError

# The default number of passes is the square root of this number of rows divided by the rows to train on.
ROWS_OF_ONE_PASS, MAX_DEFAULT_PASSES = 50_000, 8


@dataclass(frozen=True, kw_only=True)
class DeepPlan(Plan[DeepSettings]):
    """The plan of a training of a deep model.

    With a staleness above 0, each worker takes steps with its own gradients, and does not wait for other workers. It
    pulls the weights at the start of each step, because weights that it pulled earlier would lack its last step.

    Attributes:
        steps: the number of steps of an epoch; in each, a worker uses the same fraction of its rows.
        weight: the sum of the weights of the rows to train on.
        held_weight: the sum of the weights of the rows that are held out; 0: none are.
    """

    steps: int = 1
    weight: float = 1.0
    held_weight: float = 0.0

    @property
    def epoch_clocks(self) -> int:
        """The number of clocks of an epoch: its steps, and one for the rows that are held out."""
        return self.steps + (self.held_weight > 0)

    @property
    def keeps_best(self) -> bool:
        """Whether held-out rows choose the epoch whose model is the result."""
        return self.held_weight > 0 and self.settings.patience > 0

    @property
    def loss(self) -> str:
        """The loss: "logistic", or "softmax" over the items of a batch (two towers)."""
        return getattr(self.settings, "loss", "logistic")

    def rows_of(self, count: int, step: int) -> slice:
        """Return the slice of a worker's ``count`` shuffled rows for a step, which counts from 0 in each epoch."""
        return slice(count * step // self.steps, count * (step + 1) // self.steps)

    def with_passes(self, rows: int) -> DeepPlan:
        """Return the plan with a number of passes that suits the number of rows to train on, if none is set."""
        if self.settings.maxIter:
            return self
        passes = round(math.sqrt(ROWS_OF_ONE_PASS / rows))
        return self.with_settings(maxIter=min(max(passes, 1), MAX_DEFAULT_PASSES))

    def check(self, has_towers: bool) -> None:
        """Raise ConfigError if the kind of model does not support the loss, or a staleness the held-out rows."""
        if self.held_weight and self.settings.staleness:
            raise ConfigError(f"staleness: expected 0 with rows held out, got {self.settings.staleness}")
        losses = ("logistic", "softmax") if has_towers else ("logistic",)
        if self.loss not in losses:
            raise ConfigError(f"loss: expected one of {', '.join(losses)}, got {self.loss!r}")
