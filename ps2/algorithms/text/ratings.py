"""Ratings in text or CSV files: a user, an item, and perhaps a rating and a weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ps2.algorithms.text.layouts import ID, NUMBER, Column, Layout
from ps2.algorithms.text.paths import reading
from ps2.algorithms.text.tables import TextTable, csv_lines, name_fault, read_rows, read_text
from ps2.errors import InputError

COLUMNS = (Column("user", ID), Column("item", ID), Column("rating", NUMBER))


@dataclass(frozen=True)
class CsvColumns:
    """Names of the columns of a CSV file.

    Attributes:
        user, item: the columns of ids.
        rating, weight: the columns of numbers; None: there are none.
    """

    user: str = "user"
    item: str = "item"
    rating: str | None = "rating"
    weight: str | None = None

    def columns(self, path: str, names: Sequence[str]) -> tuple[Column, ...]:
        """Return the columns to read from a file with columns of these names.

        Raises:
            InputError: the file has no such column, or several of a name.
        """
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


def read(spark: Any, path: str, columns: CsvColumns | None) -> TextTable:
    """Read a file, or all files of a folder or glob.

    Args:
        path: any URL that Spark reads.
        columns: names of the columns of CSV files; None: the files are text, lines "user item" or "user item rating".

    Returns:
        The table with the columns user and item and, if the file has them, rating and weight.

    Raises:
        InputError: there is no such file, no rating or no such column, or a line is malformed.
    """
    if columns is None:
        return read_text(spark, path, COLUMNS)
    with reading(spark, path):
        lines, headers = csv_lines(spark, path, ",")
        return read_rows(path, lines, Layout(columns.columns(path, headers[0].names), headers))
