"""Labels and weights of a table, checked in one Spark job before a training begins."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, NumericType

from ps2.algorithms.estimators.loads import PART, Load, loads_of, sums_of
from ps2.algorithms.estimators.tables import NO_ROWS, column, field, in_one_partition_if_small
from ps2.errors import InputError


@dataclass(frozen=True)
class LabelSurvey:
    """What was found.

    Attributes:
        loads: the work of the rows in each rdd_partition that has any.
        weight: of all of them.
    """

    loads: dict[int, Load]
    weight: float

    @property
    def rows(self) -> int:
        """How many there are."""
        return sum(load.rows for load in self.loads.values())


def survey_labels(frame: DataFrame, label: str | None, weight: str | None) -> LabelSurvey:
    """Count rows, and check that labels are 0 or 1, and weights numbers that are not negative.

    Args:
        label: column; None: there are no labels.
        weight: column; None: each row weighs 1.

    Raises:
        InputError: there are no rows, or a column is missing, of another type, or has other values; says how many, and
            one of them.
    """
    chosen, asked = [F.spark_partition_id().alias(PART)], sums_of(F.lit(1.0))
    if label is not None:
        chosen.append(_number(frame, label).alias("y"))
        asked += _faults("y", F.col("y").isNull() | ~F.col("y").isin(0.0, 1.0))
    if weight is not None:
        w = F.col("w")
        chosen.append(_number(frame, weight).alias("w"))
        bad = w.isNull() | F.isnan(w) | (w < 0) | (w == float("inf"))
        asked += [*_faults("w", bad), F.sum(w).alias("total")]
    found = in_one_partition_if_small(frame.select(*chosen)).groupBy(PART).agg(*asked).collect()
    if not found:
        raise InputError(NO_ROWS)
    for value, name, expected in (
        ("y", label, "labels 0 or 1"),
        ("w", weight, "finite weights that are not negative"),
    ):
        if name is not None and (wrong := [row for row in found if row[f"{value}_wrong"]]):
            count, shown = sum(row[f"{value}_wrong"] for row in wrong), wrong[0][f"{value}_shown"]
            raise InputError(f"column {name!r}: expected {expected}, got {shown} in {count:,} rows")
    loads = loads_of(found)
    total = float(sum(row["rows" if weight is None else "total"] for row in found))
    if not 0 < total < math.inf:
        raise InputError(f"column {weight!r}: expected weights whose sum is finite and above 0, got {total:g}")
    return LabelSurvey(loads, total)


def _number(frame: DataFrame, name: str) -> Column:
    kind = field(frame, name).dataType
    if not isinstance(kind, (NumericType, BooleanType)):
        raise InputError(f"column {name!r}: expected numbers, got {kind.simpleString()}")
    return column(name).cast("double")


def _faults(name: str, bad: Column) -> list[Column]:
    """Return aggregates of a column: how many rows are wrong, and one of their values."""
    shown = F.coalesce(F.col(name).cast("string"), F.lit("null"))
    return [
        F.count(F.when(bad, 1)).alias(f"{name}_wrong"),
        F.first(F.when(bad, shown), ignorenulls=True).alias(f"{name}_shown"),
    ]
