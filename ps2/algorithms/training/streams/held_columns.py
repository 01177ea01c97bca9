"""Detects a column that vanishes in the middle of a stream: Spark's sources then return nulls for it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log

from ps2.errors import InputError

# A batch without any value of a column is refused if its probability, by the rows before, is below this.
CHANCE = 1e-9


@dataclass(frozen=True)
class HeldColumns:
    """How many rows of a stream had a value, by column.

    Attributes:
        rows: number of rows that were counted.
        held: how many of them have a value, by column.
        batch: number of the last batch that was counted; -1: none was.
    """

    rows: int = 0
    held: Mapping[str, int] = field(default_factory=dict)
    batch: int = -1

    def check(self, rows: int, held: Mapping[str, int]) -> None:
        """Compare a batch with the rows before it.

        Args:
            rows: number of rows of the batch.
            held: how many of them have a value, by column.

        Raises:
            InputError: a column that had values has none in this batch, and that is not chance.
        """
        for name, count in held.items():
            before = self.held.get(name, 0)
            if count or not before or not rows:
                continue
            # Laplace's rule of succession, so that a column that was never null may be null in some rows.
            of_null = (self.rows - before + 1) / (self.rows + 2)
            if rows * log(of_null) < log(CHANCE):
                share = f"{before / self.rows:.1%} of the {self.rows:,} rows"
                raise InputError(
                    f"column {name!r}: it is null in all {rows:,} rows, and had a value in {share} before: it has "
                    "gone from the source, or has another name there"
                )

    def plus(self, batch: int, rows: int, held: Mapping[str, int]) -> HeldColumns:
        """Return the counts with those of a batch; a batch that comes again after a rollback counts once.

        Args:
            batch: its number.
            rows, held: as for ``check``.
        """
        if batch <= self.batch:
            return self
        return HeldColumns(self.rows + rows, Counter(self.held) + Counter(held), batch)
