"""The time of a matrix with managed keys: ticks, and the times in seconds at which they began. Pure.

Each change of a key is stamped with the current tick. Servers never read a clock: the driver or the program advances
the time by a mutation, so that checkpoints and replicas have the same time.
"""

from __future__ import annotations

from bisect import bisect_right

# With more than MAX_TIMES ticks, some times are dropped. An age is then overestimated by at most 1 / ACCURACY of it.
MAX_TIMES = 1 << 14
ACCURACY = 1000
FIRST_TICK = 1
# The latest possible time of a matrix, at which float64 still distinguishes seconds.
LATEST_S = 1e15


class MatrixTime:
    """The clock of one matrix. A tick begins when the time advances, or when a mark is set; ticks ascend from 1.

    Attributes:
        tick: the current tick.
        ticks, times_s: some ticks, and the times at which they began; both ascend.
    """

    def __init__(self, ticks: list[int] | None = None, times_s: list[float] | None = None, tick: int = FIRST_TICK):
        self.ticks, self.times_s = ticks or [FIRST_TICK], times_s or [0.0]
        self.tick = tick

    @property
    def now_s(self) -> float:
        return self.times_s[-1]

    def advance(self, now_s: float, tick: int, touched: bool = False) -> None:
        """Begin a tick at a new time. A time before the current one changes nothing.

        Args:
            now_s: the new time.
            tick: the minimum number of the new tick.
            touched: whether keys that were touched since the last advance count as touched at the new time.
        """
        if now_s < self.now_s or (now_s == self.now_s and not touched):
            return
        if touched:
            self.times_s[-1] = now_s
        old_tick = self.tick
        self.mark(tick)
        self.ticks.append(self.tick)
        self.times_s.append(now_s)
        # Only at certain ticks, so that all replicas of a shard drop the same times.
        quarter = MAX_TIMES // 4
        if len(self.ticks) > MAX_TIMES and old_tick // quarter < self.tick // quarter:
            self._forget()

    def mark(self, tick: int) -> None:
        """Begin a tick at the current time; its number is at least ``tick``."""
        self.tick = max(self.tick + 1, tick)

    def lower(self, by: int) -> None:
        """Lower the numbers of all ticks by ``by``, but not below FIRST_TICK."""
        self.ticks = [max(tick - by, FIRST_TICK) for tick in self.ticks]
        self.tick = max(self.tick - by, FIRST_TICK)

    def first_after(self, time_s: float) -> int:
        """Return the first tick that began after a time; the current tick plus 1 if none did."""
        index = bisect_right(self.times_s, time_s)
        return self.ticks[index] if index < len(self.ticks) else self.tick + 1

    def _forget(self) -> None:
        indexes = [0]
        for index in range(1, len(self.times_s) - 1):
            # If this time is dropped, touches before the following time count as touches at the last kept time.
            following_s = self.times_s[index + 1]
            if following_s - self.times_s[indexes[-1]] > (self.now_s - following_s) / ACCURACY:
                indexes.append(index)
        indexes.append(len(self.times_s) - 1)
        self.ticks, self.times_s = [self.ticks[index] for index in indexes], [self.times_s[index] for index in indexes]
