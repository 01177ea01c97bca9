"""Numbers by clock or step, of any length, thinned for a chart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ps2.array_types import Float64s
from ps2.dashboard.snapshot import Series

# A chart has fewer pixels than a long run has clocks.
MAX_POINTS = 240
DIGITS = 6


class ClockMeans:
    """The mean over the workers of what they logged, by clock."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._sums: Float64s = np.zeros(64)
        self._counts = np.zeros(64, np.int64)
        self._used = 0

    def add(self, clocks: NDArray[np.int64], values: Float64s) -> None:
        """Add values; one that is no number does not count."""
        places = clocks - self._first
        kept = (places >= 0) & np.isfinite(values)
        places, values = places[kept], values[kept]
        if not len(places):
            return
        self._used = max(self._used, int(places.max()) + 1)
        if self._used > len(self._sums):
            more = max(self._used, 2 * len(self._sums)) - len(self._sums)
            self._sums, self._counts = np.pad(self._sums, (0, more)), np.pad(self._counts, (0, more))
        np.add.at(self._sums, places, values)
        np.add.at(self._counts, places, 1)

    def roll_back(self, clock: int) -> None:
        """Forget the clocks from one on: they come again."""
        place = max(0, clock - self._first)
        self._sums[place:], self._counts[place:] = 0.0, 0
        self._used = min(self._used, place)

    def thinned(self, name: str) -> Series:
        there = np.flatnonzero(self._counts[: self._used])
        return thinned(name, there + self._first, self._sums[there] / self._counts[there])


def thinned(name: str, at: Sequence[float] | NDArray[np.int64], values: Sequence[float] | Float64s) -> Series:
    """Return the numbers with at most ``MAX_POINTS`` points: of each stretch the lowest and the highest.

    Values that are no numbers are left out.
    """
    x, y = np.asarray(at), np.asarray(values, np.float64)
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    if len(y) > MAX_POINTS:
        chosen: set[int] = {0, len(y) - 1}
        for part in np.array_split(np.arange(len(y)), MAX_POINTS // 2 - 1):
            chosen |= {int(part[y[part].argmin()]), int(part[y[part].argmax()])}
        places = np.array(sorted(chosen))
        x, y = x[places], y[places]
    return Series(name, tuple(x.tolist()), tuple(float(f"{value:.{DIGITS}g}") for value in y))
