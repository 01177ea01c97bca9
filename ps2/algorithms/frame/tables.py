"""Survey a DataFrame before training: its columns, labels, weights, and the work in each of its rdd_partitions.

Before workers start, one aggregation in Spark surveys labels and weights, without sending rows to Python. The workers
check the features when they read them, before the first step (``ps2.algorithms.training.reading``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    IntegralType,
    NumericType,
    StringType,
    StructField,
    TimestampNTZType,
    TimestampType,
    UserDefinedType,
)

from ps2.algorithms.frame.labels import (
    Group,
    Labels,
    exact_scaling,
    facts_of,
    finite_or_0,
    is_finite_sql,
    not_finite_sql,
)
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import COST, LOAD_SUMS, PART, Facts, Load, loads_of, quoted
from ps2.data.columns import IMPUTE, join_names
from ps2.errors import ConfigError, InputError
from ps2.run.spark.backend_lookup import backend_of

SHOWN_CHARS = 200  # the maximum length of a faulty row in a message
# Tables up to this size are surveyed by one task, because a shuffle would take longer.
SMALL_BYTES = 16 << 20
NO_ROWS = "expected rows to train on, got an empty DataFrame"
NOT_FINITE = ("null", "NaN", "infinite")


@dataclass(frozen=True)
class TableSurvey:
    """The result of a survey of any table; ``loads`` has the work of each non-empty rdd_partition by its index."""

    dim: int
    loads: dict[int, Load]

    @property
    def rows(self) -> int:
        """The number of rows, including held-out rows."""
        return sum(load.rows for load in self.loads.values())

    @property
    def cost(self) -> float:
        """The number of stored feature values plus the number of rows."""
        return sum(load.cost for load in self.loads.values())

    @property
    def weight_unit(self) -> float:
        """The factor by which weights are multiplied when rows are dealt to the workers."""
        return 1.0

    @property
    def classes(self) -> int:
        """The number of classes; 0: the rows have no classes."""
        return 0


@dataclass(frozen=True)
class Survey(TableSurvey):
    """The result of a survey of a table with labels.

    Attributes:
        facts: statistics of the rows to train on.
        features: the fields of the feature columns in the schema.
        has_class_0_alone: whether all rows to train on are of class 0, and the label's metadata have no classes.
        validation_sets: the names of the validation sets, in the order of their numbers; empty: all held-out rows are
            one set.
    """

    facts: Facts
    features: tuple[StructField, ...]
    has_class_0_alone: bool = False
    validation_sets: tuple[str, ...] = ()

    @property
    def weight_unit(self) -> float:
        return self.facts.weight_unit

    @property
    def classes(self) -> int:
        return len(self.facts.class_weights)


def names_of(columns: ColumnNames) -> list[str]:
    """Return all column names, each once."""
    optional = (columns.label, columns.weight, columns.validation, columns.margin, columns.group)
    return list(dict.fromkeys([*columns.feature_names, *(name for name in optional if name is not None)]))


def column(name: str) -> Column:
    """Return the column of a name, which can contain dots and backquotes."""
    return F.col(quoted(name))


def check_columns(frame: DataFrame, columns: ColumnNames) -> None:
    """Raise InputError unless columns exist with usable types, ConfigError if the label is a feature; no Spark job."""
    check_features(frame, columns.features)
    check_label_is_apart(columns.label, columns.feature_names)
    for name, role in ((columns.label, "labels"), (columns.weight, "weights"), (columns.margin, "margins")):
        if name is not None:
            check_numbers(frame, name, role)
    if columns.validation is not None:
        check_held_out(frame, columns.validation)
    if columns.group is not None:
        check_group(frame, columns.group)


def check_label_is_apart(label: str | None, inputs: Collection[str]) -> None:
    """Raise ConfigError if the label is also an input of the model, which would then only learn to copy this input."""
    if label is not None and label in inputs:
        raise ConfigError(f"labelCol: expected a column that is not an input of the model, got the input {label!r}")


def check_numbers(frame: DataFrame, name: str, role: str) -> None:
    """Raise InputError unless a column has numbers or booleans. ``role`` is a word for messages, such as "labels"."""
    is_text = isinstance(field(frame, name).dataType, StringType)
    advice = "; pyspark.ml's StringIndexer makes classes of strings" if is_text and role == "labels" else ""
    _check_type(frame, name, (NumericType, BooleanType), f"numbers as {role}", advice)


def check_times(frame: DataFrame, name: str) -> None:
    """Raise InputError unless a column has timestamps or numbers of seconds."""
    _check_type(frame, name, (TimestampType, TimestampNTZType, NumericType), "timestamps, or seconds as numbers")


def check_held_out(frame: DataFrame, name: str) -> None:
    """Raise InputError unless a column has booleans, or the numbers of validation sets."""
    _check_type(frame, name, (BooleanType, ByteType), "booleans, true for rows to hold out")


def check_group(frame: DataFrame, name: str) -> None:
    """Raise InputError unless a column has integers or strings, which can identify groups of rows."""
    _check_type(frame, name, (IntegralType, StringType), "integers or strings as groups")


def _check_type(frame: DataFrame, name: str, types: Any, expected: str, advice: str = "") -> None:
    kind = field(frame, name).dataType
    if not isinstance(kind, types):
        raise InputError(f"column {name!r}: expected {expected}, got {kind.simpleString()}{advice}")


def check_features(frame: DataFrame, features: str | tuple[str, ...]) -> None:
    """Raise InputError unless the feature columns exist and have usable types."""
    # Workers import this module; importing pyspark.ml, which imports pandas, takes longer than a small fit.
    from pyspark.ml.linalg import VectorUDT
    from pyspark.mllib.linalg import VectorUDT as OldVectorUDT

    if isinstance(features, str):
        kind = field(frame, features).dataType
        if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, NumericType):
            _check_type(frame, features, (VectorUDT, OldVectorUDT), "vectors of pyspark.ml or arrays of numbers")
        return
    if not features:
        raise InputError("featuresCols: expected the names of columns of numbers, got none")
    for name in features:
        _check_type(frame, name, (NumericType, BooleanType), "numbers as a feature")


def field(frame: DataFrame, name: str) -> StructField:
    """Return the field of a column in the schema; raise InputError if the column is missing or the name is ambiguous.

    Spark ignores case in names. A name is not ambiguous if several columns of this name are the same expression.
    """
    fields = frame.schema.fields
    match = next((candidate for candidate in fields if candidate.name == name), None)
    if match is None:
        raise InputError(f"there is no column {name!r}; there are: {join_names(frame.columns)}")
    same_names = [candidate.name for candidate in fields if candidate.name.lower() == name.lower()]
    if len(same_names) == 1:
        return match
    try:
        frame.select(column(name)).schema  # noqa: B018 - Spark Connect resolves names only then
    except AnalysisException as error:
        raise InputError(
            f"column {name!r}: expected one column of that name, got {len(same_names)}: {', '.join(same_names)}; "
            "rename or drop the others"
        ) from error
    return match


def survey(frame: DataFrame, columns: ColumnNames, classes: int | None) -> Survey:
    """Survey labels, weights and the number of features. For classes of a small table, this takes one Spark job.

    Args:
        frame: a DataFrame with a label, whose columns ``check_columns`` accepts.
        classes: the maximum number of classes; 0: no limit; None: labels are numbers, not classes.

    Raises:
        InputError: there is no row to train on; a label or weight is null, NaN or infinite; a weight is negative; a
            label is not a class; all weights are 0; or numeric labels are so large, or so close to each other, that
            their squares leave float64's range. The message has the number of faulty rows, and one of them.
    """
    assert columns.label is not None
    labels = Labels(columns.label, classes, field(frame, columns.label))
    # The shift keeps sums of numeric labels accurate. Sums of labels that are classes are not used.
    shift = finite_or_0(first_row(frame, columns)[columns.label]) if classes is None else 0.0
    unit = 1.0
    groups = _aggregate(frame, columns, labels, shift, unit)
    if not groups:
        raise InputError(NO_ROWS)
    _check_faults(frame, columns, labels, groups)
    scaling = exact_scaling(groups, shift, classes)
    if scaling != (shift, unit):
        shift, unit = scaling
        groups = _aggregate(frame, columns, labels, shift, unit)
    dim = known_dim(frame, columns.features) or min(row["first"] for row in groups)["dim"]
    if not dim:
        dim = dim_of(frame, columns.features, first_row(frame, columns))  # raises an error that names the fault
    return survey_of(frame, columns, labels, groups, dim, shift, unit)


def survey_of(  # noqa: PLR0913
    frame: DataFrame, columns: ColumnNames, labels: Labels, groups: Sequence[Group], dim: int, shift: float, unit: float
) -> Survey:
    """Return the survey of a table without faults from sums by partition and class; raises like ``facts_of``."""
    training_groups = [group for group in groups if group["class"] >= 0]
    facts = facts_of(training_groups, labels, shift, unit)
    fields = tuple(field(frame, name) for name in columns.feature_names)
    can_be_alone = labels.classes is not None and labels.metadata_classes is None
    is_alone = can_be_alone and not any(group["class"] for group in training_groups)
    return Survey(dim, loads_of(groups), facts, fields, is_alone)


def first_row(frame: DataFrame, columns: ColumnNames) -> Row:
    """Return the named columns of the first row, vectors as structs; raise InputError if there is no row."""
    row = frame.select(*_with_plain_vectors(frame, columns)).head()
    if row is None:
        raise InputError(NO_ROWS)
    return row


def _with_plain_vectors(frame: DataFrame, columns: ColumnNames) -> list[Column]:
    """Return the named columns, vectors as structs: pyspark cannot decode a vector whose indices are not ascending."""
    plain = []
    for name in names_of(columns):
        is_vector = isinstance(field(frame, name).dataType, UserDefinedType)
        plain.append(F.unwrap_udt(column(name)).alias(name) if is_vector else column(name))
    return plain


def _aggregate(
    frame: DataFrame, columns: ColumnNames, labels: Labels, shift: float, unit: float
) -> list[dict[str, Any]]:
    """Return counts and sums by rdd_partition and class (-1: held-out and faulty rows).

    ``shift`` is subtracted from labels, and weights are multiplied by ``unit``. The expressions are SQL, because each
    Column that Python makes takes several calls to Java.
    """
    y, w, is_held_out = f"cast({quoted(labels.name)} as double)", "1.0D", "false"
    if columns.weight is not None:
        w = f"{unit!r}D * cast({quoted(columns.weight)} as double)"
    if columns.validation is not None:
        is_held_out = f"cast({quoted(columns.validation)} as boolean)"
    no_class = f"{is_finite_sql('y')} and {labels.invalid_class_sql('y')}"
    faults = {**not_finite_sql("label", "y"), "label_no_class": no_class}
    if columns.weight is not None:
        faults |= {**not_finite_sql("weight", "w"), "weight_negative": f"{is_finite_sql('w')} and w < 0"}
    if columns.validation is not None:
        faults["validation_null"] = "is_held_out is null"
    is_faulty = " or ".join(f"({fault})" for fault in faults.values())
    entries, dim = _entries_of(frame, columns.features)
    inputs = frame.select(
        F.expr(f"struct({y} as y, {w} as w, {is_held_out} as is_held_out)").alias("row_values"),
        *(entries.alias("entries"), dim.alias("dim")),
    )
    rows = inputs.selectExpr("row_values.*", "entries", "dim").selectExpr(
        f"spark_partition_id() as {PART}",
        f"case when {is_faulty} or is_held_out then -1 else {labels.class_sql('y')} end as class",
        "struct(monotonically_increasing_id() as id, dim as dim) as row_dim",
        f"1.0D + coalesce(entries, 0) as {COST}",
        f"y - {shift!r}D as y",
        "case when w > 0 then y end as weighted_y",
        "w",
        *(f"cast({fault} as bigint) as {name}" for name, fault in faults.items()),
    )
    sums = {"weight": "w", "weight_squared": "w * w", "wy": "w * y", "wyy": "w * y * y"} | {
        name: name for name in faults
    }
    collected = (
        in_one_partition_if_small(rows)
        .groupBy(PART, "class")
        .agg(
            F.expr(
                f"struct(min(row_dim) as first, {', '.join(LOAD_SUMS)}, min(weighted_y) as min_label, "
                f"max(weighted_y) as max_label, max(w) as max_weight, "
                f"{', '.join(f'sum({value}) as {name}' for name, value in sums.items())})"
            ).alias("sums")
        )
        .collect()
    )
    groups = [{PART: row[PART], "class": row["class"], **row["sums"].asDict()} for row in collected]
    # The sums are added up with rounding errors, so their order must always be the same.
    return sorted(groups, key=lambda group: (group[PART], group["class"]))


def in_one_partition_if_small(rows: DataFrame) -> DataFrame:
    """Merge rows into one partition if the table is small: an aggregation then needs no shuffle, and only one job."""
    return rows.coalesce(1) if backend_of(rows).estimated_bytes(rows) <= SMALL_BYTES else rows


def partition_loads(frame: DataFrame, cost: Column) -> dict[int, Load]:
    """Return the load of each non-empty rdd_partition from the cost of each row. Small tables take one Spark job."""
    rows = in_one_partition_if_small(frame.select(F.spark_partition_id().alias(PART), cost.alias(COST)))
    return loads_of(rows.groupBy(PART).agg(*map(F.expr, LOAD_SUMS)).collect())


def cost_of(frame: DataFrame, features: str | tuple[str, ...]) -> Column:
    """Return the cost of a row: 1, plus 1 for each stored feature value."""
    return F.lit(1.0) + F.coalesce(_entries_of(frame, features)[0], F.lit(0))


def _entries_of(frame: DataFrame, features: str | tuple[str, ...]) -> tuple[Column, Column]:
    """Return Columns of the number of a row's stored feature values, and of its features; null if these are null."""
    if not isinstance(features, str):
        return F.lit(len(features)), F.lit(len(features))
    if isinstance(field(frame, features).dataType, ArrayType):
        name = quoted(features)
        size = F.expr(f"case when {name} is not null then size({name}) end")
        return size, size
    vectors = F.unwrap_udt(column(features))
    entries = F.size(vectors["values"])
    size = F.coalesce(vectors["size"], entries)
    return F.when(vectors.isNotNull(), entries), F.when(vectors.isNotNull(), size)


def _check_faults(frame: DataFrame, columns: ColumnNames, labels: Labels, groups: list[dict[str, Any]]) -> None:
    """Raise InputError for the first column with faulty values."""
    total = sum(row["rows"] for row in groups)
    checks = [
        ("label", columns.label, (*NOT_FINITE, "no_class"), labels.expected),
        ("weight", columns.weight, (*NOT_FINITE, "negative"), "a finite weight that is not negative"),
        ("validation", columns.validation, ("null",), "true or false"),
    ]
    for role, name, kinds, expected in checks:
        if name is None:
            continue
        counts = {kind: sum(row[f"{role}_{kind}"] for row in groups) for kind in kinds}
        if not any(counts.values()):
            continue
        x = quoted(name)
        conditions = {"null": f"{x} is null"}
        if role != "validation":
            x = f"cast({x} as double)"
            conditions = {
                **{kind: not_finite_sql(role, x)[f"{role}_{kind}"] for kind in NOT_FINITE},
                "no_class": labels.invalid_class_sql(x),
                "negative": f"{x} < 0",
            }
        is_faulty = " or ".join(f"({conditions[kind]})" for kind, count in counts.items() if count)
        texts = {"no_class": "no such class"}
        faults = ", ".join(f"{count} {texts.get(kind, kind)}" for kind, count in counts.items() if count)
        row = frame.where(f"coalesce({is_faulty}, true)").select(*_with_plain_vectors(frame, columns)).head()
        sample = "" if row is None else f"; such a row: {str(row)[:SHOWN_CHARS]}"
        if counts.get("no_class"):
            sample += "; pyspark.ml's StringIndexer makes classes of labels such as -1 and 1"
        if role != "validation" and (counts["null"] or counts["NaN"]):
            sample += f"; {IMPUTE}"
        raise InputError(f"column {name!r}: expected {expected}, got {faults} in {total} rows{sample}")


def check_new_columns(frame: DataFrame, names: Iterable[str], content: str = "the predictions") -> None:
    """Raise InputError if a column to add exists already. ``content`` is a word for the new columns in messages."""
    for name in names:
        if name in frame.columns:
            raise InputError(f"column {name!r}: it is there already; choose another name for {content}")


def known_dim(frame: DataFrame, features: str | tuple[str, ...]) -> int | None:
    """Return the number of features from the columns' names or metadata (ml_attr); None: only rows can tell it."""
    if not isinstance(features, str):
        return len(features)
    attributes = field(frame, features).metadata.get("ml_attr", {})
    if "num_attrs" in attributes or "attrs" in attributes:
        dim = attributes.get("num_attrs") or sum(map(len, attributes["attrs"].values()))
        return int(dim)
    return None


def dim_of(frame: DataFrame, features: str | tuple[str, ...], row: Row) -> int:
    """Return the number of features from the metadata or the first row; InputError: the row has null or no feature."""
    dim = known_dim(frame, features)
    if dim is not None:
        return dim
    assert isinstance(features, str)
    value = row[features]
    if value is None:
        nulls = frame.where(column(features).isNull()).count()
        raise InputError(
            f"column {features!r}: expected vectors or arrays, got null in {nulls} rows; such a row: {row}"
        )
    dim = len(value) if isinstance(value, list) else value["size"] or len(value["values"])
    if not dim:
        raise InputError(f"column {features!r}: expected features, got a vector of size 0 in the first row")
    return dim
