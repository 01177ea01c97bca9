"""What a server's arrays may take: counted before it is taken."""

from __future__ import annotations

import ctypes
import resource
import threading
import time
from collections import deque
from collections.abc import Callable

import psutil

from ps2 import cgroups
from ps2.errors import BusyError, LimitError

# How long a request waits for room on the server. Its client tries again, but the others that came are let in first.
PATIENCE_S = 2.0
# How long room is kept for what was refused because of requests under way: some pauses of a client.
WANTED_S = 2.0

# Of malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
LARGEST_KEPT_BYTES = 32 << 20  # the most that glibc allows
KEPT_BYTES = 64 << 20  # by each of its arenas
ARENAS = 2  # else as many as threads, up to 8 a core


class MemoryAccount:
    """Bytes that a server has taken, never above ``limit_bytes``. Safe for threads.

    What lasts are shards. What passes are requests with their replies, and copies: it makes room by itself. What is
    spare is dropped as soon as one of the others needs its room.

    Attributes:
        holds_copies: this server holds copies of another's shards. That one waits for their changes, while its own
            clients, and those of this server, have memory that they do not give back before: so half of the room for
            what passes is left to changes of copies.
        sheds: drop spare bytes, so many of them if they have as many; asked in order.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.holds_copies = False
        self.sheds: list[Callable[[int], None]] = []
        self._lock = threading.Lock()
        self._lasting = self._passing = self._spare = 0
        # Who waits for room: clients, and changes of copies; each in the order in which they came.
        self._lines: tuple[deque[_Waiter], deque[_Waiter]] = (deque(), deque())
        self._wanted, self._wanted_until_s = 0, 0.0
        self._mine = threading.local()

    @property
    def taken_bytes(self) -> int:
        return self._lasting + self._passing + self._spare

    def take(self, size: int, purpose: str) -> None:
        """Count bytes that last.

        Raises:
            LimitError: they do not fit, whatever passes; nothing is counted.
            BusyError: they do not fit before something has passed. Less of that is let in for a moment, so that the
                next attempt succeeds.
        """
        self._make_room(size)
        with self._lock:
            if self._free < size:
                error = self._refusal(size, purpose)
                if isinstance(error, BusyError):
                    self._wanted, self._wanted_until_s = size, time.monotonic() + WANTED_S
                raise error
            self._lasting += size
            if size >= self._wanted:
                self._wanted = 0
            self._let_in()  # less than nothing may have been taken

    def give(self, size: int) -> None:
        """Give back bytes that lasted."""
        with self._lock:
            self._lasting -= size
            self._let_in()

    def borrow(self, size: int, purpose: str) -> None:
        """Count bytes that pass, at once or not at all; raises as ``take`` does."""
        self._make_room(size)
        with self._lock:
            if self._free < size:
                raise self._refusal(size, purpose)
            self._passing += size

    def give_back(self, size: int) -> None:
        """Give back what was borrowed."""
        with self._lock:
            self._passing -= size
            self._let_in()

    def admit(self, size: int, purpose: str, of_copies: bool = False) -> None:
        """Count what a request takes, when it is its turn: bytes that pass, until it may ``leave``.

        Who comes here holds nothing that others wait for.

        Raises:
            LimitError: they do not fit, whatever else passes.
            BusyError: they have not fitted for ``PATIENCE_S``.
        """
        self._make_room(size)
        line = self._lines[of_copies]
        with self._lock:
            if size > self._most(of_copies):
                raise self._refusal(size, purpose, self._most(of_copies))
            waiter = None
            if line or not self._fits(size, of_copies):
                waiter = _Waiter(size)
                line.append(waiter)
            else:
                self._passing += size
        if waiter is not None and not waiter.is_in.wait(waiter.until_s - time.monotonic()):
            with self._lock:
                if not waiter.is_in.is_set():
                    error = self._refusal(size, purpose)
                    line.remove(waiter)
                    self._let_in()
                    raise error
        self._mine.bytes = size

    def leave(self, size: int) -> None:
        """Give back what a request took that was admitted."""
        self._mine.bytes = 0
        self.give_back(size)

    def spare(self, size: int) -> bool:
        """Count spare bytes, unless nobody could do with less."""
        with self._lock:
            fits = self._free >= size and not any(self._lines) and not self._kept_back
            self._spare += size * fits
            return fits

    def give_spare(self, size: int) -> None:
        with self._lock:
            self._spare -= size
            self._let_in()

    @property
    def _free(self) -> int:
        return self.limit_bytes - self.taken_bytes

    @property
    def _my_bytes(self) -> int:
        """What the request takes that this thread runs: it does not pass before what it waits for."""
        found: int = getattr(self._mine, "bytes", 0)
        return found

    @property
    def _kept_back(self) -> int:
        """What was refused a moment ago, and is asked for again."""
        return self._wanted if time.monotonic() < self._wanted_until_s else 0

    def _most(self, of_copies: bool) -> int:
        """Return how much may pass at a time."""
        room = self.limit_bytes - self._lasting
        return room // 2 if self.holds_copies and not of_copies else room

    def _make_room(self, size: int) -> None:
        for shed in self.sheds:
            if (short := min(size - self._free, self._spare)) > 0:
                shed(short)

    def _fits(self, size: int, of_copies: bool) -> bool:
        # Where nothing passes, there is nothing to wait for.
        kept = self._kept_back if self._passing else 0
        return size <= self._free and self._passing + size <= self._most(of_copies) - kept

    def _let_in(self) -> None:
        """Let in who waits and fits, in order."""
        for of_copies, line in zip((False, True), self._lines, strict=True):
            while line and self._fits(line[0].size, of_copies):
                self._passing += line[0].size
                line.popleft().is_in.set()

    def _refusal(self, size: int, purpose: str, most: int | None = None) -> LimitError | BusyError:
        most = self.limit_bytes - self._lasting - self._my_bytes if most is None else most
        why = (
            f"{purpose} needs {size:,} bytes, and {max(0, self._free):,} are left of the server's limit of "
            f"{self.limit_bytes:,}"
        )
        if size > most:
            return LimitError(f"{why}, half of it for changes of copies" if self.holds_copies else why)
        return BusyError(f"{why}; {self._passing:,} are taken by requests and copies under way")


class _Waiter:
    """Who waits in line; ``is_in`` is set when its bytes are counted."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.until_s = time.monotonic() + PATIENCE_S
        self.is_in = threading.Event()


def keep_freed_memory() -> None:
    """Let this process keep what it frees, up to a bound, instead of giving it back to the system each time.

    The arrays of a request live for milliseconds. To fault their pages in anew for each takes longer than the request.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc's
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        libc.mallopt(M_ARENA_MAX, ARENAS)


def available_bytes() -> int:
    """Return the memory of this machine, or what this process may take of it if that is less.

    That is what the control groups of this process allow (containers, systemd, Slurm), and what limits of its address
    space (``ulimit -v`` and ``-d``) leave.
    """
    return _smallest(psutil.virtual_memory().total, cgroups.memory_limit_bytes())


def free_bytes() -> int:
    """Return what this process could take at most beside what it and others have taken."""
    return _smallest(psutil.virtual_memory().available, cgroups.memory_room_bytes())


def _smallest(of_machine: int, of_groups: int | None) -> int:
    mapped = psutil.Process().memory_info()
    found = [of_machine, *([] if of_groups is None else [of_groups])]
    for limit, taken in ((resource.RLIMIT_AS, mapped.vms), (resource.RLIMIT_DATA, mapped.data)):
        most, _ = resource.getrlimit(limit)
        if most != resource.RLIM_INFINITY:
            found.append(max(0, most - taken))
    return int(min(found))
