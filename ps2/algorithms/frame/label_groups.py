"""A survey of labels and weights by the only worker, which has read all rows: the sums that Spark's survey returns.

Spark adds up row after row within an rdd_partition, and so do these sums: both surveys are equal to the bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.algorithms.frame.labels import Group, better_sums, finite_or_0
from ps2.algorithms.training.faults import ColumnNames, Form, error_of, outside
from ps2.algorithms.training.reading import Reading, read
from ps2.algorithms.training.table import COST, PART, ROWS, SQUARES
from ps2.array_types import Float64s
from ps2.data.rows import LocalRows

# The column of rows that says which rdd_partition of the DataFrame they are from.
PART_COLUMN = "ps2_part"
# The fields of a group, in the order in which they are sent.
FIELDS = (PART, "class", ROWS, COST, SQUARES, "least", "most", "heaviest", "weight", "squared", "wy", "wyy")
WHOLE = (PART, "class", ROWS)
HELD_OUT = -1


@dataclass(frozen=True, eq=False)
class WorkerSurvey:
    """A worker's survey, without faults.

    Attributes:
        table: float64, shape (groups, len(FIELDS)); NaN: there is none.
        shift: the number that was subtracted from labels.
        unit: the number that weights were multiplied by.
        dim: number of features.
    """

    table: Float64s
    shift: float
    unit: float
    dim: int

    @staticmethod
    def unpacked(report: Mapping[str, Any]) -> WorkerSurvey | None:
        """Read what ``packed`` has made."""
        if not len(report["head"]):
            return None
        shift, unit, dim = report["head"].tolist()
        return WorkerSurvey(report["groups"], shift, unit, int(dim))

    def groups(self) -> list[Group]:
        """Return the groups as Spark's survey does."""
        named = [dict(zip(FIELDS, group, strict=True)) for group in self.table.tolist()]
        return [{name: _value(name, value) for name, value in group.items()} for group in named]


def packed(held: tuple[Reading, WorkerSurvey | None]) -> dict[str, Any]:
    """Return a worker's survey as plain data."""
    _, survey = held
    if survey is None:
        return {"groups": np.empty((0, len(FIELDS))), "head": np.empty(0)}
    return {"groups": survey.table, "head": np.array([survey.shift, survey.unit, survey.dim])}


@dataclass(frozen=True, eq=False)
class ReadAndSurvey:
    """Reads a worker's rows, and surveys them.

    Attributes:
        classes: see ``tables.survey``.
        most: labels of classes are whole numbers below this.
        most_bytes: the maximum bytes of the Arrow batches that the worker reads; Spark's estimate may be far too small.
    """

    columns: ColumnNames
    form: Form
    classes: int | None
    most: int
    most_bytes: int

    def __call__(self, worker: Any, batches: Iterable[pa.RecordBatch]) -> tuple[Reading, WorkerSurvey | None]:
        """Return the rows, and their survey; None: Spark has to survey them, as they have faults or are too many."""
        parts: list[npt.NDArray[np.int32]] = []
        marks: list[npt.NDArray[np.bool_]] = []

        total, is_whole = 0, True

        def noted() -> Iterator[pa.RecordBatch]:
            nonlocal total, is_whole
            for batch in batches:
                total += batch.nbytes
                if total > self.most_bytes:
                    is_whole = False
                    return
                parts.append(batch.column(PART_COLUMN).to_numpy())
                if self.columns.validation is not None:
                    marks.append(batch.column(self.columns.validation).to_numpy(zero_copy_only=False))
                yield batch

        reading = read(noted(), self.columns, self.form)
        if not is_whole or not reading.size or error_of(reading.faults[None], self.columns, self.form) is not None:
            return reading, None
        part = np.concatenate(parts)
        held = np.concatenate(marks).astype(bool) if marks else np.zeros(len(part), bool)
        y = np.empty(len(part))
        assert reading.training.y is not None
        y[~held] = reading.training.y
        if reading.held_out is not None:
            assert reading.held_out.y is not None
            y[held] = reading.held_out.y
        if self.classes is not None and outside(y, self.most).any():
            return reading, None
        groups = _Groups(reading, part, held, y, self.classes is not None)
        shift = finite_or_0(y[0]) if self.classes is None else 0.0
        shift, unit = better_sums(WorkerSurvey(groups.sums(shift, 1.0), shift, 1.0, 0).groups(), shift, self.classes)
        return reading, WorkerSurvey(groups.sums(shift, unit), shift, unit, reading.size)


class _Groups:
    """Rows by rdd_partition and class."""

    def __init__(
        self,
        reading: Reading,
        part: npt.NDArray[np.int32],
        held: npt.NDArray[np.bool_],
        y: Float64s,
        are_classes: bool,
    ) -> None:
        trained, out = reading.training, reading.held_out
        self._y = y[~held]
        self._w = np.ones(len(trained)) if trained.weights is None else trained.weights
        of_class = self._y.astype(np.int64) if are_classes else np.zeros(len(trained), np.int64)
        self._keys = np.column_stack([part[~held], of_class])
        self._costs = _costs(trained)
        self._held = np.column_stack([part[held], np.full(held.sum(), HELD_OUT)])
        self._held_costs = np.empty(0) if out is None else _costs(out)

    def sums(self, shift: float, unit: float) -> Float64s:
        """Return the groups in order, float64, shape (groups, len(FIELDS))."""
        rows = []
        for part, of_class in np.unique(np.concatenate([self._keys, self._held]), axis=0).tolist():
            is_held = of_class == HELD_OUT
            keys, costs = (self._held, self._held_costs) if is_held else (self._keys, self._costs)
            mine = (keys == (part, of_class)).all(axis=1)
            group = [part, of_class, mine.sum(), costs[mine].sum(), (costs[mine] ** 2).sum()]
            rows.append([*group, *([np.nan] * 7 if is_held else self._of_labels(mine, shift, unit))])
        return np.array(rows, np.float64).reshape(-1, len(FIELDS))

    def _of_labels(self, mine: npt.NDArray[np.bool_], shift: float, unit: float) -> list[float]:
        # Squares may overflow, as Spark's do: ``better_sums`` then finds another unit, or ``facts_of`` refuses labels.
        with np.errstate(over="ignore", invalid="ignore"):
            return self._sums_of(self._y[mine], self._w[mine] * unit, shift)

    @staticmethod
    def _sums_of(y: Float64s, w: Float64s, shift: float) -> list[float]:
        counted = y[w > 0]
        least, most = (counted.min(), counted.max()) if len(counted) else (np.nan, np.nan)
        y = y - shift
        return [least, most, w.max(), *(float(np.cumsum(values)[-1]) for values in (w, w * w, w * y, w * y * y))]


def _costs(rows: LocalRows) -> Float64s:
    return 1.0 + np.diff(rows.x.indptr)


def _value(name: str, value: float) -> Any:
    if value != value:
        return None
    return int(value) if name in WHOLE else value
