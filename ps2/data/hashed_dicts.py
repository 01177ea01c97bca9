"""Hashes rows that are Python mappings, for scorers of single rows. This module imports neither pyarrow nor numba."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NoReturn

import numpy as np
from xxhash import xxh3_64_intdigest as xxh3

from ps2.data.key_fields import Field, KeyFields
from ps2.data.key_rows import KeyRows
from ps2.data.time_parts import EXPECTED, TimePart, part_of_row
from ps2.errors import InputError

# The smallest number that rounds to infinity in float32.
FLOAT32_OVERFLOW = 2.0**128 - 2.0**103


def hash_dicts(hasher: KeyFields, rows: Sequence[Mapping[str, Any]]) -> KeyRows:
    """Return the pairs of rows; see ``FieldHasher.rows_of_dicts``."""
    keys: list[int] = []
    values: list[float] = []
    fields: list[int] = []
    ends = [0]
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InputError(f"row {index}: expected a dict of columns, got {type(row).__name__}")
        reader = _Row(hasher, row, index)
        for field, number, column, seed in hasher.numbered:
            try:
                # The fast path for the most common field: a categorical column with a string.
                if seed is not None and type(text := row.get(column)) is str:
                    keys.append(xxh3(text.encode(), seed) >> 1)
                    values.append(1.0)
                    fields.append(number)
                    continue
                row_keys, row_values = reader.pairs(field)
            except UnicodeEncodeError as error:
                raise InputError(
                    f"column {column!r}, row {index}: expected a valid Unicode string, got a lone surrogate in "
                    f"{error.object!r:.100}"
                ) from error
            except OverflowError as error:
                raise InputError(
                    f"column {column!r}, row {index}: expected a finite number that fits float32: {error}"
                ) from error
            keys += row_keys
            values += row_values
            fields += range(number, number + len(row_keys)) if field.width else [number] * len(row_keys)
        ends.append(len(keys))
    indptr = np.array(ends, np.int64)
    widths = np.diff(indptr)
    width = int(widths[0]) if len(widths) and (widths == widths[0]).all() else None
    return KeyRows(indptr, np.array(keys, np.int64), np.array(values, np.float32), np.array(fields, np.int32), width)


def is_missing(value: Any) -> bool:
    """Return True for None and for pandas' missing values: NaN (also as Decimal), NaT and NA."""
    if isinstance(value, (float, np.floating)):
        return math.isnan(value)
    if isinstance(value, Decimal):
        return value.is_nan()
    return value is None or type(value).__name__ in ("NaTType", "NAType")


class _Row:
    """Reads the fields of one row; errors name the column and the row."""

    def __init__(self, hasher: KeyFields, row: Mapping[str, Any], index: int) -> None:
        self._hasher = hasher
        self._row = row
        self._index = index
        if hasher.time_parts:
            self._row = {**row, **{name: self._time_part(name, part) for name, part in hasher.time_parts.items()}}

    def _time_part(self, name: str, part: TimePart) -> int | None:
        try:
            return part_of_row(part, self._value, self._hasher.time_zone)
        except (ValueError, OverflowError):
            column = ", ".join(part.columns)
            self._fail(column, f"{EXPECTED}, for {name}", [self._row[column] for column in part.columns])

    def pairs(self, field: Field) -> tuple[list[int], list[float]]:
        """Return the keys and the values of a field; empty lists if the row has no value."""
        if field.kind == "keys":
            return self.keys(field)
        if field.kind == "numeric":
            number = self.number(field.columns[0])
            return ([], []) if number is None else ([self._hasher.numeric_keys[field.columns[0]]], [number])
        keys = self.categories(field)
        return keys, [1.0] * len(keys)

    def categories(self, field: Field) -> list[int]:
        """Return the keys of a categorical field, of buckets or of a cross; an empty list if the value is missing."""
        if field.kind == "cross":
            return self._cross(field)
        column = field.columns[0]
        if field.kind == "buckets":
            number = self.number(column)
            return [] if number is None else [self._hasher.buckets[column].key(number)]
        value = self._value(column)
        if value is None:
            return []
        seed = self._hasher.seeds[column]
        if isinstance(value, (list, tuple, np.ndarray)):
            value = self._plain(column, value)
            texts = [self._text(column, element) for element in value if not is_missing(element)]
        else:
            texts = [self._text(column, value)]
        return [xxh3(text, seed) >> 1 for text in texts]

    def number(self, column: str) -> float | None:
        """Return the number in a column; None if it is missing."""
        value = self._value(column)
        if value is None:
            return None
        if type(value) is not float and not isinstance(value, (int, numbers.Real, np.bool_, Decimal)):
            self._fail(column, "a number", value)
        number = float(value)
        if not abs(number) < FLOAT32_OVERFLOW:
            self._fail(column, "a finite number that fits float32", value)
        return number

    def keys(self, field: Field) -> tuple[list[int], list[float]]:
        """Return the keys and the values of a field of kind "keys"."""
        keys = self._list(field.columns[0], field.width)
        for key in keys:
            if not isinstance(key, (int, np.integer)) or isinstance(key, bool) or not 0 <= key < 2**63:
                self._fail(field.columns[0], "keys in [0, 2**63)", key)
        if len(field.columns) == 1:
            return [int(key) for key in keys], [1.0] * len(keys)
        values = self._list(field.columns[1], len(keys))
        for value in values:
            if not (isinstance(value, (numbers.Real, Decimal)) and abs(float(value)) < FLOAT32_OVERFLOW):
                self._fail(field.columns[1], "finite numbers that fit float32", value)
        return [int(key) for key in keys], [float(value) for value in values]

    def _cross(self, cross: Field) -> list[int]:
        part_keys = []
        for column in cross.columns:
            if isinstance(self._value(column), (list, tuple, np.ndarray)):
                self._fail(column, f"one value, for the cross {cross.name!r}", self._row[column])
            keys = self.categories(self._hasher.parts[column])
            if not keys:
                return []
            part_keys.append(keys[0])
        text = np.array(part_keys, "<i8").tobytes()
        return [xxh3(text, self._hasher.seeds[cross.hashed_name]) >> 1]

    def _value(self, column: str) -> Any:
        if column not in self._row:
            columns = ", ".join(map(str, self._row)) or "none"
            raise InputError(
                f"row {self._index} has no column {column!r}; it has: {columns:.300} (None stands for a missing value)"
            )
        return None if is_missing(value := self._row[column]) else value

    def _list(self, column: str, length: int | None) -> list[Any]:
        value = self._value(column)
        if isinstance(value, (list, tuple, np.ndarray)):
            items = self._plain(column, value)
            if length in (None, len(items)):
                return items
        self._fail(column, "a list" if length is None else f"a list of {length}", value)

    def _plain(self, column: str, value: Any) -> list[Any]:
        """Return the values of a list or an array as a list."""
        if isinstance(value, np.ndarray) and (value.ndim != 1 or isinstance(value, np.ma.MaskedArray)):
            self._fail(column, "a list, or an array of one dimension without a mask", value)
        return list(value)

    def _text(self, column: str, value: Any) -> bytes:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, (bytes, bytearray)):  # pyspark's rows have bytearrays
            return bytes(value)
        if isinstance(value, (bool, np.bool_)):
            return b"true" if value else b"false"
        if isinstance(value, (int, np.integer)):
            return str(value).encode()
        hint = "" if isinstance(value, numbers.Real) else " (cast other types to string)"
        self._fail(column, f"a string, an integer or a boolean, or a list of them{hint}", value)

    def _fail(self, column: str, expected: str, value: Any) -> NoReturn:
        raise InputError(f"column {column!r}, row {self._index}: expected {expected}, got {value!r:.100}")
