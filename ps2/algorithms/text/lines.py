"""Lines of text files, read by Spark; an error names the file and the number of a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from pyspark.sql import functions as F

from ps2.algorithms.text.paths import local_name
from ps2.run.spark.backend_lookup import with_python
from ps2.run.spark.files import escaped

SHOWN_CHARS = 40
# What Spark reads where bytes are not UTF-8.
NOT_UTF8 = "\ufffd"


def lines_of(spark: Any, path: str) -> Any:
    """Return a DataFrame of the columns file, a URL, and line; suffixes such as .gz tell the compression."""
    return spark.read.text(path).select(F.input_file_name().alias("file"), F.col("value").alias("line"))


def find_fault(lines: Any, fault_of: Callable[[str, str], str | None]) -> str | None:
    """Describe the first malformed line of a file that has one; None: no file has one.

    Spark may read the parts of a file in any order, so this takes two passes.

    Args:
        lines: the lines, as ``lines_of`` returns them.
        fault_of: describes what is wrong with a line, given the line and its file's URL.
    """
    faulty = with_python(lines).rdd.filter(lambda row: fault_of(row[1], row[0]) is not None).take(1)
    if not faulty:
        return None
    file = faulty[0][0]
    return find_fault_in(lines.sparkSession, file, lambda line, number: fault_of(line, file))


def find_fault_in(spark: Any, file: str, fault_of: Callable[[str, int], str | None]) -> str | None:
    """Describe the first malformed line of a file; None: it has none.

    Args:
        file: URL of the file.
        fault_of: describes what is wrong with a line, given the line and its number from 1.
    """
    faulty = numbered_lines(spark, file).filter(lambda pair: fault_of(pair[0], pair[1] + 1) is not None).take(1)
    if not faulty:
        return None
    line, index = faulty[0]
    return f"{local_name(file)}: line {index + 1}: {fault_of(line, index + 1)}"


def numbered_lines(spark: Any, file: str) -> Any:
    """Return an RDD of the lines of a file, in the order of the text, each with its number from 0."""
    return spark.sparkContext.textFile(escaped(unquote(file))).zipWithIndex()


def shown(text: str) -> str:
    """Return a text, or its beginning, for messages."""
    return repr(text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "...")
