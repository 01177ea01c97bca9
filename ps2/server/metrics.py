"""What a server counts of its requests and operations: sums since its start, cheap enough for every request."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from ps2 import errors
from ps2.ops.all import SERVERS, TABLE
from ps2.wire.messages import Operation
from ps2.wire.standing import OK, Counts, OperationStatus

# Beside those of the operation table.
# Upper ends of the histogram of an operation's seconds; above the last there is one bucket more.
BUCKETS_S = (
    *(1e-5, 2e-5, 5e-5),
    *(1e-4, 2e-4, 5e-4),
    *(1e-3, 2e-3, 5e-3),
    *(0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0),
)


class Meter:
    """Counts requests and operations. Safe for threads: one short lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcomes: Counter[str] = Counter()
        self._bytes_in = 0
        self._bytes_out = 0
        self._in_progress = 0
        self._waiting = 0
        self._lock_waits = 0
        self._lock_wait_s = 0.0
        self._operations: dict[str, _Sums] = {}
        self.mutations = 0

    def begin(self, received_bytes: int) -> None:
        """Count a request that begins."""
        with self._lock:
            self._in_progress += 1
            self._bytes_in += received_bytes

    def end(self, sent_bytes: int, error: BaseException | None = None, changed: bool = False) -> None:
        """Count a request that ends, and whether it changed something."""
        outcome = _outcome(error)
        with self._lock:
            self._in_progress -= 1
            self._bytes_out += sent_bytes
            self._outcomes[outcome] += 1
            self.mutations += changed

    def refuse(self, error: BaseException) -> None:
        """Count a request that does not even begin."""
        with self._lock:
            self._outcomes[_outcome(error)] += 1

    def acquire(self, lock: threading.RLock) -> None:
        """Take the lock of a shard; if somebody else has it, the wait is counted."""
        if lock.acquire(blocking=False):
            return
        with self._lock:
            self._waiting += 1
        began_s = time.perf_counter()
        lock.acquire()
        with self._lock:
            self._waiting -= 1
            self._lock_waits += 1
            self._lock_wait_s += time.perf_counter() - began_s

    def ran(self, operation: Operation, seconds: float, failed: bool = False) -> None:
        """Count an operation that took so long."""
        bucket = bisect_left(BUCKETS_S, seconds)
        with self._lock:
            sums = self._operations.get(operation.name) or self._new(operation.name)
            if sums is None:
                return
            sums.count += 1
            sums.seconds += seconds
            sums.buckets[bucket] += 1
            if failed:
                sums.failures += 1
            elif operation.keys is not None:
                sums.keys += operation.keys.count
            elif sums.slots_at is not None and sums.slots_at < len(operation.arrays):
                sums.keys += operation.arrays[sums.slots_at].size

    def read(self) -> Counts:
        """Return all counts of one moment."""
        with self._lock:
            return Counts(
                outcomes={OK: 0, **self._outcomes},
                bytes_in=self._bytes_in,
                bytes_out=self._bytes_out,
                in_progress=self._in_progress,
                waiting=self._waiting,
                lock_waits=self._lock_waits,
                lock_wait_s=self._lock_wait_s,
                operations=tuple(sums.read(name) for name, sums in sorted(self._operations.items())),
                mutations=self.mutations,
            )

    def _new(self, name: str) -> _Sums | None:
        """Return sums for an operation; none for a name that some client made up, or there would be no end of them."""
        if name in TABLE:
            kinds = TABLE[name].arrays
            sums = _Sums(kinds.index("slots") if "slots" in kinds else None)
        elif name in SERVERS:
            sums = _Sums(None)
        else:
            return None
        self._operations[name] = sums
        return sums


@dataclass(slots=True)
class _Sums:
    """Attributes:
    slots_at: which array of a request, if it has no key set, holds the columns that it names; None if none does.
    """

    slots_at: int | None
    count: int = 0
    failures: int = 0
    seconds: float = 0.0
    keys: int = 0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))

    def read(self, name: str) -> OperationStatus:
        return OperationStatus(name, self.count, self.failures, self.seconds, self.keys, tuple(self.buckets))


def _outcome(error: BaseException | None) -> str:
    """Return the class in ``ps2.errors`` that tells of an error; a bug travels as PS2Error."""
    if error is None:
        return OK
    names = (cls.__name__ for cls in type(error).__mro__ if cls.__module__ == errors.__name__)
    return next(names, errors.PS2Error.__name__)
