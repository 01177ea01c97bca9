"""Labels and weights of a table, checked in one Spark job before a training begins."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, NumericType

from ps2.algorithms.estimators.tables import column, field
from ps2.errors import InputError

NO_ROWS = "the DataFrame has no rows to train on"


@dataclass(frozen=True)
class LabelSurvey:
    """What was found.

    Attributes:
        rows: how many there are.
        weight: of all of them.
    """

    rows: int
    weight: float


def survey_labels(frame: DataFrame, label: str | None, weight: str | None) -> LabelSurvey:
    """Count rows, and check that labels are 0 or 1, and weights numbers that are not negative.

    Args:
        label: column; None: there are no labels.
        weight: column; None: each row weighs 1.

    Raises:
        InputError: there are no rows, or a column is missing, of another type, or has other values; says how many, and
            one of them.
    """
    asked = [F.count(F.lit(1)).alias("rows")]
    if label is not None:
        y = _number(frame, label)
        asked += _faults("label", y, y.isNull() | ~y.isin(0.0, 1.0))
    if weight is not None:
        w = _number(frame, weight)
        bad = w.isNull() | F.isnan(w) | (w < 0) | (w == float("inf"))
        asked += [*_faults("weight", w, bad), F.sum(w).alias("total")]
    found = frame.agg(*asked).collect()[0]
    if not found["rows"]:
        raise InputError(NO_ROWS)
    for role, name, expected in (
        ("label", label, "labels 0 or 1"),
        ("weight", weight, "finite weights that are not negative"),
    ):
        if name is not None and found[f"{role}s"]:
            raise InputError(f"column {name!r}: expected {expected}, got {found[role]} in {found[f'{role}s']:,} rows")
    total = float(found["rows"]) if weight is None else float(found["total"])
    if total <= 0:
        raise InputError(f"column {weight!r}: expected a weight above 0 of one row at least")
    return LabelSurvey(int(found["rows"]), total)


def _number(frame: DataFrame, name: str) -> Column:
    kind = field(frame, name).dataType
    if not isinstance(kind, (NumericType, BooleanType)):
        raise InputError(f"column {name!r}: expected numbers, got {kind.simpleString()}")
    return column(name).cast("double")


def _faults(role: str, value: Column, bad: Column) -> list[Column]:
    shown = F.coalesce(value.cast("string"), F.lit("null"))
    return [F.count(F.when(bad, 1)).alias(f"{role}s"), F.first(F.when(bad, shown), ignorenulls=True).alias(role)]
