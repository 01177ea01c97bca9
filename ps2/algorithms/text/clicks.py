"""Read rows with labels 0 and 1 and named columns from CSV, TSV or Parquet files. An empty field is null."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote

from pyspark.sql import functions as F

from ps2.algorithms.text import paths
from ps2.algorithms.text.layouts import LABEL, OPTIONAL_NUMBER, TEXT, Column, Layout
from ps2.algorithms.text.paths import local_name, reading
from ps2.algorithms.text.tables import csv_lines, name_fault, read_rows
from ps2.data.time_parts import EXPECTED, time_part
from ps2.errors import ConfigError, InputError
from ps2.run.spark.files import escaped

FormatName = Literal["csv", "tsv", "parquet"]
SEPARATORS = {"csv": ",", "tsv": "\t"}
# A range of names, such as "c1..c26", and the maximum number of its names.
RANGE = re.compile(r"([^\d,]*?)(\d+)\.\.\1(\d+)")
MAX_IN_RANGE = 10_000
# A comma between names, but not one in "datediff(end,start)".
COMMA = re.compile(r",(?![^()]*\))")


@dataclass(frozen=True)
class ClickColumns:
    """The columns of a model of clicks. Lists contain names, ranges such as "c1..c26", and patterns such as "c*".

    Attributes:
        label, weight: columns of numbers; ``weight`` None: all weights are 1.
        categories: columns of strings or integers.
        numbers: columns of numbers; each column is one key, whose values are the column's numbers.
        buckets: columns of numbers whose intervals are keys.
        crosses: combinations of columns, each "a:b".
        histories: columns of lists, each with the column of its candidate: "clicked:item".
    """

    label: str = "label"
    weight: str | None = None
    categories: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    buckets: tuple[str, ...] = ()
    crosses: tuple[str, ...] = ()
    histories: tuple[str, ...] = ()

    def resolved(self, path: str, names: Sequence[str]) -> ClickColumns:
        """Replace patterns by names of a file's columns; raise InputError unless each column exists once."""
        roles = {self.label: "label", **({} if self.weight is None else {self.weight: "weight"})}
        lists = {"categories": self.categories, "numbers": self.numbers, "buckets": self.buckets}
        for name in (*roles, *self._crossed, *self.lists):
            for source in source_columns(name):
                check_name(path, source, names)
        matches = {option: matching(path, patterns, names) for option, patterns in lists.items()}
        for name, role in roles.items():
            for option, columns in matches.items():
                if name in columns:
                    raise InputError(f"{path}: {option}: {name!r} is the column of {role}s")
        return ClickColumns(self.label, self.weight, **matches, crosses=self.crosses, histories=self.histories)

    @property
    def lists(self) -> list[str]:
        """The columns of histories."""
        return [history.split(":")[0] for history in self.histories]

    @property
    def _crossed(self) -> list[str]:
        return [name for cross in self.crosses for name in cross.split(":")]

    @property
    def texts(self) -> list[str]:
        """The columns of strings in text files: categories, histories, and columns of crosses that are not numbers."""
        names = dict.fromkeys((*self.categories, *self._crossed, *self.lists))
        return [name for name in names if name not in self.values and time_part(name) is None]

    @property
    def times(self) -> list[str]:
        """The columns of times of which hours or other parts are categories, numbers, buckets or in crosses."""
        names = (*self.categories, *self._crossed, *self.numbers, *self.buckets)
        return list(dict.fromkeys(source for name in names if time_part(name) for source in source_columns(name)))

    @property
    def values(self) -> list[str]:
        """The columns of numbers, the label first."""
        names = dict.fromkeys(filter(None, (self.label, self.weight, *self.numbers, *self.buckets)))
        return [name for name in names if time_part(name) is None]

    def columns(self) -> tuple[Column, ...]:
        """Return the columns to read from text files."""
        kinds = dict.fromkeys(self.values, OPTIONAL_NUMBER) | dict.fromkeys((*self.texts, *self.times), TEXT)
        kinds[self.label] = LABEL
        return tuple(Column(name, kind, title=f"column {name!r}") for name, kind in kinds.items())


@dataclass(frozen=True, eq=False)
class ClickRows:
    """The rows of a file, a folder or a glob. ``clicks`` is the number of rows with label 1."""

    path: str
    frame: Any
    columns: ClickColumns
    rows: int
    clicks: int


def read(spark: Any, path: str, form: FormatName, columns: ClickColumns, names: Sequence[str] = ()) -> ClickRows:
    """Read a file, or all files of a folder or glob. An error names the file and, for text, the number of the line.
    ``names`` are the names of all columns; empty: the first line of each file has them."""
    with reading(spark, path):
        if form == "parquet":
            return _read_parquet(spark, path, columns)
        lines, headers = csv_lines(spark, path, SEPARATORS[form], names)
        columns = columns.resolved(path, headers[0].names)
        table = read_rows(path, lines, Layout(columns.columns(), headers, SEPARATORS[form]))
        frame = _with_times(path, table.frame, [name for name in columns.times if name not in columns.texts])
        for name in columns.lists:
            frame = frame.withColumn(name, F.split(F.col(f"`{name}`"), " +"))
        return ClickRows(path, frame, columns, table.rows, table.counts[columns.label])


def format_of(path: str) -> FormatName:
    """Return the format for the suffix of a path, or of a local folder's first file; ConfigError: another suffix."""
    form = paths.format_of(path)
    if form is None:
        raise ConfigError(f"--format: expected csv, tsv or parquet, as the name {path} does not say")
    return form  # type: ignore[return-value]


def names_in(text: str) -> tuple[str, ...]:
    """Return the names of a list with commas; "c1..c3" is c1, c2 and c3. ConfigError: a name is empty."""
    names: list[str] = []
    for part in (part.strip() for part in COMMA.split(text)):
        bounds = RANGE.fullmatch(part)
        if bounds is None:
            names.append(part)
            continue
        first, last = int(bounds[2]), int(bounds[3])
        if not 0 <= last - first < MAX_IN_RANGE:
            raise ConfigError(f"expected a range such as c1..c26, of at most {MAX_IN_RANGE:,} names, got {part!r}")
        names.extend(f"{bounds[1]}{number}" for number in range(first, last + 1))
    if not all(names):
        raise ConfigError(f"expected names separated by commas, got {text!r}")
    return tuple(names)


def matching(path: str, patterns: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that match a name or pattern, each once; InputError: a name or pattern matches no column."""
    matches: dict[str, None] = {}
    for pattern in patterns:
        if pattern in names or not set(pattern) & set("*?["):
            for source in source_columns(pattern):
                check_name(path, source, names)
            matches[pattern] = None
            continue
        matching_names = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
        if not matching_names:
            raise InputError(f"{path}: expected columns like {pattern!r}, got {', '.join(map(repr, names))}")
        matches.update(dict.fromkeys(matching_names))
    return tuple(matches)


def source_columns(name: str) -> tuple[str, ...]:
    """Return the columns of which "hour(t)" or another part of times is made; of another name, the name."""
    part = time_part(name)
    return (name,) if part is None else part.columns


def _with_times(path: str, frame: Any, names: Sequence[str]) -> Any:
    """Return the rows with times instead of texts; raise InputError for a text that is no time."""
    for name in names:
        text, time = F.col(f"`{name}`"), F.expr(f"try_cast(nullif(trim(`{name}`), '') as timestamp)")
        fault = frame.where(time.isNull() & (F.trim(text) != "")).select(text).first()
        if fault is not None:
            raise InputError(f"{path}: column {name!r}: expected {EXPECTED}, got {fault[0]!r:.100}")
        frame = frame.withColumn(name, time)
    return frame


def check_name(path: str, name: str, names: Sequence[str]) -> None:
    if fault := name_fault(name, names):
        raise InputError(f"{path}: expected a column {name!r}, {fault}")


def _read_parquet(spark: Any, path: str, columns: ClickColumns) -> ClickRows:
    table = spark.read.parquet(path)
    columns = columns.resolved(path, table.columns)
    categories = [name for name in columns.categories if time_part(name) is None]
    names = dict.fromkeys([*columns.values, *columns.texts, *categories, *columns.times])
    frame = table.select(*(F.col(f"`{name}`") for name in names))
    label = F.col(f"`{columns.label}`").cast("double")
    is_wrong = ~F.coalesce(label.isin(0.0, 1.0), F.lit(False))
    rows, clicks, faults = frame.agg(F.count(F.lit(1)), F.sum(label), F.sum(is_wrong.cast("long"))).first()
    if not rows:
        raise InputError(f"{path}: expected rows, got none")
    check_files(spark, table, list(names))
    if faults:
        got = frame.where(is_wrong).select(f"`{columns.label}`").first()[0]
        raise InputError(f"{path}: column {columns.label!r}: expected labels 0 and 1, got {got} ({faults:,} rows)")
    return ClickRows(path, frame.withColumn(columns.label, label), columns, rows, int(clicks))


def check_files(spark: Any, table: Any, names: Sequence[str]) -> None:
    """Raise InputError if a Parquet file lacks a column. Spark would silently read nulls for this column."""
    if len(table.inputFiles()) == 1:
        return
    values = [F.count(f"`{name}`").alias(str(index)) for index, name in enumerate(names)]
    for file, *counts in table.groupBy(F.input_file_name().alias("file")).agg(*values).collect():
        if 0 not in counts:
            continue
        columns = [name.lower() for name in spark.read.parquet(escaped(unquote(file))).columns]
        for name, count in zip(names, counts, strict=True):
            if not count and name.lower() not in columns:
                got = ", ".join(map(repr, columns))
                raise InputError(f"{local_name(file)}: expected a column {name!r}, as other files have, got {got}")
