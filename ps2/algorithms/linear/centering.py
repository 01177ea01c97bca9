"""The search in the space of centred features: intercepts are those where all features have their means.

In b' = b + mean w the objective's curvature does not mix intercepts and weights, so features with large means converge
as fast as others. Workers keep the features as they are: they take b' and, for each output, the shift mean w.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.linear.parameters import Array, Parameters, columns_of
from ps2.array_types import Float64s, Int64s
from ps2.client.dcv import DCV


@dataclass(frozen=True, eq=False)
class Center:
    """Means of the scaled features, on the fleet; picklable.

    Attributes:
        means: of ``dim * width`` columns: a feature's stands in all of its columns.
        width: outputs of the model, each with an intercept.
    """

    means: DCV
    width: int

    def push(self, means: Array, keys: Int64s) -> None:
        """Set the means of features."""
        self.means.push(np.repeat(means, self.width), columns_of(keys, self.width))

    def of_features(self) -> Float64s:
        """Return the mean of each feature."""
        return np.asarray(self.means.pull())[:: self.width]

    def shifts(self, weight: DCV) -> Any:
        """Return mean w of each output, float64 of shape (width,); within ``batch()``, a deferred result."""
        return weight.zip(self.means).apply("linear.shifts", width=self.width)

    def correct(self, gradient: Parameters, slopes: Float64s) -> None:
        """Make a gradient by the weights that by those of centred features.

        Args:
            slopes: shape (width,): the derivatives by the intercepts.
        """
        gradient.weight.zip(self.means).apply("linear.center_gradient", slopes=slopes, width=self.width)

    def uncenter(self, found: Parameters) -> None:
        """Make the intercepts those of features as they are."""
        found.bias.add(-np.asarray(self.shifts(found.weight)), np.arange(self.width))
