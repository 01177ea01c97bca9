"""Edges in text files, lines "source target" or "source target weight", and the classes of their vertices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ps2.algorithms.text.layouts import ID, NUMBER, TEXT, Column
from ps2.algorithms.text.tables import TextTable, read_text

COLUMNS = (Column("source", ID), Column("target", ID), Column("weight", NUMBER))
CLASSES = (Column("vertex", ID), Column("class", TEXT))


def read(spark: Any, path: str) -> TextTable:
    """Read a file, or all files of a folder or glob.

    Args:
        path: any URL that Spark reads.

    Returns:
        The table; its frame has the columns src and dst and, if the file has it, weight.

    Raises:
        InputError: there is no such file or no edge, or a line is malformed.
    """
    table = read_text(spark, path, COLUMNS, one_kind=True)
    return replace(table, frame=table.frame.withColumnsRenamed({"source": "src", "target": "dst"}))


def read_classes(spark: Any, path: str) -> dict[Any, str]:
    """Read the classes of vertices from lines "vertex class ..."; the first class of a line counts.

    Returns:
        The class of each vertex; vertices are integers if all are.

    Raises:
        InputError: there is no such file or no line, or a line has no class.
    """
    return dict(map(tuple, read_text(spark, path, CLASSES, is_open=True).frame.collect()))
