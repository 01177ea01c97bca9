"""How a deep model is trained."""

from __future__ import annotations

from dataclasses import dataclass

from ps2.errors import ConfigError


@dataclass(frozen=True)
class DeepOptions:
    """How a deep model is trained.

    Attributes:
        epochs: number of passes over the rows.
        batch: rows of a step: of all workers together if staleness is 0, else of the worker that takes the step.
        lr: learning rate of Adam, the layers' optimizer.
        decay: decoupled decay of the layers' weights (AdamW).
        loss: "logistic", or "softmax" over the items of a batch (two towers).
        staleness: clocks that a worker may be ahead of the slowest one. 0: one step per clock, by the gradients of all
            workers. Above 0: each worker takes steps of its own and does not wait for the others. It reads the weights
            when its batch begins; weights that were read ahead would lack its own last step.
        overlap: True: gradients leave as soon as they are computed. False waits for each one (for measurements).
        seed: seed of initial values, order of rows, and dropout.
    """

    epochs: int = 5
    batch: int = 1024
    lr: float = 1e-3
    decay: float = 0.0
    loss: str = "logistic"
    staleness: int = 0
    overlap: bool = True
    seed: int = 0

    def check(self, has_towers: bool) -> None:
        """Raise ConfigError if the loss does not fit the model."""
        losses = ("logistic", "softmax") if has_towers else ("logistic",)
        if self.loss not in losses:
            raise ConfigError(f"loss: expected one of {', '.join(losses)}, got {self.loss!r}")
