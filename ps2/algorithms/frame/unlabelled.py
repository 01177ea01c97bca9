"""Survey rows without labels before training: any rows, or documents, whose features are counts of words.

The workers check the values when they read them (``ps2.algorithms.training.reading``).
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType

from ps2.algorithms.frame.tables import (
    TableSurvey,
    column,
    cost_of,
    dim_of,
    field,
    first_row,
    partition_loads,
)
from ps2.algorithms.training.faults import MAX_COUNT, ColumnNames
from ps2.errors import InputError


def survey_rows(frame: DataFrame, columns: ColumnNames) -> TableSurvey:
    """Survey rows in two Spark jobs; the first job reads one row. Raise InputError if there is no row or no feature."""
    dim = dim_of(frame, columns.features, first_row(frame, columns))
    return TableSurvey(dim, partition_loads(frame, cost_of(frame, columns.features)))


@dataclass(frozen=True)
class Documents(TableSurvey):
    """The result of a survey of documents. ``dim`` is the vocabulary's size; a document costs 1 plus its tokens."""

    @property
    def tokens(self) -> int:
        """The sum of all counts. An invalid count, for which workers raise an error, adds at most ``MAX_COUNT``."""
        return int(self.cost - self.rows)


def survey_documents(frame: DataFrame, columns: ColumnNames) -> Documents:
    """Survey documents in two Spark jobs, of which the first reads one row. InputError: no row, or no word at all."""
    vocabulary = dim_of(frame, columns.features, first_row(frame, columns))
    if not vocabulary:
        raise InputError(f"{columns.shown('features')}: expected a vocabulary, got vectors of size 0")
    tokens = F.coalesce(_entry_sum(frame, columns.features), F.lit(0.0))
    documents = Documents(vocabulary, partition_loads(frame, F.lit(1.0) + tokens))
    if documents.cost == documents.rows:
        raise InputError(
            f"{columns.shown('features')}: expected counts of words, but all of {documents.rows:,} documents are empty"
        )
    return documents


def _entry_sum(frame: DataFrame, features: str | tuple[str, ...]) -> Column:
    """Return the sum of the absolute values of a row's features; a too large, NaN or null value counts as 1."""
    if not isinstance(features, str):
        entries = F.array(*(column(name).cast("double") for name in features))
    elif isinstance(field(frame, features).dataType, ArrayType):
        entries = column(features).cast("array<double>")
    else:
        entries = F.unwrap_udt(column(features))["values"]

    def magnitude(entry: Column) -> Column:
        return F.when(F.abs(entry) <= MAX_COUNT, F.abs(entry)).otherwise(1.0)

    return F.aggregate(entries, F.lit(0.0), lambda total, entry: total + magnitude(entry))
