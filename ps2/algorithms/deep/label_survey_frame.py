"""Checks labels, weights and times, and counts rows, in one Spark job before a training begins."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampNTZType

from ps2.algorithms.frame.tables import (
    NO_ROWS,
    check_numbers,
    check_times,
    column,
    field,
    in_one_partition_if_small,
)
from ps2.algorithms.training.streams.labelled_rows import NEVER
from ps2.algorithms.training.table import PART, Load, loads_of, quoted, sums_of
from ps2.errors import InputError


@dataclass(frozen=True)
class LabelSurvey:
    """The result of ``survey_labels``.

    Attributes:
        loads: the rows of each rdd_partition that has any, by its number.
        weight: sum of the weights of all rows.
        newest_s: the largest time of a row, in seconds; minus infinity without times.
    """

    loads: dict[int, Load]
    weight: float
    newest_s: float = NEVER

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(load.rows for load in self.loads.values())


def survey_labels(frame: DataFrame, label: str | None, weight: str | None, time: str | None = None) -> LabelSurvey:
    """Count rows and sum weights; check that labels are 0 or 1, weights finite and not negative, and times finite.

    Args:
        label: name of the column of labels; None: there are no labels.
        weight: name of the column of weights; None: all rows weigh 1.
        time: name of the column of times; None: rows have no times.

    Raises:
        InputError: there are no rows; or a column is missing, has another type, or has other values: the message says
            in how many rows, and names one value.
    """
    chosen, asked = [F.spark_partition_id().alias(PART)], sums_of(F.lit(1.0))
    if label is not None:
        chosen.append(_number(frame, label, "labels").alias("y"))
        asked += _faults("y", F.col("y").isNull() | ~F.col("y").isin(0.0, 1.0))
    if weight is not None:
        w = F.col("w")
        chosen.append(_number(frame, weight, "weights").alias("w"))
        bad = w.isNull() | F.isnan(w) | (w < 0) | (w == float("inf"))
        asked += [*_faults("w", bad), F.sum(w).alias("total")]
    if time is not None:
        chosen.append(_seconds(frame, time).alias("t"))
        seconds = F.col("t")
        asked += [*_faults("t", seconds.isNull() | ~(F.abs(seconds) < float("inf"))), F.max(seconds).alias("newest")]
    found = in_one_partition_if_small(frame.select(*chosen)).groupBy(PART).agg(*asked).collect()
    if not found:
        raise InputError(NO_ROWS)
    for value, name, expected in (
        ("y", label, "labels 0 or 1"),
        ("w", weight, "finite weights that are not negative"),
        ("t", time, "finite times"),
    ):
        if name is not None and (wrong := [row for row in found if row[f"{value}_wrong"]]):
            count, shown = sum(row[f"{value}_wrong"] for row in wrong), wrong[0][f"{value}_shown"]
            raise InputError(f"column {name!r}: expected {expected}, got {shown} in {count:,} rows")
    loads = loads_of(found)
    total = float(sum(row["rows" if weight is None else "total"] for row in found))
    if not 0 < total < math.inf:
        raise InputError(f"column {weight!r}: expected weights whose sum is finite and above 0, got {total:g}")
    return LabelSurvey(loads, total, NEVER if time is None else max(row["newest"] for row in found))


def _number(frame: DataFrame, name: str, role: str) -> Column:
    check_numbers(frame, name, role)
    return column(name).cast("double")


def _seconds(frame: DataFrame, name: str) -> Column:
    """Return a column of times as seconds, the numbers that ``read_times`` returns."""
    check_times(frame, name)
    if isinstance(field(frame, name).dataType, TimestampNTZType):
        t = quoted(name)
        return F.expr(
            f"(unix_date(cast({t} as date)) * 86400000000L + hour({t}) * 3600000000L + minute({t}) * 60000000L"
            f" + cast(extract(second from {t}) * 1000000 as bigint)) / 1e6d"
        )
    return column(name).cast("double")


def _faults(name: str, bad: Column) -> list[Column]:
    """Return aggregates of a column: how many rows are wrong, and one of their values."""
    shown = F.coalesce(F.col(name).cast("string"), F.lit("null"))
    return [
        F.count(F.when(bad, 1)).alias(f"{name}_wrong"),
        F.first(F.when(bad, shown), ignorenulls=True).alias(f"{name}_shown"),
    ]
