"""``StreamState``: the position and the measures of a stream, in one vector on the servers.

A checkpoint of the fleet contains the position and the model of the same moment. A vector that was made after the
checkpoint is restored as zeros, which is the position of a stream that has learned nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log
from typing import Any

import numpy as np

from ps2.algorithms.training.streams.labelled_rows import NEVER
from ps2.algorithms.training.streams.progressive import SIZE
from ps2.array_types import Float64s
from ps2.client.dcv import DCV
from ps2.errors import InputError

# The columns of the vector: batches learned, batches begun, late rows, 1 if any row had a time, and the largest time of
# a row. The tally of ``progressive`` follows.
LEARNED, BEGUN, LATE, HAS_NEWEST, NEWEST = range(5)
TALLY = 5


@dataclass(frozen=True)
class Position:
    """The position of a stream.

    Attributes:
        learned: the number of the last batch that the model has learned; -1: it has learned none.
        begun: the number of the last batch that began. If it is above ``learned``, the model may contain a part of it.
        late: the number of rows that came too late.
        newest_s: the largest time of a row, in seconds; minus infinity: no row had a time.
        tally: the tally of all rows so far, for ``Progressive.of``.
    """

    learned: int
    begun: int
    late: int
    newest_s: float
    tally: Float64s

    @property
    def is_whole(self) -> bool:
        """True if the model contains complete batches only."""
        return self.begun <= self.learned


@dataclass(frozen=True)
class StreamState:
    """The handle to the vector of a stream, float64; picklable into tasks."""

    vector: DCV

    @staticmethod
    def new(name: str | None = None) -> StreamState:
        return StreamState(DCV.dense(TALLY + SIZE, 1, dtype="float64", name=name))

    def add(self, tally: Float64s | None, late: int) -> None:
        """Add the tally and the late rows of a task, without waiting for the servers."""
        change = np.zeros(TALLY + SIZE)
        change[LATE] = late
        if tally is not None:
            change[TALLY:] = tally
        self.vector.add(change, wait=False)

    def begin(self, batch: int) -> None:
        """Record on the servers that a batch begins."""
        self._set({BEGUN: batch + 1.0})

    def end(self, batch: int, newest_s: float) -> None:
        """Record on the servers that the model has learned a batch, and the largest time of a row so far."""
        columns = {LEARNED: batch + 1.0}
        if newest_s > NEVER:
            columns |= {HAS_NEWEST: 1.0, NEWEST: newest_s}
        self._set(columns)

    def position(self) -> Position:
        """Read the position from the servers."""
        numbers: Any = self.vector.pull()
        newest_s = float(numbers[NEWEST]) if numbers[HAS_NEWEST] else NEVER
        return Position(
            int(numbers[LEARNED]) - 1, int(numbers[BEGUN]) - 1, int(numbers[LATE]), newest_s, numbers[TALLY:]
        )

    def _set(self, columns: dict[int, float]) -> None:
        self.vector.push(np.array(list(columns.values())), np.array(list(columns)))


# A batch without any value of a column is refused if the probability of that, by earlier rows, is below this.
MIN_PROBABILITY = 1e-9


@dataclass(frozen=True)
class HeldColumns:
    """The number of values in each column of a stream.

    Attributes:
        rows: the number of rows that were counted.
        held: the number of these rows with a value in each column.
        batch: the number of the last batch that was counted; -1: none.
    """

    rows: int = 0
    held: Mapping[str, int] = field(default_factory=dict)
    batch: int = -1

    def check(self, rows: int, held: Mapping[str, int]) -> None:
        """Raise InputError if a column with values in earlier rows has none in a batch, unless that can be chance.

        ``held`` has the number of the batch's rows with a value in each column.
        """
        for name, count in held.items():
            earlier = self.held.get(name, 0)
            if count or not earlier or not rows:
                continue
            # Laplace's rule of succession: a column that was never null can be null in some rows.
            null_share = (self.rows - earlier + 1) / (self.rows + 2)
            if rows * log(null_share) < log(MIN_PROBABILITY):
                share = f"{earlier / self.rows:.1%} of the {self.rows:,} rows"
                raise InputError(
                    f"column {name!r}: it is null in all {rows:,} rows, and had a value in {share} before: it has "
                    "gone from the source, or has another name there"
                )

    def plus(self, batch: int, rows: int, held: Mapping[str, int]) -> HeldColumns:
        """Return the counts after a batch; a batch that is repeated after a rollback counts once."""
        if batch <= self.batch:
            return self
        return HeldColumns(self.rows + rows, Counter(self.held) + Counter(held), batch)
