"""Read and check labelled rows of Arrow batches: keys with values, a label, and optionally a weight and a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ps2.array_types import Float32s, Float64s, Int64s
from ps2.data.columns import named_column, read_numbers, read_weights
from ps2.data.hashing import FieldHasher
from ps2.data.key_rows import KeyRows
from ps2.errors import InputError

# The weights of rows that all have weight 1.
NO_WEIGHTS: Float32s = np.empty(0, np.float32)
# The time of no row: earlier than every time.
NEVER = float("-inf")


@dataclass(frozen=True)
class LabelledRows:
    """Rows to learn from.

    Attributes:
        rows: the keys and values of n rows.
        labels: the labels, 0 or 1, float32, shape (n,).
        weights: the weights, float32, shape (n,); shape (0,): all weights are 1.
        newest_s: the largest time of a row, in seconds; ``NEVER``: rows have no times.
        late: the number of late rows, which were skipped.
        value_counts: the number of rows in which a column is not null, by the column's name.
    """

    rows: KeyRows
    labels: Float32s
    weights: Float32s = field(default_factory=lambda: NO_WEIGHTS)
    newest_s: float = NEVER
    late: int = 0
    value_counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class LabelledReader:
    """Reads the labelled rows of a stream from Arrow batches. Column names are None if there is no such column."""

    hasher: FieldHasher
    label: str
    weight: str | None = None
    time: str | None = None
    held_out: str | None = None

    @property
    def columns(self) -> list[str]:
        """The names of all columns that ``read`` needs."""
        others = filter(None, (self.label, self.weight, self.time, self.held_out))
        return list(dict.fromkeys([*self.hasher.columns, *others]))

    def read(self, batch: pa.RecordBatch, num_before: int, min_time_s: float = NEVER) -> LabelledRows:
        """Read a batch; skip late rows, whose time is before ``min_time_s``. ``num_before`` rows precede the batch.

        Raise InputError for a wrong column or value; the message has the value, the column and the row's index.
        """
        newest_s, late = NEVER, 0
        if self.held_out is not None and (marks := named_column(batch, self.held_out)).null_count:
            row = num_before + int(np.argmax(marks.is_null().to_numpy(zero_copy_only=False)))
            raise InputError(f"column {self.held_out!r}, row {row}: expected true or false, got null")
        if self.time is not None:
            times = read_times(batch, self.time, num_before)
            newest_s = float(times.max(initial=NEVER))
            is_late = times < min_time_s
            late = int(np.count_nonzero(is_late))
            if late:
                batch = batch.filter(pa.array(~is_late))
        labels = read_numbers(batch, self.label, num_before)
        is_wrong = (labels != 0) & (labels != 1)
        if is_wrong.any():
            row = int(np.argmax(is_wrong))
            place = f"column {self.label!r}, row {num_before + row}"
            raise InputError(f"{place}: expected a label 0 or 1, got {labels[row]!s}")
        weights = NO_WEIGHTS
        if self.weight is not None:
            weights = _float32(read_weights(batch, self.weight, num_before), self.weight, num_before)
        rows = self.hasher.rows(batch, num_before)
        value_counts = {name: batch.num_rows - batch.column(name).null_count for name in self.hasher.columns}
        return LabelledRows(rows, labels.astype(np.float32), weights, newest_s, late, value_counts)


def _float32(weights: Float64s, name: str, num_before: int) -> Float32s:
    """Return weights as float32; raise InputError if a weight is too large for float32."""
    with np.errstate(over="ignore"):
        rounded = weights.astype(np.float32)
    if np.isinf(rounded).any():
        row = int(np.argmax(np.isinf(rounded)))
        raise InputError(
            f"column {name!r}, row {num_before + row}: expected a weight that fits float32, got {weights[row]:g}"
        )
    return rounded


def read_times(batch: pa.RecordBatch, name: str, num_before: int) -> Float64s:
    """Return a column of times in seconds, float64, shape (n,). Timestamps are converted to seconds since 1970 in UTC.

    Raise InputError if the column is missing, its type is wrong, or a row has no time.
    """
    column = named_column(batch, name)
    if pa.types.is_timestamp(column.type):
        if column.null_count:
            row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise InputError(f"column {name!r}, row {num_before + row}: expected a time, got null")
        microseconds: Int64s = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_numpy()
        return microseconds / 1e6
    return read_numbers(batch, name, num_before)
