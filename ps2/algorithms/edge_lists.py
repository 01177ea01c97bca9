"""Edges in text files, read by Spark: lines "source target" or "source target weight" (``text_lines``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ps2.algorithms.inputs import reading, shown, text_file
from ps2.algorithms.text_lines import INTEGER, NOT_UTF8, TextForm, fields_of, read_text, separator_of
from ps2.errors import InputError

ROLES = ("source", "target", "weight")


@dataclass(frozen=True, eq=False)
class EdgeList:
    """Edges of a file.

    Attributes:
        path: of the file, the folder or the glob.
        frame: DataFrame with columns src and dst, longs if all ids are integers, else strings; and, if ``weighted``,
            weight (double).
        edges: number of edges.
        weighted: whether they have weights.
    """

    path: str
    frame: Any
    edges: int
    weighted: bool


def read(spark: Any, path: str) -> EdgeList:
    """Read a file, or all files of a folder or glob; suffixes such as .gz tell the compression.

    Args:
        path: any URL that Spark reads.

    Raises:
        InputError: there is no such file or no edge, or a line is malformed.
    """
    with reading(spark, path):
        found, form = read_text(spark, path, ROLES, one_kind=True)
    frame = found.frame.withColumnsRenamed({"source": "src", "target": "dst"})
    return EdgeList(path, frame, found.rows, ROLES[-1] in form.roles)


def read_classes(spark: Any, path: str) -> dict[Any, str]:
    """Read the classes of vertices from lines "vertex class ..."; the first class of a line counts.

    Returns:
        The class of each vertex; vertices are integers if all are.

    Raises:
        InputError: there is no such file, or a line has no class.
    """
    with reading(spark, path):
        lines = text_file(spark, path).collect()
    form = TextForm(ROLES, 0)
    rows = {number: line for number, line in enumerate(lines, 1) if not form.skips(line)}
    separator = separator_of(list(rows.values()), lambda fields: len(fields) > 1)
    classes: dict[str, str] = {}
    for number, line in rows.items():
        fields = fields_of(line, separator)
        if len(fields) < 2:
            raise InputError(f"{path}: line {number}: expected 'vertex class ...', got {shown(line)}")
        if NOT_UTF8 in "".join(fields[:2]):
            raise InputError(f"{path}: line {number}: expected UTF-8, got {shown(line)}")
        classes[fields[0]] = fields[1]
    if all(INTEGER.fullmatch(vertex) for vertex in classes):
        return {int(vertex): name for vertex, name in classes.items()}
    return classes
