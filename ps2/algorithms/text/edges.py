"""Edges in text files, lines "source target" or "source target weight", and the classes of their vertices."""

from __future__ import annotations

from typing import Any

from ps2.algorithms.text.layouts import ID, NUMBER, TEXT, Column
from ps2.algorithms.text.tables import TextTable, read_text

COLUMNS = (Column("src", ID, title="source"), Column("dst", ID, title="target"), Column("weight", NUMBER))
CLASSES = (Column("vertex", ID), Column("class", TEXT))


def read(spark: Any, path: str) -> TextTable:
    """Read a file, or all files of a folder or glob.

    Args:
        path: any URL that Spark reads.

    Returns:
        The table with the columns src and dst and, if the file has it, weight.

    Raises:
        InputError: there is no such file or no edge, or a line is malformed.
    """
    return read_text(spark, path, COLUMNS, one_kind=True)


def read_classes(spark: Any, path: str) -> dict[Any, str]:
    """Read the classes of vertices from lines "vertex class ..."; the first class of a line counts.

    Returns:
        The class of each vertex; vertices are integers if all are.

    Raises:
        InputError: there is no such file or no line, or a line has no class.
    """
    return dict(map(tuple, read_text(spark, path, CLASSES, is_open=True).frame.collect()))
