"""Split lines into fields: of text files by position, of CSV files by the column names in each file's first line.

A layout splits lines by Spark's expressions, which are fast, and by Python, to describe the fault of a malformed line.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, NamedTuple

from pyspark.sql import functions as F

from ps2.algorithms.text.lines import IDS, NOT_UTF8, SPACES, WHITE, check_separator, fields_of, separator_of, shown
from ps2.algorithms.text.paths import local_name
from ps2.errors import InputError

COMMENT = "#"
# The valid numbers of fields of a line of text: two ids, and perhaps a number.
SIZES = (IDS, IDS + 1)
BYTE_ORDER_MARK = "\ufeff"
# The column in which Spark's from_csv stores a line that is not valid CSV.
MALFORMED = "malformed"


class Kind(NamedTuple):
    """The kind of the fields of a column.

    Attributes:
        expected: the description of a valid field, for messages.
        pattern: the regular expression of valid fields, for Java and Python alike.
        type: Spark's type of the column.
        is_trimmed: whether white space around a field is ignored.
    """

    expected: str
    pattern: str
    type: str
    is_trimmed: bool = False


# An id such as "007" is a string, not an integer, because it differs from "7".
INTEGER = r"0|-?[1-9][0-9]{0,17}"
ID = Kind("an id", f"[^{NOT_UTF8}]+", "string", is_trimmed=True)
TEXT = Kind("a text", f"[^{NOT_UTF8}]*", "string")
NUMBER = Kind("a number", r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", "double", is_trimmed=True)
OPTIONAL_NUMBER = Kind("a number", f"({NUMBER.pattern})?", "double")
LABEL = Kind("a label 0 or 1", r"(\+?0*1(\.0*)?|[+-]?(0+(\.0*)?|\.0+))([eE][+-]?0+)?", "double")


@dataclass(frozen=True)
class Column:
    """A column of a table. ``header`` is its name in CSV files, ``title`` its name in messages; "": ``name``."""

    name: str
    kind: Kind
    header: str = ""
    title: str = ""

    def index_in(self, header: Header) -> int:
        return header.names.index(self.header or self.name)

    def fault_of(self, value: str, line: str) -> str | None:
        """Describe the fault of a field of a line; None: it has none."""
        if re.fullmatch(self.kind.pattern, value):
            return None
        expected = "UTF-8" if NOT_UTF8 in value else self.kind.expected
        got = f"an empty field in {shown(line)}" if self.kind == ID and not value else shown(value)
        return f"{self.title or self.name}: expected {expected}, got {got}"

    def is_valid(self, value: Any) -> Any:
        """Return the Column that is true for valid fields."""
        text = F.coalesce(value, F.lit(""))
        if self.kind.type == "double":
            return text.rlike(rf"^({self.kind.pattern})\z")
        is_utf8 = ~text.contains(NOT_UTF8)  # faster than the pattern
        return is_utf8 & (text != "") if self.kind == ID else is_utf8


@dataclass(frozen=True)
class Header:
    """The column names of some files, and the first line of these files, which has the names ("": no line has them).
    ``files`` are URLs, as Spark's input_file_name returns them."""

    names: tuple[str, ...]
    line: str = ""
    files: frozenset[str] = frozenset()

    @staticmethod
    def of(line: str, separator: str, files: frozenset[str] = frozenset()) -> Header:
        """Return the header that a line contains."""
        names = _csv_cells(line.removeprefix(BYTE_ORDER_MARK), separator)
        return Header(tuple(name.strip() for name in names), line, files)


@dataclass(frozen=True)
class Layout:
    """The rules for splitting lines into fields. The argument ``file`` of its methods is the URL of a line's file.

    Attributes:
        headers: the headers of the files. They have the same names, perhaps in different orders.
        separator: the separator of the fields; None: white space.
        text: a description of the lines of text files, for messages; "": the files are CSV. In CSV files, a field that
            contains the separator is in double quotes, which end on the same line. Text files have no quotes, and lines
            that begin with # are comments.
        is_open: whether lines can have more fields, which are ignored.
    """

    columns: tuple[Column, ...]
    headers: tuple[Header, ...]
    separator: str | None = ","
    text: str = ""
    is_open: bool = False

    @staticmethod
    def of_text(columns: tuple[Column, ...], size: int, separator: str | None = None, is_open: bool = False) -> Layout:
        """Return the layout of text whose lines have ``size`` fields: two ids, and perhaps a number."""
        titles = [column.title or column.name for column in columns]
        text = f"'{' '.join(titles[:IDS])} ...'" if is_open else f"'{' '.join(titles[:IDS])}' or '{' '.join(titles)}'"
        # Fields after the last column have no name.
        header = Header((*(column.name for column in columns[:size]), *[""] * (size - len(columns))))
        return Layout(columns[:size], (header,), separator, text, is_open)

    @staticmethod
    def of_lines(columns: tuple[Column, ...], lines: Sequence[str], file: str = "", is_open: bool = False) -> Layout:
        """Infer the layout of text from a file's first lines. All lines must have as many fields as the first line.
        Raise InputError if several separators fit and split lines differently, or if numbers have decimal commas."""

        def is_row(fields: Sequence[str]) -> bool:
            numbers = fields[IDS:]
            is_number = len(fields) <= len(columns) and all(re.fullmatch(NUMBER.pattern, field) for field in numbers)
            return len(fields) >= IDS and (is_open or is_number)

        separator = separator_of(lines, is_row)
        if is_open:
            return Layout.of_text(columns, len(columns), separator, is_open)
        check_separator(file, lines, separator, is_row)
        return Layout.of_text(columns, len(fields_of(lines[0], separator)), separator)

    @property
    def names(self) -> tuple[str, ...]:
        return self.headers[0].names

    @property
    def _skipped(self) -> str:
        """The regular expression that blank lines and comments match, for Java and Python alike."""
        return f"^[{SPACES}]*({COMMENT}|$)" if self.text else f"^[{SPACES}]*$"

    def fault_of(self, line: str, file: str = "") -> str | None:
        """Describe the fault of a line; None: it has none."""
        header = self._header(file)
        if re.match(self._skipped, line) or line == header.line:
            return None
        fields = self.fields(line, header)
        if isinstance(fields, str):
            return fields
        faults = (column.fault_of(value, line) for column, value in zip(self.columns, fields, strict=True))
        return next(filter(None, faults), None)

    def fields(self, line: str, header: Header) -> list[str] | str:
        """Return the fields of a line in the order of the columns, or a description of the line's fault."""
        size = len(header.names)
        cells = fields_of(line, self.separator) if self.text else _csv_cells(line, self.separator or ",")
        cells = cells[:size] if self.is_open else cells
        if self.text and len(cells) not in SIZES:
            advice = ": remove all fields after the third" if len(cells) > max(SIZES) else ""
            return f"expected {self.text}, got {shown(line.strip())}{advice}"
        if len(cells) != size:
            source = ", as the first line has" if self.text or header.line else ""
            return f"expected {size} fields{source}, got {len(cells)}: {shown(line)}"
        values = [(column, cells[column.index_in(header)]) for column in self.columns]
        fields = [value.strip(SPACES) if column.kind.is_trimmed else value for column, value in values]
        ids = {field for column, field in zip(self.columns, fields, strict=True) if column.kind == ID}
        if header.line and ids and ids <= set(header.names):
            return f"expected a row, got names of columns in another order than in the first line: {shown(line)}"
        return fields

    def is_skipped(self, line: Any, file: Any) -> Any:
        """Return the Column that is true for lines that are blank, a comment or a header."""
        return line.rlike(self._skipped) | (line == self._by_header(file, lambda header: F.lit(header.line)))

    def split(self, line: Any) -> Any:
        """Return the Column of the cells of each line: a list, or a struct for CSV files."""
        if not self.text:
            # A separator is added to each line. If a quote does not end on the line, the separator is inside of the
            # quotes, so the line has a cell less and is malformed.
            names = [*(f"c{index}" for index in range(len(self.names) + 1)), MALFORMED]
            options = {"sep": self.separator or ",", "escape": '"', "columnNameOfCorruptRecord": MALFORMED}
            schema = ", ".join(f"{name} string" for name in names)
            return F.from_csv(F.concat(line, F.lit(self.separator)), F.lit(schema), options)
        if self.separator is not None:
            return F.split(_trimmed(line), self.separator)
        text = F.trim(F.translate(line, WHITE, " " * len(WHITE)))
        single = F.when(F.instr(text, "  ") > 0, F.regexp_replace(text, " +", " ")).otherwise(text)
        # By a single character, Java splits without a regular expression, which it would compile for each line.
        return F.split(single, " ")

    def is_row(self, cells: Any, file: Any) -> Any:
        """Return the Column that is true if a line's cells are a row: their number is right, and they are no names."""
        size = len(self.names)
        if self.text:
            return (F.size(cells) >= size if self.is_open else F.size(cells) == size) & F.lit(size in SIZES)
        ids = [self.field(column, cells, file) for column in self.columns if column.kind == ID]
        are_names = reduce(and_, (field.isin(*self.names) for field in ids), F.lit(bool(ids and self.headers[0].line)))
        return cells[MALFORMED].isNull() & ~are_names

    def field(self, column: Column, cells: Any, file: Any) -> Any:
        """Return the Column of the fields of a column of the layout."""
        if self.text:
            return _trimmed(F.get(cells, F.lit(column.index_in(self.headers[0]))))
        cell = self._by_header(file, lambda header: cells[f"c{column.index_in(header)}"])
        return _trimmed(cell) if column.kind.is_trimmed else cell

    def _by_header(self, file: Any, value: Callable[[Header], Any]) -> Any:
        """Return a Column whose value depends on the header of each line's file."""
        *others, last = self.headers
        column = value(last)
        for header in others:
            column = F.when(file.isin(*header.files), value(header)).otherwise(column)
        return column

    def _header(self, file: str) -> Header:
        return next((header for header in self.headers if file in header.files), self.headers[0])


def read_headers(path: str, lines: Any, separator: str) -> tuple[Header, ...]:
    """Return the distinct headers of CSV files; InputError: all files are empty, or files have different columns."""
    num_files = len(lines.inputFiles())
    remaining = lines.where(F.trim("line") != "")
    headers: list[Header] = []
    while num_files and (first := remaining.where(F.input_file_block_start() == 0).first()) is not None:
        files = {first["file"]}
        if num_files > 1:  # for each distinct header, this takes a pass over the lines in Java
            same_header = remaining.where(remaining["line"] == first["line"]).select("file").distinct()
            files.update(row["file"] for row in same_header.collect())
        header = Header.of(first["line"], separator, frozenset(files))
        if headers and sorted(header.names) != sorted(headers[0].names):
            expected, got = (
                ", ".join(repr(name) for name in names if names.count(name) != other_names.count(name))
                for names, other_names in ((headers[0].names, header.names), (header.names, headers[0].names))
            )
            raise InputError(
                f"{local_name(first['file'])}: line 1: expected the columns of "
                f"{local_name(min(headers[0].files))}, with {expected or 'no more'}, got {got or 'no such column'}"
            )
        headers.append(header)
        num_files -= len(files)
        remaining = remaining.where(~F.col("file").isin(*files))
    if not headers:
        raise InputError(f"{path}: line 1: expected the names of columns, got an empty file")
    return tuple(headers)


def _csv_cells(line: str, separator: str) -> list[str]:
    """Return the fields of a CSV line, without a last field whose quote does not end on the line; [] if malformed."""
    try:
        return next(csv.reader([line + separator], delimiter=separator), [])[:-1]
    except csv.Error:
        return []


def _trimmed(text: Any) -> Any:
    """Return a Column of strings without the white space around them."""
    return F.btrim(text, F.lit(SPACES))
