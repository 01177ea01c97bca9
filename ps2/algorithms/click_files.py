"""Reads rows of named columns with labels 0 and 1 from CSV, TSV or Parquet files, with Spark.

The first line of a CSV or TSV file names its columns, unless the names are given. A field that contains the separator
is in double quotes, and a quote that does not end on its line is an error. An empty field is null.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote

from ps2.algorithms.csv_headers import Header, by_header, cells_of, header_of, read_headers, split_cells
from ps2.algorithms.inputs import first_file, local_name, numbered_lines, reading, shown
from ps2.algorithms.text_lines import BAD, NOT_UTF8, NUMBER, lines_of
from ps2.algorithms.training.progress import say
from ps2.errors import ConfigError, InputError
from ps2.run.spark.files import escaped

FormatName = Literal["csv", "tsv", "parquet"]
FORMATS = ("csv", "tsv", "parquet")
SEPARATORS = {"csv": ",", "tsv": "\t"}
RANGE = re.compile(r"([^\d,]*?)(\d+)\.\.\1(\d+)")
MAX_IN_RANGE = 10_000
MIN_PROBABILITY = 1e-15


@dataclass(frozen=True)
class ClickColumns:
    """Columns of a model of clicks; lists hold names, ranges such as "c1..c26", and patterns such as "c*".

    Attributes:
        label, weight: columns of numbers; ``weight`` None: all rows weigh 1.
        categories: columns of strings or integers.
        numbers: columns of numbers that count by value.
        buckets: columns of numbers that count by interval.
        crosses: combinations of columns, each "a:b".
    """

    label: str = "label"
    weight: str | None = None
    categories: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    buckets: tuple[str, ...] = ()
    crosses: tuple[str, ...] = ()

    def found(self, path: str, names: Sequence[str]) -> ClickColumns:
        """Return the columns with ranges and patterns replaced by the names of a file's columns.

        Args:
            path: the file, for messages.
            names: names of the file's columns.

        Raises:
            InputError: the file has no such column, or several of that name.
        """
        for name in filter(None, (self.label, self.weight)):
            _check_name(path, name, names)
        categories, numbers, buckets = (
            chosen(path, wanted, names) for wanted in (self.categories, self.numbers, self.buckets)
        )
        for cross in self.crosses:
            for name in cross.split(":"):
                _check_name(path, name, names)
        for name in filter(None, (self.label, self.weight)):
            for option, columns in (("categories", categories), ("numbers", numbers), ("buckets", buckets)):
                if name in columns:
                    raise InputError(f"{path}: {option}: {name!r} is the column of {self._role(name)}s")
        return ClickColumns(self.label, self.weight, categories, numbers, buckets, self.crosses)

    def _role(self, name: str) -> str:
        return "label" if name == self.label else "weight"

    @property
    def texts(self) -> list[str]:
        """Columns that are strings in text files: categories, also those that only crosses name."""
        crossed = [name for cross in self.crosses for name in cross.split(":")]
        return [name for name in dict.fromkeys((*self.categories, *crossed)) if name not in self.values]

    @property
    def values(self) -> list[str]:
        """Columns of numbers, the label first."""
        return list(dict.fromkeys(filter(None, (self.label, self.weight, *self.numbers, *self.buckets))))


@dataclass(frozen=True, eq=False)
class ClickRows:
    """The rows of a file, a folder or a glob.

    Attributes:
        path: its path.
        frame: DataFrame with the columns that ``columns`` names.
        columns: names of the columns.
        rows: number of rows.
        clicks: number of rows with label 1.
    """

    path: str
    frame: Any
    columns: ClickColumns
    rows: int
    clicks: int


def read(spark: Any, path: str, form: FormatName, columns: ClickColumns, names: Sequence[str] = ()) -> ClickRows:
    """Read a file, or all files of a folder or glob; suffixes such as .gz tell the compression.

    Args:
        path: any URL that Spark reads.
        form: format of the files.
        columns: columns to read.
        names: names of all columns, for text files whose first line has none.

    Raises:
        InputError: there is no such file or column, there are no rows, or a row has a wrong field; names the file and,
            for text, the number of the line.
    """
    with reading(spark, path):
        if form == "parquet":
            return _read_parquet(spark, path, columns)
        return _read_text(spark, path, SEPARATORS[form], columns, names)


def measure(model: Any, test: ClickRows) -> dict[str, Any]:
    """Return a model's measures on rows: ``rows``, ``auc``, ``log_loss`` and ``calibration`` (None without clicks)."""
    from pyspark.ml.evaluation import BinaryClassificationEvaluator
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions as F

    say(f"measuring the model on {test.path}")
    name = test.columns.label
    scored = model.transform(test.frame).select(F.col(f"`{name}`").alias("label"), "rawPrediction", "probability")
    scored = scored.persist()
    try:
        click_share = vector_to_array(F.col("probability"))[1]
        of_label = F.when(F.col("label") == 1, click_share).otherwise(1 - click_share)
        loss = F.avg(-F.log(F.greatest(of_label, F.lit(MIN_PROBABILITY))))
        found = scored.agg(loss, F.avg(click_share), F.avg("label")).first()
        auc = BinaryClassificationEvaluator(rawPredictionCol="rawPrediction").evaluate(scored)
    finally:
        scored.unpersist()
    return {
        "rows": test.rows,
        "auc": auc,
        "log_loss": found[0],
        "calibration": found[1] / found[2] if found[2] else None,
    }


def format_of(path: str) -> FormatName:
    """Return the format that a path's suffix tells, perhaps before that of a compression; of a folder, its files'.

    Raises:
        ConfigError: it tells none.
    """
    found = re.search(r"\.(csv|tsv|parquet)(\.\w+)?$", first_file(path), re.IGNORECASE)
    if found is not None:
        return found[1].lower()  # type: ignore[return-value]
    raise ConfigError(f"--format: expected {', '.join(FORMATS)}, as the name {path} does not tell it")


def names_in(text: str) -> tuple[str, ...]:
    """Return the names of a list separated by commas; "c1..c3" is c1, c2 and c3.

    Raises:
        ConfigError: a range is empty or very large, or a name is.
    """
    names: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        found = RANGE.fullmatch(part)
        if found is None:
            names.append(part)
            continue
        first, last = int(found[2]), int(found[3])
        if not 0 <= last - first < MAX_IN_RANGE:
            raise ConfigError(f"expected a range such as c1..c26, of at most {MAX_IN_RANGE:,} names, got {part!r}")
        names.extend(f"{found[1]}{number}" for number in range(first, last + 1))
    if not all(names):
        raise ConfigError(f"expected names separated by commas, got {text!r}")
    return tuple(names)


def chosen(path: str, wanted: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return the names that a list of names and patterns chooses, each once; raises InputError if one chooses none."""
    found: dict[str, None] = {}
    for pattern in wanted:
        if pattern in names or not set(pattern) & set("*?["):
            _check_name(path, pattern, names)
            found[pattern] = None
            continue
        matching = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
        if not matching:
            raise InputError(f"{path}: expected columns like {pattern!r}, got {', '.join(map(repr, names))}")
        found.update(dict.fromkeys(matching))
    return tuple(found)


def _check_name(path: str, name: str, names: Sequence[str]) -> None:
    if (times := names.count(name)) != 1:
        got = "got several of this name" if times else f"got {', '.join(map(repr, names))}"
        raise InputError(f"{path}: expected a column {name!r}, {got}")


def _read_parquet(spark: Any, path: str, wanted: ClickColumns) -> ClickRows:
    from pyspark.sql import functions as F

    whole = spark.read.parquet(path)
    columns = wanted.found(path, whole.columns)
    names = dict.fromkeys([*columns.values, *columns.texts, *columns.categories])
    frame = whole.select(*(F.col(f"`{name}`") for name in names))
    label = F.col(f"`{columns.label}`").cast("double")
    wrong = F.sum((~F.coalesce(label.isin(0.0, 1.0), F.lit(False))).cast("long"))
    rows, clicks, faults = frame.agg(F.count(F.lit(1)), F.sum(label), wrong).first()
    if not rows:
        raise InputError(f"{path}: expected rows, got none")
    _check_files(spark, whole, list(names))
    if faults:
        got = frame.where(~F.coalesce(label.isin(0.0, 1.0), F.lit(False))).select(f"`{columns.label}`").first()[0]
        raise InputError(f"{path}: column {columns.label!r}: expected labels 0 and 1, got {got} ({faults:,} rows)")
    return ClickRows(path, frame.withColumn(columns.label, label), columns, rows, int(clicks))


def _check_files(spark: Any, whole: Any, names: Sequence[str]) -> None:
    """Raise InputError if a Parquet file lacks a column: Spark takes its values as null."""
    from pyspark.sql import functions as F

    if len(whole.inputFiles()) == 1:
        return
    values = [F.count(f"`{name}`").alias(str(at)) for at, name in enumerate(names)]
    for counts in whole.groupBy(F.input_file_name().alias("file")).agg(*values).collect():
        if 0 not in counts[1:]:
            continue
        file = counts["file"]
        columns = [name.lower() for name in spark.read.parquet(escaped(unquote(file))).columns]
        for name, count in zip(names, counts[1:], strict=True):
            if not count and name.lower() not in columns:
                found = ", ".join(map(repr, columns))
                raise InputError(
                    f"{local_name(unquote(file))}: expected a column {name!r}, as other files have, got {found}"
                )


def _read_text(spark: Any, path: str, separator: str, wanted: ClickColumns, given: Sequence[str]) -> ClickRows:
    from pyspark.sql import functions as F

    lines = lines_of(spark, path)
    headers = [Header("", tuple(given))] if given else read_headers(path, lines, separator)
    names = headers[0].names
    columns = wanted.found(path, names)
    file, line = F.col("file"), F.col("line")
    rows = lines.where((F.trim(line) != "") & (line != by_header(headers, file, lambda header: F.lit(header.line))))
    cells = rows.select(file, line, split_cells(line, separator, len(names)).alias("cells"))

    def cell(name: str) -> Any:
        return by_header(headers, file, lambda header: F.col("cells")[f"c{header.names.index(name)}"])

    is_wrong = F.col("cells")[BAD].isNotNull()
    for name in columns.values:
        is_wrong |= ~F.coalesce(cell(name).rlike(f"^({NUMBER.pattern})$"), F.lit(name != columns.label))
    for name in columns.texts:
        is_wrong |= F.coalesce(cell(name).contains(NOT_UTF8), F.lit(False))
    label = F.when(is_wrong, None).otherwise(cell(columns.label)).cast("double")
    is_wrong |= ~F.coalesce(label.isin(0.0, 1.0), F.lit(False))
    count, clicks, faults = cells.agg(F.count(F.lit(1)), F.sum(label), F.max(is_wrong.cast("int"))).first()
    if not count:
        raise InputError(f"{path}: expected rows, got none")
    if faults:
        row = cells.where(is_wrong).select(file, line).first()
        names = header_of(headers, row["file"]).names
        raise InputError(_fault(spark, row["file"], row["line"], separator, names, columns))
    numbers = [cell(name).cast("double").alias(name) for name in columns.values]
    frame = cells.select(*numbers, *(cell(name).alias(name) for name in columns.texts))
    return ClickRows(path, frame, columns, count, int(clicks))


def _fault(spark: Any, file: str, line: str, separator: str, names: Sequence[str], columns: ClickColumns) -> str:
    """Describe what is wrong with a line of text."""
    at = numbered_lines(spark, file).filter(lambda pair: pair[0] == line).first()[1]
    place = f"{local_name(unquote(file))}: line {at + 1}"
    cells = cells_of(line, separator)
    if len(cells) != len(names):
        return f"{place}: expected {len(names)} fields, got {len(cells)}: {shown(line)}"
    for name in columns.values:
        value = cells[names.index(name)]
        if (value or name == columns.label) and not NUMBER.fullmatch(value):
            return f"{place}: column {name!r}: expected a number, got {shown(value)}"
    for name in columns.texts:
        if NOT_UTF8 in (text := cells[names.index(name)]):
            return f"{place}: column {name!r}: expected UTF-8, got {shown(text)}"
    return f"{place}: column {columns.label!r}: expected a label 0 or 1, got {shown(cells[names.index(columns.label)])}"
