"""Lines of text files that hold two ids and perhaps a number, read by Spark.

White space, tabs alone, ``::`` or commas separate the fields, whatever fits the first lines; if several fit and give
other fields, that is an error. Files are UTF-8. Lines that begin with # are comments. An error names the file and
number of a malformed line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import unquote

from ps2.algorithms.inputs import local_name, numbered_lines, shown
from ps2.errors import InputError
from ps2.run.spark.backend_lookup import with_python

# An id such as "007" is none: it differs from "7".
INTEGER = re.compile(r"0|-?[1-9]\d{0,17}", re.ASCII)
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
# A line "user item 4,5" or "user;item;4,5".
DECIMAL_COMMA = re.compile(r"([^\s;|]+(\s+|\s*[;|]\s*)){2}[+-]?\d+,\d+", re.ASCII)
COMMENT = "#"
# None: white space.
SEPARATORS = (None, "\t", "::", ",")
# White space beside the space and the end of a line, for Spark and Python alike. Other blanks, such as U+00A0, are not.
WHITE = "\t\x0b\x0c\r"
SPACES = f" {WHITE}"
# What Spark reads where bytes are not UTF-8.
NOT_UTF8 = "\ufffd"
IDS = 2
# Number of fields without and with a number.
SIZES = (IDS, IDS + 1)
# Number of lines that tell the separator.
SAMPLE_LINES = 100
# Of a split line: a column of Spark that holds a line which does not fit its form.
BAD = "malformed"


class LineForm(Protocol):
    """What a line has to look like. ``file`` is the URL of its file, as Spark's input_file_name returns it."""

    @property
    def roles(self) -> Sequence[str]:
        """Roles of the fields that ``fields`` returns: those of two ids, then those of numbers."""

    def fields(self, line: str, file: str) -> list[str] | str:
        """Return the fields of a line in the order of the roles; or what is wrong with it."""

    def skips(self, line: str, file: str) -> bool:
        """Whether a line has no fields: it is blank, a comment or a header."""

    def split(self, line: Any, file: Any) -> dict[str, Any]:
        """Return Spark's columns for columns of lines and files: one for each role, and ``BAD``, a boolean."""

    def skipped(self, line: Any, file: Any) -> Any:
        """Return Spark's column of whether lines have no fields."""


@dataclass(frozen=True)
class TextForm:
    """Lines of fields without names.

    Attributes:
        names: the roles of two ids and a number.
        size: number of fields.
        separator: what separates the fields; None: white space.
    """

    names: tuple[str, str, str]
    size: int
    separator: str | None = None

    @staticmethod
    def of(names: tuple[str, str, str], lines: Sequence[str], file: str = "") -> TextForm:
        """Return the form of the first lines of a file; the first of all has as many fields as all must have.

        Raises:
            InputError: several separators fit, and give other fields; or numbers have decimal commas, which would be
                taken for separators. The message names ``file``.
        """
        separator = separator_of(lines, are_fields)
        if separator == "," and all(DECIMAL_COMMA.fullmatch(line.strip()) for line in lines):
            raise InputError(f"{file}: expected a number with a decimal point, got {shown(lines[0])}")
        for rival in _rivals_of(separator, lines):
            line = next(line for line in lines if fields_of(line, separator) != fields_of(line, rival))
            one, two = (" and ".join(map(repr, fields_of(line, each))) for each in (separator, rival))
            raise InputError(
                f"{file}: {shown(line)} can be read as {one}, or as {two}: separate fields by what no id contains, "
                "such as a tab"
            )
        return TextForm(names, len(fields_of(lines[0], separator)), separator)

    @property
    def roles(self) -> Sequence[str]:
        return self.names[: self.size]

    @property
    def expected(self) -> str:
        """The forms of a line, for messages."""
        return f"'{' '.join(self.names[:IDS])}' or '{' '.join(self.names)}'"

    def fields(self, line: str, file: str = "") -> list[str] | str:
        found = fields_of(line, self.separator)
        if len(found) not in SIZES:
            more = ": cut off what follows the third field" if len(found) > max(SIZES) else ""
            return f"expected {self.expected}, got {shown(line.strip())}{more}"
        if len(found) != self.size:
            return f"expected {self.size} fields, as the lines before have, got {shown(line.strip())}"
        return found

    def skips(self, line: str, file: str = "") -> bool:
        return (text := line.strip(SPACES)) == "" or text.startswith(COMMENT)

    def split(self, line: Any, file: Any) -> dict[str, Any]:
        from pyspark.sql import functions as F

        text = trimmed(line)
        if self.separator is None:
            text = bare(line)
            single = F.when(F.instr(text, "  ") > 0, F.regexp_replace(text, " +", " ")).otherwise(text)
            # Java splits by one character without a regular expression, which it would compile for each line.
            fields = F.split(single, " ")
        else:
            fields = F.split(text, self.separator)
        found = {role: trimmed(F.get(fields, F.lit(at))) for at, role in enumerate(self.roles)}
        return {**found, BAD: F.lit(self.size not in SIZES) | (F.size(fields) != self.size)}

    def skipped(self, line: Any, file: Any = None) -> Any:
        text = bare(line)
        return (text == "") | text.startswith(COMMENT)


def fields_of(line: str, separator: str | None) -> list[str]:
    """Return the fields of a line, without white space around them."""
    text = line.strip(SPACES)
    fields = text.split(separator) if separator is not None else re.split(f"[{SPACES}]+", text)
    return [field.strip(SPACES) for field in fields]


def are_fields(fields: Sequence[str]) -> bool:
    """Return True for two ids, perhaps with a number."""
    return len(fields) in SIZES and all(NUMBER.fullmatch(field) for field in fields[IDS:])


def separator_of(lines: Sequence[str], are_fields: Callable[[Sequence[str]], bool]) -> str | None:
    """Return the separator that makes ids, and what else a line may have, of most lines.

    If several do, the one that makes more fields; then white space, for ids may contain commas.

    Args:
        lines: neither blank nor comments.
        are_fields: whether fields are those of a line.
    """

    def fit(separator: str | None) -> tuple[int, int]:
        fields = _readings(lines, separator, are_fields)
        return len(fields), sum(map(len, fields))

    return max(SEPARATORS, key=fit)


def _readings(
    lines: Sequence[str], separator: str | None, are_fields: Callable[[Sequence[str]], bool]
) -> list[list[str]]:
    """Return the fields of the lines that a separator fits."""

    def is_cut(field: str) -> bool:
        # The first id of "1, 2" is not "1,".
        return "\t" in field or (separator is None and (field.strip(",") != field or field.endswith("::")))

    split = (fields_of(line, separator) for line in lines)
    return [
        fields for fields in split if are_fields(fields) and all(fields[:IDS]) and not any(map(is_cut, fields[:IDS]))
    ]


def _rivals_of(separator: str | None, lines: Sequence[str]) -> list[str | None]:
    """Return the other separators that fit as many lines, and give other fields.

    If white space makes a third field, a number, of all lines, ids may contain "::" and commas.
    """
    fields = _readings(lines, separator, are_fields)
    rivals = []
    for other in SEPARATORS:
        others = _readings(lines, other, are_fields)
        is_surer = separator is None and other != "\t" and sum(map(len, others)) < sum(map(len, fields))
        if others != fields and len(others) == len(fields) and not is_surer:
            rivals.append(other)
    return rivals


@dataclass(frozen=True)
class ListedRows:
    """The rows of files.

    Attributes:
        frame: DataFrame with a column for each role: ids (longs if all are integers, else strings), numbers (double).
        rows: number of rows.
        words: for each role of an id: number of ids that are no integers.
    """

    frame: Any
    rows: int
    words: dict[str, int]


def lines_of(spark: Any, path: str) -> Any:
    """Return a DataFrame with the columns file and line."""
    from pyspark.sql import functions as F

    return spark.read.text(path).select(F.input_file_name().alias("file"), F.col("value").alias("line"))


def read_text(
    spark: Any, path: str, names: tuple[str, str, str], one_kind: bool = False
) -> tuple[ListedRows, TextForm]:
    """Read lines of text.

    Args:
        names: the roles of the fields of a line.
        one_kind: ids are of one type in both columns.

    Raises:
        InputError: there is no line, one is malformed, or the first one seems to name the columns.
    """
    lines, expected = lines_of(spark, path), TextForm(names, 0)
    first = lines.where(~expected.skipped(lines["line"])).head(SAMPLE_LINES)
    if not first:
        raise InputError(f"{path}: expected lines {expected.expected}, got none")
    form = TextForm.of(names, [row["line"] for row in first], local_name(unquote(first[0]["file"])))
    found = read_rows(spark, path, lines, form, one_kind)
    counts = set(found.words.values())
    is_header = not any(NUMBER.fullmatch(field) for field in fields_of(first[0]["line"], form.separator)[:IDS])
    if is_header and len(counts) == 1 and 2 * max(counts) < found.rows and max(counts) <= len(lines.inputFiles()):
        raise InputError(
            f"{local_name(unquote(first[0]['file']))}: expected integers, as other lines have, got first "
            f"{shown(first[0]['line'])}: begin a line that names columns with {COMMENT}"
        )
    return found, form


def read_rows(spark: Any, path: str, lines: Any, form: LineForm, one_kind: bool = False) -> ListedRows:
    """Return the fields of lines.

    Args:
        lines: as ``lines_of`` returns them.
        one_kind: ids are of one type in both columns.

    Raises:
        InputError: no line has fields, or a line is malformed.
    """
    from pyspark.sql import functions as F

    line, file = F.col("line"), F.col("file")
    cells = lines.where(~form.skipped(line, file)).select(
        *(value.alias(role) for role, value in form.split(line, file).items())
    )
    ids = form.roles[:IDS]
    is_wrong = F.col(BAD)
    for role in form.roles:
        if role in ids:
            is_wrong |= (F.col(role) == "") | F.col(role).contains(NOT_UTF8)
        else:
            is_wrong |= ~F.col(role).rlike(f"^({NUMBER.pattern})$")
    # A field that is null is wrong as well.
    are_wrong = F.max(F.coalesce(is_wrong, F.lit(True)).cast("int"))
    integers = [F.sum(F.col(role).rlike(f"^({INTEGER.pattern})$").cast("int")).alias(role) for role in ids]
    found = cells.agg(F.count(F.lit(1)).alias("rows"), are_wrong.alias("wrong"), *integers).first()
    rows = found["rows"]
    if not rows:
        raise InputError(f"{path}: expected lines with {' and '.join(form.roles)}, got none")
    if found["wrong"]:
        raise InputError(_fault_in(spark, lines, form) or f"{path}: a line is malformed")
    words = {role: int(rows - found[role]) for role in ids}
    are_words = {role: bool(sum(words.values()) if one_kind else words[role]) for role in ids}
    kinds = {role: ("string" if are_words[role] else "long") if role in ids else "double" for role in form.roles}
    frame = cells.select(*(F.col(role).cast(kind).alias(role) for role, kind in kinds.items()))
    return ListedRows(frame, int(rows), words)


def fault_of(line: str, form: LineForm, file: str = "") -> str | None:
    """Describe what is wrong with a line; None: nothing."""
    if form.skips(line, file):
        return None
    fields = form.fields(line, file)
    if isinstance(fields, str):
        return fields
    for role, value in zip(form.roles[:IDS], fields, strict=False):
        if not value:
            return f"{role}: expected an id, got an empty field in {shown(line)}"
        if NOT_UTF8 in value:
            return f"{role}: expected UTF-8, got {shown(value)}"
    for role, value in zip(form.roles[IDS:], fields[IDS:], strict=True):
        if not NUMBER.fullmatch(value):
            return f"{role}: expected a number, got {shown(value)}"
    return None


def bare(line: Any) -> Any:
    """Return a line, of a column of Spark, with spaces for all white space, and none at its ends."""
    from pyspark.sql import functions as F

    return F.trim(F.translate(line, WHITE, " " * len(WHITE)))


def trimmed(text: Any) -> Any:
    """Return a column of Spark without white space at its ends."""
    from pyspark.sql import functions as F

    return F.btrim(text, F.lit(SPACES))


def _fault_in(spark: Any, lines: Any, form: LineForm) -> str | None:
    """Find a malformed line. Spark may read the parts of a file in any order, so this takes two passes."""
    faulty = with_python(lines).rdd.filter(lambda row: fault_of(row[1], form, row[0]) is not None).take(1)
    if not faulty:
        return None
    file = faulty[0][0]
    numbered = numbered_lines(spark, file)
    line, at = numbered.filter(lambda pair: fault_of(pair[0], form, file) is not None).first()
    return f"{local_name(unquote(file))}: line {at + 1}: {fault_of(line, form, file)}"
