"""The plan of a training of a deep model."""

from __future__ import annotations

from dataclasses import dataclass

from ps2.algorithms.deep.settings import DeepSettings
from ps2.algorithms.frame.settings import Plan
from ps2.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class DeepPlan(Plan[DeepSettings]):
    """The plan of a training of a deep model.

    With a staleness above 0, each worker takes steps with its own gradients, and does not wait for other workers. It
    pulls the weights at the start of each step, because weights that it pulled earlier would lack its last step.

    Attributes:
        steps: the number of steps of an epoch; in each, a worker uses the same fraction of its rows.
        weight: the sum of the weights of all rows.
    """

    steps: int = 1
    weight: float = 1.0

    @property
    def loss(self) -> str:
        """The loss: "logistic", or "softmax" over the items of a batch (two towers)."""
        return getattr(self.settings, "loss", "logistic")

    def rows_of(self, count: int, step: int) -> slice:
        """Return the slice of a worker's ``count`` shuffled rows for a step, which counts from 0 in each epoch."""
        return slice(count * step // self.steps, count * (step + 1) // self.steps)

    def check(self, has_towers: bool) -> None:
        """Raise ConfigError if the kind of model does not support the loss."""
        losses = ("logistic", "softmax") if has_towers else ("logistic",)
        if self.loss not in losses:
            raise ConfigError(f"loss: expected one of {', '.join(losses)}, got {self.loss!r}")
