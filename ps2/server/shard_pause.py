"""Shards held still: their locks, taken by a thread of its own, since the calls of a checkpoint come in any thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack

from ps2.errors import DeadlineError
from ps2.server.lock import ShardLock
from ps2.server.shard import Shard

# While a lock is waited for, how often to look whether it is still wanted.
LOOK_S = 0.1


class ShardPause:
    """All locks of some shards, let go after a timeout unless ``keep`` was called in time, and by ``release``."""

    def __init__(self, shards: Mapping[tuple[int, int], Shard], timeout_s: float) -> None:
        self.shards = shards
        self._timeout_s = timeout_s
        self._began_s = time.perf_counter()
        self._ended_s: float | None = None
        self._held, self._kept, self._released = threading.Event(), threading.Event(), threading.Event()
        self._lock = threading.Lock()  # makes one of ``keep`` and the timeout the first
        self._thread = threading.Thread(target=self._run, name="ps2-hold", daemon=True)

    def take(self) -> None:
        """Wait until all locks are held.

        Raises:
            DeadlineError: that took longer than the timeout, or ``release`` was called; none is held then.
        """
        self._began_s = time.perf_counter()
        self._thread.start()
        self._held.wait()
        if self.over:
            raise DeadlineError(f"not all of {len(self.shards)} shards could be held within {self._timeout_s:g} s")

    @property
    def over(self) -> bool:
        return self._released.is_set()

    @property
    def held_s(self) -> float:
        """Seconds for which the locks have been held, from when the first was asked for."""
        ended_s = self._ended_s
        return (time.perf_counter() if ended_s is None else ended_s) - self._began_s

    def keep(self) -> bool:
        """ShardPause on beyond the timeout, until ``release``; False if all has been let go already."""
        with self._lock:
            if self.over:
                return False
            self._kept.set()
            return True

    def release(self) -> None:
        """Let go; when this returns, others can have the locks."""
        self._released.set()
        self._kept.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        with ExitStack() as taken:
            try:
                # In the order in which requests take them, so that the two never wait for each other.
                for key in sorted(self.shards):
                    if not self._acquire(self.shards[key].lock):
                        self._released.set()
                        return
                    taken.callback(self.shards[key].lock.release)
            finally:
                self._held.set()
            self._kept.wait(self._left_s())
            with self._lock:
                if not self._kept.is_set():
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
