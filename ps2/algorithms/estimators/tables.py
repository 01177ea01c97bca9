"""Survey a DataFrame before training: its columns, labels, weights, and how its rows are partitioned.

One aggregation inside Spark surveys labels and weights before a worker starts; no row comes to Python for it. The
workers check the features when they read them, before the first step (``ps2.algorithms.training.reading``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NoReturn

from pyspark.ml.linalg import VectorUDT
from pyspark.mllib.linalg import VectorUDT as OldVectorUDT
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, IntegralType, NumericType, StringType, StructField

from ps2.algorithms.estimators.attributes import values_of
from ps2.algorithms.estimators.loads import COST, PART, Load, loads_of, sums_of
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import Facts
from ps2.errors import InputError

# pyspark.ml infers at most this many classes; a label column whose metadata list its classes may have more.
MAX_CLASSES = 100
SHOWN_CHARS = 200
NOT_FINITE = ("null", "NaN", "infinite")
# If the largest weight is outside these bounds, all weights are multiplied by a power of two.
LEAST_WEIGHT, MOST_WEIGHT = 2.0**-200, 2.0**200
# Squares of larger labels, or of smaller differences between labels, could leave float64's range.
MOST_LABEL, LEAST_SPREAD = 1e150, 1e-140


@dataclass(frozen=True)
class TableSurvey:
    """Result of a survey of any table.

    Attributes:
        dim: number of features.
        loads: the work of the rows in each non-empty rdd_partition.
    """

    dim: int
    loads: dict[int, Load]

    @property
    def rows(self) -> int:
        """Number of rows, held-out rows included."""
        return sum(load.rows for load in self.loads.values())

    @property
    def weight_unit(self) -> float:
        """The factor by which weights are multiplied when rows go to the workers."""
        return 1.0


@dataclass(frozen=True)
class Survey(TableSurvey):
    """Result of a survey of a table with labels.

    Attributes:
        facts: of the rows to train on.
        features: the schema's entries for the feature columns.
        has_class_0_alone: whether all rows to train on are of class 0, and no metadata list another class.
    """

    facts: Facts
    features: tuple[StructField, ...]
    has_class_0_alone: bool = False

    @property
    def weight_unit(self) -> float:
        return self.facts.weight_unit


def names_of(columns: ColumnNames) -> list[str]:
    """Return all column names, each once."""
    features = [columns.features] if isinstance(columns.features, str) else list(columns.features)
    others = [
        name
        for name in (columns.label, columns.weight, columns.validation, columns.margin, columns.group)
        if name is not None
    ]
    return list(dict.fromkeys([*features, *others]))


def column(name: str) -> Column:
    """Return the column of that name, dots and backquotes included."""
    return F.col("`" + name.replace("`", "``") + "`")


def check_columns(frame: DataFrame, columns: ColumnNames) -> None:
    """Raise InputError unless all columns exist and have usable types; starts no job."""
    check_features(frame, columns.features)
    for name, role in ((columns.label, "labels"), (columns.weight, "weights"), (columns.margin, "margins")):
        if name is not None and not isinstance(field(frame, name).dataType, (NumericType, BooleanType)):
            raise InputError(f"column {name!r}: expected numbers as {role}, got {_type(frame, name)}")
    name = columns.validation
    if name is not None and not isinstance(field(frame, name).dataType, BooleanType):
        raise InputError(f"column {name!r}: expected booleans, true for rows to hold out, got {_type(frame, name)}")
    if columns.group is not None:
        check_group(frame, columns.group)


def check_group(frame: DataFrame, name: str) -> None:
    """Raise InputError unless a column can name the groups of rows; starts no job."""
    if not isinstance(field(frame, name).dataType, (IntegralType, StringType)):
        raise InputError(f"column {name!r}: expected integers or strings as groups, got {_type(frame, name)}")


def check_features(frame: DataFrame, features: str | tuple[str, ...]) -> None:
    """Raise InputError unless the feature columns exist and have usable types; starts no job."""
    if isinstance(features, str):
        kind = field(frame, features).dataType
        of_numbers = isinstance(kind, ArrayType) and isinstance(kind.elementType, NumericType)
        if not of_numbers and not isinstance(kind, (VectorUDT, OldVectorUDT)):
            raise InputError(
                f"column {features!r}: expected vectors of pyspark.ml or arrays of numbers, got "
                f"{_type(frame, features)}"
            )
        return
    if not features:
        raise InputError("featuresCols: expected the names of columns of numbers, got none")
    for name in features:
        if not isinstance(field(frame, name).dataType, (NumericType, BooleanType)):
            raise InputError(f"column {name!r}: expected numbers as a feature, got {_type(frame, name)}")


def field(frame: DataFrame, name: str) -> StructField:
    """Return the schema's entry for a column.

    Raises:
        InputError: there is no such column; lists those that exist.
    """
    for found in frame.schema.fields:
        if found.name == name:
            return found
    raise InputError(f"there is no column {name!r}; there are: {', '.join(frame.columns)}")


def survey(frame: DataFrame, columns: ColumnNames, classes: int | None) -> Survey:
    """Survey labels, weights and the number of features; two Spark jobs, of which the first reads one row.

    Args:
        frame: with columns that ``check_columns`` accepts, a label among them.
        classes: the largest number of classes; 0: no limit; None: labels are numbers.

    Raises:
        InputError: there is no row to train on; a label or weight is null, NaN or infinite; a weight is negative; a
            label is not a class; all weights are 0. The message says how many rows are wrong, and shows one. Also if
            numeric labels are so large, or so near each other, that their squares leave float64's range.
    """
    assert columns.label is not None
    first = first_row(frame, columns)
    of_labels = _Labels(columns.label, classes, field(frame, columns.label))
    shift = _finite_or_0(first[columns.label]) if classes is None else 0.0
    unit = 1.0
    found = _aggregate(frame, columns, of_labels, shift, unit)
    _check_faults(frame, columns, of_labels, found)
    better = _better_sums(found, shift, classes)
    if better != (shift, unit):
        shift, unit = better
        found = _aggregate(frame, columns, of_labels, shift, unit)
    used = [row for row in found if row["class"] >= 0]
    facts = _facts(used, of_labels, shift, unit)
    features = [columns.features] if isinstance(columns.features, str) else columns.features
    dim, fields = dim_of(frame, columns.features, first), tuple(field(frame, name) for name in features)
    is_alone = classes is not None and of_labels.described is None and not any(row["class"] for row in used)
    return Survey(dim, loads_of(found), facts, fields, is_alone)


def _better_sums(found: list[Row], shift: float, classes: int | None) -> tuple[float, float]:
    """Return the number to subtract from labels, and the factor for weights, that keep sums exact."""
    counted = [row for row in found if row["class"] >= 0 and row["least"] is not None]
    if not counted:
        return shift, 1.0
    least, most = min(row["least"] for row in counted), max(row["most"] for row in counted)
    if classes is None and not least <= shift <= most:
        shift = least  # the first row does not count, and may be far away
    heaviest = max(row["heaviest"] for row in counted)
    if LEAST_WEIGHT < heaviest < MOST_WEIGHT:
        return shift, 1.0
    return shift, 2.0 ** min(-math.frexp(heaviest)[1], 1023)


def first_row(frame: DataFrame, columns: ColumnNames) -> Row:
    """Return the named columns of the first row; InputError if there is none."""
    first = frame.select(*map(column, names_of(columns))).head()
    if first is None:
        raise InputError("expected rows to train on, got an empty DataFrame")
    return first


class _Labels:
    """The labels that are valid."""

    def __init__(self, name: str, classes: int | None, field: StructField) -> None:
        self.name = name
        self.classes = classes
        self.described = _described_classes(field)
        self.most = classes or self.described or MAX_CLASSES

    @property
    def expected(self) -> str:
        """Description of a valid label."""
        if self.classes is None:
            return "a finite number"
        source = "" if self.classes or self.described else f" ({MAX_CLASSES} classes at most without metadata)"
        return f"a class, one of 0 to {self.most - 1}{source}"

    def strange(self, y: Column) -> Column:
        """Whether a finite label is not a class."""
        if self.classes is None:
            return F.lit(False)
        # floor() raises an error for a number beyond int64.
        return (y != F.rint(y)) | (y < 0) | (y >= self.most)

    def number(self, y: Column) -> Column:
        """The class of a valid label."""
        return F.lit(0) if self.classes is None else y.cast("int")


def _aggregate(frame: DataFrame, columns: ColumnNames, labels: _Labels, shift: float, unit: float) -> list[Row]:
    """Counts and sums by rdd_partition and class (-1: held out); weights are multiplied by their unit."""
    y = column(labels.name).cast("double")
    w = F.lit(1.0) if columns.weight is None else unit * column(columns.weight).cast("double")
    held = F.lit(False) if columns.validation is None else column(columns.validation)
    faults = {**_not_finite("label", y), "label_strange": _is_finite(y) & labels.strange(y)}
    if columns.weight is not None:
        faults |= {**_not_finite("weight", w), "weight_negative": _is_finite(w) & (w < 0)}
    if columns.validation is not None:
        faults["validation_null"] = held.isNull()
    bad = F.lit(False)
    for fault in faults.values():
        bad = bad | fault
    rows = frame.select(
        F.spark_partition_id().alias(PART),
        cost_of(frame, columns.features).alias(COST),
        F.when(bad | held, -1).otherwise(labels.number(y)).alias("class"),
        (y - shift).alias("y"),
        F.when(w > 0, y).alias("counted"),
        w.alias("w"),
        *(fault.cast("long").alias(name) for name, fault in faults.items()),
    )
    y, w = F.col("y"), F.col("w")
    sums = {"weight": w, "squared": w * w, "wy": w * y, "wyy": w * y * y, **{name: F.col(name) for name in faults}}
    return (
        rows.groupBy(PART, "class")
        .agg(
            *sums_of(F.col(COST)),
            F.min("counted").alias("least"),
            F.max("counted").alias("most"),
            F.max("w").alias("heaviest"),
            *(F.sum(value).alias(name) for name, value in sums.items()),
        )
        .collect()
    )


def _is_finite(x: Column) -> Column:
    return x.isNotNull() & ~F.isnan(x) & (F.abs(x) != math.inf)


def _not_finite(role: str, x: Column) -> dict[str, Column]:
    there = x.isNotNull()
    return {
        f"{role}_null": x.isNull(),
        f"{role}_NaN": there & F.isnan(x),
        f"{role}_infinite": there & (F.abs(x) == math.inf),
    }


def _check_faults(frame: DataFrame, columns: ColumnNames, labels: _Labels, found: list[Row]) -> None:
    total = sum(row["rows"] for row in found)
    kinds = [
        ("label", columns.label, (*NOT_FINITE, "strange"), labels.expected),
        ("weight", columns.weight, (*NOT_FINITE, "negative"), "a finite weight that is not negative"),
        ("validation", columns.validation, ("null",), "true or false"),
    ]
    for role, name, kinds_of_fault, expected in kinds:
        if name is None:
            continue
        counts = {kind: sum(row[f"{role}_{kind}"] for row in found) for kind in kinds_of_fault}
        if not any(counts.values()):
            continue
        x = column(name)
        conditions = {"null": x.isNull()}
        if role != "validation":
            x = x.cast("double")
            conditions = {
                **{kind: _not_finite(role, x)[f"{role}_{kind}"] for kind in NOT_FINITE},
                "strange": labels.strange(x),
                "negative": x < 0,
            }
        wrong = F.lit(False)
        for kind, count in counts.items():
            wrong = wrong | conditions[kind] if count else wrong
        words = {"strange": "no such class"}
        faults = ", ".join(f"{count} {words.get(kind, kind)}" for kind, count in counts.items() if count)
        some = frame.where(F.coalesce(wrong, F.lit(True)))
        mend = "; pyspark.ml's StringIndexer makes classes of labels such as -1 and 1" if counts.get("strange") else ""
        _fail(some, columns, f"column {name!r}: expected {expected}", faults, total, mend)


def _fail(wrong: DataFrame, columns: ColumnNames, expected: str, faults: str, total: int, mend: str = "") -> NoReturn:
    """Raise InputError with counts, one of the faulty rows, and advice."""
    row = wrong.select(*map(column, names_of(columns))).head()
    sample = "" if row is None else f"; such a row: {str(row)[:SHOWN_CHARS]}"
    raise InputError(f"{expected}, got {faults} in {total} rows{sample}{mend}")


def _facts(used: list[Row], labels: _Labels, shift: float, unit: float) -> Facts:
    weight, squared = (sum(row[name] for row in used) for name in ("weight", "squared"))
    rows = sum(row["rows"] for row in used)
    if not rows:
        raise InputError("expected rows to train on, but all of them are held out (validationIndicatorCol)")
    if not weight > 0:
        raise InputError(f"expected weights of which some are above 0, got {rows} rows whose weights are all 0")
    counted = [row for row in used if row["least"] is not None]
    label_range = min(row["least"] for row in counted), max(row["most"] for row in counted)
    if labels.classes is None:
        _check_size(labels, *label_range)
    mean = sum(row["wy"] for row in used) / weight
    squares = sum(row["wyy"] for row in used)
    variance = squares - weight * mean * mean
    if not math.isfinite(variance):
        raise InputError(f"column {labels.name!r}: the squares of its labels add up to {squares:g}, too large")
    freedom = weight - squared / weight
    std = math.sqrt(max(variance / freedom, 0.0)) if freedom > 0 else 0.0
    return Facts(rows, weight, squared, _class_weights(used, labels), mean + shift, std, label_range, unit)


def _check_size(labels: _Labels, least: float, most: float) -> None:
    """Raise InputError for numeric labels if their squares, or those of their differences, leave float64's range."""
    name = f"column {labels.name!r}"
    if max(-least, most) > MOST_LABEL:
        of = least if -least > most else most
        raise InputError(f"{name}: expected labels up to {MOST_LABEL:g}, got {of:g}, whose square is too large")
    spread = most - least or abs(most)
    if 0 < spread < LEAST_SPREAD:
        raise InputError(
            f"{name}: expected labels that differ by {LEAST_SPREAD:g} at least, got {least:g} to {most:g}, whose "
            "squares are too small; multiply them by something"
        )


def _class_weights(used: list[Row], labels: _Labels) -> tuple[float, ...]:
    if labels.classes is None:
        return ()
    count = labels.classes or labels.described or 1 + max(row["class"] for row in used)
    sums = [0.0] * max(count, 2)
    for row in used:
        sums[row["class"]] += row["weight"]
    return tuple(sums)


def _described_classes(field: StructField) -> int | None:
    """Return the number of classes in the label's metadata (ml_attr)."""
    attribute = field.metadata.get("ml_attr", {})
    return values_of(attribute, attribute.get("type"))


def known_dim(frame: DataFrame, features: str | tuple[str, ...]) -> int | None:
    """Return the number of features from names or metadata (ml_attr); None if only the rows can tell."""
    if not isinstance(features, str):
        return len(features)
    attributes = field(frame, features).metadata.get("ml_attr", {})
    if "num_attrs" in attributes or "attrs" in attributes:
        dim = attributes.get("num_attrs") or sum(map(len, attributes["attrs"].values()))
        return int(dim)
    return None


def dim_of(frame: DataFrame, features: str | tuple[str, ...], first: Row) -> int:
    """Return the number of features, from the metadata or the first row.

    Raises:
        InputError: the row holds null, or no feature.
    """
    dim = known_dim(frame, features)
    if dim is not None:
        return dim
    assert isinstance(features, str)
    value = first[features]
    if value is None:
        nulls = frame.where(column(features).isNull()).count()
        raise InputError(
            f"column {features!r}: expected vectors or arrays, got null in {nulls} rows; such a row: {first}"
        )
    dim = len(value)
    if not dim:
        raise InputError(f"column {features!r}: expected features, got a vector of size 0 in the first row")
    return dim


def _finite_or_0(value: Any) -> float:
    return float(value) if value is not None and math.isfinite(value) else 0.0


def _type(frame: DataFrame, name: str) -> str:
    return str(field(frame, name).dataType.simpleString())


def cost_of(frame: DataFrame, features: str | tuple[str, ...]) -> Column:
    """Return what a row costs to compute with: 1, and its stored feature values."""
    if not isinstance(features, str):
        return F.lit(1.0 + len(features))
    values = column(features)
    if not isinstance(field(frame, features).dataType, ArrayType):
        values = unwrapped(values)["values"]
    return F.lit(1.0) + F.when(values.isNotNull(), F.size(values)).otherwise(0)


def unwrapped(vectors: Column) -> Column:
    """Return vectors as the structs in which Spark stores them: type, size, indices, values."""
    return F.unwrap_udt(vectors)
