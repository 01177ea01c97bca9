"""Check a table's labels and weights, add them up by rdd_partition and class, and compute statistics of the sums.

Spark computes the sums (``tables.survey``), or a single worker does while it reads all rows (``ReadAndSurvey``). Like
Spark, the worker adds up the rows of each partition one by one, so both results are equal bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.algorithms.frame.frames import num_values_of
from ps2.algorithms.training.faults import ColumnNames, Form, Mask, error_of, outside
from ps2.algorithms.training.reading import Reading, read
from ps2.algorithms.training.table import COST, PART, ROWS, SQUARES, Facts
from ps2.array_types import Float64s
from ps2.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql.types import StructField

# The maximum number of classes that are inferred from labels, as in pyspark.ml. Metadata of the column may list more.
MAX_CLASSES = 100
# If the largest weight is outside of this range, squares could overflow or vanish: weights are scaled by 2**n.
MIN_WEIGHT, MAX_WEIGHT = 2.0**-200, 2.0**200
# Squares of larger labels, or of smaller differences between labels, could leave float64's range.
MAX_LABEL, MIN_SPREAD = 1e150, 1e-140

# The sums over the rows of one rdd_partition and class (-1: held-out rows), by name (``FIELDS``). "wy" and "wyy" are
# sums of weight * label and weight * label^2. ``min_label`` and ``max_label`` are None if no weight is above 0.
Group = Mapping[str, Any]


class Labels:
    """The labels that are valid.

    Attributes:
        classes: the maximum number of classes; 0: no limit; None: labels are numbers, not classes.
        metadata_classes: the number of classes in the column's metadata; None: the metadata do not have it.
        limit: the number of valid classes, 0 to ``limit`` - 1.
    """

    def __init__(self, name: str, classes: int | None, field: StructField) -> None:
        self.name = name
        self.classes = classes
        attribute = field.metadata.get("ml_attr", {})
        self.metadata_classes = num_values_of(attribute, attribute.get("type"))
        self.limit = classes or self.metadata_classes or MAX_CLASSES

    @property
    def expected(self) -> str:
        """The description of a valid label."""
        if self.classes is None:
            return "a finite number"
        source = "" if self.classes or self.metadata_classes else f" ({MAX_CLASSES} classes at most without metadata)"
        return f"a class, one of 0 to {self.limit - 1}{source}"

    def invalid_class_sql(self, y: str) -> str:
        """Return SQL that is true if a finite label ``y`` is not a valid class."""
        if self.classes is None:
            return "false"
        # floor() raises an error for a number beyond int64.
        return f"({y} != rint({y}) or {y} < 0 or {y} >= {self.limit})"

    def class_sql(self, y: str) -> str:
        return "0" if self.classes is None else f"cast({y} as int)"


def exact_scaling(groups: Sequence[Group], shift: float, classes: int | None) -> tuple[float, float]:
    """Return the number to subtract from labels, and the factor for weights, that keep rounding errors of sums small.

    ``shift`` is the label of the first row. It is returned if it is within the range of the labels.
    """
    weighted = [row for row in groups if row["class"] >= 0 and row["min_label"] is not None]
    if not weighted:
        return shift, 1.0
    smallest, largest = min(row["min_label"] for row in weighted), max(row["max_label"] for row in weighted)
    if classes is None and not smallest <= shift <= largest:
        shift = smallest  # the first row is held out or has weight 0, and its label may be far from the other labels
    max_weight = max(row["max_weight"] for row in weighted)
    if MIN_WEIGHT < max_weight < MAX_WEIGHT:
        return shift, 1.0
    return shift, 2.0 ** min(-math.frexp(max_weight)[1], 1023)


def facts_of(groups: Sequence[Group], labels: Labels, shift: float, unit: float) -> Facts:
    """Return the statistics of the rows to train on, computed from the sums of their groups.

    ``shift`` was subtracted from labels, and weights were multiplied by ``unit``. Raise InputError if all rows are held
    out, all weights are 0, or labels are too large or too close to each other.
    """
    weight, weight_squared = (sum(row[name] for row in groups) for name in ("weight", "weight_squared"))
    rows = sum(row["rows"] for row in groups)
    if not rows:
        raise InputError("expected rows to train on, but all of them are held out (validationIndicatorCol)")
    if not weight > 0:
        raise InputError(f"expected weights of which some are above 0, got {rows} rows whose weights are all 0")
    weighted = [row for row in groups if row["min_label"] is not None]
    label_range = min(row["min_label"] for row in weighted), max(row["max_label"] for row in weighted)
    if labels.classes is None:
        _check_size(labels, *label_range)
    mean = sum(row["wy"] for row in groups) / weight
    squares = sum(row["wyy"] for row in groups)
    variance = squares - weight * mean * mean
    if not math.isfinite(variance):
        raise InputError(f"column {labels.name!r}: the squares of its labels add up to {squares:g}, too large")
    # The unbiased variance of rows with reliability weights, as pyspark's Summarizer computes it.
    degrees_of_freedom = weight - weight_squared / weight
    std = math.sqrt(max(variance / degrees_of_freedom, 0.0)) if degrees_of_freedom > 0 else 0.0
    classes = _class_weights(groups, labels)
    return Facts(rows, weight, weight_squared, classes, mean + shift, std, label_range, unit)


def _check_size(labels: Labels, smallest: float, largest: float) -> None:
    """Raise InputError if the squares of numeric labels, or of their differences, leave float64's range."""
    name = f"column {labels.name!r}"
    if max(-smallest, largest) > MAX_LABEL:
        extreme = smallest if -smallest > largest else largest
        raise InputError(f"{name}: expected labels up to {MAX_LABEL:g}, got {extreme:g}, whose square is too large")
    spread = largest - smallest or abs(largest)
    if 0 < spread < MIN_SPREAD:
        raise InputError(
            f"{name}: expected labels that differ by {MIN_SPREAD:g} at least, got {smallest:g} to {largest:g}, whose "
            "squares are too small; multiply the labels by a large number"
        )


def _class_weights(groups: Sequence[Group], labels: Labels) -> tuple[float, ...]:
    if labels.classes is None:
        return ()
    count = labels.classes or labels.metadata_classes or 1 + max(row["class"] for row in groups)
    sums = [0.0] * max(count, 2)
    for row in groups:
        sums[row["class"]] += row["weight"]
    return tuple(sums)


def finite_or_0(value: Any) -> float:
    """Return a number as a float; 0 if it is null, NaN or infinite."""
    return float(value) if value is not None and math.isfinite(value) else 0.0


def is_finite_sql(x: str) -> str:
    return f"({x} is not null and not isnan({x}) and abs({x}) != double('infinity'))"


def not_finite_sql(role: str, x: str) -> dict[str, str]:
    """Return SQL conditions for a number ``x`` that is null, NaN or infinite, named "<role>_null" and so on."""
    return {
        f"{role}_null": f"{x} is null",
        f"{role}_NaN": f"{x} is not null and isnan({x})",
        f"{role}_infinite": f"{x} is not null and abs({x}) = double('infinity')",
    }


# The temporary column with the index of each row's rdd_partition in the user's DataFrame.
PART_COLUMN = "ps2_part"
# The names of a group's values, in the order of the columns of ``WorkerSurvey.table``.
FIELDS = (
    *(PART, "class", ROWS, COST, SQUARES),
    *("min_label", "max_label", "max_weight", "weight", "weight_squared", "wy", "wyy"),
)
INTEGERS = (PART, "class", ROWS)
HELD_OUT = -1


@dataclass(frozen=True, eq=False)
class WorkerSurvey:
    """The only worker's survey of rows without faults.

    Attributes:
        table: the values of each group, float64, shape (groups, len(FIELDS)); NaN: no value.
        shift: the number that was subtracted from labels.
        unit: the number by which weights were multiplied.
    """

    table: Float64s
    shift: float
    unit: float
    dim: int

    @staticmethod
    def unpack(report: Mapping[str, Any]) -> WorkerSurvey | None:
        """Return the survey that ``pack_survey`` encoded; None: there is no survey."""
        if not len(report["head"]):
            return None
        shift, unit, dim = report["head"].tolist()
        return WorkerSurvey(report["groups"], shift, unit, int(dim))

    def groups(self) -> list[Group]:
        """Return the groups in the form of Spark's survey."""
        rows = [dict(zip(FIELDS, row, strict=True)) for row in self.table.tolist()]
        return [{name: _decoded(name, value) for name, value in row.items()} for row in rows]


def pack_survey(reading_and_survey: tuple[Reading, WorkerSurvey | None]) -> dict[str, Any]:
    """Encode a worker's survey, or None, as plain data."""
    _, survey = reading_and_survey
    if survey is None:
        return {"groups": np.empty((0, len(FIELDS))), "head": np.empty(0)}
    return {"groups": survey.table, "head": np.array([survey.shift, survey.unit, survey.dim])}


@dataclass(frozen=True, eq=False)
class ReadAndSurvey:
    """Reads a worker's rows, and surveys them.

    Attributes:
        classes: the maximum number of classes; 0: no limit; None: labels are numbers, not classes.
        class_limit: the number of valid classes; see ``Labels.limit``.
        max_bytes: the maximum total size of the Arrow batches; Spark can underestimate the size of a table.
    """

    columns: ColumnNames
    form: Form
    classes: int | None
    class_limit: int
    max_bytes: int

    def __call__(self, worker: Any, batches: Iterable[pa.RecordBatch]) -> tuple[Reading, WorkerSurvey | None]:
        """Return the rows and their survey. None: Spark must survey them, because they have faults or are too many."""
        parts: list[npt.NDArray[np.int32]] = []
        held_out_masks: list[Mask] = []
        total_bytes = 0

        def batches_within_limit() -> Iterator[pa.RecordBatch]:
            nonlocal total_bytes
            for batch in batches:
                total_bytes += batch.nbytes
                if total_bytes > self.max_bytes:
                    return
                parts.append(batch.column(PART_COLUMN).to_numpy())
                if self.columns.validation is not None:
                    held_out_masks.append(batch.column(self.columns.validation).to_numpy(zero_copy_only=False))
                yield batch

        reading = read(batches_within_limit(), self.columns, self.form)
        has_faults = error_of(reading.faults[None], self.columns, self.form) is not None
        if total_bytes > self.max_bytes or not reading.size or has_faults:
            return reading, None
        part = np.concatenate(parts)
        is_held_out = np.concatenate(held_out_masks).astype(bool) if held_out_masks else np.zeros(len(part), bool)
        rows = _Rows.of(reading, part, is_held_out, self.classes is not None)
        if self.classes is not None and outside(rows.y, self.class_limit).any():
            return reading, None
        shift = finite_or_0(rows.y[0]) if self.classes is None else 0.0
        groups = WorkerSurvey(_group_sums(rows, shift, 1.0), shift, 1.0, 0).groups()
        shift, unit = exact_scaling(groups, shift, self.classes)
        return reading, WorkerSurvey(_group_sums(rows, shift, unit), shift, unit, reading.size)


class _Rows(NamedTuple):
    """Arrays with a value for each of n rows, in Spark's order.

    Attributes:
        groups: the rdd_partition and the class (``HELD_OUT`` for a held-out row), float64, shape (n, 2).
        y, weights: the labels and weights, float64, shape (n,); the weights of held-out rows are 1.
        costs: the costs (see ``Load``), float64, shape (n,).
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
    """Return the table of a ``WorkerSurvey``: ordered by rdd_partition, then by class."""
    table = []
    for part, label_class in np.unique(rows.groups, axis=0).tolist():
        selected = (rows.groups == (part, label_class)).all(axis=1)
        costs = rows.costs[selected]
        labels = [np.nan] * 7
        if label_class != HELD_OUT:
            # Squares can overflow, as in Spark. ``exact_scaling`` then returns another unit, or ``facts_of`` raises.
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
