"""Ratings in text or CSV files, read by Spark; an error names the file and number of a malformed line.

A line of text is "user item" or "user item rating" (``text_lines``). The first line of a CSV file names its columns; a
field that contains commas is in double quotes, and a quote that does not end on its line is an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ps2.algorithms.csv_headers import Header, by_header, cells_of, header_of, read_headers, split_cells
from ps2.algorithms.inputs import first_file, reading, shown
from ps2.algorithms.text_lines import BAD, IDS, SPACES, LineForm, bare, lines_of, read_rows, read_text, trimmed
from ps2.algorithms.training.progress import say
from ps2.errors import InputError

SEPARATOR = ","
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


@dataclass(frozen=True)
class CsvForm:
    """Lines of fields separated by commas.

    Attributes:
        headers: the first lines of the files, all with the same names.
        columns: the name of each role's column.
    """

    headers: tuple[Header, ...]
    columns: dict[str, str]

    @staticmethod
    def of(path: str, headers: Sequence[Header], columns: CsvColumns) -> CsvForm:
        """Return the form of files with these headers; raises InputError if a column is missing."""
        names = headers[0].names
        for role, name in columns.named.items():
            if names.count(name) != 1:
                found = "got several of this name" if name in names else f"got {', '.join(map(repr, names))}"
                raise InputError(f"{path}: line 1: expected a column {name!r} of {role}s, {found}")
        return CsvForm(tuple(headers), columns.named)

    @property
    def roles(self) -> Sequence[str]:
        return tuple(self.columns)

    def fields(self, line: str, file: str) -> list[str] | str:
        names, found = header_of(self.headers, file).names, cells_of(line, SEPARATOR)
        if len(found) != len(names):
            return f"expected {len(names)} fields, as the first line has, got {len(found)}: {shown(line)}"
        fields = [found[names.index(name)].strip(SPACES) for name in self.columns.values()]
        if set(fields[:IDS]) <= set(names):
            return f"expected a row, got names of columns in another order than in the first line: {shown(line)}"
        return fields

    def skips(self, line: str, file: str) -> bool:
        return not line.strip(SPACES) or line == header_of(self.headers, file).line

    def split(self, line: Any, file: Any) -> dict[str, Any]:
        names = self.headers[0].names
        cells = split_cells(line, SEPARATOR, len(names))

        def cell(name: str) -> Any:
            return by_header(self.headers, file, lambda header: cells[f"c{header.names.index(name)}"])

        found = {role: trimmed(cell(name)) for role, name in self.columns.items()}
        user, item = list(found.values())[:IDS]
        return {**found, BAD: cells[BAD].isNotNull() | (user.isin(*names) & item.isin(*names))}

    def skipped(self, line: Any, file: Any) -> Any:
        from pyspark.sql import functions as F

        return (bare(line) == "") | (line == by_header(self.headers, file, lambda header: F.lit(header.line)))


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
    """Whether a file's name says that it is CSV: .csv, perhaps followed by the suffix of a compression.

    Of a local folder or pattern, the name of its first file says so.
    """
    return re.search(r"\.csv(\.\w+)?$", first_file(path), re.IGNORECASE) is not None


def _read(spark: Any, path: str, columns: CsvColumns | None) -> RatingList:
    form: LineForm
    if columns is None:
        found, form = read_text(spark, path, ("user", "item", "rating"))
    else:
        lines = lines_of(spark, path)
        form = CsvForm.of(path, read_headers(path, lines, SEPARATOR), columns)
        found = read_rows(spark, path, lines, form)
    return RatingList(path, found.frame, found.rows, tuple(form.roles))
