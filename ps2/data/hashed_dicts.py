"""Hashes rows that are mappings to keys: for a scorer of single rows, which imports neither pyarrow nor numba."""

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
from ps2.errors import InputError

# Numbers that are infinite as float32 begin here. Smaller ones, such as 3.4028235e38, round to the largest float32.
TOO_LARGE = 2.0**128 - 2.0**103


def hash_dicts(hasher: KeyFields, rows: Sequence[Mapping[str, Any]]) -> KeyRows:
    """Return the pairs of rows; see ``FieldHasher.rows_of_dicts``."""
    keys: list[int] = []
    values: list[float] = []
    fields: list[int] = []
    ends = [0]
    for at, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InputError(f"row {at}: expected a dict of columns, got {type(row).__name__}")
        given = _Row(hasher, row, at)
        for field, number, column, seed in hasher.numbered:
            try:
                # Nearly all fields of nearly all models: one key of a string.
                if seed is not None and type(text := row.get(column)) is str:
                    keys.append(xxh3(text.encode(), seed) >> 1)
                    values.append(1.0)
                    fields.append(number)
                    continue
                found, theirs = given.pairs(field)
            except UnicodeEncodeError as error:
                raise InputError(
                    f"column {column!r}, row {at}: expected a text, got {error.object!r:.100} with half a character"
                ) from error
            except OverflowError as error:
                raise InputError(
                    f"column {column!r}, row {at}: expected a finite number that fits float32: {error}"
                ) from error
            keys += found
            values += theirs
            fields += range(number, number + len(found)) if field.width else [number] * len(found)
        ends.append(len(keys))
    indptr = np.array(ends, np.int64)
    widths = np.diff(indptr)
    width = int(widths[0]) if len(widths) and (widths == widths[0]).all() else None
    return KeyRows(indptr, np.array(keys, np.int64), np.array(values, np.float32), np.array(fields, np.int32), width)


def is_missing(value: Any) -> bool:
    """Return True for None, and for what pandas writes for it, or takes for it: NaN, of Decimal too, NaT and NA."""
    if isinstance(value, (float, np.floating)):
        return math.isnan(value)
    if isinstance(value, Decimal):
        return value.is_nan()
    return value is None or type(value).__name__ in ("NaTType", "NAType")


class _Row:
    """Reads the fields of one row; errors name the column and the row."""

    def __init__(self, hasher: KeyFields, row: Mapping[str, Any], at: int) -> None:
        self._hasher = hasher
        self._row = row
        self._at = at

    def pairs(self, field: Field) -> tuple[list[int], list[float]]:
        """Return the keys and the values of a field; empty lists if the row has no value."""
        if field.kind == "keys":
            return self.keys(field)
        if field.kind == "numeric":
            number = self.number(field.columns[0])
            return ([], []) if number is None else ([self._hasher.numeric_keys[field.columns[0]]], [number])
        found = self.categories(field)
        return found, [1.0] * len(found)

    def categories(self, field: Field) -> list[int]:
        """Return the keys of a categorical field, of buckets or of a cross; none if the value is absent."""
        if field.kind == "cross":
            return self._crossed(field)
        column = field.columns[0]
        if field.kind == "buckets":
            number = self.number(column)
            return [] if number is None else [self._hasher.buckets[column].key(number)]
        given = self._value(column)
        if given is None:
            return []
        seed = self._hasher.seeds[column]
        if isinstance(given, (list, tuple, np.ndarray)):
            given = self._plain(column, given)
            texts = [self._text(column, one) for one in given if not is_missing(one)]
        else:
            texts = [self._text(column, given)]
        return [xxh3(text, seed) >> 1 for text in texts]

    def number(self, column: str) -> float | None:
        """Return the number in a column; None if it is absent."""
        given = self._value(column)
        if given is None:
            return None
        if type(given) is not float and not isinstance(given, (int, numbers.Real, np.bool_, Decimal)):
            self._fail(column, "a number", given)
        number = float(given)
        if not abs(number) < TOO_LARGE:
            self._fail(column, "a finite number that fits float32", given)
        return number

    def keys(self, field: Field) -> tuple[list[int], list[float]]:
        """Return the keys and the values of a field that has keys already."""
        given = self._list(field.columns[0], field.width)
        for key in given:
            if not isinstance(key, (int, np.integer)) or isinstance(key, bool) or not 0 <= key < 2**63:
                self._fail(field.columns[0], "keys in [0, 2**63)", key)
        if len(field.columns) == 1:
            return [int(key) for key in given], [1.0] * len(given)
        values = self._list(field.columns[1], len(given))
        for value in values:
            if not (isinstance(value, (numbers.Real, Decimal)) and abs(float(value)) < TOO_LARGE):
                self._fail(field.columns[1], "finite numbers that fit float32", value)
        return [int(key) for key in given], [float(value) for value in values]

    def _crossed(self, cross: Field) -> list[int]:
        parts = []
        for column in cross.columns:
            if isinstance(self._value(column), (list, tuple, np.ndarray)):
                self._fail(column, f"one value, for the cross {cross.name!r}", self._row[column])
            found = self.categories(self._hasher.parts[column])
            if not found:
                return []
            parts.append(found[0])
        text = np.array(parts, "<i8").tobytes()
        return [xxh3(text, self._hasher.seeds[cross.hashed_name]) >> 1]

    def _value(self, column: str) -> Any:
        if column not in self._row:
            there = ", ".join(map(str, self._row)) or "none"
            raise InputError(
                f"row {self._at} has no column {column!r}; it has: {there:.300} (None stands for a missing value)"
            )
        return None if is_missing(value := self._row[column]) else value

    def _list(self, column: str, length: int | None) -> list[Any]:
        given = self._value(column)
        if isinstance(given, (list, tuple, np.ndarray)):
            found = self._plain(column, given)
            if length in (None, len(found)):
                return found
        self._fail(column, "a list" if length is None else f"a list of {length}", given)

    def _plain(self, column: str, given: Any) -> list[Any]:
        """Return the values of a list or an array."""
        if isinstance(given, np.ndarray) and (given.ndim != 1 or isinstance(given, np.ma.MaskedArray)):
            self._fail(column, "a list, or an array of one dimension without a mask", given)
        return list(given)

    def _text(self, column: str, given: Any) -> bytes:
        if isinstance(given, str):
            return given.encode()
        if isinstance(given, (bytes, bytearray)):  # a Row of pyspark holds bytearrays
            return bytes(given)
        if isinstance(given, (bool, np.bool_)):
            return b"true" if given else b"false"
        if isinstance(given, (int, np.integer)):
            return str(given).encode()
        hint = "" if isinstance(given, numbers.Real) else " (cast others to string)"
        self._fail(column, f"a string, an integer or a boolean, or a list of them{hint}", given)

    def _fail(self, column: str, expected: str, given: Any) -> NoReturn:
        raise InputError(f"column {column!r}, row {self._at}: expected {expected}, got {given!r:.100}")
