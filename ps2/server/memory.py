"""Memory accounting of a server: memory of arrays is counted before the arrays are allocated."""

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

# Time that a request waits for memory. Then the request is refused, and the client's retry joins the end of the queue.
PATIENCE_S = 2.0
# Time for which memory is reserved for the retry of a refused permanent allocation: several retry pauses of a client.
RESERVE_S = 2.0

# Parameters of mallopt, from malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
MMAP_BYTES = 32 << 20  # the maximum that glibc accepts
TRIM_BYTES = 64 << 20  # bound of the freed memory in an arena
ARENAS = 2  # by default, glibc creates an arena per thread, up to 8 per core


class MemoryAccount:
    """Counts the bytes that a server has allocated, at most ``limit_bytes``. Thread-safe.

    There are three kinds of allocations. Shards are permanent (``take``, ``give``). Requests with their replies
    (``admit``, ``release``) and temporary copies (``take_transient``, ``give_transient``) are transient. Caches
    (``take_cache``, ``give_cache``) are freed when an allocation of another kind needs the memory.

    Attributes:
        cache_releasers: a function of each cache, called in order; it frees the given number of bytes, or its whole
            cache.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._copy_holders: set[object] = set()  # the engines with copies of another server's shards
        self.cache_releasers: list[Callable[[int], None]] = []
        self._lock = threading.Lock()
        self._permanent = self._transient = self._caches = 0
        # Admission queues, first in, first out: of clients' requests, and of changes of copies.
        self._queues: tuple[deque[_Waiter], deque[_Waiter]] = (deque(), deque())
        self._reserve_bytes, self._reserved_until_s = 0, 0.0
        self._thread_state = threading.local()

    @property
    def holds_copies(self) -> bool:
        """True if this server has copies of another server's shards.

        Half of the transient memory is then reserved for changes of these copies: a request occupies memory until the
        backup has applied its changes, so without the reserve, two servers could wait for each other's memory forever.
        """
        return bool(self._copy_holders)

    def set_copies(self, holder: object, holds_copies: bool) -> None:
        """Record whether an engine has copies of another server's shards."""
        with self._lock:
            if holds_copies:
                self._copy_holders.add(holder)
            else:
                self._copy_holders.discard(holder)

    @property
    def used_bytes(self) -> int:
        return self._permanent + self._transient + self._caches

    def take(self, size: int, purpose: str) -> None:
        """Count a permanent allocation.

        Raises LimitError if it would exceed the limit even after other requests have ended; BusyError if it fits only
        after they have ended. After an error nothing is counted. After BusyError, fewer requests are admitted for
        ``RESERVE_S``, so that a retry succeeds.
        """
        self._free_caches(size)
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
        with self._lock:
            self._permanent -= size
            self._admit_waiting()

    def take_transient(self, size: int, purpose: str) -> None:
        """Count a transient allocation without waiting; raises like ``take``."""
        self._free_caches(size)
        with self._lock:
            if self._free < size:
                raise self._refusal(size, purpose)
            self._transient += size

    def give_transient(self, size: int) -> None:
        with self._lock:
            self._transient -= size
            self._admit_waiting()

    def admit(self, size: int, purpose: str, for_copies: bool = False) -> None:
        """Wait in the admission queue, then count the transient memory of a request until ``release``.

        The caller must not hold locks or other resources that requests wait for. Raises LimitError if the request can
        never fit, BusyError if there was not enough memory within ``PATIENCE_S``.
        """
        self._free_caches(size)
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
        """Count memory of a cache and return True; return False if other allocations may need the memory."""
        with self._lock:
            fits = self._free >= size and not any(self._queues) and not self._reserved
            self._caches += size * fits
            return fits

    def give_cache(self, size: int) -> None:
        with self._lock:
            self._caches -= size
            self._admit_waiting()

    @property
    def _free(self) -> int:
        return self.limit_bytes - self.used_bytes

    @property
    def _my_bytes(self) -> int:
        """The bytes of the request that this thread runs, which are released only after the request."""
        request_bytes: int = getattr(self._thread_state, "bytes", 0)
        return request_bytes

    @property
    def _reserved(self) -> int:
        """The bytes that are reserved for the retry of a recently refused permanent allocation."""
        return self._reserve_bytes if time.monotonic() < self._reserved_until_s else 0

    def _transient_limit(self, for_copies: bool) -> int:
        """Return the limit of the transient memory that clients' requests, or changes of copies, may occupy."""
        shared = self.limit_bytes - self._permanent
        return shared // 2 if self.holds_copies and not for_copies else shared

    def _free_caches(self, size: int) -> None:
        for release in self.cache_releasers:
            if (missing := min(size - self._free, self._caches)) > 0:
                release(missing)

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
        message = (
            f"{purpose} needs {size:,} bytes, and {max(0, self._free):,} are left of the server's limit of "
            f"{self.limit_bytes:,}"
        )
        if size > limit:
            return LimitError(f"{message}, half of it for changes of copies" if self.holds_copies else message)
        return BusyError(f"{message}; {self._transient:,} are used by requests and copies in progress")


class _Waiter:
    """A request in an admission queue; the event ``admitted`` is set when its bytes are counted."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.until_s = time.monotonic() + PATIENCE_S
        self.admitted = threading.Event()


def keep_freed_memory() -> None:
    """Configure malloc to keep freed memory, up to a bound, instead of returning it to the system.

    A request's arrays exist for milliseconds. Page faults for new memory take longer than the request itself.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # only glibc has it
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
