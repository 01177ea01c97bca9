"""Series of values by clock or step, downsampled for charts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ps2.array_types import Float64s
from ps2.dashboard.snapshot import Series

# The maximum number of points of a chart.
MAX_POINTS = 240
# The number of significant digits of a point's value.
DIGITS = 6


class ClockMeans:
    """The mean of the values that workers have logged, by clock; ``first``: the first clock."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._sums: Float64s = np.zeros(64)
        self._counts = np.zeros(64, np.int64)
        self._num_clocks = 0  # number of clocks up to the last one with values

    def add(self, clocks: NDArray[np.int64], values: Float64s) -> None:
        """Add values; ignore NaN and infinity."""
        positions = clocks - self._first
        is_counted = (positions >= 0) & np.isfinite(values)
        positions, values = positions[is_counted], values[is_counted]
        if not len(positions):
            return
        self._num_clocks = max(self._num_clocks, int(positions.max()) + 1)
        if self._num_clocks > len(self._sums):
            num_added = max(self._num_clocks, 2 * len(self._sums)) - len(self._sums)
            self._sums, self._counts = np.pad(self._sums, (0, num_added)), np.pad(self._counts, (0, num_added))
        np.add.at(self._sums, positions, values)
        np.add.at(self._counts, positions, 1)

    def roll_back(self, clock: int) -> None:
        """Forget the clocks from ``clock`` on, because workers repeat them."""
        position = max(0, clock - self._first)
        self._sums[position:], self._counts[position:] = 0.0, 0
        self._num_clocks = min(self._num_clocks, position)

    def to_series(self, name: str) -> Series:
        """Return the downsampled means of all clocks with values."""
        positions = np.flatnonzero(self._counts[: self._num_clocks])
        return downsample(name, positions + self._first, self._sums[positions] / self._counts[positions])


def downsample(name: str, steps: Sequence[float] | NDArray[np.int64], values: Sequence[float] | Float64s) -> Series:
    """Return at most ``MAX_POINTS`` points: the minimum and the maximum of each section. Omit NaN and infinity."""
    x, y = np.asarray(steps), np.asarray(values, np.float64)
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    if len(y) > MAX_POINTS:
        chosen: set[int] = {0, len(y) - 1}
        for section in np.array_split(np.arange(len(y)), MAX_POINTS // 2 - 1):
            chosen |= {int(section[y[section].argmin()]), int(section[y[section].argmax()])}
        positions = np.array(sorted(chosen))
        x, y = x[positions], y[positions]
    return Series(name, tuple(x.tolist()), tuple(float(f"{value:.{DIGITS}g}") for value in y))
