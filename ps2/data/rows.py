"""The rows of a task as a sparse matrix, whose columns are keys to pull.

Example::

    def work(worker, batches):
        rows = Rows.fromBatches(batches).localize()  # once
        for t in worker.clocks(100):
            part = rows.sample(0.01, worker.rng())  # a minibatch, and the keys that it uses
            w = weight.pull(part.keys)
            gradient.add(part.x.T @ slope(part.x @ w, part.y), part.keys)

``localize`` numbers the columns of a worker's rows from 0. A step then takes some rows, and renumbers only the columns
that they use. So no step sorts columns, and the gradient of a step has one element for each of its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.array_types import Float64s, Int32s, Int64s
from ps2.data.plain_arrays import as_array
from ps2.data.sparse_rows import canonical, sparse_matrix
from ps2.data.used_columns import renumber
from ps2.errors import ConfigError, DTypeError, InputError, OutOfRangeError
from ps2.ops.kernels import kernel

if TYPE_CHECKING:
    import pyarrow as pa

Array = npt.NDArray[Any]
Float = Literal["float32", "float64"]

# If the range of the columns is at most this many times the number of entries, a bitmap of the columns is faster than
# sorting the entries.
SPAN_PER_ENTRY = 256
# The arrays of rows that have an element for each row.
ROW_FIELDS = ("y", "weights", "margins", "groups", "sets")
# ``are_dense`` compares this many rows at a time.
DENSE_BLOCK = 1 << 14


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows with all columns of the data.

    Attributes:
        x: scipy csr_array of float32 or float64, shape (n, columns); it may have explicit zeros.
        y: labels, float64, shape (n,); None if there are none.
        weights: non-negative sample weights, float64, shape (n,); None: all weights are equal.
        margins, groups, sets: see ``LocalRows``.
    """

    x: sp.csr_array
    y: Float64s | None = None
    weights: Float64s | None = None
    margins: Float64s | None = None
    groups: Int64s | None = None
    sets: npt.NDArray[np.int8] | None = None

    def __len__(self) -> int:
        return int(self.x.shape[0])

    @staticmethod
    def fromBatches(
        batches: Iterable[pa.RecordBatch],
        features: str | Sequence[str] = "features",
        label: str | None = "label",
        weight: str | None = None,
        dtype: Float = "float64",
    ) -> Rows:
        """Read the rows of a DataFrame, in the form that ``ps.run`` and ``mapInArrow`` pass to a worker.

        Args:
            batches: ``pyarrow.RecordBatch``, with any number of rows each.
            features: a column of ``pyspark.ml`` vectors (sparse, dense or mixed) or of arrays of numbers; or the names
                of columns of numbers, which become columns 0, 1, ... of the matrix. Indices of sparse vectors can be in
                any order; values of the same index are added up.
            label: a column of numbers or booleans; None: no labels.
            weight: a column of non-negative numbers; None: no weights.
            dtype: the dtype of the features.

        Raises:
            InputError: a column is missing or has another type; a value is null, NaN, infinite or too large for the
                dtype; vectors differ in size; a weight is negative. The message names the column and the row (from 0).
        """
        parts = RowParts(checked_dtype(dtype))
        for batch in batches:
            parts.read(batch, features, label, weight)
        if not isinstance(features, str):
            parts.add(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, parts.dtype), len(features))
        return parts.to_rows(label is not None, weight is not None)

    @staticmethod
    def fromRecords(records: Iterable[Any], dtype: Float = "float64") -> Rows:
        """Read records of an RDD: each ``(label, vector)``, ``(label, vector, weight)`` or a ``LabeledPoint``.

        A vector is a ``pyspark.ml`` or ``pyspark.mllib`` vector, sparse or dense, or a 1-D array (or list) of numbers.
        This takes some microseconds per record; the batches of a DataFrame are many times faster.

        Raises:
            InputError: a record has another form, or a value that is an error in ``fromBatches``.
        """
        parts = RowParts(checked_dtype(dtype))
        indices: list[Array] = []
        values: list[Array] = []
        sizes: list[int] = []
        numbers: list[tuple[float, ...]] = []
        for record in records:
            try:
                vector, *label_and_weight = _unpack(record)
                columns, entries, size = _entries(vector)
                numbers.append(tuple(map(float, label_and_weight)))
            except (TypeError, ValueError, AttributeError) as error:
                raise InputError(
                    f"record {len(sizes)}: expected (label, vector), (label, vector, weight) or a LabeledPoint, "
                    f"got {str(record)[:100]}"
                ) from error
            indices.append(columns)
            values.append(entries)
            sizes.append(size)
        if not sizes:
            return parts.to_rows(has_y=True, has_weights=False)
        lengths = np.fromiter(map(len, values), np.int64, len(values))
        entries = np.concatenate(values)
        with np.errstate(over="ignore"):
            parts.add(lengths, np.concatenate(indices), entries.astype(parts.dtype), sizes[0])
        _check_records(parts, sizes, numbers)
        labels, *weights = np.array(numbers).T
        parts.y.append(labels)
        parts.weights += weights
        rows = parts.to_rows(has_y=True, has_weights=bool(parts.weights))
        return replace(rows, x=canonical(rows.x))

    def localize(self) -> LocalRows:
        """Number the columns that these rows use from 0. These columns are the keys to pull.

        Raises:
            OutOfRangeError: a column is outside the matrix.
        """
        columns = self.x.indices
        if are_dense(columns, *self.x.shape):
            # All columns are used, as in most tables of numbers, so each column keeps its number.
            return LocalRows(np.arange(self.x.shape[1]), self.x, *(getattr(self, name) for name in ROW_FIELDS))
        if len(columns) and not 0 <= columns.min() <= columns.max() < self.x.shape[1]:
            raise OutOfRangeError(
                f"x: expected columns in [0, {self.x.shape[1]}), got {columns.min()} to {columns.max()}"
            )
        keys, inverse = number_columns(columns)
        x = sparse_matrix(self.x.data, inverse, self.x.indptr, len(keys))
        return LocalRows(keys, x, *(getattr(self, name) for name in ROW_FIELDS))


@dataclass(frozen=True, eq=False)
class LocalRows:
    """Rows with only the columns that they use.

    Attributes:
        keys: the used columns, int64, shape (k,), sorted, unique: the keys to pull and to add to.
        x: scipy csr_array of float32 or float64, shape (n, k); column j belongs to ``keys[j]``.
        y: labels, float64, shape (n,); None if there are none.
        weights: float64, shape (n,); None: all weights are equal.
        margins: the initial predictions of the rows, float64, shape (n,); None: all rows have the same prediction.
        groups: the group of each row, int64, shape (n,); None: there are no groups.
        sets: the number of each held-out row's validation set, from 1, int8, shape (n,); None: no row is held out.
    """

    keys: Int64s
    x: sp.csr_array
    y: Float64s | None = None
    weights: Float64s | None = None
    margins: Float64s | None = None
    groups: Int64s | None = None
    sets: npt.NDArray[np.int8] | None = None

    def __len__(self) -> int:
        return int(self.x.shape[0])

    def take(self, numbers: npt.ArrayLike) -> LocalRows:
        """Return some rows, in the requested order, with only the keys that they use.

        Args:
            numbers: row numbers, integers, shape (m,); a row can occur several times.

        Raises:
            DTypeError: the numbers are not integers.
            OutOfRangeError: a row number is not in ``[0, n)``.
        """
        rows = row_numbers(numbers, len(self))
        indptr, columns, values = take_rows(self.x.indptr, self.x.indices, self.x.data, rows)
        used = renumber(columns, columns, len(self.keys))
        x = sparse_matrix(values, columns, indptr, len(used))
        return LocalRows(self.keys[used], x, *self._row_fields(rows))

    def gathered(self, rows: Int64s) -> LocalRows:
        """Return some rows, in the requested order, with all keys. The row numbers are not checked."""
        indptr, columns, values = take_rows(self.x.indptr, self.x.indices, self.x.data, rows)
        return LocalRows(self.keys, sparse_matrix(values, columns, indptr, len(self.keys)), *self._row_fields(rows))

    def chosen(self, numbers: npt.ArrayLike) -> LocalRows:
        """Return some rows, in the requested order, with all keys; raises the errors of ``take``."""
        rows = row_numbers(numbers, len(self))
        return LocalRows(self.keys, self.x[rows], *self._row_fields(rows))

    def _row_fields(self, rows: Int64s) -> tuple[Any, ...]:
        """Return the labels, weights, margins, groups and sets of some rows."""
        arrays = (getattr(self, name) for name in ROW_FIELDS)
        return tuple(None if array is None else array[rows] for array in arrays)

    def sample(self, fraction: float, rng: np.random.Generator) -> LocalRows:
        """Return a random minibatch with the keys that it uses; it may be empty.

        Args:
            fraction: the probability of each row, in (0, 1]; 1.0 takes all rows.
            rng: with ``worker.rng()``, every attempt of a clock has the same minibatch.

        Raises:
            ConfigError: ``fraction`` is outside (0, 1].
        """
        rows = sample_rows(len(self), fraction, rng)
        return self if rows is None else self.take(rows)

    @property
    def weight(self) -> float:
        """The sum of the rows' weights."""
        return float(len(self) if self.weights is None else self.weights.sum())

    @property
    def entries(self) -> int:
        """The number of stored values."""
        return int(self.x.nnz)

    def blocks(self) -> Iterator[LocalRows]:
        """Yield all rows in one block; see ``SpilledRows.blocks``."""
        yield self

    def new_array(self, length: int, dtype: npt.DTypeLike) -> Array:
        """Return an array of zeros for values that belong to these rows; see ``SpilledRows.new_array``."""
        return np.zeros(length, dtype)

    def mapped(self, change: Callable[[LocalRows], LocalRows]) -> LocalRows:
        """Return ``change(self)``; see ``SpilledRows.mapped``."""
        return change(self)


def sample_rows(rows: int, fraction: float, rng: np.random.Generator) -> Int64s | None:
    """Return the row numbers of a random minibatch, ascending; None: all rows. See ``LocalRows.sample``."""
    if not 0.0 < fraction <= 1.0:
        raise ConfigError(f"fraction: expected a number in (0, 1], got {fraction}")
    if fraction == 1.0:
        return None
    # Draw the number of rows first, then the rows: with a small fraction, this takes fewer draws than one per row.
    count = rng.binomial(rows, fraction)
    return np.sort(rng.choice(rows, count, replace=False, shuffle=False))


def number_columns(columns: Array) -> tuple[Int64s, Int32s]:
    """Return the sorted unique columns (int64), and each entry's index in them (int32)."""
    span = int(columns.max()) + 1 if len(columns) else 0
    if span > SPAN_PER_ENTRY * len(columns):
        keys, positions = np.unique(columns, return_inverse=True)
        return keys.astype(np.int64, copy=False), positions.astype(np.int32)
    inverse = np.empty(len(columns), np.int32)
    keys = renumber(columns, inverse, span)
    return keys, inverse


def columns_of(keys: Int64s, width: int) -> Int64s:
    """Return the columns of features, in their order; each feature has ``width`` adjacent columns."""
    return keys if width == 1 else (keys[:, None] * width + np.arange(width)).reshape(-1)


def are_dense(columns: Array, rows: int, size: int) -> bool:
    """Return True if each row has all columns, in order."""
    if columns.dtype != np.int32 or not rows or len(columns) != rows * size:
        return False
    all_columns, table = np.arange(size, dtype=np.int32), columns.reshape(rows, size)
    blocks = range(0, rows, DENSE_BLOCK)
    return all(bool((table[begin : begin + DENSE_BLOCK] == all_columns).all()) for begin in blocks)


def row_numbers(numbers: npt.ArrayLike, count: int) -> Int64s:
    """Return row numbers as int64; raise DTypeError or OutOfRangeError if they are not integers in [0, count)."""
    array = np.asarray(numbers)
    if array.size and array.dtype.kind not in "iu":
        raise DTypeError(f"rows: expected integer row numbers, got {array.dtype}; for a mask, use np.flatnonzero(mask)")
    rows = array.astype(np.int64)
    if len(rows) and not 0 <= rows.min() <= rows.max() < count:
        raise OutOfRangeError(f"rows: expected row numbers in [0, {count}), got {rows.min()} to {rows.max()}")
    return rows


@kernel
def take_rows(indptr: Array, columns: Array, values: Array, rows: Int64s) -> tuple[Array, Array, Array]:
    """Copy the entries of some rows; return indptr, columns and values."""
    new_indptr = np.zeros(len(rows) + 1, np.int64)
    for row in range(len(rows)):
        new_indptr[row + 1] = new_indptr[row] + indptr[rows[row] + 1] - indptr[rows[row]]
    new_columns, new_values = np.empty(new_indptr[-1], columns.dtype), np.empty(new_indptr[-1], values.dtype)
    for row in range(len(rows)):
        begin, end = indptr[rows[row]], indptr[rows[row] + 1]
        new_columns[new_indptr[row] : new_indptr[row + 1]] = columns[begin:end]
        new_values[new_indptr[row] : new_indptr[row + 1]] = values[begin:end]
    return new_indptr, new_columns, new_values


class RowParts:
    """Collects the arrays of rows that are read in several parts.

    The caller appends to ``y`` and ``weights``. For ``lengths``, ``columns`` and ``values``, see
    ``ps2.data.columns.Features``. ``size``: the number of columns; None until it is known.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.rows = 0
        self.y: list[Float64s] = []
        self.weights: list[Float64s] = []
        self.lengths: list[Int64s] = []
        self.columns: list[Array] = []
        self.values: list[Array] = []
        self.size: int | None = None

    def read(self, batch: pa.RecordBatch, features: str | Sequence[str], label: str | None, weight: str | None) -> None:
        """Append the rows of a batch; see ``Rows.fromBatches``."""
        # Imported here: importing pyarrow takes 0.5 s, and records do not need it.
        from ps2.data.columns import read_features, read_numbers, read_weights

        if not hasattr(batch, "schema"):
            raise InputError(
                "expected batches (pyarrow.RecordBatch), which workers of a DataFrame receive, got "
                f"{type(batch).__name__}; Rows.fromRecords reads records of an RDD"
            )
        before = self.rows
        entries = read_features(batch, features, self.dtype, before)
        self.add(entries.lengths, entries.columns, entries.values, entries.size)
        if label is not None:
            self.y.append(read_numbers(batch, label, before))
        if weight is not None:
            self.weights.append(read_weights(batch, weight, before))

    def add(self, lengths: Int64s, columns: Array, values: Array, size: int | None) -> None:
        """Append the entries of rows; arguments are the fields of ``ps2.data.columns.Features``."""
        if None not in (size, self.size) and size != self.size:
            raise InputError(f"features, row {self.rows}: expected size {self.size} as in the rows before, got {size}")
        self.size = size if self.size is None else self.size
        self.rows += len(lengths)
        self.lengths.append(lengths)
        self.columns.append(columns)
        self.values.append(values)

    @property
    def nbytes(self) -> int:
        """The bytes of all parts."""
        kinds: tuple[list[Array], ...] = (self.y, self.weights, self.lengths, self.columns, self.values)
        return sum(part.nbytes for parts in kinds for part in parts)

    def drain(self, has_y: bool, has_weights: bool, piece_bytes: int) -> Iterator[Rows]:
        """Yield the rows in pieces of about ``piece_bytes``, and remove them; ``rows`` and ``size`` stay the same."""
        while self.lengths:
            piece = RowParts(self.dtype)
            piece.size = self.size
            while self.lengths and piece.nbytes < piece_bytes:
                for name in ("lengths", "columns", "values", *["y"] * has_y, *["weights"] * has_weights):
                    getattr(piece, name).append(getattr(self, name).pop(0))
            yield piece.to_rows(has_y, has_weights)

    def to_rows(self, has_y: bool, has_weights: bool) -> Rows:
        """Return all parts as one ``Rows``."""
        indptr = np.concatenate([[0], np.cumsum(_concatenate(self.lengths, np.int64))])
        columns = _concatenate(self.columns, np.int32)
        values = _concatenate(self.values, self.dtype)
        x = sparse_matrix(values, columns, indptr, self.size or 0)
        return Rows(
            x,
            _concatenate(self.y, np.float64) if has_y else None,
            _concatenate(self.weights, np.float64) if has_weights else None,
        )


def _concatenate(parts: list[Array], dtype: npt.DTypeLike) -> Array:
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def checked_dtype(dtype: str) -> np.dtype[Any]:
    if dtype not in ("float32", "float64"):
        raise ConfigError(f"dtype: expected float32 or float64, got {dtype!r}")
    return np.dtype(dtype)


def _unpack(record: Any) -> tuple[Any, ...]:
    """Return a record's vector, label and, if it has one, weight."""
    if hasattr(record, "features") and hasattr(record, "label"):
        return record.features, record.label
    label, vector, *weight = record
    if len(weight) > 1:
        raise ValueError(f"expected at most 3 elements, got {2 + len(weight)}")
    return vector, label, *weight


def _entries(vector: Any) -> tuple[Array, Array, int]:
    """Return columns, values and size of a vector, without importing pyspark."""
    if hasattr(vector, "indices"):
        if len(vector.indices) != len(vector.values):
            raise ValueError(f"expected {len(vector.values)} indices, got {len(vector.indices)}")
        return vector.indices, vector.values, int(vector.size)
    values = as_array("vector", getattr(vector, "array", vector)).astype(np.float64)
    if values.ndim != 1:
        raise ValueError(f"expected one dimension, got {values.ndim}")
    return np.arange(len(values), dtype=np.int32), values, len(values)


def _check_records(parts: RowParts, sizes: list[int], numbers: list[tuple[float, ...]]) -> None:
    """Raise InputError for the first record that differs from the first one in form, or has an invalid number."""
    (columns,), (values,), (lengths,) = parts.columns, parts.values, parts.lengths
    ends = np.cumsum(lengths)

    def check(is_invalid: Array, expected: str) -> None:
        if is_invalid.any():
            raise InputError(f"record {int(np.argmax(is_invalid))}: expected {expected}")

    def check_entries(is_invalid: Array, expected: str) -> None:
        if is_invalid.any():
            record = int(np.searchsorted(ends, np.argmax(is_invalid), side="right"))
            raise InputError(f"record {record}: expected {expected}")

    check(np.array(sizes) != sizes[0], f"a vector of size {sizes[0]} as in the records before")
    check(np.array(list(map(len, numbers))) != len(numbers[0]), "a weight in all records or in none")
    check_entries(~np.isfinite(values), f"finite features that fit {parts.dtype}")
    check_entries((columns < 0) | (columns >= sizes[0]), f"indices in [0, {sizes[0]})")
    table = np.array(numbers)
    check(np.any(~np.isfinite(table), axis=1), "a finite label and weight")
    check(np.any(table[:, 1:] < 0, axis=1), "a non-negative weight")
