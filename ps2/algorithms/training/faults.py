"""What is wrong with the rows of a DataFrame: counted by kind over all workers, with one row of each to look at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.data.columns import dense_columns, feature_column, lengths_of, named_column, number_column
from ps2.errors import InputError

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

# Kinds, in the order in which they lie in the array of a worker; each with the column and what its rows do.
KINDS = {
    "null features": ("features", "hold null"),
    "wild features": ("features", "hold NaN or infinite values"),
    "sizes": ("features", "have another size than the rest"),
    "indices": ("features", "hold indices outside their size, or not as many of them as values"),
    "null label": ("label", "hold null"),
    "wild label": ("label", "hold NaN or an infinite value"),
    "class": ("label", "hold a label that is not one of the classes"),
    "null weight": ("weight", "hold null"),
    "wild weight": ("weight", "hold NaN or an infinite value"),
    "negative weight": ("weight", "hold a negative value"),
    "null validation": ("validation", "hold null"),
}
# A worker's array: rows; size of its first row's features (-1: no row); then count, first row and its value, by kind.
_HEAD, _PER_KIND = 2, 3
LENGTH = _HEAD + _PER_KIND * len(KINDS)


@dataclass(frozen=True)
class ColumnNames:
    """Names of a DataFrame's columns.

    Attributes:
        features: a column of vectors or arrays, or the names of several columns of numbers.
        label: numbers or booleans.
        weight: numbers that are not negative; None: all rows count the same.
        validation: booleans, true for rows to hold out; None: no row is.
    """

    features: str | tuple[str, ...] = "features"
    label: str = "label"
    weight: str | None = None
    validation: str | None = None

    def shown(self, role: str) -> str:
        """Return the name of a column for messages."""
        name = getattr(self, role)
        return name if isinstance(name, str) else f"{role} ({', '.join(name)})"


@dataclass
class Faults:
    """What is wrong with the rows of one worker.

    Attributes:
        columns: that are read.
        dtype: of the features; what is infinite in it is a fault.
        classes: labels have to be integers below this; None: any number.
        size: that features must have; None: that of the first row.
        rows: how many there were so far.
    """

    columns: ColumnNames
    dtype: np.dtype[Any]
    classes: int | None = None
    size: int | None = None
    rows: int = 0
    _found: dict[str, tuple[int, int, float]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._found)

    def count(self, batch: pa.RecordBatch) -> None:
        """Count the faults of another batch.

        Raises:
            InputError: a column is missing or of another type.
        """
        self._count_features(batch)
        self._count_numbers(batch, self.columns.label, "label")
        if self.columns.weight is not None:
            self._count_numbers(batch, self.columns.weight, "weight")
        if self.columns.validation is not None:
            self._note("null validation", _nulls(validation_column(batch, self.columns.validation)))
        self.rows += batch.num_rows

    def array(self) -> Float64Array:
        """Return all of it as float64, shape (LENGTH,), for ``error_of``."""
        found = [self._found.get(kind, (0, -1, np.nan)) for kind in KINDS]
        head = [float(self.rows), -1.0 if self.size is None else float(self.size)]
        return np.concatenate([head, np.array(found, np.float64).reshape(-1)])

    def _note(self, kind: str, bad: Mask, values: Array | None = None) -> None:
        if not bad.any():
            return
        row = int(np.argmax(bad))
        value = np.nan if values is None else float(values[row])
        count, first, of_first = self._found.get(kind, (0, self.rows + row, value))
        self._found[kind] = (count + int(bad.sum()), first, of_first)

    def _count_numbers(self, batch: pa.RecordBatch, name: str, role: str) -> None:
        column = number_column(batch, name)
        null = _nulls(column)
        values = column.to_numpy(zero_copy_only=False)
        wild = ~np.isfinite(values) & ~null
        self._note(f"null {role}", null)
        self._note(f"wild {role}", wild, values)
        fine = ~null & ~wild
        if role == "weight":
            self._note("negative weight", fine & (values < 0), values)
        elif self.classes is not None:
            self._note("class", fine & outside(values, self.classes), values)

    def _count_features(self, batch: pa.RecordBatch) -> None:
        names = self.columns.features
        if not isinstance(names, str):
            self._count_number_features(batch, names)
            return
        column = feature_column(batch, names)
        null = _nulls(column)
        rows = np.flatnonzero(~null)
        # Below a null, an array of Arrow may hold anything.
        lists = _Lists.of(column.drop_null())
        entries_null, wild = lists.rows_with(lists.null), lists.rows_with(self._wild(lists.values) & ~lists.null)
        if self.size is None and len(lists.sizes):
            self.size = int(lists.sizes[0])
        null[rows[entries_null]] = True
        self._note("null features", null)
        self._note("wild features", _spread(wild, rows, batch.num_rows))
        other = _spread(lists.sizes != self.size, rows, batch.num_rows)
        self._note("sizes", other, _spread(lists.sizes, rows, batch.num_rows))
        self._note("indices", _spread(lists.misplaced(), rows, batch.num_rows))

    def _count_number_features(self, batch: pa.RecordBatch, names: tuple[str, ...]) -> None:
        null, wild = np.zeros(batch.num_rows, bool), np.zeros(batch.num_rows, bool)
        for name in names:
            column = number_column(batch, name)
            of_column = _nulls(column)
            null |= of_column
            wild |= self._wild(column.to_numpy(zero_copy_only=False)) & ~of_column
        self.size = len(names)
        self._note("null features", null)
        self._note("wild features", wild)

    def _wild(self, values: Array) -> Mask:
        with np.errstate(over="ignore"):
            return ~np.isfinite(values.astype(self.dtype))


@dataclass(frozen=True, eq=False)
class _Lists:
    """Features of rows that are not null, unchecked.

    Attributes:
        sizes: int64, shape (n,): columns of each row.
        lengths: int64, shape (n,): entries of each row.
        values, null: shape (nnz,): entries, and which are null.
        indices: columns of the entries; None: 0, 1, ... in each row.
        indices_lengths: as ``lengths``.
    """

    sizes: Int64Array
    lengths: Int64Array
    values: Array
    null: Mask
    indices: Array | None = None
    indices_lengths: Int64Array | None = None

    @staticmethod
    def of(column: pa.Array) -> _Lists:
        if not pa.types.is_struct(column.type):
            flat, lengths = column.flatten(), lengths_of(column)
            return _Lists(lengths, lengths, flat.to_numpy(zero_copy_only=False), _nulls(flat))
        kinds, sizes, indices, values = (column.field(name) for name in ("type", "size", "indices", "values"))
        flat, lengths = values.flatten(), lengths_of(values)
        dense = kinds.to_numpy(zero_copy_only=False) == 1
        given = np.where(dense, lengths, sizes.fill_null(-1).to_numpy(zero_copy_only=False))
        entries = flat.to_numpy(zero_copy_only=False)
        if dense.all():
            return _Lists(given, lengths, entries, _nulls(flat))
        of_row = lengths_of(indices)
        places = dense_columns(np.where(dense, lengths, of_row)).astype(np.int64)
        sparse = np.repeat(~dense, np.where(dense, lengths, of_row))
        # A dense row has no indices; where it has some anyway, they are not asked for.
        kept = np.repeat(~dense, of_row)
        places[sparse] = indices.flatten().fill_null(-1).to_numpy(zero_copy_only=False)[kept]
        return _Lists(given, lengths, entries, _nulls(flat), places, np.where(dense, lengths, of_row))

    def rows_with(self, bad: Mask) -> Mask:
        """Find the rows with an entry of which ``bad`` holds."""
        return _rows_with(bad, self.lengths)

    def misplaced(self) -> Mask:
        """Find the rows with an index outside their size, or more or less indices than values."""
        if self.indices is None or self.indices_lengths is None:
            return np.zeros(len(self.sizes), bool)
        sizes = np.repeat(self.sizes, self.indices_lengths)
        outside = _rows_with((self.indices < 0) | (self.indices >= sizes), self.indices_lengths)
        return outside | (self.lengths != self.indices_lengths)


def validation_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column of booleans; its rows are not checked."""
    column = named_column(batch, name)
    if not pa.types.is_boolean(column.type):
        raise InputError(f"column {name!r}: expected booleans, true for rows to hold out, got {column.type}")
    return column


def outside(labels: Float64Array, classes: int) -> Mask:
    """Find the labels that are not 0, 1, ... classes - 1."""
    return (labels < 0) | (labels >= classes) | (labels != np.floor(labels))


def error_of(faults: Float64Array, columns: ColumnNames = ColumnNames()) -> InputError | None:
    """Say what is wrong with the rows of all workers.

    Args:
        faults: float64, shape (workers, LENGTH): ``Faults.array()`` of each, by rdd_partition.
        columns: their names.

    Returns:
        An error that names each kind of fault, how many rows have it, and one of these; None if all rows are fine.
    """
    total = int(faults[:, 0].sum())
    by_kind = faults[:, _HEAD:].reshape(len(faults), len(KINDS), _PER_KIND)
    found = [
        _sentence(f"{columns.shown(role)}", what, by_kind[:, at], total)
        for at, (role, what) in enumerate(KINDS.values())
        if by_kind[:, at, 0].any()
    ]
    with_rows = np.flatnonzero(faults[:, 1] >= 0)
    sizes = faults[with_rows, 1]
    if len(sizes) and (sizes != sizes[0]).any():
        other = int(np.argmax(sizes != sizes[0]))
        found.append(
            f"{columns.shown('features')}: expected one size, got {sizes[0]:.0f} in rdd_partition {with_rows[0]} "
            f"and {sizes[other]:.0f} in rdd_partition {with_rows[other]}"
        )
    return InputError("; ".join(found)) if found else None


def _sentence(name: str, what: str, found: Float64Array, total: int) -> str:
    count = int(found[:, 0].sum())
    partition = int(np.argmax(found[:, 0] > 0))
    row, value = int(found[partition, 1]), found[partition, 2]
    shown = "" if np.isnan(value) else f"{value:g} in "
    return f"{name}: {count:,} of {total:,} rows {what}, such as {shown}row {row} of rdd_partition {partition}"


def _nulls(column: pa.Array) -> Mask:
    # A view of Arrow's memory could not be written to.
    return np.array(column.is_null().to_numpy(zero_copy_only=False), bool)


def _rows_with(bad: Mask, lengths: Int64Array) -> Mask:
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return np.bincount(rows[bad], minlength=len(lengths)) > 0


def _spread(values: Array, rows: Int64Array, count: int) -> Array:
    """Put values of some rows where these rows are among all."""
    spread = np.zeros(count, values.dtype)
    spread[rows] = values
    return spread
