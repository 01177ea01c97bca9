"""A regularization path: one model for each of several strengths, each from the one before. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ps2.algorithms.training.record import TrainingHistory
from ps2.array_types import Float64s, Int64s
from ps2.errors import ConfigError


@dataclass(frozen=True)
class PathOptions:
    """Strengths, as factors of the problem's penalties.

    Attributes:
        strengths: positive, descending; empty: ``size`` of them, from the least one whose model is all zeros down to
            ``ratio`` times that, in equal ratios.
        size: how many, at least 1.
        ratio: in (0, 1).
    """

    strengths: tuple[float, ...] = (1.0,)
    size: int = 1
    ratio: float = 1e-3

    def __post_init__(self) -> None:
        if any(not 0.0 < one < np.inf for one in self.strengths) or any(np.diff(self.strengths) >= 0.0):
            raise ConfigError(f"lambdaPath: expected positive numbers that descend, got {list(self.strengths)}")

    def resolved(self, largest: float) -> tuple[float, ...]:
        """Return the strengths.

        Args:
            largest: the least strength whose model is all zeros.
        """
        if self.strengths:
            return self.strengths
        if self.size == 1:
            return (largest,)
        return tuple((largest * self.ratio ** (np.arange(self.size) / (self.size - 1))).tolist())


@dataclass(frozen=True, eq=False)
class PathPoint:
    """The model of one strength.

    Attributes:
        strength: as a factor of the problem's penalties.
        columns: int64, sorted: features whose weights are not 0.
        w: float64: these weights, for features as they were given.
        bias: the intercept.
        history: of the steps from the model before.
    """

    strength: float
    columns: Int64s
    w: Float64s
    bias: float
    history: TrainingHistory
