"""Columns as rows of keys: a key is a hash of a field's name and a value, so that no vocabulary is counted.

The key of a text in a field is ``xxh3_64(text, seed=xxh3_64(field, seed)) >> 1``: 63 bits, so that n distinct values
share no key, but with a probability of n**2 / 2**64 (5% of a billion values). An integer is its decimal text, and a
boolean is "true" or "false": a column of strings and one of integers give equal keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ps2.data.key_fields import Field, KeyFields
from ps2.data.key_rows import KeyRows
from ps2.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Field", "FieldHasher"]


@dataclass(frozen=True)
class FieldHasher(KeyFields):
    """Makes rows of keys of columns. Picklable; two hashers with equal fields and seeds give equal keys everywhere.

    A null is absent: its row has no pair of this field.

    Attributes:
        fields: at least one, all different.
        seed: in [0, 2**64): other seeds give other keys.

    Raises:
        ConfigError: the fields or the seed are invalid.
    """

    def rows(self, batch: pa.RecordBatch, before: int = 0) -> KeyRows:
        """Return the pairs of each row of a batch, field after field.

        Args:
            before: number of rows before this batch, for messages.

        Raises:
            InputError: a column is missing or has another type; a number is NaN, infinite or too large for float32; a
                key is negative. Names the column and the row.
        """
        # Imported here, as a scorer of single rows needs neither pyarrow nor numba.
        from ps2.data.hashed_columns import hash_batch

        return hash_batch(self, batch, before)

    def rows_of_dicts(self, rows: Sequence[Mapping[str, Any]]) -> KeyRows:
        """Return the pairs of rows that are mappings from column to value, as ``rows`` does of equal columns.

        Some microseconds a row: for a few rows; a batch is many times faster.

        Raises:
            InputError: as ``rows`` does. A missing value is None; a column that is not there is an error.
        """
        from ps2.data.hashed_dicts import hash_dicts

        return hash_dicts(self, rows)

    def inverse(self, batch: pa.RecordBatch) -> dict[int, tuple[str, str | None]]:
        """Return the field and the value of each key of a batch: the value as text; None for a field of numbers.

        Keys that come as keys are left out.

        Raises:
            InputError: as ``rows`` does.
        """
        from ps2.data.hashed_columns import name_keys

        return name_keys(self, batch)

    def to_json(self) -> dict[str, Any]:
        """Return plain data, of which ``from_json`` makes this hasher: for exports, whose scorers hash alike."""
        return {"seed": self.seed, "fields": [field.to_json() for field in self.fields]}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> FieldHasher:
        """Return the hasher of plain data.

        Raises:
            ConfigError: the data are invalid.
        """
        if not isinstance(content, Mapping) or not {"seed", "fields"} <= set(content):
            raise ConfigError(f"hasher: expected seed and fields, got {content!r}")
        return FieldHasher(tuple(map(Field.from_json, content["fields"])), content["seed"])
