"""Read rows of numeric features from CSV, TSV or Parquet files with named columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, NumericType

from ps2.algorithms.text.clicks import SEPARATORS, FormatName, check_files, check_name, matching
from ps2.algorithms.text.layouts import NUMBER, OPTIONAL_NUMBER, Column, Layout
from ps2.algorithms.text.libsvm import MAX_CLASSES, LabelledRows
from ps2.algorithms.text.paths import reading
from ps2.algorithms.text.tables import csv_lines, read_rows
from ps2.errors import InputError


@dataclass(frozen=True)
class FeatureColumns:
    """The columns of a table of features. Lists contain names, ranges such as "c1..c26", and patterns such as "c*".

    Attributes:
        label, weight: columns of numbers; None: there is no such column.
        features: columns of numbers; empty: all columns of numbers without another role.
        categories: those of the features that are categories: 0, 1, ...
    """

    label: str | None = None
    weight: str | None = None
    features: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()

    def resolved(self, path: str, names: Sequence[str], numbers: Sequence[str]) -> FeatureColumns:
        """Replace patterns by names of a file's columns; ``numbers``: the columns to take if no features are named.

        Raise InputError unless each column exists once, and each has one role.
        """
        roles = [name for name in (self.label, self.weight) if name is not None]
        for name in roles:
            check_name(path, name, names)
        categories = matching(path, self.categories, names)
        features = matching(path, self.features, names) if self.features else [n for n in numbers if n not in roles]
        features = tuple(dict.fromkeys([*features, *categories]))
        if both := [name for name in roles if name in features]:
            raise InputError(f"{path}: --features: {both[0]!r} is the column of labels or weights")
        if not features:
            raise InputError(f"{path}: expected columns of numbers, got {', '.join(map(repr, names))}")
        for name in features:
            check_name(path, name, names)
        return replace(self, features=features, categories=categories)

    @property
    def names(self) -> list[str]:
        """The names of all columns, the features last."""
        return [*(name for name in (self.label, self.weight) if name is not None), *self.features]


def read(spark: Any, path: str, form: FormatName, columns: FeatureColumns, names: Sequence[str] = ()) -> LabelledRows:
    """Read a file, or all files of a folder or glob, and cache the rows; an empty field is null.

    ``names`` are the names of all columns; empty: the first line of each file has them. InputError: a column is missing
    or has another type; its message names the file and the column, and for text the number of the line.
    """
    with reading(spark, path):
        if form == "parquet":
            frame, columns = _read_parquet(spark, path, columns)
        else:
            lines, headers = csv_lines(spark, path, SEPARATORS[form], names)
            columns = columns.resolved(path, headers[0].names, headers[0].names)
            kinds = tuple(
                Column(name, OPTIONAL_NUMBER if name in columns.features else NUMBER, title=f"column {name!r}")
                for name in columns.names
            )
            frame = read_rows(path, lines, Layout(kinds, headers, SEPARATORS[form])).frame
        frame = _with_categories(path, frame.persist(), columns.categories)
        label = F.lit(0.0) if columns.label is None else F.col(f"`{columns.label}`")
        counts = frame.groupBy(label.alias("label")).count().limit(MAX_CLASSES + 1).collect()
    by_label = {row["label"]: row["count"] for row in counts}
    if not by_label:
        raise InputError(f"{path}: expected rows, got none")
    if None in by_label:
        raise InputError(f"{path}: column {columns.label!r}: expected numbers, got null in {by_label[None]:,} rows")
    return LabelledRows(path, frame, by_label, columns.label or "label", columns)


def _read_parquet(spark: Any, path: str, columns: FeatureColumns) -> tuple[Any, FeatureColumns]:
    table = spark.read.parquet(path)
    types = {field.name: field.dataType for field in table.schema.fields}
    numbers = [name for name, kind in types.items() if isinstance(kind, (NumericType, BooleanType))]
    columns = columns.resolved(path, table.columns, numbers)
    for name in columns.names:
        if name not in numbers:
            raise InputError(f"{path}: column {name!r}: expected numbers, got {types[name].simpleString()}")
    check_files(spark, table, columns.names)
    return table.select(*(F.col(f"`{name}`").cast("double").alias(name) for name in columns.names)), columns


def _with_categories(path: str, frame: Any, names: Sequence[str]) -> Any:
    """Return the rows with metadata that list the categories; InputError: a value is not 0, 1, ..."""
    if not names:
        return frame
    columns = [F.col(f"`{name}`") for name in names]
    wrong = [F.max(F.when((value < 0) | (value != F.floor(value)), value)) for value in columns]
    values = frame.agg(*wrong, *map(F.max, columns)).first()
    for name, fault, largest in zip(names, values[: len(names)], values[len(names) :], strict=True):
        if fault is not None or largest is None:
            raise InputError(f"{path}: column {name!r}: expected categories 0, 1, 2, ..., got {fault}")
        attribute = {"ml_attr": {"type": "nominal", "num_vals": int(largest) + 1}}
        frame = frame.withMetadata(name, attribute)
    return frame
