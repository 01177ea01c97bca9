"""Read lines of text files with Spark, find malformed lines, and infer the separator of fields.

Fields without quotes are separated by white space, tabs, ``::`` or commas, whichever fits. White space means spaces,
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

# The maximum length of a text in a message.
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
    """Return a DataFrame with the columns file (a URL) and line. Files may be compressed, with a suffix such as .gz."""
    return spark.read.text(path).select(F.input_file_name().alias("file"), F.col("value").alias("line"))


def find_fault(lines: Any, fault_of: Callable[[str, str], str | None]) -> str | None:
    """Describe the first malformed line of a file; None: no line is malformed. ``fault_of`` is called with a line and
    its file's URL. This takes two passes, because Spark can read the splits of a file in any order."""
    faulty = with_python(lines).rdd.filter(lambda row: fault_of(row[1], row[0]) is not None).take(1)
    if not faulty:
        return None
    file = faulty[0][0]
    return find_fault_in(lines.sparkSession, file, lambda line, number: fault_of(line, file))


def find_fault_in(spark: Any, file: str, fault_of: Callable[[str, int], str | None]) -> str | None:
    """Like ``find_fault``, for one file; ``fault_of`` is called with a line and its number, from 1."""
    faulty = numbered_lines(spark, file).filter(lambda pair: fault_of(pair[0], pair[1] + 1) is not None).take(1)
    if not faulty:
        return None
    line, index = faulty[0]
    return f"{local_name(file)}: line {index + 1}: {fault_of(line, index + 1)}"


def numbered_lines(spark: Any, file: str) -> Any:
    """Return an RDD of the lines of a file in order, each with its index from 0."""
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
    """Return the separator that splits the most lines into rows; ``lines`` has no blank lines or comments.

    If several split equally many, prefer the separator that makes more fields, then white space: ids can contain
    commas.
    """

    def num_rows_and_fields(separator: str | None) -> tuple[int, int]:
        rows = _rows(lines, separator, is_row)
        return len(rows), sum(map(len, rows))

    return max(SEPARATORS, key=num_rows_and_fields)


def check_separator(file: str, lines: Sequence[str], separator: str | None, is_row: IsRow) -> None:
    """Raise InputError if another separator splits as many lines into other rows, or if numbers have decimal commas.
    White space that makes more fields is accepted: ids may then contain "::" and commas."""
    if separator == "," and all(DECIMAL_COMMA.fullmatch(line.strip()) for line in lines):
        raise InputError(f"{file}: expected a number with a decimal point, got {shown(lines[0])}")
    rows = _rows(lines, separator, is_row)
    for other in SEPARATORS:
        other_rows = _rows(lines, other, is_row)
        is_clear = separator is None and other != "\t" and sum(map(len, other_rows)) < sum(map(len, rows))
        if other_rows == rows or len(other_rows) != len(rows) or is_clear:
            continue
        line = next(line for line in lines if fields_of(line, separator) != fields_of(line, other))
        reading, other_reading = (" and ".join(map(repr, fields_of(line, by))) for by in (separator, other))
        raise InputError(
            f"{file}: {shown(line)} can be read as {reading}, or as {other_reading}: separate fields by a character "
            "that no id contains, such as a tab"
        )


def _rows(lines: Sequence[str], separator: str | None, is_row: IsRow) -> list[list[str]]:
    """Return the fields of those lines that a separator splits into rows."""

    def has_other_separator(field: str) -> bool:
        # White space would split "1, 2" into "1," and "2".
        return "\t" in field or (separator is None and (field.strip(",") != field or field.endswith("::")))

    fields_by_line = (fields_of(line, separator) for line in lines)
    rows = (fields for fields in fields_by_line if is_row(fields) and all(fields[:IDS]))
    return [fields for fields in rows if not any(map(has_other_separator, fields[:IDS]))]
