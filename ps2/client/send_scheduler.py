"""In which order, in what portions and how fast additions leave that nobody waits for. Pure.

Update prioritization and managed bandwidth (Wei et al., "Managed Communication and Consistency for Fast Data-Parallel
Iterative Analytics"; Xing et al., section 3.3): what matters most leaves first, and spread evenly over time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ps2.client.keysets import MOST_SENT_BYTES, keys_bytes
from ps2.client.plans import Plan
from ps2.ops.table import Array
from ps2.protocol.messages import Keys, Operation, RequestId, key_digest

# Values of a chunk: small enough to be told apart by size, large enough to be worth a request.
CHUNK_VALUES = 1 << 14
# Without a limit, what leaves together: the largest of what waits.
GROUP_BYTES = 1 << 20
# A limit holds over any time longer than this.
BURST_S = 0.05

_ADDITIONS = ("push_add", "push_sub", "scatter_add", "scatter_sub", "rows_add", "rows_scatter_add", "columns_add")
_OVERWRITING = ("push", "rows_push", "columns_push")


@dataclass(frozen=True, eq=False, slots=True)
class QueuedUpdate:
    """An addition, or a chunk of one, that waits.

    Attributes:
        clock: that it was made in.
        held_bytes: what it takes here.
        sent_bytes: what its values and keys take on the way; a set of keys that the server remembers takes less.
        size: mean of its values without their signs; infinite for what has no values: it costs nothing.
    """

    plan: Plan[Any]
    id: RequestId
    clock: int = 0
    held_bytes: int = 0
    sent_bytes: int = 0
    size: float = 0.0


class Bucket:
    """A token bucket: in any s seconds, at most ``rate * s`` bytes leave, and one burst or one chunk."""

    def __init__(self, rate: float) -> None:
        """``rate`` is in bytes a second."""
        self._rate = rate
        self._burst = self._tokens = rate * BURST_S
        self._last_s: float | None = None

    def delay_s(self, count: int, now_s: float) -> float:
        """Return how long from now so many bytes must wait; more than a burst need a full bucket, and make debts."""
        self._fill(now_s)
        return max(0.0, (min(count, self._burst) - self._tokens) / self._rate)

    def take(self, count: int, now_s: float) -> None:
        self._fill(now_s)
        self._tokens -= count

    def _fill(self, now_s: float) -> None:
        if self._last_s is not None:
            self._tokens = min(self._burst, self._tokens + (now_s - self._last_s) * self._rate)
        self._last_s = now_s


@dataclass(eq=False)
class SendScheduler:
    """How a run's additions leave.

    Attributes:
        by_size: large ones first.
        bucket: None is no limit.
        due: those of the clocks below leave before all others: the worker waits for them next.
    """

    by_size: bool = False
    bucket: Bucket | None = None
    due: int = 0

    @classmethod
    def of(cls, priority: str | None, bandwidth: float | None) -> SendScheduler:
        return cls(priority == "magnitude", Bucket(bandwidth) if bandwidth is not None else None)

    @property
    def is_managed(self) -> bool:
        """Whether additions leave in chunks, rather than all that wait at once."""
        return self.by_size or self.bucket is not None

    def cut(self, plan: Plan[Any]) -> list[Plan[Any]]:
        """Return an addition's chunks.

        Which columns a chunk has depends on nothing but the columns: a later attempt, which may have computed other
        values, finds each chunk applied or not, and none of its columns counts twice.
        """
        if not self.is_managed or sum(map(_values, plan.operations)) <= CHUNK_VALUES:
            return [plan]
        if any(operation.name not in _ADDITIONS for operation in plan.operations):
            return [plan]
        return [replace(plan, operations=(chunk,)) for operation in plan.operations for chunk in _chunks_of(operation)]

    def queued(self, plan: Plan[Any], id: RequestId, clock: int) -> QueuedUpdate:
        """Return what is to wait."""
        held = held_bytes(plan)
        if not self.is_managed:
            return QueuedUpdate(plan, id, clock, held)
        return QueuedUpdate(plan, id, clock, held, sum(map(sent_bytes, plan.operations)), _mean_size(plan))

    def choose(self, waiting: Sequence[QueuedUpdate]) -> list[QueuedUpdate]:
        """Return what leaves next."""
        waiting = _in_turn(waiting)
        if not self.is_managed:
            return waiting

        def urgency(update: QueuedUpdate) -> tuple[bool, float]:
            return update.clock >= self.due, -update.size if self.by_size else 0.0

        if self.bucket is not None:
            return [min(waiting, key=urgency)]
        chosen: list[QueuedUpdate] = []
        left = GROUP_BYTES
        for update in sorted(waiting, key=urgency):
            chosen.append(update)
            left -= update.sent_bytes
            if left <= 0:
                break
        return chosen

    def delay_s(self, updates: Sequence[QueuedUpdate], now_s: float) -> float:
        """Return how long the limit makes them wait."""
        if self.bucket is None:
            return 0.0
        return self.bucket.delay_s(sum(update.sent_bytes for update in updates), now_s)

    def leave(self, updates: Sequence[QueuedUpdate], now_s: float) -> None:
        """Count what leaves."""
        if self.bucket is not None:
            self.bucket.take(sum(update.sent_bytes for update in updates), now_s)


def _in_turn(waiting: Sequence[QueuedUpdate]) -> list[QueuedUpdate]:
    """Return what may leave now: what overwrites a matrix leaves after all that was made before it there, and alone."""
    found: list[QueuedUpdate] = []
    overwritten: dict[int, bool] = {}
    for update in waiting:
        matrices = update.plan.matrices
        overwrites = any(operation.name in _OVERWRITING for operation in update.plan.operations)
        if not any(matrix in overwritten and (overwrites or overwritten[matrix]) for matrix in matrices):
            found.append(update)
        overwritten.update({matrix: overwrites or overwritten.get(matrix, False) for matrix in matrices})
    return found


def held_bytes(plan: Plan[Any]) -> int:
    """Return what a plan's arrays take while it waits."""
    return sum(operation.nbytes for operation in plan.operations)


def _chunks_of(operation: Operation) -> Iterator[Operation]:
    *rows, values = operation.arrays
    if values.size <= CHUNK_VALUES:
        yield operation
        return
    if rows:
        step = max(1, CHUNK_VALUES * rows[0].size // values.size)
        values = values.reshape(rows[0].size, -1)
        for begin in range(0, rows[0].size, step):
            some = slice(begin, begin + step)
            yield replace(operation, arrays=(rows[0][some], values[some]))
        return
    step = max(1, CHUNK_VALUES * len(values) // values.size)  # of blocks, or of values
    for begin in range(0, len(values), step):
        where = slice(begin, begin + step)
        keys = None if operation.keys is None else _some(operation.keys, where)
        params = dict(operation.params)
        if keys is None:
            params["start"] = int(params["start"]) + begin
        yield replace(operation, arrays=(values[where],), keys=keys, params=params)


def _some(keys: Keys, where: slice) -> Keys:
    """Return some of a set of keys; a set that has a name comes again, and so do its parts."""
    assert keys.columns is not None
    columns = keys.columns[where]
    named = keys.digest is not None and keys_bytes(columns) > MOST_SENT_BYTES
    return Keys(columns.size, columns, key_digest(columns) if named else None)


def _values(operation: Operation) -> int:
    return sum(array.size for array in operation.arrays)


def _mean_size(plan: Plan[Any]) -> float:
    count = sum(map(_values, plan.operations))
    if not count or any(operation.name not in _ADDITIONS for operation in plan.operations):
        return float("inf")
    total = sum(float(np.abs(operation.arrays[-1]).sum(dtype=np.float64)) for operation in plan.operations)
    # Not a number: whoever made it should see it soon.
    return float("inf") if np.isnan(total) else total / count


def sent_bytes(operation: Operation) -> int:
    """Return what an operation's values and keys take on the way; a set of keys that has a name counts in full."""
    keys = 0
    if operation.keys is not None and operation.keys.columns is not None:
        keys = packed_bytes(operation.keys.columns)
    return keys + sum(
        array.size * 2 if operation.wire is not None and array.dtype.kind == "f" else array.nbytes
        for array in operation.arrays
    )


def packed_bytes(columns: Array) -> int:
    """Return what ascending keys take: the first, and the steps to the others in the narrowest width."""
    if columns.size < 2:
        return 8 * columns.size
    largest = int(np.diff(columns).max())
    width = next(width for width in (1, 2, 4, 8) if largest < 1 << (8 * width))
    return 8 + width * (columns.size - 1)
