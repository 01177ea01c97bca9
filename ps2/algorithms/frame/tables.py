"""Survey a DataFrame before training: its columns, labels, weights, and how its rows are partitioned.

One aggregation inside Spark surveys labels and weights before a worker starts; no row comes to Python for it. The
workers check the features when they read them, before the first step (``ps2.algorithms.training.reading``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    IntegralType,
    NumericType,
    StringType,
    StructField,
    TimestampNTZType,
    TimestampType,
    UserDefinedType,
)

from ps2.algorithms.frame.frames import unwrapped
from ps2.algorithms.frame.labels import (
    Group,
    Labels,
    better_sums,
    facts_of,
    finite_or_0,
    is_finite,
    not_finite,
)
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import COST, PART, Facts, Load, loads_of, quoted, sums_sql
from ps2.data.columns import IMPUTE, listed
from ps2.errors import ConfigError, InputError
from ps2.run.spark.backend_lookup import backend_of

SHOWN_CHARS = 200
# Rows of so many bytes are surveyed by one task: a shuffle costs more.
SMALL_BYTES = 16 << 20
NO_ROWS = "expected rows to train on, got an empty DataFrame"
NOT_FINITE = ("null", "NaN", "infinite")


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
    def cost(self) -> float:
        """The number of stored feature values plus the number of rows."""
        return sum(load.cost for load in self.loads.values())

    @property
    def weight_unit(self) -> float:
        """The factor by which weights are multiplied when rows go to the workers."""
        return 1.0

    @property
    def classes(self) -> int:
        """The number of classes; 0: rows have none."""
        return 0


@dataclass(frozen=True)
class Survey(TableSurvey):
    """Result of a survey of a table with labels.

    Attributes:
        facts: the facts of the rows to train on.
        features: the schema's entries for the feature columns.
        has_class_0_alone: whether all rows to train on are of class 0, and no metadata list another class.
    """

    facts: Facts
    features: tuple[StructField, ...]
    has_class_0_alone: bool = False

    @property
    def weight_unit(self) -> float:
        return self.facts.weight_unit

    @property
    def classes(self) -> int:
        return len(self.facts.class_weights)


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
    return F.col(quoted(name))


def check_columns(frame: DataFrame, columns: ColumnNames) -> None:
    """Raise InputError unless all columns exist and have usable types; starts no job.

    Raise ConfigError if the column of labels is among the features, too.
    """
    check_features(frame, columns.features)
    check_label_is_apart(columns.label, [columns.features] if isinstance(columns.features, str) else columns.features)
    for name, role in ((columns.label, "labels"), (columns.weight, "weights"), (columns.margin, "margins")):
        if name is not None:
            check_numbers(frame, name, role)
    name = columns.validation
    if name is not None and not isinstance(field(frame, name).dataType, BooleanType):
        raise InputError(f"column {name!r}: expected booleans, true for rows to hold out, got {_type(frame, name)}")
    if columns.group is not None:
        check_group(frame, columns.group)


def check_label_is_apart(label: str | None, inputs: Collection[str]) -> None:
    """Raise ConfigError if the column of labels is one of a model's inputs, too: the model would learn nothing else."""
    if label is not None and label in inputs:
        raise ConfigError(f"labelCol: expected a column that is no input of the model, got {label!r}, which is one")


def check_numbers(frame: DataFrame, name: str, role: str) -> None:
    """Raise InputError unless a column has numbers or booleans, for a role such as "labels"; starts no job."""
    kind = field(frame, name).dataType
    if not isinstance(kind, (NumericType, BooleanType)):
        is_name = role == "labels" and isinstance(kind, StringType)
        mend = "; pyspark.ml's StringIndexer makes classes of strings" if is_name else ""
        raise InputError(f"column {name!r}: expected numbers as {role}, got {kind.simpleString()}{mend}")


def check_times(frame: DataFrame, name: str) -> None:
    """Raise InputError unless a column has timestamps or numbers, the seconds; starts no job."""
    kind = field(frame, name).dataType
    if not isinstance(kind, (TimestampType, TimestampNTZType, NumericType)):
        raise InputError(f"column {name!r}: expected timestamps, or seconds as numbers, got {kind.simpleString()}")


def check_group(frame: DataFrame, name: str) -> None:
    """Raise InputError unless a column can name the groups of rows; starts no job."""
    if not isinstance(field(frame, name).dataType, (IntegralType, StringType)):
        raise InputError(f"column {name!r}: expected integers or strings as groups, got {_type(frame, name)}")


def check_features(frame: DataFrame, features: str | tuple[str, ...]) -> None:
    """Raise InputError unless the feature columns exist and have usable types; starts no job."""
    # Here, as workers import this module: pyspark.ml and the pandas that it imports take longer than a small fit.
    from pyspark.ml.linalg import VectorUDT
    from pyspark.mllib.linalg import VectorUDT as OldVectorUDT

    if isinstance(features, str):
        kind = field(frame, features).dataType
        has_numbers = isinstance(kind, ArrayType) and isinstance(kind.elementType, NumericType)
        if not has_numbers and not isinstance(kind, (VectorUDT, OldVectorUDT)):
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
    """Return the schema's entry for a column; raise InputError if there is none, or several, as Spark sees it."""
    fields = frame.schema.fields
    match = next((one for one in fields if one.name == name), None)
    if match is None:
        raise InputError(f"there is no column {name!r}; there are: {listed(frame.columns)}")
    same = [one.name for one in fields if one.name.lower() == name.lower()]
    if len(same) > 1:
        _check_one(frame, name, same)
    return match


def _check_one(frame: DataFrame, name: str, same: Sequence[str]) -> None:
    """Raise InputError if Spark does not know which column is meant; it does where all are one expression."""
    try:
        frame.select(column(name)).schema  # noqa: B018 - Spark Connect resolves names only then
    except AnalysisException as error:
        raise InputError(
            f"column {name!r}: expected one column of that name, got {len(same)}: {', '.join(same)}; rename or drop "
            "the others"
        ) from error


def survey(frame: DataFrame, columns: ColumnNames, classes: int | None) -> Survey:
    """Survey labels, weights and the number of features; one Spark job if the rows are few, for classes.

    Args:
        frame: a DataFrame whose columns ``check_columns`` accepts, with a label.
        classes: the largest number of classes; 0: no limit; None: labels are numbers.

    Raises:
        InputError: there is no row to train on; a label or weight is null, NaN or infinite; a weight is negative; a
            label is not a class; all weights are 0. The message says how many rows are wrong, and shows one. Also if
            numeric labels are so large, or so near each other, that their squares leave float64's range.
    """
    assert columns.label is not None
    labels = Labels(columns.label, classes, field(frame, columns.label))
    # Sums of classes' labels are not wanted.
    shift = finite_or_0(first_row(frame, columns)[columns.label]) if classes is None else 0.0
    unit = 1.0
    groups = _aggregate(frame, columns, labels, shift, unit)
    if not groups:
        raise InputError(NO_ROWS)
    _check_faults(frame, columns, labels, groups)
    better = better_sums(groups, shift, classes)
    if better != (shift, unit):
        shift, unit = better
        groups = _aggregate(frame, columns, labels, shift, unit)
    dim = known_dim(frame, columns.features) or min(row["opening"] for row in groups)["dim"]
    if not dim:
        dim = dim_of(frame, columns.features, first_row(frame, columns))  # says what is wrong
    return survey_of(frame, columns, labels, groups, dim, shift, unit)


def survey_of(  # noqa: PLR0913
    frame: DataFrame, columns: ColumnNames, labels: Labels, found: Sequence[Group], dim: int, shift: float, unit: float
) -> Survey:
    """Return the survey of a table without faults, of sums by rdd_partition and class; raises as ``facts_of``."""
    used = [row for row in found if row["class"] >= 0]
    facts = facts_of(used, labels, shift, unit)
    features = [columns.features] if isinstance(columns.features, str) else columns.features
    fields = tuple(field(frame, name) for name in features)
    is_alone = labels.classes is not None and labels.described is None and not any(row["class"] for row in used)
    return Survey(dim, loads_of(found), facts, fields, is_alone)


def first_row(frame: DataFrame, columns: ColumnNames) -> Row:
    """Return the named columns of the first row, as ``_as_stored`` has them; InputError if there is none."""
    first = frame.select(*_as_stored(frame, columns)).head()
    if first is None:
        raise InputError(NO_ROWS)
    return first


def _as_stored(frame: DataFrame, columns: ColumnNames) -> list[Column]:
    """Return the named columns, vectors as structs: pyspark refuses to make vectors of indices that do not ascend."""
    stored = []
    for name in names_of(columns):
        is_vector = isinstance(field(frame, name).dataType, UserDefinedType)
        stored.append(unwrapped(column(name)).alias(name) if is_vector else column(name))
    return stored


def _aggregate(
    frame: DataFrame, columns: ColumnNames, labels: Labels, shift: float, unit: float
) -> list[dict[str, Any]]:
    """Counts and sums by rdd_partition and class (-1: held out); weights are multiplied by their unit.

    The expressions are SQL: each Column that Python makes takes several calls to Java.
    """
    y, w, held = f"cast({quoted(labels.name)} as double)", "1.0D", "false"
    if columns.weight is not None:
        w = f"{unit!r}D * cast({quoted(columns.weight)} as double)"
    if columns.validation is not None:
        held = quoted(columns.validation)
    faults = {**not_finite("label", "y"), "label_strange": f"{is_finite('y')} and {labels.strange('y')}"}
    if columns.weight is not None:
        faults |= {**not_finite("weight", "w"), "weight_negative": f"{is_finite('w')} and w < 0"}
    if columns.validation is not None:
        faults["validation_null"] = "held is null"
    bad = " or ".join(f"({fault})" for fault in faults.values())
    inputs = frame.select(
        F.expr(f"struct({y} as y, {w} as w, {held} as held)").alias("given"),
        *_entries_of(frame, columns.features),
    )
    rows = inputs.selectExpr("given.*", "entries", "dim").selectExpr(
        f"spark_partition_id() as {PART}",
        f"case when {bad} or held then -1 else {labels.number('y')} end as class",
        "struct(monotonically_increasing_id() as id, dim as dim) as opening",
        f"1.0D + coalesce(entries, 0) as {COST}",
        f"y - {shift!r}D as y",
        "case when w > 0 then y end as counted",
        "w",
        *(f"cast({fault} as bigint) as {name}" for name, fault in faults.items()),
    )
    sums = {"weight": "w", "squared": "w * w", "wy": "w * y", "wyy": "w * y * y", **{name: name for name in faults}}
    collected = (
        in_one_partition_if_small(rows)
        .groupBy(PART, "class")
        .agg(
            F.expr(
                f"struct(min(opening) as opening, {sums_sql(COST)}, min(counted) as least, max(counted) as most, "
                f"max(w) as heaviest, {', '.join(f'sum({value}) as {name}' for name, value in sums.items())})"
            ).alias("sums")
        )
        .collect()
    )
    groups = [{PART: row[PART], "class": row["class"], **row["sums"].asDict()} for row in collected]
    # Sums of sums are rounded, so their order is always the same.
    return sorted(groups, key=lambda group: (group[PART], group["class"]))


def in_one_partition_if_small(rows: DataFrame) -> DataFrame:
    """Return rows that are to be aggregated, in one partition if they are few: without a shuffle, that is one job."""
    return rows.coalesce(1) if backend_of(rows).estimated_bytes(rows) <= SMALL_BYTES else rows


def _entries_of(frame: DataFrame, features: str | tuple[str, ...]) -> list[Column]:
    """Return, of a row's features, how many values are stored, and the size; null if there are no features."""
    if not isinstance(features, str):
        return [F.lit(len(features)).alias("entries"), F.lit(len(features)).alias("dim")]
    if isinstance(field(frame, features).dataType, ArrayType):
        name = quoted(features)
        size = f"case when {name} is not null then size({name}) end"
        return [F.expr(f"{size} as entries"), F.expr(f"{size} as dim")]
    vectors = unwrapped(column(features))
    entries = F.size(vectors["values"])
    return [
        F.when(vectors.isNotNull(), entries).alias("entries"),
        F.when(vectors.isNotNull(), F.coalesce(vectors["size"], entries)).alias("dim"),
    ]


def _check_faults(frame: DataFrame, columns: ColumnNames, labels: Labels, found: list[dict[str, Any]]) -> None:
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
        x = quoted(name)
        conditions = {"null": f"{x} is null"}
        if role != "validation":
            x = f"cast({x} as double)"
            conditions = {
                **{kind: not_finite(role, x)[f"{role}_{kind}"] for kind in NOT_FINITE},
                "strange": labels.strange(x),
                "negative": f"{x} < 0",
            }
        wrong = " or ".join(f"({conditions[kind]})" for kind, count in counts.items() if count)
        words = {"strange": "no such class"}
        faults = ", ".join(f"{count} {words.get(kind, kind)}" for kind, count in counts.items() if count)
        some = frame.where(f"coalesce({wrong}, true)")
        mend = "; pyspark.ml's StringIndexer makes classes of labels such as -1 and 1" if counts.get("strange") else ""
        if role != "validation" and (counts["null"] or counts["NaN"]):
            mend += f"; {IMPUTE}"
        _fail(some, columns, f"column {name!r}: expected {expected}", faults, total, mend)


def _fail(wrong: DataFrame, columns: ColumnNames, expected: str, faults: str, total: int, mend: str = "") -> NoReturn:
    """Raise InputError with counts, one of the faulty rows, and advice."""
    row = wrong.select(*_as_stored(wrong, columns)).head()
    sample = "" if row is None else f"; such a row: {str(row)[:SHOWN_CHARS]}"
    raise InputError(f"{expected}, got {faults} in {total} rows{sample}{mend}")


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
    """Return the number of features, from the metadata or the first row; InputError: the row has null, or none."""
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
    dim = len(value) if isinstance(value, list) else value["size"] or len(value["values"])
    if not dim:
        raise InputError(f"column {features!r}: expected features, got a vector of size 0 in the first row")
    return dim


def _type(frame: DataFrame, name: str) -> str:
    return str(field(frame, name).dataType.simpleString())
