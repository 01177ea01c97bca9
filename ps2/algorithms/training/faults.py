"""Count faults in the rows of a DataFrame by kind, over all workers, and describe them with an example of each kind."""

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

# The kinds of faults, in the order of a worker's array (see ``Faults.array``). Each has the role of the faulty column,
# and a description for messages.
KINDS = {
    "null features": ("features", "hold null"),
    "non-finite features": ("features", "hold NaN or infinite values"),
    "infinite features": ("features", "hold infinite values, or too large ones"),
    "no category": ("features", "hold values that are no category"),
    "no count": ("features", "hold values that are no counts"),
    "sizes": ("features", "have another size than the rest"),
    "indices": ("features", "hold indices outside their size, or not as many of them as values"),
    "null label": ("label", "hold null"),
    "non-finite label": ("label", "hold NaN or an infinite value"),
    "class": ("label", "hold a label that is not one of the classes"),
    "null weight": ("weight", "hold null"),
    "non-finite weight": ("weight", "hold NaN or an infinite value"),
    "negative weight": ("weight", "hold a negative value"),
    "null validation": ("validation", "hold null"),
    "null margin": ("margin", "hold null"),
    "non-finite margin": ("margin", "hold NaN or an infinite value"),
    "null group": ("group", "hold null"),
}
# The kinds for which imputing values can help: null, NaN and infinite numbers.
IMPUTABLE = [k for k in KINDS if k.startswith(("null", "non-finite")) and not k.endswith(("validation", "group"))]
# A worker's array: the number of rows; the number of features of the first row (-1: no row); then, for each kind of
# fault, the number of faulty rows; the index of the first such row, its value, and its feature (-1: none).
_HEAD, _PER_KIND = 2, 4
LENGTH = _HEAD + _PER_KIND * len(KINDS)

# The largest count of a word in a document: counts, and some of their sums, are stored as int32.
MAX_COUNT = 2**31 - 1


@dataclass(frozen=True)
class ColumnNames:
    """The names of a DataFrame's columns by role.

    Attributes:
        features: a column of vectors or arrays, or the names of several columns of numbers.
        label: a column of numbers or booleans; None: rows have no labels.
        weight: a column of numbers that are not negative; None: all weights are 1.
        validation: a column of booleans, true for rows to hold out, or of int8, the number of the row's validation set;
            0: a row to train on. None: no row is held out.
        margin: a column of initial margins, to which the model's margins are added; None: there is no such column.
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
        return (self.features,) if isinstance(self.features, str) else self.features

    def shown(self, role: str) -> str:
        """Return the name of a column for messages."""
        name = getattr(self, role)
        return name if isinstance(name, str) else f"{role} ({', '.join(name)})"


@dataclass(frozen=True)
class Form:
    """The form that rows must have.

    Attributes:
        size: the number of features; None: the number of the first row.
        classes: the number of classes; labels must be integers from 0 to ``classes`` - 1. None: labels are any numbers.
        dtype: the dtype of the features in memory; a value that is infinite in this dtype is a fault.
        missing: True if NaN and null numbers are missing values, False if they are faults.
        categories: the number of categories by feature index; values of such a feature are integers below this number.
        counts: True if values must be integers from 0 to ``MAX_COUNT``.
    """

    size: int | None = None
    classes: int | None = None
    dtype: Float = "float64"
    missing: bool = False
    categories: Mapping[int, int] = field(default_factory=dict)
    counts: bool = False

    def is_outside(self, values: Array, features: Array) -> Mask:
        """Return a mask of the values that are not a category of their feature, or not a count."""
        if self.counts:
            return np.isfinite(values) & outside(values, MAX_COUNT + 1)
        if not self.categories:
            return np.zeros(len(values), bool)
        counts = self._counts[np.minimum(features, len(self._counts) - 1)]
        return outside(values, counts) & np.isfinite(counts) & ~np.isnan(values)

    @cached_property
    def _counts(self) -> Float64s:
        """The number of categories by feature index (infinity: not categorical); its last element is for all others."""
        counts = np.full(max(self.categories) + 2, np.inf)
        counts[list(self.categories)] = list(self.categories.values())
        return counts


# Rows of any finite numbers, with an equal number of features.
PLAIN = Form()


@dataclass
class Faults:
    """The faults of one worker's rows.

    Attributes:
        size: the number of features of each row; None: no row was read yet.
        rows: the number of rows so far.
    """

    columns: ColumnNames
    form: Form
    size: int | None = None
    rows: int = 0
    # By kind: the number of faulty rows; the index of the first such row, its value and its feature.
    _by_kind: dict[str, tuple[int, int, float, int]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._by_kind)

    def count(self, batch: pa.RecordBatch) -> None:
        """Count the faults of another batch; raise InputError if a column is missing or its type is wrong."""
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
        header = [float(self.rows), -1.0 if self.size is None else float(self.size)]
        return np.concatenate([header, np.array(entries, np.float64).reshape(-1)])

    def _add(self, kind: str, is_bad: Mask, values: Array | None = None, features: Array | None = None) -> None:
        """Add the faulty rows of a batch; ``values`` and ``features`` have each row's wrong value and its feature."""
        if not is_bad.any():
            return
        row = int(np.argmax(is_bad))
        value = np.nan if values is None else float(values[row])
        feature = -1 if features is None else int(features[row])
        count, first_row, first_value, first_feature = self._by_kind.get(kind, (0, self.rows + row, value, feature))
        self._by_kind[kind] = (count + int(is_bad.sum()), first_row, first_value, first_feature)

    def _count_numbers(self, batch: pa.RecordBatch, name: str, role: str) -> None:
        column = number_column(batch, name)
        is_null = _nulls(column)
        values = column.to_numpy(zero_copy_only=False)
        is_non_finite = ~np.isfinite(values) & ~is_null
        self._add(f"null {role}", is_null)
        self._add(f"non-finite {role}", is_non_finite, values)
        is_finite = ~is_null & ~is_non_finite
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
        is_null = _nulls(column)
        rows = np.flatnonzero(~is_null)
        # The values of a null row in an Arrow array are undefined.
        lists = _Lists.of(column.drop_null())
        if self.size is None and len(lists.sizes):
            self.size = int(lists.sizes[0])
        if not self.form.missing:
            is_null[rows[_rows_with(lists.null, lists.lengths)]] = True
        self._add("null features", is_null)
        faults = {self._non_finite_kind: self._is_non_finite(lists.values) & ~lists.null}
        if not lists.misplaced().any():
            faults[self._outside_kind] = self.form.is_outside(self._stored(lists.values), lists.features)
        for kind, is_bad in faults.items():
            self._add(kind, *(_scatter(by_row, rows, batch.num_rows) for by_row in lists.first_with(is_bad)))
        has_other_size = _scatter(lists.sizes != self.size, rows, batch.num_rows)
        self._add("sizes", has_other_size, _scatter(lists.sizes, rows, batch.num_rows))
        self._add("indices", _scatter(lists.misplaced(), rows, batch.num_rows))

    def _count_number_features(self, batch: pa.RecordBatch, names: tuple[str, ...]) -> None:
        has_null = np.zeros(batch.num_rows, bool)
        # By kind: the first feature of each row with a wrong value (-1: none), and this value.
        faults = {
            kind: (np.full(batch.num_rows, -1), np.zeros(batch.num_rows))
            for kind in (self._non_finite_kind, self._outside_kind)
        }
        for feature, name in enumerate(names):
            column = number_column(batch, name)
            is_null, values = _nulls(column), column.to_numpy(zero_copy_only=False)
            has_null |= is_null & (not self.form.missing)
            is_non_finite = self._is_non_finite(values) & ~is_null
            is_outside = self.form.is_outside(self._stored(values), np.full(len(values), feature))
            for kind, is_bad in ((self._non_finite_kind, is_non_finite), (self._outside_kind, is_outside)):
                features, wrong_values = faults[kind]
                is_first = is_bad & (features < 0)
                features[is_first], wrong_values[is_first] = feature, values[is_first]
        self.size = len(names)
        self._add("null features", has_null)
        for kind, (features, wrong_values) in faults.items():
            self._add(kind, features >= 0, wrong_values, features)

    @property
    def _non_finite_kind(self) -> str:
        """The kind of fault of a value that is infinite or, unless it is a missing value, NaN."""
        return "infinite features" if self.form.missing else "non-finite features"

    @property
    def _outside_kind(self) -> str:
        """The kind of fault of a finite value for which ``Form.is_outside`` is true."""
        return "no count" if self.form.counts else "no category"

    def _is_non_finite(self, values: Array) -> Mask:
        stored = self._stored(values)
        return np.isinf(stored) if self.form.missing else ~np.isfinite(stored)

    def _stored(self, values: Array) -> Array:
        """Return values in the dtype in which features are stored in memory."""
        with np.errstate(over="ignore"):
            return values.astype(self.form.dtype)


@dataclass(frozen=True, eq=False)
class _Lists:
    """The unchecked features of n rows that are not null.

    Attributes:
        sizes: the number of features of each row, int64, shape (n,).
        lengths: the number of stored values of each row, int64, shape (n,).
        values, null: the stored values, and a mask of those that are null, shape (nnz,).
        indices: the feature of each stored value; None: 0, 1, ... in each row.
        indices_lengths: the number of indices of each row, int64, shape (n,); None: there are no indices.
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
        is_dense = kinds.to_numpy(zero_copy_only=False) == 1
        row_sizes = np.where(is_dense, lengths, sizes.fill_null(-1).to_numpy(zero_copy_only=False))
        stored_values = flat.to_numpy(zero_copy_only=False)
        if is_dense.all():
            return _Lists(row_sizes, lengths, stored_values, _nulls(flat))
        # A dense row has the indices 0, 1, ..., one for each value; a list of indices that it may have is ignored.
        num_indices = np.where(is_dense, lengths, list_lengths(indices))
        columns = dense_columns(num_indices).astype(np.int64)
        is_in_sparse_row = np.repeat(~is_dense, list_lengths(indices))
        flat_indices = indices.flatten().fill_null(-1).to_numpy(zero_copy_only=False)
        columns[np.repeat(~is_dense, num_indices)] = flat_indices[is_in_sparse_row]
        return _Lists(row_sizes, lengths, stored_values, _nulls(flat), columns, num_indices)

    @property
    def features(self) -> Array:
        """The feature of each stored value."""
        return dense_columns(self.lengths) if self.indices is None else self.indices

    def first_with(self, is_bad_entry: Mask) -> tuple[Mask, Array, Array]:
        """Return which rows have a bad entry, and the value and feature of each row's first bad entry.

        The feature is -1 if any row has misplaced indices.
        """
        count = len(self.lengths)
        rows, first_entries = np.unique(np.repeat(np.arange(count), self.lengths)[is_bad_entry], return_index=True)
        is_bad, values, features = np.zeros(count, bool), np.zeros(count), np.full(count, -1)
        is_bad[rows], values[rows] = True, self.values[is_bad_entry][first_entries]
        if not self.misplaced().any():
            features[rows] = self.features[is_bad_entry][first_entries]
        return is_bad, values, features

    def misplaced(self) -> Mask:
        """Return which rows have an index outside of their size, or not as many indices as values."""
        if self.indices is None or self.indices_lengths is None:
            return np.zeros(len(self.sizes), bool)
        sizes = np.repeat(self.sizes, self.indices_lengths)
        has_outside = _rows_with((self.indices < 0) | (self.indices >= sizes), self.indices_lengths)
        return has_outside | (self.lengths != self.indices_lengths)


def validation_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column of booleans or int8, which can contain null; raise InputError if it has another type."""
    column = named_column(batch, name)
    if not (pa.types.is_boolean(column.type) or pa.types.is_int8(column.type)):
        raise InputError(f"column {name!r}: expected booleans, true for rows to hold out, got {column.type}")
    return column


def outside(values: Array, count: int | Array) -> Mask:
    """Return a mask of the values that are not 0, 1, ..., ``count`` - 1, such as labels that are not classes."""
    return (values < 0) | (values >= count) | (values != np.floor(values))


def error_of(faults: Float64s, columns: ColumnNames = ColumnNames(), form: Form = PLAIN) -> InputError | None:
    """Return the error for ``Faults.array()`` of each worker, float64, shape (workers, LENGTH).

    It has each kind of fault, the number of rows with this fault, and one such row; None: no row is faulty.
    """
    total = int(faults[:, 0].sum())
    by_kind = faults[:, _HEAD:].reshape(len(faults), len(KINDS), _PER_KIND)
    sentences = [
        _sentence(columns.shown(role), fault, by_kind[:, index], total)
        + _expected(kind, by_kind[:, index], columns, form)
        for index, (kind, (role, fault)) in enumerate(KINDS.items())
        if by_kind[:, index, 0].any()
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
    can_impute = any(kind in IMPUTABLE and not (form.missing and "features" in kind) for kind in kinds)
    advice = f" ({IMPUTE})" if can_impute else ""
    return InputError("; ".join(sentences) + advice) if sentences else None


def _expected(kind: str, faults: Float64s, columns: ColumnNames, form: Form) -> str:
    """Return words about the faulty feature and its expected values, or the expected size; "" for other faults."""
    if kind == "sizes" and form.size is not None:
        return f": expected size {form.size}"
    feature = int(faults[np.argmax(faults[:, 0] > 0), 3])
    if feature < 0:
        return ""
    name = str(feature) if isinstance(columns.features, str) else repr(columns.features[feature])
    if kind in ("non-finite features", "infinite features"):
        missing = "NaN or " if form.missing else ""
        return f": feature {name}, where {missing}a finite number that fits {form.dtype} was expected"
    if form.counts:
        return f": feature {name} is a count, so expected a whole number from 0 to {MAX_COUNT:,}"
    count = form.categories[feature]
    numbers = f" or a whole number from 0 to {count - 1:,}" if count else ""
    return f": feature {name} has {count:,} categories, so expected NaN{numbers}"


def _sentence(name: str, fault: str, faults: Float64s, total: int) -> str:
    count = int(faults[:, 0].sum())
    partition = int(np.argmax(faults[:, 0] > 0))
    row, value = int(faults[partition, 1]), faults[partition, 2]
    shown = "" if np.isnan(value) else f"{value:g} in "
    return f"{name}: {count:,} of {total:,} rows {fault}, such as {shown}row {row} of rdd_partition {partition}"


def _nulls(column: pa.Array) -> Mask:
    # Copied, because a view of Arrow's memory is read-only.
    return np.array(column.is_null().to_numpy(zero_copy_only=False), bool)


def _rows_with(is_bad_entry: Mask, lengths: Int64s) -> Mask:
    """Return a mask of the rows with a bad entry. ``lengths`` has the number of entries of each row."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return np.bincount(rows[is_bad_entry], minlength=len(lengths)) > 0


def _scatter(values: Array, rows: Int64s, count: int) -> Array:
    """Return an array of ``count`` elements with these values at ``rows``, and zeros elsewhere."""
    result = np.zeros(count, values.dtype)
    result[rows] = values
    return result
