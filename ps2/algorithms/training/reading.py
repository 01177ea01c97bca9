"""Read a worker's rows: convert Arrow batches to arrays for training and for validation, or count their faults.

After the first batch with a fault, batches are not converted any more, but their faults are counted for the error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.algorithms.training.faults import PLAIN, ColumnNames, Faults, Form, outside, validation_column
from ps2.array_types import Float64s
from ps2.data.columns import named_column, read_features, read_numbers, read_weights
from ps2.data.row_spill import RowSpill, Spilled
from ps2.data.rows import LocalRows, RowParts
from ps2.data.spilled_rows import KeptRows, SpilledRows
from ps2.errors import InputError


@dataclass(frozen=True, eq=False)
class Reading:
    """The rows that a worker has read.

    Attributes:
        training: the rows to train with; empty if there are faults.
        held_out: the rows for validation; None: no column marks held-out rows.
        size: the number of features; None: the worker has no rows.
        faults: the faults of the rows for ``error_of``, float64, shape (faults.LENGTH,).
    """

    training: LocalRows
    held_out: LocalRows | None
    size: int | None
    faults: Float64s


@dataclass(frozen=True, eq=False)
class SpillableReading:
    """A ``Reading`` whose rows are in memory, or in a file: ``spilled`` has its size and folder; None: in memory."""

    training: KeptRows
    held_out: KeptRows | None
    size: int | None
    faults: Float64s
    spilled: Spilled | None = None


def read(batches: Iterable[pa.RecordBatch], columns: ColumnNames, form: Form = PLAIN) -> Reading:
    """Read a worker's rows and count their faults. InputError: a column is missing or its type is wrong."""
    parts, faults = _parts_of(batches, columns, form, None)
    training, held_out = parts.split()
    return Reading(training, held_out, faults.size, faults.array())


def read_spillable(
    batches: Iterable[pa.RecordBatch], columns: ColumnNames, form: Form, spill: RowSpill
) -> SpillableReading:
    """Read rows like ``read``, but into a file if they exceed the worker's memory. SpillError: the disk fails."""
    parts, faults = _parts_of(batches, columns, form, spill)
    if faults or not spill.uses_file:
        return SpillableReading(*parts.split(), faults.size, faults.array())
    training, held_out = parts.spilled(spill)
    return SpillableReading(training, held_out, faults.size, faults.array(), spill.spilled)


def _parts_of(
    batches: Iterable[pa.RecordBatch], columns: ColumnNames, form: Form, spill: RowSpill | None
) -> tuple[_Parts, Faults]:
    parts = _Parts(columns, form)
    faults = Faults(columns, form, form.size)
    for batch in batches:
        if not faults:
            try:
                parts.add(batch)
            except InputError:
                faults.size = parts.rows.size
                # Because of the fault, there is no training: the rows of earlier batches are not needed any more.
                parts = _Parts(columns, form)
                faults.count(batch)
                if not faults:
                    raise
            else:
                faults.rows += batch.num_rows
                if spill is not None and spill.is_due(parts.rows.nbytes):
                    parts.write(spill)
        else:
            faults.count(batch)
    if not faults:
        faults.size = parts.rows.size
    return parts, faults


class _Parts:
    """The rows of batches without faults."""

    def __init__(self, columns: ColumnNames, form: Form) -> None:
        self.rows = RowParts(np.dtype(form.dtype))
        self.rows.size = len(columns.features) if isinstance(columns.features, tuple) else form.size
        self._columns = columns
        self._form = form
        self._sets: list[npt.NDArray[np.int8]] = [np.zeros(0, np.int8)]
        self._margins: list[Float64s] = [np.zeros(0)]
        self._groups: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)]

    def add(self, batch: pa.RecordBatch) -> None:
        """Read a batch; raise InputError if it has a fault. ``Faults.count`` then describes the faults."""
        names, form, rows, num_before = self._columns, self._form, self.rows, self.rows.rows
        features = read_features(batch, names.features, rows.dtype, num_before, missing=form.missing)
        if form.is_outside(features.values, features.columns).any():
            raise InputError(f"{names.shown('features')}: expected categories, or counts")
        if names.label is not None:
            y = read_numbers(batch, names.label, num_before)
            if form.classes is not None and outside(y, form.classes).any():
                raise InputError(f"column {names.label!r}: expected labels below {form.classes}")
            rows.y.append(y)
        if names.weight is not None:
            rows.weights.append(read_weights(batch, names.weight, num_before))
        if names.validation is not None:
            is_held_out = validation_column(batch, names.validation)
            if is_held_out.null_count:
                raise InputError(f"column {names.validation!r}: expected no null")
            self._sets.append(is_held_out.to_numpy(zero_copy_only=False).astype(np.int8))
        if names.margin is not None:
            self._margins.append(read_numbers(batch, names.margin, num_before))
        if names.group is not None:
            groups = named_column(batch, names.group)
            if groups.null_count:
                raise InputError(f"column {names.group!r}: expected no null")
            self._groups.append(groups.to_numpy(zero_copy_only=False))
        rows.add(features.lengths, features.columns, features.values, features.size)

    def write(self, spill: RowSpill) -> None:
        """Move the rows that are in memory to a file."""
        columns, begin = self._columns, 0
        fields = dict[str, Any]()
        if columns.margin is not None:
            fields["margins"] = np.concatenate(self._margins)
        if columns.group is not None:
            fields["groups"] = np.concatenate(self._groups)
        if columns.validation is not None:
            fields["sets"] = np.concatenate(self._sets)
        for rows in self.rows.drain(columns.label is not None, columns.weight is not None, spill.spill.block_bytes):
            part = slice(begin, begin + len(rows))
            rows = replace(rows, **{name: values[part] for name, values in fields.items()})
            spill.append(rows, None if rows.sets is None else rows.sets > 0)
            begin += len(rows)
        for arrays in (self._sets, self._margins, self._groups):
            del arrays[1:]

    def spilled(self, spill: RowSpill) -> tuple[SpilledRows, SpilledRows | None]:
        """Return the same rows as ``split``, but in a file."""
        self.write(spill)
        training, held_out = spill.finish()
        return training, None if self._columns.validation is None else held_out

    def split(self) -> tuple[LocalRows, LocalRows | None]:
        """Return the rows for training, and the held-out rows (None: no column marks them); both have equal keys."""
        rows = self.rows.to_rows(self._columns.label is not None, self._columns.weight is not None).localize()
        if self._columns.margin is not None:
            rows = replace(rows, margins=np.concatenate(self._margins))
        if self._columns.group is not None:
            rows = replace(rows, groups=np.concatenate(self._groups))
        if self._columns.validation is None:
            return rows, None
        sets = np.concatenate(self._sets)
        held_out = np.flatnonzero(sets)
        return rows.chosen(np.flatnonzero(sets == 0)), replace(rows.chosen(held_out), sets=sets[held_out])
