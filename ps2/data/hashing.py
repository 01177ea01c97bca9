"""Hashes columns to rows of keys. A key is a hash of a field's name and a value, so no vocabulary is needed.

The key of a text in a field is ``xxh3_64(text, seed=xxh3_64(field, seed)) >> 1``, which has 63 bits. With a probability
of n**2 / 2**64, two of n distinct values have the same key: 5% for a billion values. The text of an integer is decimal,
and that of a boolean is "true" or "false", so the integer 3 and the string "3" have the same key.
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
    """Makes rows of keys from columns. Picklable. Hashers with equal fields and seeds give equal keys on any machine.

    A row has no pair for a field whose value is null.

    Attributes:
        fields: one or more different fields.
        seed: the seed of the hash, in [0, 2**64).
        time_zone: the time zone of columns such as "hour(t)", which are computed from times (``ps2.data.time_parts``).

    Raises:
        ConfigError: the fields or the seed are invalid.
    """

    def rows(self, batch: pa.RecordBatch, before: int = 0) -> KeyRows:
        """Return the pairs of each row of a batch, in the order of the fields.

        Args:
            before: the number of rows before this batch, for messages.

        Raises:
            InputError: a column is missing or has another type; a number is NaN, infinite or too large for float32; a
                key is negative. The message names the column and the row.
        """
        # Imported here, because scorers of single rows need neither pyarrow nor numba.
        from ps2.data.hashed_columns import hash_batch

        return hash_batch(self, batch, before)

    def rows_of_dicts(self, rows: Sequence[Mapping[str, Any]]) -> KeyRows:
        """Return the pairs of rows that are mappings from column to value. ``rows`` returns the same pairs.

        This takes about 1 µs for each field of a row; ``rows`` is many times faster.

        Args:
            rows: mappings with all columns of the fields. None, NaN, NaT and NA stand for a missing value, as in the
                results of ``pandas.DataFrame.to_dict("records")``.

        Raises:
            InputError: see ``rows``.
        """
        from ps2.data.hashed_dicts import hash_dicts

        return hash_dicts(self, rows)

    def inverse(self, batch: pa.RecordBatch) -> dict[int, tuple[str, str | None]]:
        """Return the name of the field and the value of each key of a batch.

        The value is a text; None for a numeric field. Fields of kind "keys" are not included.

        Raises:
            InputError: see ``rows``.
        """
        from ps2.data.hashed_columns import name_keys

        return name_keys(self, batch)

    def to_json(self) -> dict[str, Any]:
        """Return JSON data from which ``from_json`` makes an equal hasher. Exports of models contain these data."""
        zone = {"timeZone": self.time_zone} if self.time_parts else {}
        return {"seed": self.seed, **zone, "fields": [field.to_json() for field in self.fields]}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> FieldHasher:
        """Return the hasher that ``to_json`` described.

        Raises:
            ConfigError: the data are invalid.
        """
        if not isinstance(content, Mapping) or not {"seed", "fields"} <= set(content):
            raise ConfigError(f"hasher: expected seed and fields, got {content!r}")
        return FieldHasher(
            tuple(map(Field.from_json, content["fields"])), content["seed"], content.get("timeZone", "UTC")
        )
