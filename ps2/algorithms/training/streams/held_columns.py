"""Detects a column that vanishes in the middle of a stream: Spark's sources then return nulls for it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import log

from ps2.errors import InputError

# A batch without any value of a column is refused if its probability, by the rows before, is below this.
CHANCE = 1e-9


class HeldColumns:
    """Counts the rows of a stream that had a value, by column."""

    def __init__(self) -> None:
        self._rows = 0
        self._held: Counter[str] = Counter()

    def check(self, rows: int, held: Mapping[str, int]) -> None:
        """Compare a batch with those before it.

        Args:
            rows: number of rows of the batch.
            held: how many of them have a value, by column.

        Raises:
            InputError: a column that had values has none in this batch, and that is not chance.
        """
        for name, count in held.items():
            before = self._held[name]
            if count or not before or not rows:
                continue
            # Laplace's rule of succession, so that a column that was never null may be null in some rows.
            of_null = (self._rows - before + 1) / (self._rows + 2)
            if rows * log(of_null) < log(CHANCE):
                share = f"{before / self._rows:.1%} of the {self._rows:,} rows"
                raise InputError(
                    f"column {name!r}: it is null in all {rows:,} rows, and had a value in {share} before: it has "
                    "gone from the source, or has another name there"
                )

    def add(self, rows: int, held: Mapping[str, int]) -> None:
        """Add the counts of a batch that was learned; arguments as for ``check``."""
        self._rows += rows
        self._held.update(held)
