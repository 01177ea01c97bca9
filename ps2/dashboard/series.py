"""Series of numbers by clock or step, thinned for charts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ps2.array_types import Float64s
from ps2.dashboard.snapshot import Series

# The maximum number of points of a chart.
MAX_POINTS = 240
# The number of significant digits.
DIGITS = 6


class ClockMeans:
    """The mean of the workers' logged values, by clock."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._sums: Float64s = np.zeros(64)
        self._counts = np.zeros(64, np.int64)
        self._used = 0

    def add(self, clocks: NDArray[np.int64], values: Float64s) -> None:
        """Add values; ignore NaN and infinity."""
        positions = clocks - self._first
        is_counted = (positions >= 0) & np.isfinite(values)
        positions, values = positions[is_counted], values[is_counted]
        if not len(positions):
            return
        self._used = max(self._used, int(positions.max()) + 1)
        if self._used > len(self._sums):
            more = max(self._used, 2 * len(self._sums)) - len(self._sums)
            self._sums, self._counts = np.pad(self._sums, (0, more)), np.pad(self._counts, (0, more))
        np.add.at(self._sums, positions, values)
        np.add.at(self._counts, positions, 1)

    def roll_back(self, clock: int) -> None:
        """Forget the clocks from ``clock`` on, which will be repeated."""
        position = max(0, clock - self._first)
        self._sums[position:], self._counts[position:] = 0.0, 0
        self._used = min(self._used, position)

    def thinned(self, name: str) -> Series:
        logged = np.flatnonzero(self._counts[: self._used])
        return thinned(name, logged + self._first, self._sums[logged] / self._counts[logged])


def thinned(name: str, steps: Sequence[float] | NDArray[np.int64], values: Sequence[float] | Float64s) -> Series:
    """Return at most ``MAX_POINTS`` points: the lowest and the highest of each section, without NaN and infinity."""
    x, y = np.asarray(steps), np.asarray(values, np.float64)
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    if len(y) > MAX_POINTS:
        chosen: set[int] = {0, len(y) - 1}
        for part in np.array_split(np.arange(len(y)), MAX_POINTS // 2 - 1):
            chosen |= {int(part[y[part].argmin()]), int(part[y[part].argmax()])}
        positions = np.array(sorted(chosen))
        x, y = x[positions], y[positions]
    return Series(name, tuple(x.tolist()), tuple(float(f"{value:.{DIGITS}g}") for value in y))
