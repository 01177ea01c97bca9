"""``StreamState``: the position and the tally of a stream, in one vector on the servers.

A checkpoint of the fleet contains the position and the model at the same moment. A rollback sets a vector that was made
after the checkpoint to zeros, which are the position of a stream without batches.
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

# The columns of the vector: the numbers of learned batches, started batches and late rows; 1 if any row had a time; the
# largest time of a row. The tally (see ``progressive.py``) follows.
LEARNED, STARTED, LATE, HAS_NEWEST, NEWEST = range(5)
TALLY = 5


@dataclass(frozen=True)
class Position:
    """The position of a stream.

    Attributes:
        learned: the number of the last batch from which the model has learned; -1: no batch.
        started: the number of the last batch that was started. If it is above ``learned``, the model may have learned
            from a part of this batch.
        late: the number of late rows so far.
        newest_s: the largest time of a row, in seconds; ``NEVER``: no row had a time.
        tally: the tally of all rows so far, for ``Progressive.of``.
    """

    learned: int
    started: int
    late: int
    newest_s: float
    tally: Float64s

    @property
    def has_complete_batches(self) -> bool:
        """Whether the model has learned from complete batches only."""
        return self.started <= self.learned


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
        self._set({STARTED: batch + 1.0})

    def end(self, batch: int, newest_s: float) -> None:
        """Record on the servers that the model has learned from a batch, and the largest time of a row so far."""
        columns = {LEARNED: batch + 1.0}
        if newest_s > NEVER:
            columns |= {HAS_NEWEST: 1.0, NEWEST: newest_s}
        self._set(columns)

    def position(self) -> Position:
        values: Any = self.vector.pull()
        newest_s = float(values[NEWEST]) if values[HAS_NEWEST] else NEVER
        return Position(int(values[LEARNED]) - 1, int(values[STARTED]) - 1, int(values[LATE]), newest_s, values[TALLY:])

    def _set(self, columns: dict[int, float]) -> None:
        self.vector.push(np.array(list(columns.values())), np.array(list(columns)))


# A column may be null in a whole batch if this has at least this probability, judged by earlier rows.
MIN_PROBABILITY = 1e-9


@dataclass(frozen=True)
class ValueCounts:
    """The numbers of values that are not null in the columns of a stream.

    Attributes:
        rows: the number of rows that were counted.
        counts: the number of these rows in which a column is not null, by the column's name.
        batch: the number of the last batch that was counted; -1: no batch.
    """

    rows: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    batch: int = -1

    def check(self, rows: int, counts: Mapping[str, int]) -> None:
        """Raise InputError if a column with values in earlier rows is null in a whole batch, unless by chance."""
        for name, count in counts.items():
            earlier = self.counts.get(name, 0)
            if count or not earlier or not rows:
                continue
            # The probability of a null by Laplace's rule of succession. It is above 0 for a column that was never null.
            null_probability = (self.rows - earlier + 1) / (self.rows + 2)
            if rows * log(null_probability) < log(MIN_PROBABILITY):
                fraction = f"{earlier / self.rows:.1%} of the {self.rows:,} rows"
                raise InputError(
                    f"column {name!r}: it is null in all {rows:,} rows, and had a value in {fraction} before: it has "
                    "gone from the source, or has another name there"
                )

    def plus(self, batch: int, rows: int, counts: Mapping[str, int]) -> ValueCounts:
        """Return the counts after a batch. A batch that is repeated after a rollback counts once."""
        if batch <= self.batch:
            return self
        return ValueCounts(self.rows + rows, Counter(self.counts) + Counter(counts), batch)
