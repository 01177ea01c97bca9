"""Measures how much of a worker's time each kind of call takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

# The names are the fields of ``ClockTimes``, which describes the kinds.
Kind = Literal["pull", "push", "kernels", "wait", "on_clock", "checkpoint", "coordinator", "imports"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class BusyTime:
    """Measures the time during which at least one thread is inside ``with busy_time:``. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0  # number of threads inside the ``with`` statement
        self._since_s = self._seconds = 0.0

    def __enter__(self) -> None:
        with self._lock:
            self._update()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._update()
            self._inside -= 1

    def take(self) -> float:
        """Return the busy seconds since the last call."""
        with self._lock:
            self._update()
            seconds, self._seconds = self._seconds, 0.0
            return seconds

    def _update(self) -> None:
        """Add the time since the last update if a thread is inside."""
        now_s = time.monotonic()
        if self._inside:
            self._seconds += now_s - self._since_s
        self._since_s = now_s


class Stopwatch:
    """Measures the seconds that one thread spends in calls, by kind.

    Time in a nested call counts only for the kind of the nested call: while a pull waits for queued additions, the kind
    is "push".

    Attributes:
        is_on: True after the first ``reset``.
        seconds: the measured seconds by kind.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._thread: int | None = None
        self._running: list[Kind] = []  # kinds of the calls that the thread is in; the last one is the innermost
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
        """Count the time until ``stop`` for a kind, if the calling thread is the measured thread."""
        if self._thread == threading.get_ident():
            self._update()
            self._running.append(kind)

    def stop(self) -> None:
        """End the interval of the last ``start``; no effect if it began before the measurement."""
        if self._thread == threading.get_ident() and self._running:
            self._update()
            self._running.pop()

    def move(self, seconds: float, kind: Kind, to: Kind) -> None:
        """Move seconds from one kind to another, when the kind of an interval is known only after it."""
        moved = min(seconds, self.seconds[kind])
        self.seconds[kind] -= moved
        self.seconds[to] += moved

    def _update(self) -> None:
        """Add the time since the last update to the innermost kind."""
        now_s = time.monotonic()
        if self._running:
            self.seconds[self._running[-1]] += now_s - self._since_s
        self._since_s = now_s
