"""Memory accounting of a server, which counts the memory of arrays before it allocates them."""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable

import psutil

from ps2 import cgroups
from ps2.data.spilling import free_memory
from ps2.errors import BusyError, LimitError

# How long a request waits for memory. After that its client retries, and the retry joins the end of the queue.
PATIENCE_S = 2.0
# How long memory is reserved for the retry of a refused permanent allocation: a few of a client's retry pauses.
RESERVE_S = 2.0

# Parameters of mallopt, from malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
MMAP_BYTES = 32 << 20  # glibc's maximum
TRIM_BYTES = 64 << 20  # per arena
ARENAS = 2  # glibc's default: one per thread, up to 8 per core


class MemoryAccount:
    """Counts the bytes that a server has allocated; never more than ``limit_bytes``. Thread-safe.

    There are three kinds of allocations. Shards are permanent (``take``, ``give``). Requests with their replies
    (``admit``, ``release``) and temporary copies (``take_transient``, ``give_transient``) are transient. Caches
    (``take_cache``, ``give_cache``) are dropped when one of the other kinds needs their memory.

    Attributes:
        holds_copies: True if this server holds copies of another server's shards. Half of the transient memory is then
            reserved for changes of these copies. A request holds memory until the backup has applied its changes.
            Without the reserve, servers could wait for each other's memory forever.
        sheds: functions of the caches, called in order with a number of bytes. Each drops that many bytes of its cache,
            or the whole cache.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.holds_copies = False
        self.sheds: list[Callable[[int], None]] = []
        self._lock = threading.Lock()
        self._permanent = self._transient = self._caches = 0
        # Admission queues, first come first served: clients' requests, and changes of copies.
        self._queues: tuple[deque[_Waiter], deque[_Waiter]] = (deque(), deque())
        self._reserve_bytes, self._reserved_until_s = 0, 0.0
        self._thread_state = threading.local()

    @property
    def used_bytes(self) -> int:
        return self._permanent + self._transient + self._caches

    def take(self, size: int, purpose: str) -> None:
        """Count a permanent allocation.

        Raises LimitError if it exceeds the limit even without others' transient memory; BusyError if it fits
        only after transient allocations have ended. After an error nothing is counted. After BusyError, fewer
        requests are admitted for ``RESERVE_S``, so that a retry succeeds.
        """
        self._shed_caches(size)
        with self._lock:
            if self._free < size:
                error = self._refusal(size, purpose)
                if isinstance(error, BusyError):
                    self._reserve_bytes, self._reserved_until_s = size, time.monotonic() + RESERVE_S
                raise error
            self._permanent += size
            if size >= self._reserve_bytes:
                self._reserve_bytes = 0
            self._admit_waiting()  # ``size`` may be negative: a shard may shrink

    def give(self, size: int) -> None:
        """Release a permanent allocation."""
        with self._lock:
            self._permanent -= size
            self._admit_waiting()

    def take_transient(self, size: int, purpose: str) -> None:
        """Count a transient allocation without waiting; raises like ``take``."""
        self._shed_caches(size)
        with self._lock:
            if self._free < size:
                raise self._refusal(size, purpose)
            self._transient += size

    def give_transient(self, size: int) -> None:
        """Release a transient allocation."""
        with self._lock:
            self._transient -= size
            self._admit_waiting()

    def admit(self, size: int, purpose: str, for_copies: bool = False) -> None:
        """Wait in the admission queue, then count the transient memory of a request; ``release`` releases it.

        The caller must not hold locks or other resources that requests wait for. Raises LimitError if the
        request never fits, BusyError if there was not enough memory within ``PATIENCE_S``.
        """
        self._shed_caches(size)
        queue = self._queues[for_copies]
        with self._lock:
            if size > self._transient_limit(for_copies):
                raise self._refusal(size, purpose, self._transient_limit(for_copies))
            waiter = None
            if queue or not self._fits(size, for_copies):
                waiter = _Waiter(size)
                queue.append(waiter)
            else:
                self._transient += size
        if waiter is not None and not waiter.admitted.wait(waiter.until_s - time.monotonic()):
            with self._lock:
                if not waiter.admitted.is_set():
                    error = self._refusal(size, purpose)
                    queue.remove(waiter)
                    self._admit_waiting()
                    raise error
        self._thread_state.bytes = size

    def release(self, size: int) -> None:
        """Release the memory of an admitted request."""
        self._thread_state.bytes = 0
        self.give_transient(size)

    def take_cache(self, size: int) -> bool:
        """Count memory of a cache and return True; return False if other allocations may need that memory."""
        with self._lock:
            fits = self._free >= size and not any(self._queues) and not self._reserved
            self._caches += size * fits
            return fits

    def give_cache(self, size: int) -> None:
        """Release memory of a cache."""
        with self._lock:
            self._caches -= size
            self._admit_waiting()

    @property
    def _free(self) -> int:
        return self.limit_bytes - self.used_bytes

    @property
    def _my_bytes(self) -> int:
        """Bytes of the request that this thread runs, which are not released before the request ends."""
        request_bytes: int = getattr(self._thread_state, "bytes", 0)
        return request_bytes

    @property
    def _reserved(self) -> int:
        """Bytes reserved for the retry of a permanent allocation that was refused a moment ago."""
        return self._reserve_bytes if time.monotonic() < self._reserved_until_s else 0

    def _transient_limit(self, for_copies: bool) -> int:
        """Return the limit of transient memory."""
        shared = self.limit_bytes - self._permanent
        return shared // 2 if self.holds_copies and not for_copies else shared

    def _shed_caches(self, size: int) -> None:
        for shed in self.sheds:
            if (missing := min(size - self._free, self._caches)) > 0:
                shed(missing)

    def _fits(self, size: int, for_copies: bool) -> bool:
        # Without transient allocations the reserve is ignored: no later event would free memory for this request.
        reserved = self._reserved if self._transient else 0
        return size <= self._free and self._transient + size <= self._transient_limit(for_copies) - reserved

    def _admit_waiting(self) -> None:
        """Admit requests from the head of each queue while they fit."""
        for for_copies, queue in zip((False, True), self._queues, strict=True):
            while queue and self._fits(queue[0].size, for_copies):
                self._transient += queue[0].size
                queue.popleft().admitted.set()

    def _refusal(self, size: int, purpose: str, limit: int | None = None) -> LimitError | BusyError:
        limit = self.limit_bytes - self._permanent - self._my_bytes if limit is None else limit
        text = (
            f"{purpose} needs {size:,} bytes, and {max(0, self._free):,} are left of the server's limit of "
            f"{self.limit_bytes:,}"
        )
        if size > limit:
            return LimitError(f"{text}, half of it for changes of copies" if self.holds_copies else text)
        return BusyError(f"{text}; {self._transient:,} are taken by requests and copies under way")


class _Waiter:
    """A request in an admission queue; ``admitted`` is set once its bytes are counted."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.until_s = time.monotonic() + PATIENCE_S
        self.admitted = threading.Event()


def keep_freed_memory() -> None:
    """Make malloc keep freed memory, up to a bound, instead of returning it to the system.

    A request's arrays live for milliseconds. Faulting in new pages for them takes longer than the request itself.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc's
        libc.mallopt(M_MMAP_THRESHOLD, MMAP_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, TRIM_BYTES)
        libc.mallopt(M_ARENA_MAX, ARENAS)


def available_bytes() -> int:
    """Return the bytes that this process may use: the smallest of the applicable limits.

    The limits are the machine's memory, the process's control groups (containers, systemd, Slurm), and the rest of its
    address space (``ulimit -v`` and ``-d``).
    """
    limits = (psutil.virtual_memory().total, cgroups.memory_limit_bytes(), free_memory().process)
    return min(limit for limit in limits if limit is not None)


def free_bytes() -> int:
    """Return the bytes that this process could still allocate, given the memory in use by all processes."""
    return free_memory().worker_bytes(1)
