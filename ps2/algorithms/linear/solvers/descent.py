"""The directions and the step lengths of L-BFGS. Pure.

The two-loop recursion uses inner products alone (Chen et al., 2014, "Large-scale L-BFGS using MapReduce"). A direction
is a combination of the last m steps s, the changes y of the gradient along them, and the gradient. Its coefficients
are computed from the inner products of these 2 m + 1 vectors, so no vector ever leaves the servers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ps2.array_types import Float64s

# The maximum of m, as in pyspark.ml.
PAIRS = 10
# A step s is left out unless s y is above this share of y y: the gradient hardly grows along it.
MIN_CURVATURE = 1e-10
# The shares of the expected decrease, and of the slope, by which a line search accepts a point.
SUFFICIENT = 1e-4
CURVATURE = 0.9
MAX_EVALUATIONS = 20
# The minimum distance of an interpolated point from the ends of its interval, as a share of the interval.
MARGIN = 0.1


class History:
    """Inner products of the last steps, which are numbered by ``size`` slots.

    The basis has 2 * size + 1 vectors: the steps by slot, the changes of the gradient by slot, and the gradient.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._dots = np.zeros((2 * size + 1, 2 * size + 1))
        self.slots: list[int] = []  # the slots in use, the oldest first

    @property
    def next_slot(self) -> int:
        """The slot of the next step: a free one, or that of the oldest step."""
        if len(self.slots) < self.size:
            return next(slot for slot in range(self.size) if slot not in self.slots)
        return self.slots[0]

    @property
    def is_empty(self) -> bool:
        return not self.slots

    def add(self, products: Float64s) -> None:
        """Add a step; ``products`` are the inner products of step, change and gradient with the basis."""
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
        """Remove all steps; keep the gradient."""
        self.slots = []

    def direction(self) -> tuple[Float64s, float]:
        """Return the coefficients of ``-H g`` over the basis, and its inner product with the gradient."""
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
    """A weak Wolfe line search along one direction (Lewis & Overton, 2013), one evaluation after the other.

    Attributes:
        value: the objective at the start of the direction.
        slope: the slope at the start, below 0.
        step: the next point to evaluate, as a multiple of the direction.
        curvature: whether the slope has to flatten; False with an L1 penalty (Andrew & Gao, 2007).
    """

    value: float
    slope: float
    step: float
    curvature: bool = True
    evaluations: int = 0
    _low: float = 0.0
    _high: float = math.inf

    def accepts(self, value: float, slope: float, decrease: float | None = None) -> bool:
        """Return whether the point at ``step`` is good enough; else set ``step`` to the next one.

        ``decrease`` is the expected change of the objective; None: step times slope. Raise ArithmeticError if there is
        no smaller objective within ``MAX_EVALUATIONS``.
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
        self.step = self._next(value, slope)
        return False

    def _next(self, value: float, slope: float) -> float:
        if math.isinf(self._high):
            return 2.0 * self.step
        width = self._high - self._low
        middle = self._low + 0.5 * width
        if self._low > 0.0 or not math.isfinite(value):
            return middle
        # The minimum of the parabola through both values and the first slope.
        rise = value - self.value - self.slope * self.step
        minimum = -self.slope * self.step**2 / (2.0 * rise) if rise > 0.0 else middle
        return min(max(minimum, self._low + MARGIN * width), self._high - MARGIN * width)
