"""Faults of the rows of a DataFrame, counted by kind over all workers, with an example of each kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.array_types import Float64s, Int64s
from ps2.data.columns import IMPUTE, dense_columns, feature_column, list_lengths, named_column, number_column
from ps2.data.rows import Float
from ps2.errors import InputError

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

# The kinds of faults in their order in a worker's array, each with the column's role and the fault in words.
KINDS = {
    "null features": ("features", "hold null"),
    "wild features": ("features", "hold NaN or infinite values"),
    "infinite features": ("features", "hold infinite values, or too large ones"),
    "no category": ("features", "hold values that are no category"),
    "no count": ("features", "hold values that are no counts"),
    "sizes": ("features", "have another size than the rest"),
    "indices": ("features", "hold indices outside their size, or not as many of them as values"),
    "null label": ("label", "hold null"),
    "wild label": ("label", "hold NaN or an infinite value"),
    "class": ("label", "hold a label that is not one of the classes"),
    "null weight": ("weight", "hold null"),
    "wild weight": ("weight", "hold NaN or an infinite value"),
    "negative weight": ("weight", "hold a negative value"),
    "null validation": ("validation", "hold null"),
    "null margin": ("margin", "hold null"),
    "wild margin": ("margin", "hold NaN or an infinite value"),
    "null group": ("group", "hold null"),
}
# The kinds for which imputing values can help: null, NaN and infinite numbers.
ABSENT = [kind for kind in KINDS if kind.startswith(("null", "wild")) and not kind.endswith(("validation", "group"))]
# A worker's array: the number of rows; the number of features of the first row (-1: no row); then, for each kind of
# fault, the number of faulty rows, and the first such row with its value and feature (-1: the kind has no feature).
_HEAD, _PER_KIND = 2, 4
LENGTH = _HEAD + _PER_KIND * len(KINDS)

# Counts, and some of their sums, are stored as int32.
MAX_COUNT = 2**31 - 1


@dataclass(frozen=True)
class ColumnNames:
    """The names of a DataFrame's columns by role.

    Attributes:
        features: a column of vectors or arrays, or the names of several columns of numbers.
        label: a column of numbers or booleans; None: rows have no labels.
        weight: a column of numbers that are not negative; None: all weights are 1.
        validation: a column of booleans, true for rows to hold out; None: no row is held out.
        margin: a column of initial margins, to which the model's are added; None: rows have no initial margins.
        group: a column of int64, the group of each row; None: rows have no groups.
    """

    features: str | tuple[str, ...] = "features"
    label: str | None = "label"
    weight: str | None = None
    validation: str | None = None
    margin: str | None = None
    group: str | None = None

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the feature columns."""
        return (self.features,) if isinstance(self.features, str) else self.features

    def shown(self, role: str) -> str:
        """Return the name of a column for messages."""
        name = getattr(self, role)
        return name if isinstance(name, str) else f"{role} ({', '.join(name)})"


@dataclass(frozen=True)
class Form:
    """The form that rows must have.

    Attributes:
        size: the number of features; None: that of the first row.
        classes: the number of classes; labels are integers below it. None: labels are any numbers.
        dtype: the dtype of the features in memory; a value that is infinite in this dtype is a fault.
        missing: True if NaN and null numbers are missing values, False if they are faults.
        categories: the number of categories by feature number; the values of such a feature are integers below it.
        counts: True if values must be whole numbers from 0 to ``MAX_COUNT``.
    """

    size: int | None = None
    classes: int | None = None
    dtype: Float = "float64"
    missing: bool = False
    categories: Mapping[int, int] = field(default_factory=dict)
    counts: bool = False

    def is_outside(self, values: Array, features: Array) -> Mask:
        """Return which values are outside of their feature's categories, or are not counts if they must be."""
        if self.counts:
            return np.isfinite(values) & outside(values, MAX_COUNT + 1)
        if not self.categories:
            return np.zeros(len(values), bool)
        counts = self._counts[np.minimum(features, len(self._counts) - 1)]
        return outside(values, counts) & np.isfinite(counts) & ~np.isnan(values)

    @cached_property
    def _counts(self) -> Float64s:
        """The number of categories of each feature up to the last categorical one, then infinity for all others."""
        counts = np.full(max(self.categories) + 2, np.inf)
        counts[list(self.categories)] = list(self.categories.values())
        return counts


# Rows of any finite numbers, with an equal number of features.
PLAIN = Form()


@dataclass
class Faults:
    """The faults of one worker's rows.

    Attributes:
        columns: the columns that are read.
        form: the form that rows must have.
        size: the number of features of each row; None: that of the first row.
        rows: the number of rows so far.
    """

    columns: ColumnNames
    form: Form
    size: int | None = None
    rows: int = 0
    # By kind: the number of faulty rows, and the first one with its value and feature.
    _by_kind: dict[str, tuple[int, int, float, int]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._by_kind)

    def count(self, batch: pa.RecordBatch) -> None:
        """Count the faults of another batch; raise InputError if a column is missing or has another type."""
        self._count_features(batch)
        for role in ("label", "weight", "margin"):
            if (name := getattr(self.columns, role)) is not None:
                self._count_numbers(batch, name, role)
        if self.columns.validation is not None:
            self._add("null validation", _nulls(validation_column(batch, self.columns.validation)))
        if self.columns.group is not None:
            self._add("null group", _nulls(named_column(batch, self.columns.group)))
        self.rows += batch.num_rows

    def array(self) -> Float64s:
        """Return the faults as float64, shape (LENGTH,), for ``error_of``."""
        entries = [self._by_kind.get(kind, (0, -1, np.nan, -1)) for kind in KINDS]
        head = [float(self.rows), -1.0 if self.size is None else float(self.size)]
        return np.concatenate([head, np.array(entries, np.float64).reshape(-1)])

    def _add(self, kind: str, is_bad: Mask, values: Array | None = None, features: Array | None = None) -> None:
        """Add the faulty rows of a batch; ``values`` and ``features`` show what is wrong in each row."""
        if not is_bad.any():
            return
        row = int(np.argmax(is_bad))
        value = np.nan if values is None else float(values[row])
        feature = -1 if features is None else int(features[row])
        first = self._by_kind.get(kind, (0, self.rows + row, value, feature))
        self._by_kind[kind] = (first[0] + int(is_bad.sum()), *first[1:])

    def _count_numbers(self, batch: pa.RecordBatch, name: str, role: str) -> None:
        column = number_column(batch, name)
        null = _nulls(column)
        values = column.to_numpy(zero_copy_only=False)
        wild = ~np.isfinite(values) & ~null
        self._add(f"null {role}", null)
        self._add(f"wild {role}", wild, values)
        is_finite = ~null & ~wild
        if role == "weight":
            self._add("negative weight", is_finite & (values < 0), values)
        elif role == "label" and self.form.classes is not None:
            self._add("class", is_finite & outside(values, self.form.classes), values)

    def _count_features(self, batch: pa.RecordBatch) -> None:
        names = self.columns.features
        if not isinstance(names, str):
            self._count_number_features(batch, names)
            return
        column = feature_column(batch, names)
        null = _nulls(column)
        rows = np.flatnonzero(~null)
        # The values of a null in an Arrow array are undefined.
        lists = _Lists.of(column.drop_null())
        if self.size is None and len(lists.sizes):
            self.size = int(lists.sizes[0])
        if not self.form.missing:
            null[rows[_rows_with(lists.null, lists.lengths)]] = True
        self._add("null features", null)
        faults = {self._wild_kind: self._wild(lists.values) & ~lists.null}
        if not lists.misplaced().any():
            faults[self._outside_kind] = self.form.is_outside(self._stored(lists.values), lists.features)
        for kind, is_bad in faults.items():
            self._add(kind, *(_spread(by_row, rows, batch.num_rows) for by_row in lists.first_with(is_bad)))
        has_other_size = _spread(lists.sizes != self.size, rows, batch.num_rows)
        self._add("sizes", has_other_size, _spread(lists.sizes, rows, batch.num_rows))
        self._add("indices", _spread(lists.misplaced(), rows, batch.num_rows))

    def _count_number_features(self, batch: pa.RecordBatch, names: tuple[str, ...]) -> None:
        null = np.zeros(batch.num_rows, bool)
        # By kind: the first feature of each row with a wrong value (-1: none), and this value.
        faults = {
            kind: (np.full(batch.num_rows, -1), np.zeros(batch.num_rows))
            for kind in (self._wild_kind, self._outside_kind)
        }
        for feature, name in enumerate(names):
            column = number_column(batch, name)
            is_null, values = _nulls(column), column.to_numpy(zero_copy_only=False)
            null |= is_null & (not self.form.missing)
            is_outside = self.form.is_outside(self._stored(values), np.full(len(values), feature))
            for kind, is_bad in ((self._wild_kind, self._wild(values) & ~is_null), (self._outside_kind, is_outside)):
                features, shown = faults[kind]
                is_first = is_bad & (features < 0)
                features[is_first], shown[is_first] = feature, values[is_first]
        self.size = len(names)
        self._add("null features", null)
        for kind, (features, shown) in faults.items():
            self._add(kind, features >= 0, shown, features)

    @property
    def _wild_kind(self) -> str:
        """The kind of fault of a value that is infinite or, unless it is a missing value, NaN."""
        return "infinite features" if self.form.missing else "wild features"

    @property
    def _outside_kind(self) -> str:
        """The kind of fault of a finite value that ``Form.is_outside`` finds."""
        return "no count" if self.form.counts else "no category"

    def _wild(self, values: Array) -> Mask:
        stored = self._stored(values)
        return np.isinf(stored) if self.form.missing else ~np.isfinite(stored)

    def _stored(self, values: Array) -> Array:
        """Return values in the dtype of the features in memory."""
        with np.errstate(over="ignore"):
            return values.astype(self.form.dtype)


@dataclass(frozen=True, eq=False)
class _Lists:
    """The unchecked features of n rows that are not null.

    Attributes:
        sizes: the number of features of each row, int64, shape (n,).
        lengths: the number of entries of each row, int64, shape (n,).
        values, null: the entries, and which of them are null, shape (nnz,).
        indices: the feature of each entry; None: 0, 1, ... in each row.
        indices_lengths: the number of indices of each row, int64, shape (n,).
    """

    sizes: Int64s
    lengths: Int64s
    values: Array
    null: Mask
    indices: Array | None = None
    indices_lengths: Int64s | None = None

    @staticmethod
    def of(column: pa.Array) -> _Lists:
        if not pa.types.is_struct(column.type):
            flat, lengths = column.flatten(), list_lengths(column)
            return _Lists(lengths, lengths, flat.to_numpy(zero_copy_only=False), _nulls(flat))
        kinds, sizes, indices, values = (column.field(name) for name in ("type", "size", "indices", "values"))
        flat, lengths = values.flatten(), list_lengths(values)
        dense = kinds.to_numpy(zero_copy_only=False) == 1
        row_sizes = np.where(dense, lengths, sizes.fill_null(-1).to_numpy(zero_copy_only=False))
        entries = flat.to_numpy(zero_copy_only=False)
        if dense.all():
            return _Lists(row_sizes, lengths, entries, _nulls(flat))
        index_lengths = list_lengths(indices)
        columns = dense_columns(np.where(dense, lengths, index_lengths)).astype(np.int64)
        sparse = np.repeat(~dense, np.where(dense, lengths, index_lengths))
        # The indices of a dense row are ignored.
        is_sparse_index = np.repeat(~dense, index_lengths)
        columns[sparse] = indices.flatten().fill_null(-1).to_numpy(zero_copy_only=False)[is_sparse_index]
        return _Lists(row_sizes, lengths, entries, _nulls(flat), columns, np.where(dense, lengths, index_lengths))

    @property
    def features(self) -> Array:
        """The feature of each entry."""
        return dense_columns(self.lengths) if self.indices is None else self.indices

    def first_with(self, is_bad_entry: Mask) -> tuple[Mask, Array, Array]:
        """Return which rows have a bad entry, and the value and feature of each row's first bad entry.

        The feature is -1 if there are misplaced indices.
        """
        count = len(self.lengths)
        rows, first = np.unique(np.repeat(np.arange(count), self.lengths)[is_bad_entry], return_index=True)
        is_bad, values, features = np.zeros(count, bool), np.zeros(count), np.full(count, -1)
        is_bad[rows], values[rows] = True, self.values[is_bad_entry][first]
        if not self.misplaced().any():
            features[rows] = self.features[is_bad_entry][first]
        return is_bad, values, features

    def misplaced(self) -> Mask:
        """Return which rows have an index outside of their size, or not as many indices as values."""
        if self.indices is None or self.indices_lengths is None:
            return np.zeros(len(self.sizes), bool)
        sizes = np.repeat(self.sizes, self.indices_lengths)
        has_outside = _rows_with((self.indices < 0) | (self.indices >= sizes), self.indices_lengths)
        return has_outside | (self.lengths != self.indices_lengths)


def validation_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column of booleans, which can contain null; raise InputError if it has another type."""
    column = named_column(batch, name)
    if not pa.types.is_boolean(column.type):
        raise InputError(f"column {name!r}: expected booleans, true for rows to hold out, got {column.type}")
    return column


def outside(values: Array, count: int | Array) -> Mask:
    """Return which values are not 0, 1, ... count - 1, such as labels that are not classes."""
    return (values < 0) | (values >= count) | (values != np.floor(values))


def error_of(faults: Float64s, columns: ColumnNames = ColumnNames(), form: Form = PLAIN) -> InputError | None:
    """Return the error for the faults of all workers' rows.

    Args:
        faults: ``Faults.array()`` of each worker, by rdd_partition, float64, shape (workers, LENGTH).
        columns: the names of the columns.
        form: the form that rows must have.

    Returns:
        An error that names each kind of fault, the number of rows with it, and one such row; None: there is no fault.
    """
    total = int(faults[:, 0].sum())
    by_kind = faults[:, _HEAD:].reshape(len(faults), len(KINDS), _PER_KIND)
    sentences = [
        _sentence(columns.shown(role), fault, by_kind[:, number], total)
        + _expected(kind, by_kind[:, number], columns, form)
        for number, (kind, (role, fault)) in enumerate(KINDS.items())
        if by_kind[:, number, 0].any()
    ]
    with_rows = np.flatnonzero(faults[:, 1] >= 0)
    sizes = faults[with_rows, 1]
    if len(sizes) and (sizes != sizes[0]).any():
        other = int(np.argmax(sizes != sizes[0]))
        sentences.append(
            f"{columns.shown('features')}: expected one size, got {sizes[0]:.0f} in rdd_partition {with_rows[0]} "
            f"and {sizes[other]:.0f} in rdd_partition {with_rows[other]}"
        )
    kinds = [kind for kind, counts in zip(KINDS, by_kind[:, :, 0].T, strict=True) if counts.any()]
    are_absent = any(kind in ABSENT and not (form.missing and "features" in kind) for kind in kinds)
    advice = f" ({IMPUTE})" if are_absent else ""
    return InputError("; ".join(sentences) + advice) if sentences else None


def _expected(kind: str, faults: Float64s, columns: ColumnNames, form: Form) -> str:
    """Return the wrong feature with the expected values, or the expected size; empty for other faults."""
    if kind == "sizes" and form.size is not None:
        return f": expected size {form.size}"
    feature = int(faults[np.argmax(faults[:, 0] > 0), 3])
    if feature < 0:
        return ""
    name = str(feature) if isinstance(columns.features, str) else repr(columns.features[feature])
    if kind in ("wild features", "infinite features"):
        missing = "NaN or " if form.missing else ""
        return f": feature {name}, where {missing}a finite number that fits {form.dtype} was expected"
    if form.counts:
        return f": feature {name} is a count, so expected a whole number from 0 to {MAX_COUNT:,}"
    count = form.categories[feature]
    return f": feature {name} has {count:,} categories, so expected NaN or a whole number from 0 to {count - 1:,}"


def _sentence(name: str, fault: str, faults: Float64s, total: int) -> str:
    count = int(faults[:, 0].sum())
    partition = int(np.argmax(faults[:, 0] > 0))
    row, value = int(faults[partition, 1]), faults[partition, 2]
    shown = "" if np.isnan(value) else f"{value:g} in "
    return f"{name}: {count:,} of {total:,} rows {fault}, such as {shown}row {row} of rdd_partition {partition}"


def _nulls(column: pa.Array) -> Mask:
    # A copy, as a view of Arrow's memory cannot be written to.
    return np.array(column.is_null().to_numpy(zero_copy_only=False), bool)


def _rows_with(is_bad_entry: Mask, lengths: Int64s) -> Mask:
    """Return which rows have a bad entry; ``lengths`` are the rows' numbers of entries."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return np.bincount(rows[is_bad_entry], minlength=len(lengths)) > 0


def _spread(values: Array, rows: Int64s, count: int) -> Array:
    """Return an array of ``count`` zeros in which ``rows`` have these values."""
    spread = np.zeros(count, values.dtype)
    spread[rows] = values
    return spread
