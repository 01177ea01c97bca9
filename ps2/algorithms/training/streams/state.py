"""What the fleet holds of a stream: its position and its measures, in one vector beside the model.

The position lies where the model lies, so a checkpoint of the fleet holds both as of one moment. A vector that is
younger than the checkpoint comes back as zeros: the position of a stream that has learned nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.training.streams.labelled_rows import NEVER, Float64s
from ps2.algorithms.training.streams.progressive import SIZE
from ps2.client.dcv import DCV

# Numbers of the vector: batches that were learned, batches that were begun, rows that came too late, whether there is a
# largest time of a row, and that; then the tally.
LEARNED, BEGUN, LATE, HAS_NEWEST, NEWEST = range(5)
TALLY = 5


@dataclass(frozen=True)
class Position:
    """What the vector says.

    Attributes:
        learned: the last batch that the model holds; -1: none.
        begun: the last batch that was begun; more than ``learned``: the model may hold a part of it.
        late: rows that came too late.
        newest_s: the largest time of a row; minus infinity: none.
        tally: of all rows so far.
    """

    learned: int
    begun: int
    late: int
    newest_s: float
    tally: Float64s

    @property
    def is_whole(self) -> bool:
        """Whether the model holds whole batches only."""
        return self.begun <= self.learned


@dataclass(frozen=True)
class StreamState:
    """The vector of a stream: float64, pickled into tasks."""

    vector: DCV

    @staticmethod
    def new(name: str | None = None) -> StreamState:
        return StreamState(DCV.dense(TALLY + SIZE, 1, dtype="float64", name=name))

    def add(self, tally: Float64s | None, late: int) -> None:
        """Add what a task has measured, without waiting for it."""
        change = np.zeros(TALLY + SIZE)
        change[LATE] = late
        if tally is not None:
            change[TALLY:] = tally
        self.vector.add(change, wait=False)

    def begin(self, batch: int) -> None:
        """Note that a batch begins."""
        self._set({BEGUN: batch + 1.0})

    def end(self, batch: int, newest_s: float) -> None:
        """Note that the model holds a batch."""
        said = {LEARNED: batch + 1.0}
        if newest_s > NEVER:
            said |= {HAS_NEWEST: 1.0, NEWEST: newest_s}
        self._set(said)

    def position(self) -> Position:
        """Read the vector."""
        found: Any = self.vector.pull()
        newest_s = float(found[NEWEST]) if found[HAS_NEWEST] else NEVER
        return Position(int(found[LEARNED]) - 1, int(found[BEGUN]) - 1, int(found[LATE]), newest_s, found[TALLY:])

    def _set(self, said: dict[int, float]) -> None:
        self.vector.push(np.array(list(said.values())), np.array(list(said)))
