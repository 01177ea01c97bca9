"""Training with a copy of both tables on each worker, whose differences are exchanged every clock."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings.part import Part
from ps2.algorithms.embeddings.tables import Table

Float32s = npt.NDArray[np.float32]


def train_local(part: Part) -> None:
    """Train all clocks: pull both tables, train on them, and add by what they have changed.

    One worker alone pulls them once, and again if the fleet has gone back.
    """
    copies: list[_Copy] = []
    epoch = -1
    for clock in part.clocks():
        if not copies:
            tables = (part.fleet.vectors, part.fleet.contexts)
            copies = [_Copy(table) for table in tables if isinstance(table, Table)]
        if part.workers > 1 or part.epoch != epoch:
            part.tell(np.zeros(0), sum(copy.pull() for copy in copies))
            epoch = part.epoch
        vectors, contexts = copies[0].values, copies[-1].values
        for drawn in part.batches(clock):
            part.tell(drawn.train(vectors, contexts, part.rate, part.threads))
        changes = [copy.changes() for copy in copies]
        part.damp(changes, [copy.values for copy in copies], part.clock_tokens)
        part.tell(np.zeros(0), sum(copy.add(changed) for copy, changed in zip(copies, changes, strict=True)))


class _Copy:
    """Of one table.

    Attributes:
        values: what training changes.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self.values: Float32s = np.empty((table.matrix.dim, table.matrix.rows), np.float32)
        self._before = np.empty_like(self.values)

    def pull(self) -> int:
        """Read the table; return how many bytes have moved."""
        self._table.pull(out=self.values)
        self._before[:] = self.values
        return self.values.nbytes

    def changes(self) -> Float32s:
        """Return by what all words have changed since, until the next call of anything here."""
        np.subtract(self.values, self._before, out=self._before)
        return self._before

    def add(self, changes: Float32s) -> int:
        """Add what words have changed by; return how many bytes have moved."""
        words = np.flatnonzero(changes.any(axis=1))
        some = changes[words]
        self._table.add(words, some)
        self._before[:] = self.values
        return some.nbytes
