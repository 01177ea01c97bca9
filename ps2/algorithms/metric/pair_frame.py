"""A DataFrame of pairs as one of rows: both vectors, one after the other, in one column."""

from __future__ import annotations

import math

from pyspark.ml.feature import VectorAssembler
from pyspark.ml.functions import array_to_vector
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType

from ps2.algorithms.frame.frames import unwrapped
from ps2.algorithms.frame.tables import NO_ROWS, check_features, column, field
from ps2.errors import InputError

# Columns of the two vectors meanwhile.
PARTS = ["first vector", "second vector"]


def joined(frame: DataFrame, names: tuple[str, str], label: str) -> tuple[DataFrame, str]:
    """Return labels and joined vectors, and the name of the vectors' column; one Spark job.

    Args:
        names: of the columns of the first and the second vectors.

    Raises:
        InputError: a column is missing or of another type, holds null, or vectors differ in size.
    """
    for name in names:
        check_features(frame, name)
    field(frame, label)
    size = _size(frame, names)
    both = " and ".join(names)
    described = {"ml_attr": {"num_attrs": size}}
    parts = [_vectors(frame, name).alias(part, metadata=described) for name, part in zip(names, PARTS, strict=True)]
    rows = frame.select(*parts, column(label).alias(label, metadata=field(frame, label).metadata))
    assembler = VectorAssembler(inputCols=PARTS, outputCol=both, handleInvalid="keep")
    # The workers say which rows hold NaN.
    return assembler.transform(rows).select(column(both), column(label)), both


def _vectors(frame: DataFrame, name: str) -> Column:
    value = column(name)
    if not isinstance(field(frame, name).dataType, ArrayType):
        return value
    return array_to_vector(F.transform(value, lambda number: F.coalesce(number.cast("double"), F.lit(math.nan))))


def _size(frame: DataFrame, names: tuple[str, str]) -> int:
    """Return the size of all vectors."""
    asked = [F.count(F.lit(1)).alias("rows")]
    for number, name in enumerate(names):
        value = column(name)
        if isinstance(field(frame, name).dataType, ArrayType):
            size = F.when(value.isNotNull(), F.size(value))
        else:
            parts = unwrapped(value)
            size = F.when(parts.isNotNull(), F.coalesce(parts["size"], F.size(parts["values"])))
        asked += [F.min(size).alias(f"least{number}"), F.max(size).alias(f"most{number}")]
        asked.append(F.sum(F.when(size.isNull(), 1).otherwise(0)).alias(f"nulls{number}"))
    found = frame.agg(*asked).collect()[0]
    if not found["rows"]:
        raise InputError(NO_ROWS)
    for number, name in enumerate(names):
        if found[f"nulls{number}"]:
            raise InputError(f"column {name!r}: expected vectors, got null in {found[f'nulls{number}']} rows")
        sizes = found[f"least{number}"], found[f"most{number}"]
        if sizes[0] != sizes[1] or sizes[0] != found["least0"]:
            raise InputError(
                f"column {name!r}: expected vectors of one size, that of {names[0]!r}, {found['least0']}, got sizes "
                f"{sizes[0]} to {sizes[1]}"
            )
    if not found["least0"]:
        raise InputError(f"column {names[0]!r}: expected features, got vectors of size 0")
    return int(found["least0"])
