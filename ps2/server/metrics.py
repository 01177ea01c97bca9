"""A server's counters of requests and operations since its start, and their Prometheus metrics (docs/metrics.md)."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import add

import numpy as np
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ps2 import errors
from ps2.ops.all import SERVER_OPERATIONS, TABLE
from ps2.protocol.messages import PLAIN, Operation
from ps2.rpc.server_status import OK, Counts, OperationStatus, ServerStatus, metrics
from ps2.server.shard import ShardLock

# Upper bounds of the buckets of an operation's duration histogram; one more bucket has no upper bound.
BUCKETS_S = (
    *(1e-5, 2e-5, 5e-5),
    *(1e-4, 2e-4, 5e-4),
    *(1e-3, 2e-3, 5e-3),
    *(0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0),
)


# Indices of the counters of ``fast_path_loop``: these sums; then for each operation its keys, nanoseconds and buckets.
REQUESTS, BYTES_IN, BYTES_OUT, MUTATIONS, WAITING, LOCK_WAITS, LOCK_WAIT_NS, SUMS = range(8)
KEYS, NANOSECONDS, BUCKETS = range(3)
OPERATION_COUNTERS = BUCKETS + len(BUCKETS_S) + 1
BUCKETS_NS = np.array([int(1e9 * seconds) for seconds in BUCKETS_S], np.int64)


class Meter:
    """Counts requests and operations; ``fast_path_loop`` increments the counters ``fast_path``. Thread-safe."""

    def __init__(self) -> None:
        self.fast_path = np.zeros(SUMS + len(PLAIN) * OPERATION_COUNTERS, np.int64)
        self._lock = threading.Lock()
        self._outcomes: Counter[str] = Counter()
        self._bytes_in = 0
        self._bytes_out = 0
        self._in_progress = 0
        self._waiting = 0
        self._lock_waits = 0
        self._lock_wait_s = 0.0
        self._operations: dict[str, _Sums] = {}
        self._mutations = 0

    @property
    def mutations(self) -> int:
        """The number of requests that changed data."""
        return self._mutations + int(self.fast_path[MUTATIONS])

    def begin(self, received_bytes: int) -> None:
        """Count a request when it begins."""
        with self._lock:
            self._in_progress += 1
            self._bytes_in += received_bytes

    def end(self, sent_bytes: int, error: BaseException | None = None, changed: bool = False) -> None:
        """Count a request when it ends; ``changed``: True if the request changed data."""
        outcome = _outcome(error)
        with self._lock:
            self._in_progress -= 1
            self._bytes_out += sent_bytes
            self._outcomes[outcome] += 1
            self._mutations += changed

    def refuse(self, error: BaseException) -> None:
        """Count a request that was refused before it began."""
        with self._lock:
            self._outcomes[_outcome(error)] += 1

    def acquire(self, lock: ShardLock) -> None:
        """Acquire the lock of a shard; count the wait if another thread has the lock."""
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

    def count_operation(self, operation: Operation, seconds: float, failed: bool = False) -> None:
        """Count an operation and its duration."""
        bucket = bisect_left(BUCKETS_S, seconds)
        with self._lock:
            sums = self._operations.get(operation.name) or self._new_sums(operation.name)
            if sums is None:
                return
            sums.count += 1
            sums.seconds += seconds
            sums.buckets[bucket] += 1
            if failed:
                sums.failures += 1
            elif operation.keys is not None:
                sums.keys += operation.keys.count
            elif sums.slots_index is not None and sums.slots_index < len(operation.arrays):
                sums.keys += operation.arrays[sums.slots_index].size

    def read(self) -> Counts:
        """Return all counts at one time, except counts that fast paths add at the same moment."""
        fast_path = self.fast_path.tolist()
        with self._lock:
            operations = {name: sums.read(name) for name, sums in self._operations.items()}
            for kind, name in enumerate(PLAIN):
                counters = fast_path[SUMS + kind * OPERATION_COUNTERS :][:OPERATION_COUNTERS]
                if any(counters[BUCKETS:]):
                    operations[name] = _with_fast_path(operations.get(name, _Sums(None).read(name)), counters)
            return Counts(
                outcomes={**self._outcomes, OK: self._outcomes[OK] + fast_path[REQUESTS]},
                bytes_in=self._bytes_in + fast_path[BYTES_IN],
                bytes_out=self._bytes_out + fast_path[BYTES_OUT],
                # Requests on fast paths that do not wait are not counted here, because they take microseconds.
                in_progress=self._in_progress + fast_path[WAITING],
                waiting=self._waiting + fast_path[WAITING],
                lock_waits=self._lock_waits + fast_path[LOCK_WAITS],
                lock_wait_s=self._lock_wait_s + 1e-9 * fast_path[LOCK_WAIT_NS],
                operations=tuple(status for _, status in sorted(operations.items())),
                mutations=self._mutations + fast_path[MUTATIONS],
            )

    def _new_sums(self, name: str) -> _Sums | None:
        """Return new sums for an operation; None for an unknown name, because clients must not grow the table."""
        if name in TABLE:
            kinds = TABLE[name].arrays
            sums = _Sums(kinds.index("slots") if "slots" in kinds else None)
        elif name in SERVER_OPERATIONS:
            sums = _Sums(None)
        else:
            return None
        self._operations[name] = sums
        return sums


@dataclass(slots=True)
class _Sums:
    """The sums of one operation; ``slots_index``: the array of columns in a request without a key set, or None."""

    slots_index: int | None
    count: int = 0
    failures: int = 0
    seconds: float = 0.0
    keys: int = 0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))

    def read(self, name: str) -> OperationStatus:
        return OperationStatus(name, self.count, self.failures, self.seconds, self.keys, tuple(self.buckets))


def _with_fast_path(status: OperationStatus, fast_path: Sequence[int]) -> OperationStatus:
    """Return an operation's counts plus its counters of ``fast_path_loop``."""
    return replace(
        status,
        count=status.count + sum(fast_path[BUCKETS:]),
        seconds=status.seconds + 1e-9 * fast_path[NANOSECONDS],
        keys=status.keys + fast_path[KEYS],
        buckets=tuple(map(add, status.buckets, fast_path[BUCKETS:])),
    )


def _outcome(error: BaseException | None) -> str:
    """Return "ok", or the name of the error's first base class in ``ps2.errors``; other errors count as PS2Error."""
    if error is None:
        return OK
    names = (cls.__name__ for cls in type(error).__mro__ if cls.__module__ == errors.__name__)
    return next(names, errors.PS2Error.__name__)


# Constructors of metrics, by kind.
FAMILIES: Mapping[str, Callable[..., Metric]] = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
# The labels of the buckets.
LIMITS = [*map(floatToGoString, BUCKETS_S), "+Inf"]


class ServerCollector(Collector):
    """Reads the status of one server at each scrape."""

    def __init__(self, read: Callable[[], ServerStatus], info: dict[str, str]) -> None:
        """``read`` returns the server's status; ``info``: the labels of ``ps2_server_info``."""
        self._read = read
        self._info = info

    def collect(self) -> Iterator[Metric]:
        status = self._read()
        yield InfoMetricFamily("ps2_server", "Version, id and index of this server", value=self._info)
        requests = CounterMetricFamily("ps2_requests", "Answered data requests", labels=["outcome"])
        for outcome, count in sorted(status.outcomes.items()):
            requests.add_metric([outcome], count)
        yield requests
        for metric, value in metrics(status):
            yield FAMILIES[metric.kind](metric.name, metric.help, value=value)
        yield from _operation_metrics(status.operations)


def _operation_metrics(operations: Sequence[OperationStatus]) -> Iterator[Metric]:
    durations = HistogramMetricFamily(
        "ps2_operation_duration_seconds", "Time in an operation, without waits for locks", labels=["operation"]
    )
    failures = CounterMetricFamily("ps2_operation_failures", "Operations that raised an error", labels=["operation"])
    keys = CounterMetricFamily("ps2_keys", "Columns or keys in requests, without whole rows", labels=["operation"])
    for operation in operations:
        cumulative = zip(LIMITS, accumulate(operation.buckets), strict=True)
        durations.add_metric([operation.name], buckets=list(cumulative), sum_value=operation.seconds)
        failures.add_metric([operation.name], operation.failures)
        keys.add_metric([operation.name], operation.keys)
    yield from (durations, failures, keys)
