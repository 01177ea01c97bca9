"""Strategy "local": each worker trains a copy of both tables, and adds its changes each clock."""

from __future__ import annotations

import numpy as np

from ps2.algorithms.embeddings.tables import VectorTable
from ps2.algorithms.embeddings.worker_context import WorkerContext
from ps2.array_types import Float32s


def train_local(context: WorkerContext) -> None:
    """Train all clocks: pull both tables, train them, add the changes.

    A single worker pulls them once, and again after the fleet has rolled back.
    """
    copies: list[_Copy] = []
    epoch = -1
    for clock in context.clocks():
        if not copies:
            tables = (context.tables.vectors, context.tables.contexts)
            copies = [_Copy(table) for table in tables if isinstance(table, VectorTable)]
        if context.workers > 1 or context.epoch != epoch:
            context.report.bytes += sum(copy.pull() for copy in copies)
            epoch = context.epoch
        vectors, contexts = copies[0].values, copies[-1].values
        for batch in context.batches(clock):
            context.report.add_statistics(batch.train(vectors, contexts, context.rate, context.threads))
        changes = [copy.changes() for copy in copies]
        context.damp(changes, [copy.values for copy in copies], context.report.tokens)
        context.report.bytes += sum(copy.add(changed) for copy, changed in zip(copies, changes, strict=True))


class _Copy:
    """A worker's copy of one table.

    Attributes:
        values: the trained copy.
    """

    def __init__(self, table: VectorTable) -> None:
        self._table = table
        self.values: Float32s = np.empty((table.matrix.dim, table.matrix.rows), np.float32)
        self._before = np.empty_like(self.values)

    def pull(self) -> int:
        """Read the table; return the bytes moved."""
        self._table.pull(out=self.values)
        self._before[:] = self.values
        return self.values.nbytes

    def changes(self) -> Float32s:
        """Return the changes since the last ``pull`` or ``add``; valid until the next call of either."""
        np.subtract(self.values, self._before, out=self._before)
        return self._before

    def add(self, changes: Float32s) -> int:
        """Add changes to the table; return the bytes moved."""
        words = np.flatnonzero(changes.any(axis=1))
        some = changes[words]
        self._table.add(words, some)
        self._before[:] = self.values
        return some.nbytes
