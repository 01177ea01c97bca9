"""A training of a deep model."""

from __future__ import annotations

from dataclasses import dataclass

from ps2.algorithms.deep.settings import DeepSettings
from ps2.algorithms.frame.settings import Plan
from ps2.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class DeepPlan(Plan[DeepSettings]):
    """A training of a deep model.

    With a staleness above 0, each worker takes steps of its own and does not wait for the others. It reads the weights
    at the start of each batch: weights that it read earlier would lack its own last step.

    Attributes:
        steps: the number of steps in each epoch; each worker uses an equal share of its rows in each.
        weight: the sum of the weights of all rows.
    """

    steps: int = 1
    weight: float = 1.0

    @property
    def loss(self) -> str:
        """The loss: "logistic", or "softmax" over the items of a batch (two towers)."""
        return getattr(self.settings, "loss", "logistic")

    def rows_of(self, count: int, step: int) -> slice:
        """Return the slice of a worker's ``count`` rows, in the epoch's order, that a step uses."""
        return slice(count * step // self.steps, count * (step + 1) // self.steps)

    def check(self, has_towers: bool) -> None:
        """Raise ConfigError if the loss does not fit the model."""
        losses = ("logistic", "softmax") if has_towers else ("logistic",)
        if self.loss not in losses:
            raise ConfigError(f"loss: expected one of {', '.join(losses)}, got {self.loss!r}")
