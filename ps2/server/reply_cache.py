"""A cache of mutations' results, so that a retry returns the result of the first attempt."""

from __future__ import annotations

import base64
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.errors import OpError
from ps2.protocol.messages import Operation, RequestId, Result, ShardId, nbytes
from ps2.server.applied import EndedStages

# Maximum size of the cache.
LIMIT_BYTES = 64 << 20
# Approximate size of a result without its arrays.
RESULT_OVERHEAD_BYTES = 1 << 10


@dataclass(frozen=True)
class CachedReply:
    """The result of one operation on one shard; ``position`` is the operation's position in its request."""

    id: RequestId
    position: int
    shard_id: ShardId
    result: Result

    @property
    def nbytes(self) -> int:
        return RESULT_OVERHEAD_BYTES + nbytes(self.result.arrays)

    def to_json(self) -> dict[str, Any]:
        """Return the reply as JSON data without ``shard_id``, for a checkpoint or another server."""
        id = self.id
        return {
            "id": [id.scope, id.number, id.part, id.series, id.stage],
            "position": self.position,
            "scalar": self.result.scalar,
            "arrays": [
                [array.dtype.str, list(array.shape), base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()]
                for array in self.result.arrays
            ],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], shard_id: ShardId) -> CachedReply:
        scope, number, part, series, stage = data["id"]
        arrays = tuple(
            np.frombuffer(base64.b64decode(content), np.dtype(dtype)).reshape(shape)
            for dtype, shape, content in data["arrays"]
        )
        id = RequestId(scope, number, part=part, series=series, stage=stage)
        return cls(id, data["position"], shard_id, Result(data["scalar"], arrays))


# Request id, position of the operation, shard.
Key = tuple[RequestId, int, ShardId]


class ReplyCache:
    """Results by request id. The oldest results are dropped first. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: OrderedDict[Key, CachedReply] = OrderedDict()
        self._scopes: dict[str, dict[Key, None]] = {}  # keys of the results by scope, in order of arrival
        self._bytes = 0

    def put(self, reply: CachedReply) -> None:
        """Store a result; drop the scope's settled results, whose requests are never sent again."""
        key = (reply.id, reply.position, reply.shard_id)
        with self._lock:
            # Requests arrive nearly in order of their numbers, so settled results come first.
            for oldest in list(self._scopes.get(reply.id.scope, ())):
                if oldest[0].number >= reply.id.settled:
                    break
                self._drop(oldest)
            self._drop(key)
            self._results[key] = reply
            self._scopes.setdefault(reply.id.scope, {})[key] = None
            self._bytes += reply.nbytes
            while self._bytes > LIMIT_BYTES:
                self._drop(next(iter(self._results)))

    def get(self, id: RequestId, position: int, operation: Operation) -> Result:
        """Return the result of an operation that was applied before; raises OpError if it was dropped."""
        with self._lock:
            reply = self._results.get((id, position, (operation.matrix, operation.partition)))
        if reply is None:
            name = "mapPartitions" if operation.name == "map" else f"operation {operation.name!r}"
            raise OpError(
                f"this {name} was applied by an earlier attempt, and its result is no longer stored; "
                f"a server stores the latest {LIMIT_BYTES >> 20} MB of results"
            )
        return reply.result

    def shard_replies(self, shard_id: ShardId) -> list[CachedReply]:
        """Return the results of one shard, oldest first."""
        with self._lock:
            return [reply for reply in self._results.values() if reply.shard_id == shard_id]

    def forget(self, shard_id: ShardId) -> None:
        """Drop the results of one shard."""
        with self._lock:
            for key in [key for key in self._results if key[2] == shard_id]:
                self._drop(key)

    def replace(self, results: Iterable[CachedReply]) -> None:
        """Replace all results by ``results``."""
        with self._lock:
            self._results.clear()
            self._scopes.clear()
            self._bytes = 0
        for reply in results:
            self.put(reply)

    def end(self, ended: EndedStages) -> None:
        """Drop the results of stages that are over."""
        with self._lock:
            for key in [key for key in self._results if ended.has(key[0].series, key[0].stage)]:
                self._drop(key)

    def _drop(self, key: Key) -> None:
        reply = self._results.pop(key, None)
        if reply is None:
            return
        self._bytes -= reply.nbytes
        scope = self._scopes[key[0].scope]
        del scope[key]
        if not scope:
            del self._scopes[key[0].scope]
