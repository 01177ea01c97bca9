"""Ratings in text or CSV files, read by Spark; an error names the file and number of a malformed line.

A line of text is "user item" or "user item rating", separated by white space; lines that begin with # are comments. The
first line of a CSV file names its columns; a field that contains commas is in double quotes, and no field contains a
line break.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import unquote

from ps2.algorithms.inputs import local_name, reading, shown
from ps2.algorithms.training.progress import say
from ps2.errors import InputError
from ps2.run.spark.backend_lookup import with_python

LINES = "'user item' or 'user item rating'"
INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
COMMENT, SEPARATOR = "#", ","
# White space of Java's regular expressions, beside the space and the end of a line.
WHITE = "\t\x0b\x0c\r"
BYTE_ORDER_MARK = "\ufeff"
# Number of fields without and with a rating.
SIZES = (2, 3)
# Of a split line: a column of Spark that holds a line which does not fit its form.
BAD = "malformed"
ROLES = ("user", "item", "rating", "weight")
# Number of hash values that decide which rows are held out.
HASHES = 1 << 30


@dataclass(frozen=True)
class CsvColumns:
    """Names of the columns of a CSV file.

    Attributes:
        rating, weight: None: there are none.
    """

    user: str = "user"
    item: str = "item"
    rating: str | None = "rating"
    weight: str | None = None

    @property
    def named(self) -> dict[str, str]:
        """The name of each role's column."""
        found = zip(ROLES, (self.user, self.item, self.rating, self.weight), strict=True)
        return {role: name for role, name in found if name is not None}


@dataclass(frozen=True, eq=False)
class RatingList:
    """Ratings of a file.

    Attributes:
        path: of the file, the folder or the glob.
        frame: DataFrame with columns user and item, each of longs if all its ids are integers, else strings; and, if
            the file has them, rating and weight (double).
        ratings: number of rows.
        roles: names of its columns.
    """

    path: str
    frame: Any
    ratings: int
    roles: tuple[str, ...]


class LineForm(Protocol):
    """What a line has to look like."""

    @property
    def roles(self) -> Sequence[str]:
        """Roles of the fields that ``fields`` returns."""

    def fields(self, line: str) -> list[str] | str:
        """Return the fields of a line in the order of the roles; or what is wrong with it."""

    def skips(self, line: str) -> bool:
        """Whether a line has no fields: it is blank, a comment or a header."""

    def split(self, line: Any) -> dict[str, Any]:
        """Return Spark's columns for a column of lines: one for each role, and ``BAD``."""


@dataclass(frozen=True)
class TextForm:
    """Lines of fields separated by white space.

    Attributes:
        size: number of fields.
    """

    size: int

    @property
    def roles(self) -> Sequence[str]:
        return ROLES[: self.size]

    def fields(self, line: str) -> list[str] | str:
        found = line.split()
        if len(found) not in SIZES:
            return f"expected {LINES}, got {shown(line.strip())}"
        if len(found) != self.size:
            return f"expected {self.size} fields, as the lines before have, got {shown(line.strip())}"
        return found

    def skips(self, line: str) -> bool:
        return not line.strip() or line.strip().startswith(COMMENT)

    def split(self, line: Any) -> dict[str, Any]:
        from pyspark.sql import functions as F

        bare = _bare(line)
        single = F.when(F.instr(bare, "  ") > 0, F.regexp_replace(bare, " +", " ")).otherwise(bare)
        # Java splits by one character without a regular expression, which it would compile for each line.
        fields = F.split(single, " ")
        found = {role: F.get(fields, F.lit(at)) for at, role in enumerate(self.roles)}
        return {**found, BAD: F.size(fields) != self.size}


@dataclass(frozen=True)
class CsvForm:
    """Lines of fields separated by commas.

    Attributes:
        header: the first line of each file.
        places: position of each role's field.
        size: number of fields.
    """

    header: str
    places: dict[str, int]
    size: int

    @staticmethod
    def of(path: str, header: str, columns: CsvColumns) -> CsvForm:
        """Find the columns by a file's first line; raises InputError if one is missing."""
        names = [name.strip() for name in _cells(header.removeprefix(BYTE_ORDER_MARK))]
        for role, name in columns.named.items():
            if names.count(name) != 1:
                found = "got several of this name" if name in names else f"got {', '.join(map(repr, names))}"
                raise InputError(f"{path}: line 1: expected a column {name!r} of {role}s, {found}")
        return CsvForm(header, {role: names.index(name) for role, name in columns.named.items()}, len(names))

    @property
    def roles(self) -> Sequence[str]:
        return tuple(self.places)

    def fields(self, line: str) -> list[str] | str:
        found = _cells(line)
        if len(found) != self.size:
            return f"expected {self.size} fields, as the first line has, got {len(found)}: {shown(line)}"
        return [found[at] for at in self.places.values()]

    def skips(self, line: str) -> bool:
        return not line.strip() or line == self.header

    def split(self, line: Any) -> dict[str, Any]:
        from pyspark.sql import functions as F

        schema = ", ".join([*(f"c{at} string" for at in range(self.size)), f"{BAD} string"])
        options = {"sep": SEPARATOR, "escape": '"', "columnNameOfCorruptRecord": BAD}
        cells = F.from_csv(line, F.lit(schema), options)
        found = {role: cells[f"c{at}"] for role, at in self.places.items()}
        return {**found, BAD: cells[BAD].isNotNull()}


def read(spark: Any, path: str, columns: CsvColumns | None) -> RatingList:
    """Read a file, or all files of a folder or glob; suffixes such as .gz tell the compression.

    Args:
        path: any URL that Spark reads.
        columns: of CSV files; None: the files are text.

    Raises:
        InputError: there is no such file, no rating or no such column, or a line is malformed.
    """
    with reading(spark, path):
        return _read(spark, path, columns)


def held_out(frame: Any, share: float, seed: int, name: str) -> Any:
    """Return ratings with a boolean column that marks those to hold out, by a hash: wherever they lie.

    Args:
        frame: with columns user and item.
        share: approximate share of the ratings.
        seed: of the hash.
        name: of the column.
    """
    from pyspark.sql import functions as F

    drawn = F.pmod(F.xxhash64(F.lit(seed), F.col("user"), F.col("item")), F.lit(HASHES))
    return frame.withColumn(name, drawn < round(share * HASHES))


def measure(model: Any, ratings: RatingList, implicit: bool) -> dict[str, Any]:
    """Return the errors of a model's predictions.

    Args:
        model: MatrixFactorizationModel.
        implicit: the model predicts a preference, which is 1 for positive ratings.

    Returns:
        ``ratings`` and ``known``: the number of all, and of those whose users and items the model knows; and of these
        ``rmse`` and ``mae``, if there are any.
    """
    from pyspark.sql import functions as F

    say("measuring the model")
    rated = model.copy({model.coldStartStrategy: "drop"}).transform(ratings.frame)
    rating = F.col("rating") if "rating" in ratings.roles else F.lit(1.0)
    expected = F.when(rating > 0, 1.0).otherwise(0.0) if implicit else rating
    error = F.col(model.getPredictionCol()) - expected
    known, mse, mae = rated.agg(F.count(F.lit(1)), F.avg(error * error), F.avg(F.abs(error))).first()
    found = {"ratings": ratings.ratings, "known": known}
    return found if mse is None else {**found, "rmse": mse**0.5, "mae": mae}


def is_csv(path: str) -> bool:
    """Whether a file's name says that it is CSV: .csv, perhaps followed by the suffix of a compression."""
    return re.search(r"\.csv(\.\w+)?$", path, re.IGNORECASE) is not None


def fault_of(line: str, form: LineForm) -> str | None:
    """Describe what is wrong with a line; None: nothing."""
    if form.skips(line):
        return None
    fields = form.fields(line)
    if isinstance(fields, str):
        return fields
    for role, value in zip(form.roles, fields, strict=True):
        if role in ROLES[:2]:
            if not value:
                return f"{role}: expected an id, got an empty field in {shown(line)}"
        elif not NUMBER.fullmatch(value):
            return f"{role}: expected a number, got {shown(value)}"
    return None


def _read(spark: Any, path: str, columns: CsvColumns | None) -> RatingList:
    from pyspark.sql import functions as F

    lines = spark.read.text(path).select(F.input_file_name().alias("file"), F.col("value").alias("line"))
    form = _form(path, lines, columns)
    rows = lines.where(~_skipped(form.header if isinstance(form, CsvForm) else None))
    cells = rows.select(*(value.alias(role) for role, value in form.split(F.col("line")).items()))
    is_wrong = F.col(BAD) | (F.col("user") == "") | (F.col("item") == "")
    numbers = [role for role in form.roles if role not in ROLES[:2]]
    for role in numbers:
        is_wrong |= ~F.col(role).rlike(f"^({NUMBER.pattern})$")
    # A field that is null is wrong as well.
    are_wrong = F.max(F.coalesce(is_wrong, F.lit(True)).cast("int"))
    integers = [F.min(F.col(role).rlike(f"^({INTEGER.pattern})$").cast("int")).alias(role) for role in ROLES[:2]]
    found = cells.agg(F.count(F.lit(1)).alias("ratings"), are_wrong.alias("wrong"), *integers).first()
    if not found["ratings"]:
        raise InputError(f"{path}: expected ratings, got no line with one")
    if found["wrong"]:
        raise InputError(_fault_in(spark, lines, form) or f"{path}: a line is malformed")
    ids = [F.col(role).cast("long" if found[role] else "string").alias(role) for role in ROLES[:2]]
    frame = cells.select(*ids, *(F.col(role).cast("double").alias(role) for role in numbers))
    return RatingList(path, frame, int(found["ratings"]), tuple(form.roles))


def _form(path: str, lines: Any, columns: CsvColumns | None) -> LineForm:
    """Find the form of all lines by the first one."""
    if columns is not None:
        first = lines.first()
        if first is None:
            raise InputError(f"{path}: line 1: expected the names of columns, got an empty file")
        return CsvForm.of(path, first["line"], columns)
    first = lines.where(~_skipped(None)).first()
    if first is None:
        raise InputError(f"{path}: expected lines {LINES}, got none")
    return TextForm(len(first["line"].split()))


def _skipped(header: str | None) -> Any:
    """Return whether a line, of Spark's column ``line``, has no fields; header: of CSV, None: of text."""
    from pyspark.sql import functions as F

    bare = _bare(F.col("line"))
    return (bare == "") | (bare.startswith(COMMENT) if header is None else F.col("line") == header)


def _bare(line: Any) -> Any:
    """Return a line, of a column of Spark, with spaces for all white space, and none at its ends."""
    from pyspark.sql import functions as F

    return F.trim(F.translate(line, WHITE, " " * len(WHITE)))


def _fault_in(spark: Any, lines: Any, form: LineForm) -> str | None:
    """Find a malformed line. Spark may read the parts of a file in any order, so this takes two passes."""
    faulty = with_python(lines).rdd.filter(lambda row: fault_of(row[1], form) is not None).take(1)
    if not faulty:
        return None
    file = unquote(faulty[0][0])
    numbered = spark.sparkContext.textFile(file).zipWithIndex()
    line, at = numbered.filter(lambda pair: fault_of(pair[0], form) is not None).first()
    return f"{local_name(file)}: line {at + 1}: {fault_of(line, form)}"


def _cells(line: str) -> list[str]:
    """Return the fields of a line of CSV; none if it is no CSV."""
    try:
        return next(csv.reader([line], delimiter=SEPARATOR), [])
    except csv.Error:
        return []
