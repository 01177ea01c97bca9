"""Pulls of an embedding table in the background (``EmbeddingTable.prefetch``)."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import numpy as np

from ps2.client import embedding_plans
from ps2.client.batch import submit
from ps2.client.embedding_settings import TableSettings
from ps2.client.matrix import DCVMatrix
from ps2.client.plans import Plan
from ps2.errors import RolledBack
from ps2.interrupts import join
from ps2.matrix.partition import Int64Array
from ps2.ops.distinct import find_distinct
from ps2.ops.table import Array
from ps2.protocol.messages import key_digest

# Reads that are kept until somebody pulls their keys; the oldest are dropped first.
MOST_READS = 8

Name = tuple[bytes, tuple[int, ...]]


class EmbeddingRead:
    """A pull of keys of any shape; ``start`` runs it in a thread of its own."""

    def __init__(self, matrix: DCVMatrix, settings: TableSettings, keys: Int64Array) -> None:
        self._target = matrix._target()
        self._session = matrix._session
        self._settings = settings
        self._keys = keys
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
        columns, positions = find_distinct(self._settings.columns(self._keys.reshape(-1)))
        plan = embedding_plans.pull(self._target, self._settings, columns)
        return plan.then(lambda weights: weights[positions].reshape(shape))


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
