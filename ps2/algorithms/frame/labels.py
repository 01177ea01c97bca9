"""The labels and weights of a table: which are valid, and statistics from sums by rdd_partition and class. Pure.

The sums come from Spark (``tables.survey``), or from the only worker, which reads all rows (``label_groups``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ps2.algorithms.frame.frames import values_of
from ps2.algorithms.training.table import Facts
from ps2.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql.types import StructField

# pyspark.ml infers at most this many classes; a label column whose metadata list its classes may have more.
MAX_CLASSES = 100
# If the largest weight is outside of this range, all weights are multiplied by a power of two.
MIN_WEIGHT, MAX_WEIGHT = 2.0**-200, 2.0**200
# Squares of larger labels, or of smaller differences between labels, could leave float64's range.
MAX_LABEL, MIN_SPREAD = 1e150, 1e-140

# Sums over the rows of one rdd_partition and class (-1: held-out rows), by name. ``min_label`` and ``max_label`` are
# None if no row has a weight above 0.
Group = Mapping[str, Any]


class Labels:
    """The labels that are valid.

    Attributes:
        classes: the largest number of classes; 0: no limit; None: labels are numbers.
        described: the number of classes in the column's metadata; None: the metadata have none.
        limit: a class is a whole number below this.
    """

    def __init__(self, name: str, classes: int | None, field: StructField) -> None:
        self.name = name
        self.classes = classes
        self.described = _described_classes(field)
        self.limit = classes or self.described or MAX_CLASSES

    @property
    def expected(self) -> str:
        """The description of a valid label."""
        if self.classes is None:
            return "a finite number"
        source = "" if self.classes or self.described else f" ({MAX_CLASSES} classes at most without metadata)"
        return f"a class, one of 0 to {self.limit - 1}{source}"

    def is_no_class(self, y: str) -> str:
        """Return SQL for whether a finite label ``y`` is not a class."""
        if self.classes is None:
            return "false"
        # floor() raises an error for a number beyond int64.
        return f"({y} != rint({y}) or {y} < 0 or {y} >= {self.limit})"

    def class_of(self, y: str) -> str:
        """Return SQL for the class of a valid label ``y``."""
        return "0" if self.classes is None else f"cast({y} as int)"


def better_sums(groups: Sequence[Group], shift: float, classes: int | None) -> tuple[float, float]:
    """Return the number to subtract from labels, and the factor for weights, that keep the sums exact.

    ``shift`` is the label of the first row. It is returned if it is within the range of the labels.
    """
    weighted = [row for row in groups if row["class"] >= 0 and row["min_label"] is not None]
    if not weighted:
        return shift, 1.0
    smallest, largest = min(row["min_label"] for row in weighted), max(row["max_label"] for row in weighted)
    if classes is None and not smallest <= shift <= largest:
        shift = smallest  # the first row is held out or has no weight, so its label can be far from all others
    max_weight = max(row["max_weight"] for row in weighted)
    if MIN_WEIGHT < max_weight < MAX_WEIGHT:
        return shift, 1.0
    return shift, 2.0 ** min(-math.frexp(max_weight)[1], 1023)


def facts_of(used: Sequence[Group], labels: Labels, shift: float, unit: float) -> Facts:
    """Return the statistics of the rows to train on from the sums of their groups.

    ``shift`` was subtracted from labels, and weights were multiplied by ``unit``. Raise InputError if there are no such
    rows, all weights are 0, or labels are too large or too close to each other.
    """
    weight, squared = (sum(row[name] for row in used) for name in ("weight", "squared"))
    rows = sum(row["rows"] for row in used)
    if not rows:
        raise InputError("expected rows to train on, but all of them are held out (validationIndicatorCol)")
    if not weight > 0:
        raise InputError(f"expected weights of which some are above 0, got {rows} rows whose weights are all 0")
    weighted = [row for row in used if row["min_label"] is not None]
    label_range = min(row["min_label"] for row in weighted), max(row["max_label"] for row in weighted)
    if labels.classes is None:
        _check_size(labels, *label_range)
    mean = sum(row["wy"] for row in used) / weight
    squares = sum(row["wyy"] for row in used)
    variance = squares - weight * mean * mean
    if not math.isfinite(variance):
        raise InputError(f"column {labels.name!r}: the squares of its labels add up to {squares:g}, too large")
    degrees_of_freedom = weight - squared / weight
    std = math.sqrt(max(variance / degrees_of_freedom, 0.0)) if degrees_of_freedom > 0 else 0.0
    return Facts(rows, weight, squared, _class_weights(used, labels), mean + shift, std, label_range, unit)


def _check_size(labels: Labels, smallest: float, largest: float) -> None:
    """Raise InputError if the squares of numeric labels, or of their differences, leave float64's range."""
    name = f"column {labels.name!r}"
    if max(-smallest, largest) > MAX_LABEL:
        outermost = smallest if -smallest > largest else largest
        raise InputError(f"{name}: expected labels up to {MAX_LABEL:g}, got {outermost:g}, whose square is too large")
    spread = largest - smallest or abs(largest)
    if 0 < spread < MIN_SPREAD:
        raise InputError(
            f"{name}: expected labels that differ by {MIN_SPREAD:g} at least, got {smallest:g} to {largest:g}, whose "
            "squares are too small; multiply the labels by a large number"
        )


def _class_weights(used: Sequence[Group], labels: Labels) -> tuple[float, ...]:
    if labels.classes is None:
        return ()
    count = labels.classes or labels.described or 1 + max(row["class"] for row in used)
    sums = [0.0] * max(count, 2)
    for row in used:
        sums[row["class"]] += row["weight"]
    return tuple(sums)


def _described_classes(field: StructField) -> int | None:
    """Return the number of classes in the metadata of the label (ml_attr); None: the metadata have none."""
    attribute = field.metadata.get("ml_attr", {})
    return values_of(attribute, attribute.get("type"))


def finite_or_0(value: Any) -> float:
    """Return a number as a float; 0 if it is null, NaN or infinite."""
    return float(value) if value is not None and math.isfinite(value) else 0.0


def is_finite(x: str) -> str:
    """Return SQL for whether a number ``x`` is finite."""
    return f"({x} is not null and not isnan({x}) and abs({x}) != double('infinity'))"


def not_finite(role: str, x: str) -> dict[str, str]:
    """Return SQL for each way in which a number ``x`` is not finite, by names that begin with its role."""
    return {
        f"{role}_null": f"{x} is null",
        f"{role}_NaN": f"{x} is not null and isnan({x})",
        f"{role}_infinite": f"{x} is not null and abs({x}) = double('infinity')",
    }
