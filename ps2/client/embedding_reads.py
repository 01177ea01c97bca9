"""Calls of an embedding table: their keys, which a pull and the push after it share, and pulls in the background."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import numpy as np

from ps2.client.batch import submit
from ps2.client.embedding_plans import TableKeys
from ps2.client.embedding_settings import TableSettings
from ps2.client.matrix import DCVMatrix
from ps2.client.plans import Plan
from ps2.errors import RolledBack
from ps2.interrupts import join
from ps2.matrix.partition import Int64Array
from ps2.ops.table import Array
from ps2.protocol.messages import key_digest

# Reads that are kept until somebody pulls their keys; the oldest are dropped first.
MOST_READS = 8
# Key sets that are kept, grouped, for the push after a pull.
MOST_KEYS = MOST_READS

Name = tuple[bytes, tuple[int, ...]]


class RecentKeys:
    """The keys of recent calls, grouped by partition: a push usually has the keys of a pull. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[Name, TableKeys] = OrderedDict()

    def of(self, matrix: DCVMatrix, settings: TableSettings, keys: Int64Array, are_distinct: bool) -> TableKeys:
        """Return keys of any shape, grouped; the settings have checked them."""
        target, name = matrix._target(), _name(keys)
        with self._lock:
            known = self._known.get(name)
            if known is not None and known.target.route is target.route:
                self._known.move_to_end(name)
                return known
        # The caller may change its array.
        found = TableKeys.of(target, settings, keys.reshape(-1).copy(), are_distinct)
        with self._lock:
            self._known[name] = found
            if len(self._known) > MOST_KEYS:
                self._known.popitem(last=False)
        return found


class EmbeddingRead:
    """A pull of keys of any shape; ``start`` runs it in a thread of its own."""

    def __init__(
        self, matrix: DCVMatrix, settings: TableSettings, recent: RecentKeys, keys: Int64Array, are_distinct: bool
    ) -> None:
        self._matrix = matrix
        self._session = matrix._session
        self._settings = settings
        self._recent = recent
        self._keys = keys
        self._are_distinct = are_distinct
        self._thread: threading.Thread | None = None
        self._epoch = 0
        self._answer: Array | None = None
        self._error: Exception | None = None

    def now(self) -> Any:
        """Pull the keys after all queued changes; in a batch, return a Deferred."""
        return submit(self._session, self._plan())

    def start(self) -> None:
        self._epoch = self._session.epoch
        self._thread = threading.Thread(target=self._run, name="ps2-embedding-read", daemon=True)
        self._thread.start()

    def result(self) -> Any:
        """Wait for the answer. Pull again if the fleet has gone back to a checkpoint since.

        Raises:
            PS2Error: what a pull raises.
        """
        self.wait()
        if isinstance(self._error, RolledBack) or self._session.epoch != self._epoch:
            return self.now()
        if self._error is not None:
            raise self._error
        return self._answer

    def wait(self) -> None:
        if self._thread is not None:
            with self._session.stopwatch.running("pull"):
                join(self._thread)

    def _run(self) -> None:
        try:
            plan = self._plan()
            with self._session.async_writer.transfers:
                self._answer = self._session.dispatch.read_at_once(plan)
        except Exception as error:  # for the caller of ``result``
            self._error = error

    def _plan(self) -> Plan[Array]:
        shape = (*self._keys.shape, self._settings.k)
        keys = self._recent.of(self._matrix, self._settings, self._keys, self._are_distinct)
        return keys.pull(self._settings.k).then(lambda weights: weights.reshape(shape))


class EmbeddingReads:
    """The reads of one handle that are under way, or whose answers wait to be taken."""

    def __init__(self) -> None:
        self._open: OrderedDict[Name, EmbeddingRead] = OrderedDict()

    def begin(self, keys: Int64Array, read: EmbeddingRead) -> None:
        """Start a read of keys, in place of an earlier one of the same keys."""
        name = _name(keys)
        self._open.pop(name, None)
        self._open[name] = read
        read.start()
        if len(self._open) > MOST_READS:
            self._open.popitem(last=False)

    def take(self, keys: Int64Array) -> EmbeddingRead | None:
        """Return the read of these keys, and forget it; None if there is none."""
        return self._open.pop(_name(keys), None) if self._open else None

    def close(self) -> None:
        """Wait for all reads, and drop them."""
        while self._open:
            self._open.popitem()[1].wait()


def _name(keys: Int64Array) -> Name:
    return key_digest(np.ascontiguousarray(keys).reshape(-1)), keys.shape
