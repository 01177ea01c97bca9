"""Survey a DataFrame of rows without labels before training, also of documents: rows of word counts.

The workers check the values when they read them (``ps2.algorithms.training.reading``).
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType

from ps2.algorithms.frame.dealing import cost_of
from ps2.algorithms.frame.frames import unwrapped
from ps2.algorithms.frame.tables import (
    TableSurvey,
    column,
    dim_of,
    field,
    first_row,
    in_one_partition_if_small,
)
from ps2.algorithms.training.faults import MAX_COUNT, ColumnNames
from ps2.algorithms.training.table import PART, loads_of, sums_of
from ps2.errors import InputError


def survey_rows(frame: DataFrame, columns: ColumnNames) -> TableSurvey:
    """Survey rows; two Spark jobs, of which the first reads one row. InputError: there is no row, or no feature."""
    dim = dim_of(frame, columns.features, first_row(frame, columns))
    rows = frame.select(F.spark_partition_id().alias(PART), cost_of(frame, columns.features).alias("stored"))
    sums = in_one_partition_if_small(rows).groupBy(PART).agg(*sums_of(F.col("stored"))).collect()
    return TableSurvey(dim, loads_of(sums))


@dataclass(frozen=True)
class Documents(TableSurvey):
    """Result of a survey of documents; ``dim`` is the size of the vocabulary.

    Attributes:
        tokens: the sum of all counts; a value that is no count, which workers refuse, adds ``MAX_COUNT`` at most.
    """

    tokens: int


def survey_documents(frame: DataFrame, columns: ColumnNames) -> Documents:
    """Survey documents; two Spark jobs, of which the first reads one row.

    Raise InputError if there is no row, no word in the vocabulary, or no word in any document.
    """
    vocabulary = dim_of(frame, columns.features, first_row(frame, columns))
    if not vocabulary:
        raise InputError(f"{columns.shown('features')}: expected a vocabulary, got vectors of size 0")
    row_tokens = _entry_sum(frame, columns.features)
    rows = frame.select(F.spark_partition_id().alias(PART), row_tokens.alias("tokens"))
    sums = (
        in_one_partition_if_small(rows)
        .groupBy(PART)
        .agg(*sums_of(F.lit(1.0) + F.col("tokens")), F.sum("tokens").alias("tokens"))
        .collect()
    )
    tokens = sum(row["tokens"] or 0.0 for row in sums)
    if tokens == 0:
        raise InputError(
            f"{columns.shown('features')}: expected counts of words, but all of {sum(row['rows'] for row in sums):,} "
            "documents are empty"
        )
    return Documents(vocabulary, loads_of(sums), int(tokens))


def _entry_sum(frame: DataFrame, features: str | tuple[str, ...]) -> Column:
    """Return the sum of the absolute values of a row's features; 1 stands for what is too large, NaN or null."""
    if not isinstance(features, str):
        entries = F.array(*(column(name).cast("double") for name in features))
    elif isinstance(field(frame, features).dataType, ArrayType):
        entries = column(features).cast("array<double>")
    else:
        entries = unwrapped(column(features))["values"]

    def size(entry: Column) -> Column:
        return F.when(F.abs(entry) <= MAX_COUNT, F.abs(entry)).otherwise(1.0)

    return F.aggregate(entries, F.lit(0.0), lambda before, entry: before + size(entry))
