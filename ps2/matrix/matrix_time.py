"""The time of a matrix with managed keys: ticks, and the times in seconds at which they began. Pure.

Servers store the current tick with each key that changes. They never read a clock: the driver or the program advances
the time by a mutation, so checkpoints and replicas have the same time.
"""

from __future__ import annotations

from bisect import bisect_right

# With more than MAX_TIMES ticks, some times are dropped. The age of a key is then overestimated, by at most a fraction
# 1 / ACCURACY of the age.
MAX_TIMES = 1 << 14
ACCURACY = 1000
FIRST_TICK = 1
# The limit of a matrix's time: float64 still distinguishes seconds at this time.
LATEST_S = 1e15


class MatrixTime:
    """The clock of one matrix. A tick begins when the time advances, or at a mark (for reading changes since).

    Attributes:
        tick: the current tick; ticks ascend from 1.
        ticks, times_s: ticks at which the time advanced, and their times; both ascend. Old ones may be dropped.
    """

    def __init__(self, ticks: list[int] | None = None, times_s: list[float] | None = None, tick: int = FIRST_TICK):
        self.ticks, self.times_s = ticks or [FIRST_TICK], times_s or [0.0]
        self.tick = tick

    @property
    def now_s(self) -> float:
        return self.times_s[-1]

    def advance(self, now_s: float, tick: int, touched: bool = False) -> None:
        """Begin a tick at a new time. No effect if the time is before the current time.

        Args:
            now_s: the new time.
            tick: the new tick's minimum number.
            touched: True if keys that were touched since the last advance count as touched at the new time.
        """
        if now_s < self.now_s or (now_s == self.now_s and not touched):
            return
        if touched:
            self.times_s[-1] = now_s
        old_tick = self.tick
        self.mark(tick)
        self.ticks.append(self.tick)
        self.times_s.append(now_s)
        # Times are dropped only at certain ticks, so all replicas of a shard drop the same times.
        quarter = MAX_TIMES // 4
        if len(self.ticks) > MAX_TIMES and old_tick // quarter < self.tick // quarter:
            self._drop_times()

    def mark(self, tick: int) -> None:
        """Begin a tick at the current time; its number is at least ``tick``."""
        self.tick = max(self.tick + 1, tick)

    def lower(self, offset: int) -> None:
        """Subtract ``offset`` from the numbers of all ticks, but not below FIRST_TICK."""
        self.ticks = [max(tick - offset, FIRST_TICK) for tick in self.ticks]
        self.tick = max(self.tick - offset, FIRST_TICK)

    def first_after(self, time_s: float) -> int:
        """Return the first tick that began after a time; the current tick plus 1 if there is none."""
        index = bisect_right(self.times_s, time_s)
        return self.ticks[index] if index < len(self.ticks) else self.tick + 1

    def _drop_times(self) -> None:
        indexes = [0]
        for index in range(1, len(self.times_s) - 1):
            # If this time is dropped, touches before the following time count as touches at the last stored time.
            following_s = self.times_s[index + 1]
            if following_s - self.times_s[indexes[-1]] > (self.now_s - following_s) / ACCURACY:
                indexes.append(index)
        indexes.append(len(self.times_s) - 1)
        self.ticks, self.times_s = [self.ticks[index] for index in indexes], [self.times_s[index] for index in indexes]
