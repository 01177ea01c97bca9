"""A weak Wolfe line search (Lewis & Overton, 2013), one evaluation after the other."""

from __future__ import annotations

import math
from dataclasses import dataclass

SUFFICIENT = 1e-4
CURVATURE = 0.9
MAX_EVALUATIONS = 20
# The minimum distance of an interpolated point from the ends of its interval, as a share of the interval.
MARGIN = 0.1


@dataclass
class LineSearch:
    """The search along one direction.

    Attributes:
        value: the objective where the direction begins.
        slope: the slope there, below 0.
        step: the next point to evaluate, as a multiple of the direction.
        curvature: whether the slope has to flatten (it need not with an L1 penalty: Andrew & Gao, 2007).
    """

    value: float
    slope: float
    step: float
    curvature: bool = True
    evaluations: int = 0
    _low: float = 0.0
    _high: float = math.inf

    def accepts(self, value: float, slope: float, decrease: float | None = None) -> bool:
        """Return whether the point at ``step`` is good enough. If it is not, set ``step`` to the next one.

        Args:
            value: the objective at ``step``.
            slope: the slope there.
            decrease: the expected change of the objective, to first order; None: step times slope.

        Raises:
            ArithmeticError: the search has failed: no smaller objective can be found.
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
