"""What separates the fields of lines without quotes: white space, tabs alone, ``::`` or commas, whatever fits.

White space is spaces, tabs and what ends lines. Other blanks, such as U+00A0, are not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ps2.algorithms.text.lines import shown
from ps2.errors import InputError

# White space beside the space, for Spark and Python alike.
WHITE = "\t\x0b\x0c\r"
SPACES = f" {WHITE}"
# None: white space.
SEPARATORS = (None, "\t", "::", ",")
# A line "user item 4,5" or "user;item;4,5".
DECIMAL_COMMA = re.compile(r"([^\s;|]+(\s+|\s*[;|]\s*)){2}[+-]?\d+,\d+", re.ASCII)
IDS = 2

IsRow = Callable[[Sequence[str]], bool]


def fields_of(line: str, separator: str | None) -> list[str]:
    """Return the fields of a line, without white space around them."""
    text = line.strip(SPACES)
    fields = text.split(separator) if separator is not None else re.split(f"[{SPACES}]+", text)
    return [field.strip(SPACES) for field in fields]


def separator_of(lines: Sequence[str], is_row: IsRow) -> str | None:
    """Return the separator that makes rows of most lines.

    If several do, the one that makes more fields; then white space, for ids may contain commas.

    Args:
        lines: neither blank nor comments.
        is_row: whether fields are those of a line.
    """

    def fit(separator: str | None) -> tuple[int, int]:
        rows = _rows(lines, separator, is_row)
        return len(rows), sum(map(len, rows))

    return max(SEPARATORS, key=fit)


def check_separator(file: str, lines: Sequence[str], separator: str | None, is_row: IsRow) -> None:
    """Raise InputError if another separator fits as many lines and makes other fields, or if numbers have decimal
    commas, which would be taken for separators. The message names ``file``.

    If white space makes a third field, a number, of all lines, ids may contain "::" and commas.
    """
    if separator == "," and all(DECIMAL_COMMA.fullmatch(line.strip()) for line in lines):
        raise InputError(f"{file}: expected a number with a decimal point, got {shown(lines[0])}")
    rows = _rows(lines, separator, is_row)
    for rival in SEPARATORS:
        others = _rows(lines, rival, is_row)
        is_surer = separator is None and rival != "\t" and sum(map(len, others)) < sum(map(len, rows))
        if others == rows or len(others) != len(rows) or is_surer:
            continue
        line = next(line for line in lines if fields_of(line, separator) != fields_of(line, rival))
        first, second = (" and ".join(map(repr, fields_of(line, each))) for each in (separator, rival))
        raise InputError(
            f"{file}: {shown(line)} can be read as {first}, or as {second}: separate fields by what no id contains, "
            "such as a tab"
        )


def _rows(lines: Sequence[str], separator: str | None, is_row: IsRow) -> list[list[str]]:
    """Return the fields of the lines of which a separator makes rows."""

    def is_cut(field: str) -> bool:
        # The first id of "1, 2" is not "1,".
        return "\t" in field or (separator is None and (field.strip(",") != field or field.endswith("::")))

    split = (fields_of(line, separator) for line in lines)
    return [fields for fields in split if is_row(fields) and all(fields[:IDS]) and not any(map(is_cut, fields[:IDS]))]
