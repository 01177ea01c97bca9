"""The lock of a shard: among threads of Python, and between these and compiled loops, which run without Python."""

from __future__ import annotations

import ctypes
import sys
import threading
from types import TracebackType

import numpy as np

# A pthread_mutex_t takes 40 bytes or 48, and zeros are one that is free, with the C libraries of Linux.
MUTEX_WORDS = 8
HAS_MUTEX = sys.platform == "linux"

if HAS_MUTEX:
    # Who holds the interpreter asks, and waits without it: a compiled loop that has the mutex needs it for nothing.
    _try = ctypes.PyDLL(None).pthread_mutex_trylock
    _wait = ctypes.CDLL(None).pthread_mutex_lock
    _free = ctypes.PyDLL(None).pthread_mutex_unlock
    for _function in (_try, _wait, _free):
        _function.argtypes = [ctypes.c_void_p]


class ShardLock:
    """Takes the calls that ``threading.RLock`` does.

    Threads of Python wait for each other at a lock of Python's, as long as they like; whoever has that one takes the
    mutex, at which it meets compiled loops alone, which have it for some microseconds each.

    Attributes:
        address: of the mutex.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._mutex = np.array([0] * MUTEX_WORDS, np.int64)
        self.address = int(self._mutex.ctypes.data)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._lock.acquire(blocking, timeout):
            return False
        self._depth += 1
        if HAS_MUTEX and self._depth == 1 and _try(self.address):
            _wait(self.address)
        return True

    def release(self) -> None:
        if HAS_MUTEX and self._depth == 1:
            _free(self.address)
        self._depth -= 1
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()
