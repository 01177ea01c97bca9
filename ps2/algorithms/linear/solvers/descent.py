"""Directions and step lengths of L-BFGS. Pure.

The two-loop recursion needs only inner products (Chen et al., 2014, "Large-scale L-BFGS using MapReduce"). A direction
is a linear combination of the last m steps s, the gradient's changes y along these steps, and the gradient. The inner
products of these 2 m + 1 vectors determine its coefficients, so the driver needs no vector from the servers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ps2.array_types import Float64s

# The maximum of m, the number of pairs (s, y); as in pyspark.ml.
PAIRS = 10
# A pair (s, y) is not used unless s y is above this fraction of y y; else the Hessian estimate would be unstable.
MIN_CURVATURE = 1e-10
# The Wolfe conditions of a line search: the objective must fall by at least the first fraction of the expected
# decrease, and the slope must rise above the second fraction of the slope at the start.
SUFFICIENT = 1e-4
CURVATURE = 0.9
MAX_EVALUATIONS = 20
# The minimum distance of an interpolated point from the ends of its interval, as a fraction of the interval's length.
MARGIN = 0.1


class History:
    """Inner products of the last steps. A step and the gradient's change along it have one of ``size`` slots.

    The basis has 2 * size + 1 vectors: the steps by slot, the gradient's changes by slot, and the gradient.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._dots = np.zeros((2 * size + 1, 2 * size + 1))
        self.slots: list[int] = []  # the slots in use, the oldest first

    @property
    def next_slot(self) -> int:
        """The slot of the next step: a free slot if there is one, else the oldest step's."""
        if len(self.slots) < self.size:
            return next(slot for slot in range(self.size) if slot not in self.slots)
        return self.slots[0]

    @property
    def is_empty(self) -> bool:
        return not self.slots

    def add(self, products: Float64s) -> None:
        """Add a step. ``products``: inner products of step, change and gradient with the basis, (3, 2 * size + 1)."""
        slot = self.next_slot
        if len(self.slots) == self.size:
            self.slots.pop(0)
        for vector, row in zip((slot, self.size + slot, 2 * self.size), products, strict=True):
            self._dots[vector] = self._dots[:, vector] = row
        s, y = slot, self.size + slot
        if self._dots[s, y] > MIN_CURVATURE * self._dots[y, y]:
            self.slots.append(slot)

    def set_gradient_square(self, square: float) -> None:
        """Set the inner product of the first gradient with itself."""
        self._dots[-1, -1] = square

    def clear(self) -> None:
        """Remove all steps; keep the gradient's square, so the next direction is -g."""
        self.slots = []

    def direction(self) -> tuple[Float64s, float]:
        """Return the coefficients of -H g in the basis, and the slope along it; H estimates the inverse Hessian."""
        size, dots = self.size, self._dots
        coefficients = np.zeros(2 * size + 1)
        coefficients[-1] = -1.0  # p = -g
        alphas: dict[int, float] = {}
        for s in reversed(self.slots):  # alpha = s p / s y; p -= alpha y
            y = size + s
            alphas[s] = float(dots[s] @ coefficients / dots[s, y])
            coefficients[y] -= alphas[s]
        if self.slots:  # p *= s y / y y
            s = self.slots[-1]
            coefficients *= dots[s, size + s] / dots[size + s, size + s]
        for s in self.slots:  # beta = y p / s y; p += (alpha - beta) s
            y = size + s
            coefficients[s] += alphas[s] - float(dots[y] @ coefficients / dots[s, y])
        return coefficients, float(dots[-1] @ coefficients)


@dataclass
class LineSearch:
    """A weak Wolfe line search along one direction (Lewis & Overton, 2013), without I/O: the caller evaluates points.

    Attributes:
        value: the objective at the start of the direction.
        slope: the slope at the start, below 0.
        step: the next point to evaluate, as a multiple of the direction.
        curvature: whether the second Wolfe condition applies; False with an L1 penalty (Andrew & Gao, 2007).
        _low, _high: the interval of steps in which an acceptable step lies.
    """

    value: float
    slope: float
    step: float
    curvature: bool = True
    evaluations: int = 0
    _low: float = 0.0
    _high: float = math.inf

    def accepts(self, value: float, slope: float, decrease: float | None = None) -> bool:
        """Return whether the point at ``step`` is acceptable, given its objective and slope; if not, change ``step``.

        ``decrease`` is the expected change of the objective, at most 0; None: step times slope. Raise ArithmeticError
        after ``MAX_EVALUATIONS`` points.
        """
        self.evaluations += 1
        expected = self.step * self.slope if decrease is None else min(decrease, 0.0)
        if not value <= self.value + SUFFICIENT * expected:
            self._high = self.step
        elif self.curvature and slope < CURVATURE * self.slope:
            self._low = self.step
        else:
            return True
        if self.evaluations >= MAX_EVALUATIONS:
            raise ArithmeticError(f"no smaller objective within {MAX_EVALUATIONS} evaluations along a direction")
        self.step = self._next_step(value, slope)
        return False

    def _next_step(self, value: float, slope: float) -> float:
        if math.isinf(self._high):
            return 2.0 * self.step
        width = self._high - self._low
        middle = self._low + 0.5 * width
        if self._low > 0.0 or not math.isfinite(value):
            return middle
        # The minimum of the parabola through the values at 0 and at ``step``, with the slope at 0.
        rise = value - self.value - self.slope * self.step
        minimum = -self.slope * self.step**2 / (2.0 * rise) if rise > 0.0 else middle
        return min(max(minimum, self._low + MARGIN * width), self._high - MARGIN * width)
