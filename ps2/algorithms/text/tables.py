"""Tables in text or CSV files, read by Spark: the lines of a layout become a DataFrame of checked columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql import functions as F

from ps2.algorithms.text.layouts import (
    COMMENT,
    ID,
    INTEGER,
    LABEL,
    NUMBER,
    Column,
    Header,
    Layout,
    read_headers,
)
from ps2.algorithms.text.lines import find_fault, lines_of, shown
from ps2.algorithms.text.paths import local_name, reading
from ps2.algorithms.text.separators import IDS, fields_of
from ps2.errors import InputError

# Number of lines that tell the separator of text.
SAMPLE_LINES = 100


@dataclass(frozen=True, eq=False)
class TextTable:
    """The rows of a file, a folder or a glob.

    Attributes:
        path: its path.
        frame: DataFrame of the columns: ids (longs if all are integers, else strings), numbers (double), texts.
        columns: names of the columns.
        rows: number of rows.
        counts: for each column of ids, the number of ids that are no integers; for a column of labels, that of ones.
    """

    path: str
    frame: Any
    columns: tuple[str, ...]
    rows: int
    counts: dict[str, int]


def read_text(
    spark: Any, path: str, columns: tuple[Column, ...], one_kind: bool = False, is_open: bool = False
) -> TextTable:
    """Read lines of text without names, "id other-id" and perhaps a number.

    Args:
        columns: the columns that lines may have.
        one_kind: all ids are of one type.
        is_open: lines may have more fields than there are columns.

    Raises:
        InputError: there is no line, one is malformed, or the first one seems to name the columns.
    """
    with reading(spark, path):
        lines, any_layout = lines_of(spark, path), Layout.of_text(columns, 0, is_open=is_open)
        sample = lines.where(~any_layout.is_skipped(lines["line"], lines["file"])).head(SAMPLE_LINES)
        if not sample:
            raise InputError(f"{path}: expected lines {any_layout.text}, got none")
        first, file = sample[0]["line"], local_name(sample[0]["file"])
        layout = Layout.of_lines(columns, [row["line"] for row in sample], file, is_open)
        table = read_rows(path, lines, layout, one_kind)
        counts = set(table.counts.values())
        is_header = not any(re.fullmatch(NUMBER.pattern, id) for id in fields_of(first, layout.separator)[:IDS])
        if is_header and len(counts) == 1 and 2 * max(counts) < table.rows and max(counts) <= len(lines.inputFiles()):
            raise InputError(
                f"{file}: expected integers, as other lines have, got first {shown(first)}: begin a line that names "
                f"columns with {COMMENT}"
            )
        return table


def csv_lines(spark: Any, path: str, separator: str, names: Sequence[str] = ()) -> tuple[Any, tuple[Header, ...]]:
    """Return the lines of CSV files and their headers.

    Args:
        names: the names of all columns, for files whose first lines have none.

    Raises:
        InputError: all files are empty, or a file names other columns than the first one.
    """
    lines = lines_of(spark, path)
    return lines, (Header(tuple(names)),) if names else read_headers(path, lines, separator)


def name_fault(name: str, names: Sequence[str]) -> str | None:
    """Describe what files with columns of these names have instead of one column ``name``; None: they have it."""
    if names.count(name) == 1:
        return None
    return "got several of this name" if name in names else f"got {', '.join(map(repr, names))}"


def read_rows(path: str, lines: Any, layout: Layout, one_kind: bool = False) -> TextTable:
    """Read and check the rows of lines.

    Args:
        path: the path of all files, for messages.
        lines: the lines, as ``lines_of`` returns them.
        one_kind: all ids are of one type.

    Raises:
        InputError: there is no row, or a line is malformed.
    """
    line, file, cells = F.col("line"), F.col("file"), F.col("cells")
    rows = lines.where(~layout.is_skipped(line, file)).select(file, layout.split(line).alias("cells"))
    fields = {column: layout.field(column, cells, file) for column in layout.columns}
    is_right = reduce(and_, (column.is_valid(field) for column, field in fields.items()), layout.is_whole(cells, file))
    counted = {
        column.name: (~field.rlike(f"^({INTEGER})$")).cast("long")
        if column.kind == ID
        else F.when(column.is_valid(field), field).cast("double")
        for column, field in fields.items()
        if column.kind in (ID, LABEL)
    }
    stats = rows.agg(F.count(F.lit(1)), F.min(is_right.cast("int")), *map(F.sum, counted.values())).first()
    num_rows, are_right, *sums = stats
    if not num_rows:
        raise InputError(f"{path}: expected rows, got none")
    if not are_right:
        raise InputError(find_fault(lines, layout.fault_of) or f"{path}: a line is malformed")
    counts = {name: int(total) for name, total in zip(counted, sums, strict=True)}

    def type_of(column: Column) -> str:
        words = sum(counts.values()) if one_kind else counts.get(column.name)
        return "long" if column.kind == ID and not words else column.kind.type

    frame = rows.select(*(field.cast(type_of(column)).alias(column.name) for column, field in fields.items()))
    return TextTable(path, frame, tuple(column.name for column in layout.columns), num_rows, counts)
