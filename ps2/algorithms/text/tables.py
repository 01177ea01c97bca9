"""Read tables from text or CSV files with Spark: split lines by a layout into a DataFrame of checked columns.

A rating has a user, an item, and optionally a rating and a weight; an edge has a source, a target, and optionally a
weight.
"""

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
    TEXT,
    Column,
    Header,
    Layout,
    read_headers,
)
from ps2.algorithms.text.lines import IDS, fields_of, find_fault, lines_of, shown
from ps2.algorithms.text.paths import local_name, reading
from ps2.errors import InputError

# The number of lines from which the separator of text is inferred.
SAMPLE_LINES = 100
RATINGS = (Column("user", ID), Column("item", ID), Column("rating", NUMBER))
EDGES = (Column("src", ID, title="source"), Column("dst", ID, title="target"), Column("weight", NUMBER))
CLASSES = (Column("vertex", ID), Column("class", TEXT))


@dataclass(frozen=True, eq=False)
class TextTable:
    """The rows of a file, a folder or a glob.

    Attributes:
        frame: a DataFrame of the columns: ids (longs if all are integers, else strings), numbers (double), texts.
        counts: for each column of ids, the number of ids that are not integers; for a column of labels, the number of
            labels 1.
    """

    path: str
    frame: Any
    columns: tuple[str, ...]
    rows: int
    counts: dict[str, int]


def read_text(
    spark: Any, path: str, columns: tuple[Column, ...], one_kind: bool = False, is_open: bool = False
) -> TextTable:
    """Read lines of text without column names: two ids and perhaps a number. With ``one_kind``, the ids of both columns
    get the same type; with ``is_open``, lines may have more fields. Raise InputError for a malformed line, or if the
    first line seems to contain column names."""
    with reading(spark, path):
        lines, any_layout = lines_of(spark, path), Layout.of_text(columns, 0, is_open=is_open)
        sample = lines.where(~any_layout.is_skipped(lines["line"], lines["file"])).head(SAMPLE_LINES)
        if not sample:
            raise InputError(f"{path}: expected lines {any_layout.text}, got none")
        first, file = sample[0]["line"], local_name(sample[0]["file"])
        layout = Layout.of_lines(columns, [row["line"] for row in sample], file, is_open)
        table = read_rows(path, lines, layout, one_kind)
        # In a header, no id is a number. Then there are as few ids that are not integers as files with a header.
        counts = set(table.counts.values())
        is_header = not any(re.fullmatch(NUMBER.pattern, id) for id in fields_of(first, layout.separator)[:IDS])
        if is_header and len(counts) == 1 and 2 * max(counts) < table.rows and max(counts) <= len(lines.inputFiles()):
            raise InputError(
                f"{file}: expected integers, as other lines have, got the first line {shown(first)}: begin a line "
                f"that names columns with {COMMENT}"
            )
        return table


def csv_lines(spark: Any, path: str, separator: str, names: Sequence[str] = ()) -> tuple[Any, tuple[Header, ...]]:
    """Return the lines of CSV files, and their headers. If ``names`` is empty, first lines have the columns' names."""
    lines = lines_of(spark, path)
    return lines, (Header(tuple(names)),) if names else read_headers(path, lines, separator)


def name_fault(name: str, names: Sequence[str]) -> str | None:
    """Describe why ``names`` does not contain ``name`` exactly once; None: it does."""
    if names.count(name) == 1:
        return None
    return "got several of this name" if name in names else f"got {', '.join(map(repr, names))}"


def read_rows(path: str, lines: Any, layout: Layout, one_kind: bool = False) -> TextTable:
    """Read and check rows from the result of ``lines_of``; InputError: there is no row, or a line is malformed.
    ``path`` is for messages; for ``one_kind`` see ``read_text``."""
    line, file, cells = F.col("line"), F.col("file"), F.col("cells")
    rows = lines.where(~layout.is_skipped(line, file)).select(file, layout.split(line).alias("cells"))
    fields = {column: layout.field(column, cells, file) for column in layout.columns}
    is_valid = reduce(and_, (column.is_valid(field) for column, field in fields.items()), layout.is_row(cells, file))
    counted = {
        column.name: (~field.rlike(f"^({INTEGER})$")).cast("long")
        if column.kind == ID
        else F.when(column.is_valid(field), field).cast("double")
        for column, field in fields.items()
        if column.kind in (ID, LABEL)
    }
    stats = rows.agg(F.count(F.lit(1)), F.min(is_valid.cast("int")), *map(F.sum, counted.values())).first()
    num_rows, are_valid, *sums = stats
    if not num_rows:
        raise InputError(f"{path}: expected rows, got none")
    if not are_valid:
        raise InputError(find_fault(lines, layout.fault_of) or f"{path}: a line is malformed")
    counts = {name: int(total) for name, total in zip(counted, sums, strict=True)}

    def type_of(column: Column) -> str:
        num_strings = sum(counts.values()) if one_kind else counts.get(column.name)
        return "long" if column.kind == ID and not num_strings else column.kind.type

    frame = rows.select(*(field.cast(type_of(column)).alias(column.name) for column, field in fields.items()))
    return TextTable(path, frame, tuple(column.name for column in layout.columns), num_rows, counts)


@dataclass(frozen=True)
class CsvColumns:
    """The names of the columns of a CSV file; None: there is no such column."""

    user: str = "user"
    item: str = "item"
    rating: str | None = "rating"
    weight: str | None = None

    def columns(self, path: str, names: Sequence[str]) -> tuple[Column, ...]:
        """Return the columns to read from a file with columns ``names``; raise InputError unless each exists once."""
        columns = tuple(
            Column(role, kind, name)
            for role, kind, name in (
                ("user", ID, self.user),
                ("item", ID, self.item),
                ("rating", NUMBER, self.rating),
                ("weight", NUMBER, self.weight),
            )
            if name is not None
        )
        for column in columns:
            if fault := name_fault(column.header, names):
                raise InputError(f"{path}: line 1: expected a column {column.header!r} of {column.name}s, {fault}")
        return columns


def read_ratings(spark: Any, path: str, columns: CsvColumns | None) -> TextTable:
    """Read a file, a folder or a glob: text with lines "user item" or "user item rating", or CSV files (``columns``).
    The table has the columns user and item and, if the file has them, rating and weight."""
    if columns is None:
        return read_text(spark, path, RATINGS)
    with reading(spark, path):
        lines, headers = csv_lines(spark, path, ",")
        return read_rows(path, lines, Layout(columns.columns(path, headers[0].names), headers))


def read_edges(spark: Any, path: str) -> TextTable:
    """Read a file, or all files of a folder or glob: columns src and dst and, if the file has it, weight."""
    return read_text(spark, path, EDGES, one_kind=True)


def read_classes(spark: Any, path: str) -> dict[Any, str]:
    """Return the class of each vertex from lines "vertex class ..."; further classes of a vertex are ignored."""
    return dict(map(tuple, read_text(spark, path, CLASSES, is_open=True).frame.collect()))
