"""Hashes columns of Arrow batches to keys, with kernels over Arrow's buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.array_types import Float32s, Int64s
from ps2.data.columns import find_row, is_list, list_lengths, named_column, number_column
from ps2.data.hashing_kernels import keys_of_crosses, keys_of_integers, keys_of_texts, write_pairs
from ps2.data.key_fields import Field, KeyFields
from ps2.data.key_rows import KeyRows
from ps2.data.time_parts import with_parts
from ps2.errors import InputError
from ps2.ops.distinct import find_distinct
from ps2.ops.guards import readable

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

NO_VALUES: Float32s = np.empty(0, np.float32)
CATEGORIES = "strings, integers or booleans, or arrays of them"


@dataclass(frozen=True, eq=False)
class _Pairs:
    """The (key, value) pairs of one field, in the order of the rows."""

    keys: Int64s
    values: Float32s | None = None  # None: all values are 1
    lengths: Int64s | None = None  # the number of pairs of each row; None: one pair per row

    def keep_rows(self, mask: Mask | None) -> _Pairs:
        """Drop the pairs of rows where the mask is False; None: drop no pair. Each row must have one pair."""
        if mask is None:
            return self
        values = None if self.values is None else self.values[mask]
        return _Pairs(self.keys[mask], values, mask.astype(np.int64))


def hash_batch(hasher: KeyFields, batch: pa.RecordBatch, before: int) -> KeyRows:
    """Return the pairs of a batch's rows; see ``FieldHasher.rows``."""
    return _join_fields(_Batch(hasher, batch, before), hasher)


def name_keys(hasher: KeyFields, batch: pa.RecordBatch) -> dict[int, tuple[str, str | None]]:
    """Return the field and the value of each key; see ``FieldHasher.inverse``."""
    reader = _Batch(hasher, batch, 0)
    named: dict[int, tuple[str, str | None]] = {}
    for field in hasher.fields:
        if field.kind == "keys":
            continue
        pairs = reader.pairs(field)
        distinct, inverse = find_distinct(pairs.keys)
        first_positions = np.zeros(len(distinct), np.int64)
        first_positions[inverse[::-1]] = np.arange(len(inverse))[::-1]
        for key, text in zip(distinct.tolist(), reader.texts(field, pairs, first_positions), strict=True):
            named[key] = field.name, text
    return named


class _Batch:
    """Reads the fields of one batch; a column that several fields use is hashed once."""

    def __init__(self, hasher: KeyFields, batch: pa.RecordBatch, before: int) -> None:
        if not isinstance(batch, pa.RecordBatch):
            raise InputError(f"expected a pyarrow.RecordBatch, got {type(batch).__name__}")
        self._hasher = hasher
        self.batch = with_parts(hasher.time_parts, batch, hasher.time_zone) if hasher.time_parts else batch
        self._before = before
        self._one_per_row: dict[str, tuple[Int64s, Mask | None]] = {}  # the results of ``_keys_per_row``

    def pairs(self, field: Field) -> _Pairs:
        """Return the pairs of a field."""
        if field.kind == "keys":
            return self._read_keys(field)
        if field.kind == "numeric":
            numbers, mask = self._numbers(field.columns[0])
            keys = np.full(len(numbers), self._hasher.numeric_keys[field.columns[0]], np.int64)
            return _Pairs(keys, numbers.astype(np.float32)).keep_rows(mask)
        if field.kind == "cross":
            return self._hash_crosses(field)
        column = named_column(self.batch, field.columns[0])
        if field.kind == "categorical" and is_list(column.type):
            return self._hash_lists(field, column)
        keys, mask = self._keys_per_row(field)
        return _Pairs(keys).keep_rows(mask)

    def texts(self, field: Field, pairs: _Pairs, positions: Int64s) -> list[str | None]:
        """Return the values of a field's pairs at some positions as texts; None for a numeric field."""
        if field.kind == "numeric":
            return [None] * len(positions)
        rows = positions
        if pairs.lengths is not None:
            rows = np.repeat(np.arange(len(pairs.lengths)), pairs.lengths)[positions]
        if field.kind == "cross":
            parts = [self._plain_texts(self._hasher.parts[column], rows) for column in field.columns]
            return [" x ".join(map(str, texts)) for texts in zip(*parts, strict=True)]
        column = self.batch.column(field.columns[0])
        if is_list(column.type) and field.kind == "categorical":
            return _as_texts(column.flatten().drop_null().take(pa.array(positions)))
        return self._plain_texts(field, rows)

    def _plain_texts(self, field: Field, rows: Int64s) -> list[str | None]:
        if field.kind == "buckets":
            buckets = self._hasher.buckets[field.columns[0]]
            numbers = self._numbers(field.columns[0])[0][rows]
            return [buckets.text(int(index)) for index in np.searchsorted(buckets.edges, numbers, "right")]
        return _as_texts(self.batch.column(field.columns[0]).take(pa.array(rows)))

    def _keys_per_row(self, field: Field) -> tuple[Int64s, Mask | None]:
        """Return the key of each row for a field with one value per row, and a mask of rows with a value; None: all."""
        name = field.hashed_name
        if name not in self._one_per_row:
            read = self._hash_buckets if field.kind == "buckets" else self._hash_categories
            self._one_per_row[name] = read(field)
        return self._one_per_row[name]

    def _hash_buckets(self, field: Field) -> tuple[Int64s, Mask | None]:
        numbers, mask = self._numbers(field.columns[0])
        buckets = self._hasher.buckets[field.columns[0]]
        return np.array(buckets.keys, np.int64)[np.searchsorted(buckets.edges, numbers, "right")], mask

    def _hash_categories(self, field: Field) -> tuple[Int64s, Mask | None]:
        column = _decode_nulls(named_column(self.batch, field.columns[0]))
        mask = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
        return self._hash_values(field.columns[0], column), mask

    def _hash_values(self, name: str, column: pa.Array) -> Int64s:
        """Return the key of each value of a column; the key of a null is arbitrary."""
        seed, kind = np.uint64(self._hasher.seeds[name]), column.type
        if pa.types.is_dictionary(kind):
            keys = self._hash_values(name, column.dictionary)
            numbers = column.indices.fill_null(0).to_numpy(zero_copy_only=False)
            return keys[numbers] if len(keys) else np.zeros(len(column), np.int64)
        if pa.types.is_null(kind):
            return np.zeros(len(column), np.int64)
        if pa.types.is_boolean(kind):
            keys = np.array([self._hasher.key(Field.categorical(name), text) for text in ("false", "true")])
            return keys[column.fill_null(False).to_numpy(zero_copy_only=False).astype(np.int64)]
        if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
            numbers = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
            return keys_of_integers(readable(numbers), seed)
        return keys_of_texts(*_text_buffers(name, column), seed)

    def _numbers(self, name: str) -> tuple[npt.NDArray[np.float64], Mask | None]:
        """Return a column's numbers, 0 for null, and a mask of rows with a number; None: all rows."""
        column = number_column(self.batch, name)
        mask = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
        numbers = column.fill_null(0.0).to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):
            is_invalid = ~np.isfinite(numbers.astype(np.float32))
        if is_invalid.any():
            row = int(np.argmax(is_invalid))
            hint = ": use null for a missing value, or impute it" if np.isnan(numbers[row]) else ""
            self._fail(name, row, "a finite number that fits float32", f"{numbers[row]:g}{hint}")
        return numbers, mask

    def _hash_crosses(self, field: Field) -> _Pairs:
        for column in field.columns:
            if is_list(named_column(self.batch, column).type):
                raise InputError(
                    f"column {column!r}: expected one value per row, for the cross {field.name!r}, got lists"
                )
        columns = [self._keys_per_row(self._hasher.parts[column]) for column in field.columns]
        masks = [mask for _, mask in columns if mask is not None]
        table = np.stack([keys for keys, _ in columns], axis=1)
        keys = keys_of_crosses(table, np.uint64(self._hasher.seeds[field.hashed_name]))
        return _Pairs(keys).keep_rows(np.logical_and.reduce(masks) if masks else None)

    def _hash_lists(self, field: Field, column: pa.Array) -> _Pairs:
        lengths, elements = list_lengths(column), _decode_nulls(column.flatten())
        if elements.null_count:
            rows = np.repeat(np.arange(len(lengths)), lengths)
            is_valid = elements.is_valid().to_numpy(zero_copy_only=False)
            lengths = np.bincount(rows[is_valid], minlength=len(lengths)).astype(np.int64)
            elements = elements.drop_null()
        return _Pairs(self._hash_values(field.columns[0], elements), lengths=lengths)

    def _read_keys(self, field: Field) -> _Pairs:
        name = field.columns[0]
        lengths, elements = self._arrays(name, "an array of keys", pa.types.is_integer)
        keys = elements.cast(pa.int64(), safe=False).to_numpy(zero_copy_only=False)
        if keys.size and keys.min() < 0:
            entry = int(np.argmax(keys < 0))
            self._fail(name, find_row(entry, lengths), "keys in [0, 2**63)", str(elements[entry].as_py()))
        if field.width is not None and (lengths != field.width).any():
            row = int(np.argmax(lengths != field.width))
            self._fail(name, row, f"{field.width} keys", str(lengths[row]))
        if len(field.columns) == 1:
            return _Pairs(keys, lengths=lengths)
        num_values, value_elements = self._arrays(field.columns[1], "an array of numbers", _is_number)
        if (num_values != lengths).any():
            row = int(np.argmax(num_values != lengths))
            self._fail(field.columns[1], row, f"{lengths[row]} values, one for each key", str(num_values[row]))
        numbers = value_elements.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):
            values = numbers.astype(np.float32)
        if not np.isfinite(values).all():
            entry = int(np.argmax(~np.isfinite(values)))
            self._fail(
                field.columns[1], find_row(entry, lengths), "finite numbers that fit float32", f"{numbers[entry]:g}"
            )
        return _Pairs(keys, values, lengths)

    def _arrays(self, name: str, expected: str, is_expected: Any) -> tuple[Int64s, pa.Array]:
        """Return the lengths of a column's arrays, and the elements of all arrays; null is an error."""
        column = named_column(self.batch, name)
        if not (is_list(column.type) and is_expected(column.type.value_type)):
            raise InputError(f"column {name!r}: expected {expected} in each row, got {column.type}")
        lengths, elements = list_lengths(column), column.flatten()
        if column.null_count:
            row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            self._fail(name, row, expected, "null")
        if elements.null_count:
            entry = int(np.argmax(elements.is_null().to_numpy(zero_copy_only=False)))
            self._fail(name, find_row(entry, lengths), expected, "null in it")
        return lengths, elements

    def _fail(self, name: str, row: int, expected: str, got: str) -> None:
        raise InputError(f"column {name!r}, row {self._before + row}: expected {expected}, got {got}")


def _join_fields(reader: _Batch, hasher: KeyFields) -> KeyRows:
    """Return the rows with the pairs of all fields."""
    n = reader.batch.num_rows
    all_pairs = [reader.pairs(field) for field in hasher.fields]
    if all(pairs.lengths is None for pairs in all_pairs):
        return _join_aligned_fields(all_pairs, n)
    lengths = [np.ones(n, np.int64) if pairs.lengths is None else pairs.lengths for pairs in all_pairs]
    indptr = np.concatenate([[0], np.cumsum(np.sum(lengths, axis=0))]).astype(np.int64)
    keys, values = np.empty(indptr[-1], np.int64), np.empty(indptr[-1], np.float32)
    fields, next_pair = np.empty(indptr[-1], np.int32), indptr[:-1].copy()
    for pairs, field_lengths, number in zip(all_pairs, lengths, hasher.first_numbers, strict=True):
        field_values = NO_VALUES if pairs.values is None else pairs.values
        arrays = readable(pairs.keys), readable(field_values), readable(field_lengths)
        write_pairs(*arrays, number, next_pair, (keys, values, fields))
    _number_positions(fields, indptr, lengths, hasher)
    sizes = np.diff(indptr)
    width = int(sizes[0]) if n and (sizes == sizes[0]).all() else None
    return KeyRows(indptr, keys, values, fields, width)


def _number_positions(fields: Array, indptr: Int64s, lengths: list[Int64s], hasher: KeyFields) -> None:
    """For fields with a width, add each key's position in its array to its field number."""
    begins = indptr[:-1].copy()
    for field, field_lengths in zip(hasher.fields, lengths, strict=True):
        if field.width is not None and len(begins):
            fields[begins[:, None] + np.arange(field.width)] += np.arange(field.width, dtype=np.int32)
        begins += field_lengths


def _join_aligned_fields(all_pairs: list[_Pairs], n: int) -> KeyRows:
    """Return the rows of fields that all have one pair per row."""
    width = len(all_pairs)
    keys, values = np.empty((n, width), np.int64), np.ones((n, width), np.float32)
    for number, pairs in enumerate(all_pairs):
        keys[:, number] = pairs.keys
        if pairs.values is not None:
            values[:, number] = pairs.values
    fields = np.tile(np.arange(width, dtype=np.int32), n)
    return KeyRows(np.arange(n + 1) * width, keys.reshape(-1), values.reshape(-1), fields, width)


def _text_buffers(name: str, column: pa.Array) -> tuple[Array, Array]:
    """Return the bytes of all n texts of a column, and the n + 1 bounds of the texts."""
    kind = column.type
    if pa.types.is_uint64(kind) or pa.types.is_string_view(kind):
        column = column.cast(pa.large_string())
    elif not (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    ):
        is_number = pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        hint = "; use buckets or a numeric field for numbers" if is_number else ": cast the column to string"
        raise InputError(f"column {name!r}: expected {CATEGORIES}, got {kind}{hint}")
    is_large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, offsets, text = column.buffers()
    dtype = np.int64 if is_large else np.int32
    if not len(column):
        return readable(np.empty(0, np.uint8)), readable(np.zeros(1, dtype))
    bounds = np.frombuffer(offsets, dtype)[column.offset : column.offset + len(column) + 1]
    return readable(np.empty(0, np.uint8) if text is None else np.frombuffer(text, np.uint8)), readable(bounds)


def _decode_nulls(column: pa.Array) -> pa.Array:
    """Return a column with a validity bitmap of all null values, including nulls in the dictionary."""
    if pa.types.is_dictionary(column.type) and column.dictionary.null_count:
        return column.dictionary_decode()
    return column


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _as_texts(column: pa.Array) -> list[str | None]:
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return [None if value is None else value.decode(errors="replace") for value in column.to_pylist()]
    texts: list[str | None] = column.cast(pa.string()).to_pylist()
    return texts
