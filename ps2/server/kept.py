"""Results of users' functions, for attempts that come again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from ps2.errors import OpError
from ps2.ops.table import Array
from ps2.wire.messages import RequestId, Result, nbytes

KEPT_RESULTS_BYTES = 64 << 20
# What one of them takes beside its arrays, about: most results are a few bytes.
KEPT_RESULT_BYTES = 1 << 10

Place = tuple[int, int]  # matrix, partition


@dataclass(frozen=True)
class Kept:
    """A result, and which operation of which request on which shard it is of."""

    id: RequestId
    position: int
    place: Place
    result: Result

    @property
    def nbytes(self) -> int:
        return KEPT_RESULT_BYTES + nbytes(self.result.arrays)

    @property
    def pickled(self) -> Array:
        return self.result.arrays[0]


class KeptResults:
    """Results by request id, the oldest dropped first. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: OrderedDict[tuple[RequestId, int], Kept] = OrderedDict()
        self._bytes = 0

    def put(self, kept: Kept) -> None:
        with self._lock:
            self._drop((kept.id, kept.position))
            self._results[kept.id, kept.position] = kept
            self._bytes += kept.nbytes
            while self._bytes > KEPT_RESULTS_BYTES:
                self._drop(next(iter(self._results)))

    def get(self, id: RequestId | None, position: int) -> Result:
        """Return the result of an operation that was applied before; raises OpError if it is not kept any more."""
        with self._lock:
            kept = self._results.get((id, position)) if id is not None else None
        if kept is None:
            raise OpError(
                "this mapPartitions was applied by an earlier attempt, and its result is no longer kept; "
                "results of more than 64 MB in all are not"
            )
        return kept.result

    def of(self, place: Place) -> list[Kept]:
        """Return what is kept of one shard, the oldest first."""
        with self._lock:
            return [kept for kept in self._results.values() if kept.place == place]

    def forget(self, place: Place) -> None:
        """Drop what is kept of one shard."""
        with self._lock:
            for key in [key for key, kept in self._results.items() if kept.place == place]:
                self._drop(key)

    def _drop(self, key: tuple[RequestId, int]) -> None:
        kept = self._results.pop(key, None)
        if kept is not None:
            self._bytes -= kept.nbytes
