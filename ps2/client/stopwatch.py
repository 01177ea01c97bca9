"""Measures how a worker's time is split between kinds of calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

# Named as the fields of ``ClockTimes``.
Kind = Literal["pull", "push", "kernels", "wait", "on_clock", "checkpoint", "coordinator", "imports"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class BusyTime:
    """Measures the time during which at least one thread is inside ``with busy_time:``. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._since_s = self._seconds = 0.0

    def __enter__(self) -> None:
        with self._lock:
            self._count()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count()
            self._inside -= 1

    def take(self) -> float:
        """Return the seconds since the last call."""
        with self._lock:
            self._count()
            seconds, self._seconds = self._seconds, 0.0
            return seconds

    def _count(self) -> None:
        now_s = time.monotonic()
        if self._inside:
            self._seconds += now_s - self._since_s
        self._since_s = now_s


class Stopwatch:
    """Measures the seconds that one thread spends in calls, by kind.

    Time in a nested call counts for its kind alone: while a pull waits for queued additions, the kind is "push".

    Attributes:
        is_on: True from the first ``reset`` on.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._thread: int | None = None
        self._running: list[Kind] = []
        self._since_s = 0.0
        self.seconds: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)

    def reset(self) -> None:
        """Restart from zero, and measure this thread's calls."""
        self.is_on = True
        self._thread = threading.get_ident()
        self._since_s = time.monotonic()
        self.seconds = dict.fromkeys(KINDS, 0.0)

    @contextmanager
    def running(self, kind: Kind) -> Iterator[None]:
        if self._thread != threading.get_ident():
            yield
            return
        self.start(kind)
        try:
            yield
        finally:
            self.stop()

    def start(self, kind: Kind) -> None:
        """Count the time until ``stop`` as time of a kind, if this thread is measured."""
        if self._thread == threading.get_ident():
            self._count()
            self._running.append(kind)

    def stop(self) -> None:
        """End the call of the last ``start``; no effect if that was before the measurement."""
        if self._thread == threading.get_ident() and self._running:
            self._count()
            self._running.pop()

    def move(self, seconds: float, kind: Kind, to: Kind) -> None:
        """Move seconds from one kind to another: for some time, the kind is known only afterwards."""
        moved = min(seconds, self.seconds[kind])
        self.seconds[kind] -= moved
        self.seconds[to] += moved

    def _count(self) -> None:
        """Add the time since the last count to the kind that is running."""
        now_s = time.monotonic()
        if self._running:
            self.seconds[self._running[-1]] += now_s - self._since_s
        self._since_s = now_s
