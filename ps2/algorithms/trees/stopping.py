"""When a training ends by the rows that are held out, and which rounds its model keeps. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# A value this small counts as this large, as in pyspark.ml.
MIN_SIZE = 0.01


@dataclass(frozen=True)
class EarlyStopping:
    """The rule.

    Attributes:
        patience: rounds one after the other that do not improve the metric before the training ends; 0: it ends with
            the first one, as in pyspark.ml, where a metric that stays the same still improves with a tolerance of 0.
        tolerance: least improvement, relative to the metric.
        is_larger_better: of the metric.
    """

    patience: int = 0
    tolerance: float = 0.0
    is_larger_better: bool = False

    def is_over(self, values: Sequence[float]) -> bool:
        """Return whether the training ends; values: of the metric after each round."""
        return self._without_improvement(values) >= max(self.patience, 1)

    def best(self, values: Sequence[float]) -> int:
        """Return the number of the best round, from 0; the first one of equals."""
        return int(np.argmin(self._falling(values)))

    def _without_improvement(self, values: Sequence[float]) -> int:
        """Return how many rounds have passed since the last one that improved."""
        best, since = np.inf, 0
        for value in self._falling(values):
            gain = best - value
            is_better = gain >= self.tolerance * self._size(value) and (gain > 0 or not self.patience)
            best, since = (value, 0) if is_better else (best, since + 1)
        return since

    def _size(self, value: float) -> float:
        """Return what a tolerance is relative to."""
        return max(abs(value) if self.is_larger_better else value, MIN_SIZE)

    def _falling(self, values: Sequence[float]) -> list[float]:
        return [-value if self.is_larger_better else value for value in values]
