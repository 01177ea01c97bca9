"""How a metric is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.sent_gradients import FactorsName
from ps2.errors import ConfigError, LimitError

OptimizerName = Literal["adagrad", "sgd"]
OPTIMIZERS: tuple[OptimizerName, ...] = get_args(OptimizerName)
# Numbers of L: the model comes to the driver in the end.
MAX_NUMBERS = 1 << 26
# From here on, servers and workers hold float32.
FLOAT32_FROM = 1 << 22


@dataclass(frozen=True)
class MetricOptions:
    """How a metric is trained.

    Attributes:
        rank: rows of L.
        dissimilar_weight: lambda: how much a dissimilar pair counts, above 0.
        pairs: that are drawn for each row with a label, so many similar and so many dissimilar ones; None: rows are
            pairs.
        steps: how many.
        step_size: learning rate, for features scaled so that the mean squared length of a difference is 1.
        optimizer: of the servers.
        fraction: share of the pairs in a minibatch, in (0, 1].
        factors: whether gradients travel as sufficient factors.
        seed: of pairs, minibatches, and the beginning.
        name: under which another driver goes on with the training; "": none does.
    """

    rank: int
    dissimilar_weight: float = 1.0
    pairs: int | None = None
    steps: int = 100
    step_size: float = 0.1
    optimizer: OptimizerName = "adagrad"
    fraction: float = 1.0
    factors: FactorsName = "auto"
    seed: int = 0
    name: str = ""

    def check(self, dim: int) -> None:
        """Raise ConfigError or LimitError if there can be no L for so many features."""
        if self.rank > dim:
            raise ConfigError(f"rank: expected at most the number of features, {dim:,}, got {self.rank:,}")
        if self.rank * dim > MAX_NUMBERS:
            raise LimitError(
                f"rank: {self.rank:,} rows for {dim:,} features are {self.rank * dim:,} numbers, and at most "
                f"{MAX_NUMBERS:,} come to the driver; take a smaller rank"
            )

    def is_small(self, dim: int) -> bool:
        """Return whether L has float64 numbers on the servers."""
        return self.rank * dim < FLOAT32_FROM

    def form(self, dim: int, classes: int) -> Form:
        """Return the form that rows must have.

        Args:
            dim: features of a row with a label, or of each vector of a pair.
            classes: labels are integers below this.
        """
        size = dim if self.pairs is not None else 2 * dim
        return Form(size, classes, "float64" if self.is_small(dim) else "float32")
