"""Read rows of features from CSV, TSV or Parquet files with named columns: numbers, and categories as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, IntegralType, NumericType, StringType

from ps2.algorithms.text.clicks import SEPARATORS, FormatName, check_files, check_name, matching
from ps2.algorithms.text.layouts import ID, NUMBER, OPTIONAL_NUMBER, TEXT, Column, Kind, Layout
from ps2.algorithms.text.libsvm import MAX_CLASSES, LabelledRows, is_number
from ps2.algorithms.text.paths import reading
from ps2.algorithms.text.tables import csv_lines, read_rows
from ps2.algorithms.training.table import quoted
from ps2.errors import InputError


@dataclass(frozen=True)
class FeatureColumns:
    """The columns of a table of features. Lists contain names, ranges such as "c1..c26", and patterns such as "c*".

    Attributes:
        label, weight: columns of numbers; None: there is no such column.
        group: the column of queries, integers or texts; None: there is no such column.
        features: columns of numbers; empty: all columns of numbers without another role.
        categories: those of the features that are categories: 0, 1, ..., or texts.
        has_classes: whether the labels are classes: numbers, or texts.
        texts: the columns whose values are texts; None: the values in the file decide.
    """

    label: str | None = None
    weight: str | None = None
    group: str | None = None
    features: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    has_classes: bool = False
    texts: tuple[str, ...] | None = None

    def resolved(self, path: str, names: Sequence[str], numbers: Sequence[str]) -> FeatureColumns:
        """Replace patterns by names of a file's columns; ``numbers``: the columns to take if no features are named.

        Raise InputError unless each column exists once, and each has one role.
        """
        roles = self._roles
        for name in roles:
            check_name(path, name, names)
        categories = matching(path, self.categories, names)
        features = matching(path, self.features, names) if self.features else [n for n in numbers if n not in roles]
        features = tuple(dict.fromkeys([*features, *categories]))
        if both := [name for name in roles if name in features]:
            raise InputError(f"{path}: --features: {both[0]!r} is the column of labels, weights or queries")
        if not features:
            raise InputError(f"{path}: expected columns of numbers, got {', '.join(map(repr, names))}")
        for name in features:
            check_name(path, name, names)
        return replace(self, features=features, categories=categories)

    def may_be_text(self, name: str) -> bool:
        """Return whether the values of a column may be texts."""
        return name in self.categories or (self.has_classes and name == self.label)

    @property
    def names(self) -> list[str]:
        """The names of all columns, the features last."""
        return [*self._roles, *self.features]

    @property
    def _roles(self) -> list[str]:
        return [name for name in (self.label, self.weight, self.group) if name is not None]


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
            kinds = tuple(Column(name, _kind(columns, name), title=f"column {name!r}") for name in columns.names)
            frame = read_rows(path, lines, Layout(kinds, headers, SEPARATORS[form])).frame
        frame = frame.persist()
        label = F.lit(0.0) if columns.label is None else F.col(quoted(columns.label))
        counted = frame.groupBy(label.alias("label")).count().limit(MAX_CLASSES + 1).collect()
        counts = {row["label"]: row["count"] for row in counted}
        if not counts:
            raise InputError(f"{path}: expected rows, got none")
        if missing := counts.get(None, 0) + counts.get("", 0):
            expected = "classes" if columns.has_classes else "numbers"
            raise InputError(f"{path}: column {columns.label!r}: expected {expected}, got null in {missing:,} rows")
        frame, texts = _with_categories(path, frame, columns)
        if any(isinstance(label, str) for label in counts):
            if columns.texts is None and all(map(is_number, counts)):
                frame = frame.withColumn(columns.label, label.cast("double"))
                counts = {
                    number: sum(counts[text] for text in counts if float(text) == number)
                    for number in map(float, counts)
                }
            else:
                texts = (*texts, str(columns.label))
    return LabelledRows(path, frame, counts, columns.label or "label", replace(columns, texts=texts))


def _kind(columns: FeatureColumns, name: str) -> Kind:
    """Return the kind of a column's fields in CSV files."""
    if columns.may_be_text(name):
        return TEXT
    if name == columns.group:
        return ID
    return OPTIONAL_NUMBER if name in columns.features else NUMBER


def _read_parquet(spark: Any, path: str, columns: FeatureColumns) -> tuple[Any, FeatureColumns]:
    table = spark.read.parquet(path)
    types = {field.name: field.dataType for field in table.schema.fields}
    numbers = [name for name, kind in types.items() if isinstance(kind, (NumericType, BooleanType))]
    columns = columns.resolved(path, table.columns, numbers)
    casts = {}
    for name in columns.names:
        is_text = isinstance(types[name], StringType) and columns.may_be_text(name)
        if name == columns.group and isinstance(types[name], (IntegralType, StringType)):
            casts[name] = F.col(quoted(name))
            continue
        if name == columns.group:
            raise InputError(f"{path}: column {name!r}: expected integers or strings, got {types[name].simpleString()}")
        if name not in numbers and not is_text:
            raise InputError(f"{path}: column {name!r}: expected numbers, got {types[name].simpleString()}")
        casts[name] = F.trim(quoted(name)) if is_text else F.col(quoted(name)).cast("double")
    check_files(spark, table, columns.names)
    return table.select(*(cast.alias(name) for name, cast in casts.items())), columns


def _with_categories(path: str, frame: Any, columns: FeatureColumns) -> tuple[Any, tuple[str, ...]]:
    """Return the rows, and the names of categories that are texts. The metadata of the others list the categories.

    InputError: a column has other values than 0, 1, ..., and they are not texts, or ``columns.texts`` lacks the column.
    """
    if not columns.categories:
        return frame, ()
    has_strings = {name for name, type in frame.dtypes if type == "string"}
    sums = []
    for name in columns.categories:
        value = F.col(quoted(name))
        is_number = value.rlike(rf"^\s*({NUMBER.pattern})\s*\z") if name in has_strings else value.isNotNull()
        number = F.when(is_number, value).cast("double")
        is_code = (number >= 0) & (number == F.floor(number))
        sums.append(F.max(F.when(~is_number & (value.cast("string") != ""), value.cast("string"))))
        sums.extend((F.max(F.when(~is_code, number)), F.max(F.when(is_code, number))))
    result = frame.agg(*sums).first()
    texts = []
    for name, text, wrong, largest in zip(columns.categories, result[::3], result[1::3], result[2::3], strict=True):
        if text is not None if columns.texts is None else name in columns.texts:
            texts.append(name)
            continue
        if text is not None or wrong is not None or largest is None:
            got = wrong if text is None else repr(text)
            raise InputError(f"{path}: column {name!r}: expected categories 0, 1, 2, ..., got {got}")
        attribute = {"ml_attr": {"type": "nominal", "num_vals": int(largest) + 1}}
        frame = frame.withColumn(name, F.col(quoted(name)).cast("double")).withMetadata(name, attribute)
    return frame, tuple(texts)


def text_indexer(rows: LabelledRows) -> Any:
    """Fit a StringIndexerModel for the categories that are texts; None: there are none.

    Unknown and missing texts get an index of their own.
    """
    from pyspark.ml.feature import StringIndexer

    texts = [name for name in rows.columns.texts if name in rows.columns.categories]
    if not texts:
        return None
    for name in texts:
        if indexed_name(name) in rows.columns.names:
            raise InputError(f"{rows.path}: column {indexed_name(name)!r}: {name!r}, which has texts, gets this name")
    indexer = StringIndexer(inputCols=texts, outputCols=list(map(indexed_name, texts)), handleInvalid="keep")
    return indexer.fit(rows.frame)


def pipeline(indexer: Any, model: Any) -> Any:
    """Return a PipelineModel that replaces texts by indices, as ``text_indexer`` does, and then calls the model."""
    from pyspark.ml import PipelineModel

    return PipelineModel([indexer, model])


def indexed_name(name: str) -> str:
    """Return the name of the column with the indices of a column's texts."""
    return f"{name}_index"
