"""What a server's arrays may take: counted before it is taken."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import psutil

from ps2.errors import LimitError

# Of malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_KEPT_BYTES = 32 << 20  # the most that glibc allows
KEPT_BYTES = 64 << 20  # by each of its arenas
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


class MemoryAccount:
    """Bytes taken by shards and by requests under way, never above ``limit_bytes``. Safe for threads."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._taken = 0
        self._lock = threading.Lock()

    @property
    def taken_bytes(self) -> int:
        return self._taken

    def take(self, size: int, purpose: str) -> None:
        """Count ``size`` bytes as taken.

        Raises:
            LimitError: they do not fit; nothing is counted.
        """
        with self._lock:
            free = self.limit_bytes - self._taken
            if size > free:
                raise LimitError(
                    f"{purpose} needs {size:,} bytes, and {free:,} are left of the server's limit of "
                    f"{self.limit_bytes:,}"
                )
            self._taken += size

    def give(self, size: int) -> None:
        with self._lock:
            self._taken -= size


def keep_freed_memory() -> None:
    """Let this process keep what it frees, up to a bound, instead of giving it back to the system each time.

    The arrays of a request live for milliseconds. To fault their pages in anew for each takes longer than the request.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc's
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def available_bytes() -> int:
    """Return the memory of this machine, or of this container if that is less."""
    total = int(psutil.virtual_memory().total)
    try:
        limit = CGROUP_LIMIT.read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdecimal() else total
