"""The regions to which L-BFGS limits a step: the point's orthant (OWL-QN: Andrew & Gao, 2007), or a box of bounds.

With a region, the direction is computed from a pseudo-gradient, which is 0 along coordinates where the objective cannot
fall within the region. Trial points are projected onto the region. All methods are called within ``batch()``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ps2.algorithms.linear.parameters import Parameters
from ps2.algorithms.linear.plan import Bounds
from ps2.client.dcv import DCV


@dataclass(frozen=True)
class Orthants:
    """The region with an L1 penalty: weights keep the signs of the current point. Biases are free.

    Attributes:
        l1: the strength of the penalty.
        scale: factors of the weights, above 0. The penalty is on weight times factor; None: on the weight.
        unscaled: a temporary vector for the gradient by weight times factor, if there is a scale.
    """

    l1: float
    scale: DCV | None = None
    unscaled: DCV | None = None

    def set_pseudo_gradient(self, pseudo: Parameters, point: Parameters, gradient: Parameters) -> None:
        unscaled_gradient = gradient.weight
        if self.scale is not None and self.unscaled is not None:
            unscaled_gradient = self.unscaled.copy(gradient.weight).div(self.scale)
        # Only the signs of the point matter, and the scale does not change them.
        pseudo.weight.zip(point.weight, unscaled_gradient).apply("pseudo_gradient", l1=self.l1)
        if self.scale is not None:
            pseudo.weight.mul(self.scale)
        pseudo.bias.copy(gradient.bias)

    def align(self, direction: Parameters, pseudo: Parameters) -> None:
        """Set components of a direction to 0 if their sign is not that of the negative pseudo-gradient."""
        direction.weight.zip(pseudo.weight).apply("align")

    def project(
        self, trial: Parameters, point: Parameters, direction: Parameters, pseudo: Parameters, length: float
    ) -> None:
        """Project ``trial``, which is point + length * direction, onto the region."""
        trial.weight.zip(point.weight, direction.weight, pseudo.weight).apply("orthant_step", t=length)

    def project_curvature(self, step: Parameters, change: Parameters, pseudo: Parameters) -> None:
        """Project the last step and the gradient's change for the history: no change in an orthant (Andrew & Gao)."""


@dataclass(frozen=True, eq=False)
class Box:
    """The region between bounds; ``lower`` and ``upper`` are the bounds for scaled features, on the servers."""

    bounds: Bounds
    lower: Parameters
    upper: Parameters

    def prepare(self, scale: DCV | None, model: Parameters) -> None:
        """Set the bounds, and clip a model to them; ``scale`` has each weight's factor (0: the weight stays 0)."""
        bounds = self.bounds
        factors = np.ones(bounds.lower.size) if scale is None else scale.pull()
        is_unbounded, divisors = factors == 0.0, np.where(factors == 0.0, 1.0, factors)
        self.lower.weight.push(np.where(is_unbounded, -np.inf, bounds.lower.reshape(-1) / divisors))
        self.lower.bias.push(bounds.lower_biases)
        self.upper.weight.push(np.where(is_unbounded, np.inf, bounds.upper.reshape(-1) / divisors))
        self.upper.bias.push(bounds.upper_biases)
        self._clip(model)

    def set_pseudo_gradient(self, pseudo: Parameters, point: Parameters, gradient: Parameters) -> None:
        for vector, *arguments in zip(
            pseudo.vectors, point.vectors, gradient.vectors, self.lower.vectors, self.upper.vectors, strict=True
        ):
            vector.zip(*arguments).apply("box_gradient")

    def align(self, direction: Parameters, pseudo: Parameters) -> None:
        for vector, mask in zip(direction.vectors, pseudo.vectors, strict=True):
            vector.zip(mask).apply("mask")

    def project(
        self, trial: Parameters, point: Parameters, direction: Parameters, pseudo: Parameters, length: float
    ) -> None:
        self._clip(trial)

    def project_curvature(self, step: Parameters, change: Parameters, pseudo: Parameters) -> None:
        """Set components at a bound to 0: the history then has the curvature along the box's face with the point."""
        self.align(step, pseudo)
        self.align(change, pseudo)

    def _clip(self, parameters: Parameters) -> None:
        for vector, lower, upper in zip(parameters.vectors, self.lower.vectors, self.upper.vectors, strict=True):
            vector.zip(lower, upper).apply("clip")
