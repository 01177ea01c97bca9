"""The first lines of CSV files, which name their columns; each file of a folder may have an order of its own."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from ps2.algorithms.inputs import local_name
from ps2.algorithms.text_lines import BAD
from ps2.errors import InputError

BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True)
class Header:
    """The first line of some files.

    Attributes:
        line: the line.
        names: of the columns.
        files: URLs of the files that begin with it, as Spark's input_file_name returns them.
    """

    line: str
    names: tuple[str, ...]
    files: frozenset[str] = frozenset()

    @staticmethod
    def of(line: str, separator: str, files: frozenset[str] = frozenset()) -> Header:
        """Return a line as a header."""
        names = cells_of(line.removeprefix(BYTE_ORDER_MARK), separator)
        return Header(line, tuple(name.strip() for name in names), files)


def read_headers(path: str, lines: Any, separator: str) -> list[Header]:
    """Return the different first lines of files.

    Args:
        lines: DataFrame with columns file and line.

    Raises:
        InputError: all files are empty, or a file names other columns than the first one; it names the file.
    """
    from pyspark.sql import functions as F

    count = len(lines.inputFiles())
    rest = lines.where(F.trim("line") != "")
    headers: list[Header] = []
    while (first := rest.where(F.input_file_block_start() == 0).first()) is not None:
        files = {first["file"]}
        if count > 1:  # a pass over the lines, in Java, for each different header
            files.update(
                row["file"] for row in rest.where(rest["line"] == first["line"]).select("file").distinct().collect()
            )
        header = Header.of(first["line"], separator, frozenset(files))
        if headers and sorted(header.names) != sorted(headers[0].names):
            raise InputError(_difference(first["file"], header, headers[0]))
        headers.append(header)
        count -= len(files)
        if count == 0:
            break
        rest = rest.where(~F.col("file").isin(*files))
    if not headers:
        raise InputError(f"{path}: line 1: expected the names of columns, got an empty file")
    return headers


def by_header(headers: Sequence[Header], file: Any, value: Callable[[Header], Any]) -> Any:
    """Return Spark's column of the value that belongs to the header of each row's file.

    Args:
        file: column of the rows' files.
        value: returns the column for a header.
    """
    from pyspark.sql import functions as F

    *others, last = headers
    column = value(last)
    for header in others:
        column = F.when(file.isin(*header.files), value(header)).otherwise(column)
    return column


def header_of(headers: Sequence[Header], file: str) -> Header:
    """Return the header of a file."""
    return next(header for header in (*headers[:0:-1], headers[0]) if file in header.files or header is headers[0])


def cells_of(line: str, separator: str) -> list[str]:
    """Return the fields of a line of CSV, without one whose quote does not end there; none if it is malformed."""
    try:
        return next(csv.reader([line + separator], delimiter=separator), [])[:-1]
    except csv.Error:
        return []


def split_cells(line: Any, separator: str, count: int) -> Any:
    """Return Spark's column of the fields of lines, c0, c1, ..., and of ``BAD``, null for lines of ``count`` fields."""
    from pyspark.sql import functions as F

    # A quote that does not end on its line hides the separator behind it.
    names = [*(f"c{at}" for at in range(count + 1)), BAD]
    options = {"sep": separator, "escape": '"', "columnNameOfCorruptRecord": BAD}
    schema = ", ".join(f"{name} string" for name in names)
    return F.from_csv(F.concat(line, F.lit(separator)), F.lit(schema), options)


def _difference(file: str, header: Header, first: Header) -> str:
    """Describe the columns that only one of two headers has."""
    expected, got = (
        ", ".join(map(repr, (name for name in one.names if one.names.count(name) != other.names.count(name))))
        for one, other in ((first, header), (header, first))
    )
    other = local_name(unquote(min(first.files)))
    return (
        f"{local_name(unquote(file))}: line 1: expected the columns of {other}, with {expected or 'no more'}, "
        f"got {got or 'no such column'}"
    )
