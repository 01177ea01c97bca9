"""Check DataFrames and their feature columns: vectors, categories (pyspark.ml's ml_attr), integers above 2^53."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    FractionalType,
    IntegralType,
    LongType,
    NumericType,
    StructField,
)

from ps2.algorithms.training.table import quoted
from ps2.errors import InputError, PrecisionWarning
from ps2.run.spark.backend_lookup import backend_of, is_connect
from ps2.run.spark.errors import plain_job_errors


def check_frame(dataset: Any) -> None:
    """Raise InputError unless ``dataset`` is a DataFrame of Spark, not one of pandas or polars."""
    if isinstance(dataset, DataFrame) or is_connect(dataset):
        return
    kind = type(dataset)
    package = "" if kind.__module__ == "builtins" else f"{kind.__module__.partition('.')[0]}."
    advice = "; spark.createDataFrame(...) converts it" if package == "pandas." else ""
    raise InputError(f"dataset: expected a DataFrame of Spark, got {package}{kind.__qualname__}{advice}")


@contextmanager
def spark_calls(dataset: Any) -> Iterator[None]:
    """Convert errors of the block's Spark jobs to PS2's: StoppedError if the DataFrame's application has ended."""
    if not (isinstance(dataset, DataFrame) or is_connect(dataset)):
        yield
        return
    with backend_of(dataset).calling(), plain_job_errors():
        yield


def mark_held_out(train: DataFrame, held_out: DataFrame, name: str) -> DataFrame:
    """Unite rows with held-out rows of the same columns under a column of booleans, true for held-out rows.

    Raises:
        InputError: a column has another type than in ``train``. Spark would convert both, and the model would learn
            keys or numbers of a type that later rows do not have.
    """
    expected, actual = ({field.name: field.dataType for field in data.schema.fields} for data in (train, held_out))
    for field, type in expected.items():
        if not _fits(actual[field], type):
            raise InputError(
                f"validationData: column {field!r}: expected {type.simpleString()}, the type in the rows to train on, "
                f"got {actual[field].simpleString()}"
            )
    return train.withColumn(name, F.lit(False)).union(held_out.withColumn(name, F.lit(True)))


def _fits(type: DataType, expected: DataType) -> bool:
    """Return True if the values of both types mean the same in one column: Spark widens numbers alone."""
    if isinstance(type, ArrayType) and isinstance(expected, ArrayType):
        return _fits(type.elementType, expected.elementType)
    if isinstance(expected, FractionalType):
        return isinstance(type, NumericType)
    if isinstance(expected, IntegralType):
        return isinstance(type, IntegralType)
    return type.simpleString() == expected.simpleString()


def as_arrow_structs(vectors: Column) -> Column:
    """Return vectors as structs whose lists are never null; a null vector stays null.

    Spark (4.1 and later) asks Arrow for the batch's size after each row. For this, Arrow fills the offsets of all lists
    since the last list that is not null. The indices of dense vectors are null, so n rows would take O(n^2) time.
    """
    structs = F.unwrap_udt(vectors)
    # SQL is faster than Python's Columns, each of which takes several calls to Java.
    return structs.withField("indices", F.coalesce(structs["indices"], F.expr("cast(array() as array<int>)")))


def num_values_of(attribute: Mapping[str, Any], kind: str | None) -> int | None:
    """Return the number of values of an attribute of type ``kind``; None: it is numeric, or the number is unknown."""
    if kind == "binary":
        return 2
    if kind != "nominal":
        return None
    if "vals" in attribute:
        return len(attribute["vals"])
    count = attribute.get("num_vals")
    return int(count) if isinstance(count, (int, float)) and count >= 0 and count % 1 == 0 else None


def categories_of(features: Sequence[StructField]) -> dict[int, int]:
    """Return the number of categories of each categorical feature, by the feature's index.

    The features are one column of vectors or arrays, or several columns of numbers. InputError: the metadata of a
    nominal feature have neither its values nor their number.
    """
    if isinstance(features[0].dataType, (NumericType, BooleanType)):
        by_index = [(index, field.metadata.get("ml_attr", {})) for index, field in enumerate(features)]
        attributes = [(index, attribute.get("type"), attribute) for index, attribute in by_index]
    else:
        by_kind = features[0].metadata.get("ml_attr", {}).get("attrs", {})
        attributes = [(int(item["idx"]), kind, item) for kind, items in by_kind.items() for item in items]
    categories = {}
    for index, kind, attribute in sorted(attributes, key=lambda item: item[0]):
        count = num_values_of(attribute, kind)
        if count is not None:
            categories[index] = count
        elif kind == "nominal":
            name = attribute.get("name", features[index].name if len(features) > 1 else index)
            raise InputError(f"feature {name}: expected a nominal attribute with its values, or their number")
    return categories


def feature_names(vectors: StructField) -> dict[int, str]:
    """Return the names that the metadata of a column of vectors has, by the feature's index."""
    by_kind = vectors.metadata.get("ml_attr", {}).get("attrs", {})
    return {int(item["idx"]): item["name"] for items in by_kind.values() for item in items if "name" in item}


# The SQL type that represents any 64-bit integer, and the float64 to which it is rounded, exactly.
EXACT = "decimal(38,0)"


def warn_of_wide_integers(frame: DataFrame, fields: Sequence[StructField]) -> None:
    """Warn of columns with integers that float64 rounds. If columns have 64-bit integers, this runs one Spark job."""
    differences = {field.name: _is_rounded(field) for field in fields}
    rounded = {
        name: F.max(value.cast("int")).alias(str(n))
        for n, (name, value) in enumerate(differences.items())
        if value is not None
    }
    if not rounded:
        return
    names = [
        name for name, is_rounded in zip(rounded, frame.agg(*rounded.values()).head() or (), strict=True) if is_rounded
    ]
    if names:
        warnings.warn(
            PrecisionWarning(
                f"columns {', '.join(map(repr, names))}: integers above 2^53 are rounded to float64, as features are: "
                "different integers can become the same number; subtract an offset, or index them"
            ),
            stacklevel=2,
        )


def _is_rounded(field: StructField) -> Column | None:
    """Return the Column that is true where float64 rounds a feature; None: the type of ``field`` is not 64-bit."""

    def differs(value: Column) -> Column:
        return value.cast("double").cast(EXACT) != value.cast(EXACT)

    if isinstance(field.dataType, LongType):
        return differs(F.col(quoted(field.name)))
    if isinstance(field.dataType, ArrayType) and isinstance(field.dataType.elementType, LongType):
        return F.exists(F.col(quoted(field.name)), differs)
    return None
