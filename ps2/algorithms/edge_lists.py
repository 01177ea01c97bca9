"""Edges in text files, read by Spark; an error names the file and number of a malformed line.

A line is "source target" or "source target weight", separated by white space; lines that begin with # are comments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from ps2.algorithms.inputs import local_name, reading, shown
from ps2.errors import InputError
from ps2.run.spark.backend_lookup import with_python

FORM = "'source target' or 'source target weight'"
INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
COMMENT = "#"
# Number of fields without and with a weight.
SIZES = (2, 3)


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
        return _read(spark, path)


def _read(spark: Any, path: str) -> EdgeList:
    from pyspark.sql import functions as F

    text = F.regexp_replace("value", r"^\s+|\s+$", "")
    lines = spark.read.text(path).select(F.input_file_name().alias("file"), text.alias("line"))
    rows = lines.where((F.col("line") != "") & ~F.col("line").startswith(COMMENT))
    first = rows.first()
    if first is None:
        raise InputError(f"{path}: expected lines {FORM}, got none")
    size = len(first["line"].split())
    fields = F.split("line", r"\s+")
    cells = rows.select(F.size(fields).alias("size"), *(F.get(fields, F.lit(at)).alias(str(at)) for at in range(3)))
    are_right = F.col("size") == size
    if size == SIZES[1]:
        are_right &= F.col("2").rlike(f"^({NUMBER.pattern})$")
    are_integers = F.col("0").rlike(f"^({INTEGER.pattern})$") & F.col("1").rlike(f"^({INTEGER.pattern})$")
    found = cells.agg(
        F.count(F.lit(1)).alias("edges"),
        F.min(are_right.cast("int")).alias("right"),
        F.min(are_integers.cast("int")).alias("integers"),
    ).first()
    if size not in SIZES or not found["right"]:
        raise InputError(_fault_in(spark, lines, size) or f"{path}: expected lines {FORM}")
    kind = "long" if found["integers"] else "string"
    columns = [F.col("0").cast(kind).alias("src"), F.col("1").cast(kind).alias("dst")]
    if size == SIZES[1]:
        columns.append(F.col("2").cast("double").alias("weight"))
    return EdgeList(path, cells.select(*columns), int(found["edges"]), size == SIZES[1])


def read_classes(spark: Any, path: str) -> dict[Any, str]:
    """Read the classes of vertices from lines "vertex class ..."; the first class of a line counts.

    Returns:
        The class of each vertex; vertices are integers if all are.

    Raises:
        InputError: there is no such file, or a line has no class.
    """
    with reading(spark, path):
        lines = spark.sparkContext.textFile(path).collect()
    classes: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        fields = line.split()
        if not fields or line.startswith(COMMENT):
            continue
        if len(fields) < 2:
            raise InputError(f"{path}: line {number}: expected 'vertex class ...', got {shown(line)}")
        classes[fields[0]] = fields[1]
    if all(INTEGER.fullmatch(vertex) for vertex in classes):
        return {int(vertex): name for vertex, name in classes.items()}
    return classes


def fault_of(line: str, size: int) -> str | None:
    """Describe what is wrong with a line; None: nothing.

    Args:
        size: number of fields of the first line.
    """
    fields = line.split()
    if not fields or fields[0].startswith(COMMENT):
        return None
    if len(fields) not in SIZES:
        return f"expected {FORM}, got {shown(line.strip())}"
    if len(fields) != size:
        return f"expected {size} fields, as the lines before have, got {shown(line.strip())}"
    if len(fields) == SIZES[1] and not NUMBER.fullmatch(fields[2]):
        return f"weight: expected a number, got {shown(fields[2])}"
    return None


def _fault_in(spark: Any, lines: Any, size: int) -> str | None:
    """Find a malformed line. Spark may read the parts of a file in any order, so this takes two passes."""
    faulty = with_python(lines).rdd.filter(lambda row: fault_of(row[1], size) is not None).take(1)
    if not faulty:
        return None
    file = unquote(faulty[0][0])
    numbered = spark.sparkContext.textFile(file).zipWithIndex()
    line, at = numbered.filter(lambda pair: fault_of(pair[0], size) is not None).first()
    return f"{local_name(file)}: line {at + 1}: {fault_of(line, size)}"
