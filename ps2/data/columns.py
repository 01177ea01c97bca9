"""Reads columns of Arrow batches (vectors, arrays and numbers of a DataFrame's rows) as valid NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.array_types import Float64s, Int64s
from ps2.data.sparse_rows import canonical, sparse_matrix
from ps2.errors import InputError

Array = npt.NDArray[Any]

# The fields of a pyspark.ml (or mllib) vector in Arrow. Type 0 is sparse; type 1 is dense, with null size and indices.
VECTOR = {"type", "size", "indices", "values"}
# Messages list at most this many names.
MAX_LISTED = 20
# The advice in errors about null and NaN in data that must not have missing values.
IMPUTE = "impute null and NaN, or drop these rows"
VECTORS = "a vector of pyspark.ml, an array of numbers, or the names of number columns"


def as_arrow(values: Any, kind: pa.DataType | None = None, from_pandas: bool | None = None) -> Any:
    """Return an array or pandas column as an Arrow array or chunked array; raise errors like ``pyarrow.array``.

    The values may be a sparse pandas column or have another byte order. Categories become their values.
    """
    if hasattr(values, "sparse"):
        values = values.sparse.to_dense()
    dtype = getattr(values, "dtype", None)
    if isinstance(dtype, np.dtype) and not dtype.isnative:
        values = np.asarray(values).astype(dtype.newbyteorder("="))
    array = pa.array(values, kind, from_pandas=from_pandas)
    return array.cast(array.type.value_type) if pa.types.is_dictionary(array.type) else array


@dataclass(frozen=True, eq=False)
class Features:
    """The features of rows, in the order of the rows.

    Attributes:
        lengths: the number of entries of each row, int64, shape (n,).
        columns: the columns of the entries, int32 or int64, shape (nnz,), strictly ascending in each row.
        values: the values of the entries, float32 or float64, shape (nnz,); finite, or NaN for a missing value. If a
            vector repeats an index, its values are added up.
        size: the number of columns; None if there are no rows.
    """

    lengths: Int64s
    columns: Array
    values: Array
    size: int | None


def read_features(
    batch: pa.RecordBatch,
    names: str | Sequence[str],
    dtype: np.dtype[Any],
    before: int,
    size: int | None = None,
    missing: bool = False,
) -> Features:
    """Read the features of a batch; raise InputError if a column or a row's features are invalid.

    Args:
        names: a column of vectors or arrays, or several columns of numbers.
        before: the number of rows before this batch, for messages.
        size: the expected size of vectors and arrays; None: the size of the first row.
        missing: True if NaN and null numbers are missing values; False if they are errors.
    """
    if not isinstance(names, str):
        return _from_numbers(batch, names, dtype, before, missing)
    column = feature_column(batch, names)
    checks = _Checks(names, before, size, missing)
    checks.check_no_nulls(column, VECTORS)
    if pa.types.is_struct(column.type):
        return _from_vectors(column, dtype, checks)
    return _from_arrays(column, dtype, checks)


def read_numbers(batch: pa.RecordBatch, name: str, before: int) -> Float64s:
    """Read a column of numbers; null, NaN and infinity are errors."""
    column = number_column(batch, name)
    checks = _Checks(name, before)
    checks.check_no_nulls(column, "a number")
    values = column.to_numpy(zero_copy_only=False)
    checks.check_rows(~np.isfinite(values), values, "a finite number")
    return values


def read_weights(batch: pa.RecordBatch, name: str, before: int) -> Float64s:
    """Read a column of non-negative numbers."""
    values = read_numbers(batch, name, before)
    _Checks(name, before).check_rows(values < 0, values, "a non-negative weight")
    return values


def feature_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column of vectors (a struct) or of arrays of numbers (a list), without checking its rows."""
    column = named_column(batch, name)
    if pa.types.is_struct(column.type) and {field.name for field in column.type} == VECTOR:
        return column
    if is_list(column.type) and _is_number(column.type.value_type):
        return column
    if is_list(column.type) and pa.types.is_decimal(column.type.value_type):
        return column.cast(pa.list_(pa.float64()), safe=False)
    raise InputError(f"column {name!r}: expected {VECTORS}, got {column.type}")


def number_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column of numbers or booleans as float64, without checking its rows."""
    column = named_column(batch, name)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    # A column without rows can have the type null.
    elif not (
        _is_number(column.type)
        or pa.types.is_decimal(column.type)
        or (pa.types.is_null(column.type) and not len(column))
    ):
        raise InputError(f"column {name!r}: expected numbers, got {column.type}")
    return column.cast(pa.float64(), safe=False)


def named_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column; raise InputError unless exactly one column has this name."""
    # Only an error reads ``schema.names``: with many columns, a list for each look-up would take quadratic time.
    index = batch.schema.get_field_index(name)
    if index < 0:
        names = batch.schema.names
        if name in names:
            raise InputError(f"column {name!r}: expected one column with this name, got {names.count(name)}")
        raise InputError(f"there is no column {name!r}; there are: {join_names(names)}")
    return batch.column(index)


def join_names(names: Sequence[str]) -> str:
    """Return names for a message; of more than ``MAX_LISTED``, the first names and the number of all names."""
    if len(names) <= MAX_LISTED:
        return ", ".join(names)
    return f"{', '.join(names[:MAX_LISTED])}, ... ({len(names):,} in all)"


class _Checks:
    """Checks of a column's rows; errors name the column and the row. Arguments are those of ``read_features``."""

    def __init__(self, name: str, before: int, size: int | None = None, missing: bool = False) -> None:
        self._name = name
        self._before = before
        self._size = size
        self._missing = missing

    def fail(self, row: int, got: str, expected: str, more: int = 0) -> NoReturn:
        """Raise InputError for a row; ``more``: the number of further invalid rows."""
        others = f" (and {more} more rows)" if more else ""
        advice = f": {IMPUTE}" if got.startswith(("nan", "null")) else ""
        label = f"column {self._name!r}, row {self._before + row}"
        raise InputError(f"{label}: expected {expected}, got {got}{others}{advice}")

    def check_rows(self, is_invalid: Array, values: Array, expected: str) -> None:
        """Raise InputError for the first invalid row; the message shows its value."""
        if is_invalid.any():
            rows = np.flatnonzero(is_invalid)
            self.fail(int(rows[0]), f"{values[rows[0]]:g}", expected, len(rows) - 1)

    def check_no_nulls(self, column: pa.Array, expected: str) -> None:
        if column.null_count:
            rows = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
            self.fail(int(rows[0]), "null", expected, len(rows) - 1)

    def read_entries(self, flat: pa.Array, lengths: Int64s, dtype: np.dtype[Any]) -> Array:
        """Return the values of all rows; raise InputError for infinity, and for NaN and null if these are errors."""
        expected = f"finite features that fit {dtype}"
        if flat.null_count and not self._missing:
            entry = int(np.argmax(flat.is_null().to_numpy(zero_copy_only=False)))
            self.fail(find_row(entry, lengths), "null in it", expected)
        numbers = flat.to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):
            values: Array = numbers.astype(dtype, copy=False)
        invalid = np.isinf(values) if self._missing else ~np.isfinite(values)
        if invalid.any():
            entry = int(np.argmax(invalid))
            self.fail(find_row(entry, lengths), f"{numbers[entry]:g} in it", expected)
        return values

    def common_size(self, sizes: Array) -> int | None:
        """Return the size of all rows; None if there are no rows. Raise InputError if the sizes differ."""
        is_known = self._size is not None
        differs = sizes != (self._size if is_known else sizes[:1])
        if differs.any():
            expected = f"size {self._size} as in training" if is_known else f"size {sizes[0]} as in the rows before"
            self.fail(int(np.argmax(differs)), f"{sizes[np.argmax(differs)]}", expected)
        return int(sizes[0]) if len(sizes) else None


def _from_numbers(
    batch: pa.RecordBatch, names: Sequence[str], dtype: np.dtype[Any], before: int, missing: bool
) -> Features:
    if not names:
        raise InputError("features: expected at least one column name, got none")
    values = np.empty((batch.num_rows, len(names)), dtype)
    for column, name in enumerate(names):
        if missing:
            numbers = number_column(batch, name).to_numpy(zero_copy_only=False)
        else:
            numbers = read_numbers(batch, name, before)
        with np.errstate(over="ignore"):
            values[:, column] = numbers
        infinite = np.isinf(values[:, column])
        _Checks(name, before).check_rows(infinite, numbers, f"a number that fits {dtype}")
    lengths = np.full(batch.num_rows, len(names), np.int64)
    return Features(lengths, dense_columns(lengths), values.reshape(-1), len(names))


def _from_arrays(column: pa.Array, dtype: np.dtype[Any], checks: _Checks) -> Features:
    lengths = list_lengths(column)
    entries = checks.read_entries(column.flatten(), lengths, dtype)
    return Features(lengths, dense_columns(lengths), entries, checks.common_size(lengths))


def _from_vectors(column: pa.StructArray, dtype: np.dtype[Any], checks: _Checks) -> Features:
    # ``field`` respects the slice of a struct, and ``flatten`` the slice of a list.
    types, sizes, indices, values = (column.field(name) for name in ("type", "size", "indices", "values"))
    lengths = list_lengths(values)
    entries = checks.read_entries(values.flatten(), lengths, dtype)
    is_dense = types.to_numpy(zero_copy_only=False) == 1
    if is_dense.all():
        return Features(lengths, dense_columns(lengths), entries, checks.common_size(lengths))
    sparse_columns = indices.flatten().to_numpy(zero_copy_only=False)
    is_malformed = np.where(is_dense, 0, lengths) != list_lengths(indices)
    checks.check_rows(is_malformed, lengths, "as many indices as values")
    sizes = np.where(is_dense, lengths, sizes.fill_null(-1).to_numpy(zero_copy_only=False))
    size = checks.common_size(sizes)
    if not is_dense.any():
        columns = sparse_columns
    else:
        columns = dense_columns(lengths)
        columns[np.repeat(~is_dense, lengths)] = sparse_columns
    if len(columns) and not 0 <= columns.min() <= columns.max() < sizes[0]:
        entry = int(np.argmax((columns < 0) | (columns >= sizes[0])))
        checks.fail(find_row(entry, lengths), f"{columns[entry]}", f"indices in [0, {sizes[0]})")
    x = sparse_matrix(entries, columns, np.concatenate([[0], np.cumsum(lengths)]), size or 0)
    if x.has_canonical_format:
        return Features(lengths, columns, entries, size)
    x = canonical(x)
    lengths = np.diff(x.indptr).astype(np.int64)
    if (infinite := np.isinf(x.data)).any():
        row = find_row(int(np.argmax(infinite)), lengths)
        checks.fail(row, "values of one index that add up to infinity", f"finite features that fit {dtype}")
    return Features(lengths, x.indices, x.data, size)


def is_list(kind: pa.DataType) -> bool:
    """Return True for Arrow's lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def list_lengths(lists: pa.Array) -> Int64s:
    """Return the length of each list; 0 for null."""
    lengths: Int64s = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def dense_columns(lengths: Int64s) -> Array:
    """Return the columns of the entries of dense rows with these lengths: 0, 1, ... in each row."""
    if len(lengths) and (lengths == lengths[0]).all():
        return np.tile(np.arange(lengths[0], dtype=np.int32), len(lengths))
    ends = np.cumsum(lengths)
    return (np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)).astype(np.int32)


def find_row(entry: int, lengths: Int64s) -> int:
    """Return the row of an entry, given the number of entries of each row."""
    return int(np.searchsorted(np.cumsum(lengths), entry, side="right"))
