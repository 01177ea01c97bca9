"""Pauses shards: a thread holds their locks, because a checkpoint's calls may run in different threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack

from ps2.errors import DeadlineError
from ps2.server.lock import ShardLock
from ps2.server.shard import Shard

# While the thread waits for a lock, it checks at this interval whether the pause was cancelled.
LOOK_S = 0.1


class ShardPause:
    """Holds the locks of some shards until ``release`` or a timeout. ``keep`` cancels the timeout."""

    def __init__(self, shards: Mapping[tuple[int, int], Shard], timeout_s: float) -> None:
        self.shards = shards
        self._timeout_s = timeout_s
        self._began_s = time.perf_counter()
        self._ended_s: float | None = None
        self._held, self._without_timeout, self._released = threading.Event(), threading.Event(), threading.Event()
        self._lock = threading.Lock()  # decides whether ``keep`` or the timeout comes first
        self._thread = threading.Thread(target=self._run, name="ps2-hold", daemon=True)

    def take(self) -> None:
        """Wait until all locks are held.

        Raises:
            DeadlineError: the timeout passed or ``release`` was called first; no lock is held.
        """
        self._began_s = time.perf_counter()
        self._thread.start()
        self._held.wait()
        if self.over:
            raise DeadlineError(f"not all of {len(self.shards)} shards could be paused within {self._timeout_s:g} s")

    @property
    def over(self) -> bool:
        return self._released.is_set()

    @property
    def held_s(self) -> float:
        """Seconds since the first lock was requested, until all locks were released."""
        ended_s = self._ended_s
        return (time.perf_counter() if ended_s is None else ended_s) - self._began_s

    def keep(self) -> bool:
        """Hold the locks until ``release``, without a timeout; return False if they are released already."""
        with self._lock:
            if self.over:
                return False
            self._without_timeout.set()
            return True

    def release(self) -> None:
        """Release the locks; other threads can take them when this returns."""
        self._released.set()
        self._without_timeout.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        with ExitStack() as stack:
            try:
                # In the order in which requests take them, to avoid deadlock.
                for key in sorted(self.shards):
                    if not self._acquire(self.shards[key].lock):
                        self._released.set()
                        return
                    stack.callback(self.shards[key].lock.release)
            finally:
                self._held.set()
            self._without_timeout.wait(self._left_s())
            with self._lock:
                if not self._without_timeout.is_set():
                    self._released.set()
            self._released.wait()
            self._ended_s = time.perf_counter()

    def _acquire(self, lock: ShardLock) -> bool:
        while not self.over and (left_s := self._left_s()) > 0:
            if lock.acquire(timeout=min(left_s, LOOK_S)):
                return True
        return False

    def _left_s(self) -> float:
        return max(self._began_s + self._timeout_s - time.perf_counter(), 0.0)
