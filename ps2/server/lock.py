"""The lock of a shard. Python threads and compiled loops, which run without the interpreter, both take it."""

from __future__ import annotations

import ctypes
import sys
import threading
from types import TracebackType

import numpy as np

# In the C libraries of Linux a pthread_mutex_t takes 40 or 48 bytes, and all zeros are an unlocked mutex.
MUTEX_WORDS = 8
HAS_MUTEX = sys.platform == "linux"

if HAS_MUTEX:
    # Trylock and unlock do not block, so these calls keep the GIL (PyDLL). Only waiting releases the GIL (CDLL).
    _try = ctypes.PyDLL(None).pthread_mutex_trylock
    _wait = ctypes.CDLL(None).pthread_mutex_lock
    _free = ctypes.PyDLL(None).pthread_mutex_unlock
    for _function in (_try, _wait, _free):
        _function.argtypes = [ctypes.c_void_p]


class ShardLock:
    """A reentrant lock with the methods of ``threading.RLock``.

    A Python thread first takes a ``threading.RLock``, possibly after a long wait, and then the mutex. Only compiled
    loops compete with it for the mutex, and each holds the mutex for a few microseconds.

    Attributes:
        address: address of the mutex.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
