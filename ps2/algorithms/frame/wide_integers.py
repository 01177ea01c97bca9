"""Warn of integers that float64 rounds, since features are float64."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StructField

from ps2.algorithms.frame.tables import column
from ps2.errors import PrecisionWarning

# This type holds any 64-bit integer, and any float64 near one.
EXACT = "decimal(38,0)"


def warn_of_wide_integers(frame: DataFrame, fields: Sequence[StructField]) -> None:
    """Warn of columns with integers above 2^53 that float64 cannot hold; one job if there are columns of such a type.

    Args:
        fields: of the features.
    """
    found = {field.name: _is_rounded(field) for field in fields}
    rounded = {
        name: F.max(value.cast("int")).alias(str(n))
        for n, (name, value) in enumerate(found.items())
        if value is not None
    }
    if not rounded:
        return
    names = [name for name, most in zip(rounded, frame.agg(*rounded.values()).head() or (), strict=True) if most]
    if names:
        warnings.warn(
            PrecisionWarning(
                f"columns {', '.join(map(repr, names))}: integers above 2^53 are rounded to float64, as features are: "
                "those that become the same number cannot be told apart; subtract an offset, or index them"
            ),
            stacklevel=2,
        )


def _is_rounded(field: StructField) -> Column | None:
    """Return whether float64 rounds a row's feature; None: its type has no such integers."""

    def differs(value: Column) -> Column:
        return value.cast("double").cast(EXACT) != value.cast(EXACT)

    if isinstance(field.dataType, LongType):
        return differs(column(field.name))
    if isinstance(field.dataType, ArrayType) and isinstance(field.dataType.elementType, LongType):
        return F.exists(column(field.name), differs)
    return None
