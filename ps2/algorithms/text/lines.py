"""Lines of text files, read by Spark, and the separators of their fields.

Fields without quotes are separated by white space, tabs only, ``::`` or commas, whichever fits. White space is spaces,
tabs and line ends, but not other blank characters such as U+00A0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote

from pyspark.sql import functions as F

from ps2.algorithms.text.paths import local_name
from ps2.errors import InputError
from ps2.run.spark.backend_lookup import with_python
from ps2.run.spark.files import escaped

SHOWN_CHARS = 40
# The character that replaces bytes that are not UTF-8 when Spark reads a file.
NOT_UTF8 = "\ufffd"
# White space other than the space, for Spark and Python alike.
WHITE = "\t\x0b\x0c\r"
SPACES = f" {WHITE}"
# The possible separators; None: white space.
SEPARATORS = (None, "\t", "::", ",")
# A line "user item 4,5" or "user;item;4,5".
DECIMAL_COMMA = re.compile(r"([^\s;|]+(\s+|\s*[;|]\s*)){2}[+-]?\d+,\d+", re.ASCII)
# The number of ids at the beginning of a line.
IDS = 2

IsRow = Callable[[Sequence[str]], bool]


def lines_of(spark: Any, path: str) -> Any:
    """Return a DataFrame with the columns file (a URL) and line. A suffix such as .gz means a compressed file."""
    return spark.read.text(path).select(F.input_file_name().alias("file"), F.col("value").alias("line"))


def find_fault(lines: Any, fault_of: Callable[[str, str], str | None]) -> str | None:
    """Describe the first malformed line of a file; None: there is no malformed line. ``fault_of`` is called with a line
    and its file's URL. As Spark can read the splits of a file in any order, this takes two passes."""
    faulty = with_python(lines).rdd.filter(lambda row: fault_of(row[1], row[0]) is not None).take(1)
    if not faulty:
        return None
    file = faulty[0][0]
    return find_fault_in(lines.sparkSession, file, lambda line, number: fault_of(line, file))


def find_fault_in(spark: Any, file: str, fault_of: Callable[[str, int], str | None]) -> str | None:
    """Describe the first malformed line of a file; None: it has none. ``fault_of`` is called with a line and its
    number, from 1."""
    faulty = numbered_lines(spark, file).filter(lambda pair: fault_of(pair[0], pair[1] + 1) is not None).take(1)
    if not faulty:
        return None
    line, index = faulty[0]
    return f"{local_name(file)}: line {index + 1}: {fault_of(line, index + 1)}"


def numbered_lines(spark: Any, file: str) -> Any:
    """Return an RDD of the lines of a file in order, each with its number from 0."""
    return spark.sparkContext.textFile(escaped(unquote(file))).zipWithIndex()


def shown(text: str) -> str:
    """Return a text, or its beginning, for messages."""
    return repr(text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "...")


def fields_of(line: str, separator: str | None) -> list[str]:
    """Return the fields of a line, without white space around them."""
    text = line.strip(SPACES)
    fields = text.split(separator) if separator is not None else re.split(f"[{SPACES}]+", text)
    return [field.strip(SPACES) for field in fields]


def separator_of(lines: Sequence[str], is_row: IsRow) -> str | None:
    """Return the separator with which the largest number of lines are rows; no line is blank or a comment. If several
    are equally good, prefer the one that makes more fields, then white space, because ids can contain commas."""

    def fit(separator: str | None) -> tuple[int, int]:
        rows = _rows(lines, separator, is_row)
        return len(rows), sum(map(len, rows))

    return max(SEPARATORS, key=fit)


def check_separator(file: str, lines: Sequence[str], separator: str | None, is_row: IsRow) -> None:
    """Raise InputError if another separator fits as many lines and splits them differently, or if numbers have decimal
    commas. If white space makes three fields of all lines, ids can contain "::" and commas."""
    if separator == "," and all(DECIMAL_COMMA.fullmatch(line.strip()) for line in lines):
        raise InputError(f"{file}: expected a number with a decimal point, got {shown(lines[0])}")
    rows = _rows(lines, separator, is_row)
    for rival in SEPARATORS:
        others = _rows(lines, rival, is_row)
        is_clear = separator is None and rival != "\t" and sum(map(len, others)) < sum(map(len, rows))
        if others == rows or len(others) != len(rows) or is_clear:
            continue
        line = next(line for line in lines if fields_of(line, separator) != fields_of(line, rival))
        first, second = (" and ".join(map(repr, fields_of(line, each))) for each in (separator, rival))
        raise InputError(
            f"{file}: {shown(line)} can be read as {first}, or as {second}: separate fields by a character that no id "
            "contains, such as a tab"
        )


def _rows(lines: Sequence[str], separator: str | None, is_row: IsRow) -> list[list[str]]:
    """Return the fields of the lines that are rows with a separator."""

    def has_other_separator(field: str) -> bool:
        # The first id of "1, 2" is not "1,".
        return "\t" in field or (separator is None and (field.strip(",") != field or field.endswith("::")))

    split = (fields_of(line, separator) for line in lines)
    rows = (fields for fields in split if is_row(fields) and all(fields[:IDS]))
    return [fields for fields in rows if not any(map(has_other_separator, fields[:IDS]))]
