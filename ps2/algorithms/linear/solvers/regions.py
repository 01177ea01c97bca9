"""Where steps of L-BFGS may go, if not everywhere: within the orthant of the point (OWL-QN), or within a box of bounds.

Either way the direction is that of a pseudo-gradient, which is 0 where the objective cannot fall, and trial points are
brought back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ps2.algorithms.linear.parameters import Parameters, Space
from ps2.algorithms.linear.problem import Bounds
from ps2.client.dcv import DCV


class Region(Protocol):
    """All is asked for within ``batch()``."""

    def descend(self, pseudo: Parameters, point: Parameters, gradient: Parameters) -> None:
        """Set the pseudo-gradient at a point."""

    def align(self, direction: Parameters, pseudo: Parameters) -> None:
        """Project a direction onto the region near the point."""

    def bring_back(
        self, trial: Parameters, point: Parameters, direction: Parameters, pseudo: Parameters, length: float
    ) -> None:
        """Bring ``trial``, which is point + length * direction, back into the region."""

    def remember(self, step: Parameters, change: Parameters, pseudo: Parameters) -> None:
        """Project the last step, and the gradient's change along it, onto the region: its curvature is wanted.

        Args:
            pseudo: the pseudo-gradient after the step.
        """


@dataclass(frozen=True)
class Orthants:
    """That of the point's weights; biases, which have no penalty, go anywhere.

    Attributes:
        l1: strength of the penalty.
        scale: factor of each weight, above 0; the penalty is on the product. None: on the weight.
        unscaled: receives the gradient by the products, if there is a scale.
    """

    l1: float
    scale: DCV | None = None
    unscaled: DCV | None = None

    def descend(self, pseudo: Parameters, point: Parameters, gradient: Parameters) -> None:
        given = gradient.weight
        if self.scale is not None and self.unscaled is not None:
            given = self.unscaled.copy(gradient.weight).div(self.scale)
        # Of the point only signs count.
        pseudo.weight.zip(point.weight, given).apply("pseudo_gradient", l1=self.l1)
        if self.scale is not None:
            pseudo.weight.mul(self.scale)
        pseudo.bias.copy(gradient.bias)

    def align(self, direction: Parameters, pseudo: Parameters) -> None:
        direction.weight.zip(pseudo.weight).apply("align")

    def bring_back(
        self, trial: Parameters, point: Parameters, direction: Parameters, pseudo: Parameters, length: float
    ) -> None:
        trial.weight.zip(point.weight, direction.weight, pseudo.weight).apply("orthant_step", t=length)

    def remember(self, step: Parameters, change: Parameters, pseudo: Parameters) -> None:
        """Keep both, as Andrew & Gao do."""


@dataclass(frozen=True, eq=False)
class Box:
    """Between bounds, on the servers.

    Attributes:
        bounds: for the features as they were given.
        lower, upper: for the scaled features.
    """

    bounds: Bounds
    lower: Parameters
    upper: Parameters

    @staticmethod
    def make(bounds: Bounds, space: Space) -> Box:
        return Box(bounds, *space.several(2))

    def prepare(self, scale: DCV | None, beginning: Parameters) -> None:
        """Set the bounds, and bring the beginning between them.

        Args:
            scale: of each weight's feature, 0 for one whose weight will be 0 anyway; None: they are as given.
            beginning: parameters, changed.
        """
        of = self.bounds
        factors = np.ones(of.lower.size) if scale is None else scale.pull()
        free = factors == 0.0
        for mine, weights, biases in ((self.lower, of.lower, of.lower_biases), (self.upper, of.upper, of.upper_biases)):
            nowhere = -np.inf if mine is self.lower else np.inf
            mine.weight.push(np.where(free, nowhere, weights.reshape(-1) / np.where(free, 1.0, factors)))
            mine.bias.push(biases)
        self._clip(beginning)

    def descend(self, pseudo: Parameters, point: Parameters, gradient: Parameters) -> None:
        for vector, *others in zip(
            pseudo.each, point.each, gradient.each, self.lower.each, self.upper.each, strict=True
        ):
            vector.zip(*others).apply("box_gradient")

    def align(self, direction: Parameters, pseudo: Parameters) -> None:
        self._mask(direction, pseudo)

    def bring_back(
        self, trial: Parameters, point: Parameters, direction: Parameters, pseudo: Parameters, length: float
    ) -> None:
        self._clip(trial)

    def remember(self, step: Parameters, change: Parameters, pseudo: Parameters) -> None:
        """Keep the components that no bound holds: the curvature of the point's face."""
        self._mask(step, pseudo)
        self._mask(change, pseudo)

    def _mask(self, parameters: Parameters, pseudo: Parameters) -> None:
        for vector, by in zip(parameters.each, pseudo.each, strict=True):
            vector.zip(by).apply("mask")

    def _clip(self, parameters: Parameters) -> None:
        for vector, lower, upper in zip(parameters.each, self.lower.each, self.upper.each, strict=True):
            vector.zip(lower, upper).apply("clip")
