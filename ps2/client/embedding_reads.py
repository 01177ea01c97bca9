"""Pulls of an embedding table, in the caller's thread or in another, and a cache of keys grouped by partition."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import numpy as np

from ps2.array_types import Int64s
from ps2.client.batch import submit
from ps2.client.embedding_plans import TableKeys
from ps2.client.embedding_settings import TableSettings
from ps2.client.matrix import DCVMatrix
from ps2.client.plans import Plan
from ps2.errors import RolledBack
from ps2.interrupts import join
from ps2.ops.table import Array
from ps2.protocol.messages import key_digest

# Prefetches whose answers no pull has taken; the oldest are dropped first.
MAX_READS = 8
# Grouped key sets in the cache, for the push after a pull.
MAX_KEY_SETS = MAX_READS

# Digest and shape of the keys of a call.
KeySetId = tuple[bytes, tuple[int, ...]]


class RecentKeys:
    """A cache of the keys of recent calls, grouped by partition: most pushes have the keys of a pull. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cache: OrderedDict[KeySetId, TableKeys] = OrderedDict()

    def group(self, matrix: DCVMatrix, settings: TableSettings, keys: Int64s, are_distinct: bool) -> TableKeys:
        """Return keys grouped by partition, as ``TableKeys.of`` does. Keys have any shape here."""
        target, id = matrix._target(), _key_set_id(keys)
        with self._lock:
            cached = self._cache.get(id)
            if cached is not None and cached.target.route is target.route:
                self._cache.move_to_end(id)
                return cached
        # A copy, because the caller may change its array.
        grouped = TableKeys.of(target, settings, keys.reshape(-1).copy(), are_distinct)
        with self._lock:
            self._cache[id] = grouped
            if len(self._cache) > MAX_KEY_SETS:
                self._cache.popitem(last=False)
        return grouped


class EmbeddingRead:
    """One pull of keys of any shape: ``run`` pulls in the caller's thread, ``start`` and ``result`` in another."""

    def __init__(
        self, matrix: DCVMatrix, settings: TableSettings, recent: RecentKeys, keys: Int64s, are_distinct: bool
    ) -> None:
        self._matrix = matrix
        self._session = matrix._session
        self._settings = settings
        self._recent = recent
        self._keys = keys
        self._are_distinct = are_distinct
        self._thread: threading.Thread | None = None
        self._epoch = 0  # the session's rollback epoch at ``start``
        self._answer: Array | None = None
        self._error: Exception | None = None

    def run(self) -> Any:
        """Pull after all queued changes: float32 of shape ``keys.shape + (k,)``; a Deferred in a batch."""
        return submit(self._session, self._plan())

    def start(self) -> None:
        """Begin the pull in a thread. The pull does not wait for queued changes."""
        self._epoch = self._session.epoch
        self._thread = threading.Thread(target=self._run_in_thread, name="ps2-embedding-read", daemon=True)
        self._thread.start()

    def result(self) -> Any:
        """Wait for the pull that ``start`` began; return its answer, or raise its error.

        If the fleet has rolled back to a checkpoint since ``start``, pull again.
        """
        self.wait()
        if isinstance(self._error, RolledBack) or self._session.epoch != self._epoch:
            return self.run()
        if self._error is not None:
            raise self._error
        return self._answer

    def wait(self) -> None:
        if self._thread is not None:
            with self._session.stopwatch.running("pull"):
                join(self._thread)

    def _run_in_thread(self) -> None:
        try:
            plan = self._plan()
            with self._session.async_writer.transfers:
                self._answer = self._session.dispatch.read_now(plan)
        except Exception as error:  # ``result`` raises it in the caller's thread
            self._error = error

    def _plan(self) -> Plan[Array]:
        shape = (*self._keys.shape, self._settings.k)
        keys = self._recent.group(self._matrix, self._settings, self._keys, self._are_distinct)
        return keys.pull(self._settings.k).then(lambda weights: weights.reshape(shape))


class PendingReads:
    """The prefetches of one handle. Each stays here, running or finished, until a pull takes its answer."""

    def __init__(self) -> None:
        self._reads: OrderedDict[KeySetId, EmbeddingRead] = OrderedDict()

    def begin(self, keys: Int64s, read: EmbeddingRead) -> None:
        """Start a read of keys. It replaces an earlier read of the same keys."""
        id = _key_set_id(keys)
        self._reads.pop(id, None)
        self._reads[id] = read
        read.start()
        if len(self._reads) > MAX_READS:
            self._reads.popitem(last=False)

    def take(self, keys: Int64s) -> EmbeddingRead | None:
        """Remove and return the read of these keys; None if there is none."""
        return self._reads.pop(_key_set_id(keys), None) if self._reads else None

    def close(self) -> None:
        """Wait for all reads, and drop their answers."""
        while self._reads:
            self._reads.popitem()[1].wait()


def _key_set_id(keys: Int64s) -> KeySetId:
    return key_digest(np.ascontiguousarray(keys).reshape(-1)), keys.shape
