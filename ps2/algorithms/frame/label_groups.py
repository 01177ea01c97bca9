"""A survey of labels and weights by the only worker, which has read all rows: the sums that Spark's survey returns.

Like Spark, it adds up the rows of an rdd_partition one by one, so both surveys are equal to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.algorithms.frame.labels import Group, better_sums, finite_or_0
from ps2.algorithms.training.faults import ColumnNames, Form, Mask, error_of, outside
from ps2.algorithms.training.reading import Reading, read
from ps2.algorithms.training.table import COST, PART, ROWS, SQUARES
from ps2.array_types import Float64s

# The column with the number of each row's rdd_partition in the DataFrame.
PART_COLUMN = "ps2_part"
# The values of a group, in the order of the columns of ``WorkerSurvey.table``.
FIELDS = (
    *(PART, "class", ROWS, COST, SQUARES),
    *("min_label", "max_label", "max_weight", "weight", "squared", "wy", "wyy"),
)
INTEGERS = (PART, "class", ROWS)
HELD_OUT = -1


@dataclass(frozen=True, eq=False)
class WorkerSurvey:
    """A worker's survey of rows without faults.

    Attributes:
        table: the values of each group, float64, shape (groups, len(FIELDS)); NaN: no value.
        shift: the number that was subtracted from labels.
        unit: the number by which weights were multiplied.
        dim: the number of features.
    """

    table: Float64s
    shift: float
    unit: float
    dim: int

    @staticmethod
    def unpacked(report: Mapping[str, Any]) -> WorkerSurvey | None:
        """Return the survey that ``packed`` has encoded."""
        if not len(report["head"]):
            return None
        shift, unit, dim = report["head"].tolist()
        return WorkerSurvey(report["groups"], shift, unit, int(dim))

    def groups(self) -> list[Group]:
        """Return the groups in the form of Spark's survey."""
        named = [dict(zip(FIELDS, group, strict=True)) for group in self.table.tolist()]
        return [{name: _decoded(name, value) for name, value in group.items()} for group in named]


def packed(reading_and_survey: tuple[Reading, WorkerSurvey | None]) -> dict[str, Any]:
    """Return a worker's survey as plain data."""
    _, survey = reading_and_survey
    if survey is None:
        return {"groups": np.empty((0, len(FIELDS))), "head": np.empty(0)}
    return {"groups": survey.table, "head": np.array([survey.shift, survey.unit, survey.dim])}


@dataclass(frozen=True, eq=False)
class ReadAndSurvey:
    """Reads a worker's rows, and surveys them.

    Attributes:
        classes: see ``tables.survey``.
        class_limit: a class is a whole number below this.
        max_bytes: the limit of the Arrow batches that the worker reads, as Spark can underestimate the size of a table.
    """

    columns: ColumnNames
    form: Form
    classes: int | None
    class_limit: int
    max_bytes: int

    def __call__(self, worker: Any, batches: Iterable[pa.RecordBatch]) -> tuple[Reading, WorkerSurvey | None]:
        """Return the rows and their survey; None: Spark must survey them, as they have faults or are too many."""
        parts: list[npt.NDArray[np.int32]] = []
        marks: list[Mask] = []
        total_bytes = 0

        def batches_within_limit() -> Iterator[pa.RecordBatch]:
            nonlocal total_bytes
            for batch in batches:
                total_bytes += batch.nbytes
                if total_bytes > self.max_bytes:
                    return
                parts.append(batch.column(PART_COLUMN).to_numpy())
                if self.columns.validation is not None:
                    marks.append(batch.column(self.columns.validation).to_numpy(zero_copy_only=False))
                yield batch

        reading = read(batches_within_limit(), self.columns, self.form)
        has_faults = error_of(reading.faults[None], self.columns, self.form) is not None
        if total_bytes > self.max_bytes or not reading.size or has_faults:
            return reading, None
        part = np.concatenate(parts)
        is_held_out = np.concatenate(marks).astype(bool) if marks else np.zeros(len(part), bool)
        rows = _Rows.of(reading, part, is_held_out, self.classes is not None)
        if self.classes is not None and outside(rows.y, self.class_limit).any():
            return reading, None
        shift = finite_or_0(rows.y[0]) if self.classes is None else 0.0
        groups = WorkerSurvey(_group_sums(rows, shift, 1.0), shift, 1.0, 0).groups()
        shift, unit = better_sums(groups, shift, self.classes)
        return reading, WorkerSurvey(_group_sums(rows, shift, unit), shift, unit, reading.size)


class _Rows(NamedTuple):
    """Arrays with a value for each of n rows, in Spark's order.

    Attributes:
        groups: the rdd_partition and the class (``HELD_OUT``: held-out row), float64, shape (n, 2).
        y, weights: float64, shape (n,); the weights of held-out rows are 1.
        costs: float64, shape (n,); see ``Load``.
    """

    groups: Float64s
    y: Float64s
    weights: Float64s
    costs: Float64s

    @staticmethod
    def of(reading: Reading, part: npt.NDArray[np.int32], is_held_out: Mask, has_classes: bool) -> _Rows:
        y, weights, costs = np.empty(len(part)), np.ones(len(part)), np.empty(len(part))
        for rows, selected in ((reading.training, ~is_held_out), (reading.held_out, is_held_out)):
            if rows is not None:
                assert rows.y is not None
                y[selected], costs[selected] = rows.y, 1.0 + np.diff(rows.x.indptr)
        if reading.training.weights is not None:
            weights[~is_held_out] = reading.training.weights
        classes = np.where(is_held_out, HELD_OUT, y if has_classes else 0.0)
        return _Rows(np.column_stack([part, classes]), y, weights, costs)


def _group_sums(rows: _Rows, shift: float, unit: float) -> Float64s:
    """Return the values of the groups in order, float64, shape (groups, len(FIELDS))."""
    table = []
    for part, label_class in np.unique(rows.groups, axis=0).tolist():
        selected = (rows.groups == (part, label_class)).all(axis=1)
        costs = rows.costs[selected]
        labels = [np.nan] * 7
        if label_class != HELD_OUT:
            # Squares can overflow, like Spark's. ``better_sums`` then finds another unit, or ``facts_of`` raises.
            with np.errstate(over="ignore", invalid="ignore"):
                labels = _label_sums(rows.y[selected], rows.weights[selected] * unit, shift)
        table.append([part, label_class, selected.sum(), costs.sum(), (costs**2).sum(), *labels])
    return np.array(table, np.float64).reshape(-1, len(FIELDS))


def _label_sums(y: Float64s, weights: Float64s, shift: float) -> list[float]:
    weighted = y[weights > 0]
    min_label, max_label = (weighted.min(), weighted.max()) if len(weighted) else (np.nan, np.nan)
    y = y - shift
    products = (weights, weights * weights, weights * y, weights * y * y)
    return [min_label, max_label, weights.max(), *(float(np.cumsum(values)[-1]) for values in products)]


def _decoded(name: str, value: float) -> Any:
    if math.isnan(value):
        return None
    return int(value) if name in INTEGERS else value
