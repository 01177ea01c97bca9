"""Check DataFrames, and read their columns of features: vectors, categories (ml_attr), integers above 2^53."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, LongType, NumericType, StructField

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
    """Raise errors of PS2 if Spark jobs fail: StoppedError if the DataFrame's application has ended."""
    if not (isinstance(dataset, DataFrame) or is_connect(dataset)):
        yield
        return
    with backend_of(dataset).calling(), plain_job_errors():
        yield


def for_arrow(vectors: Column) -> Column:
    """Return vectors as structs whose lists are never null; a null vector stays null.

    Spark (4.1 and later) asks Arrow after each row for the bytes of the batch. Arrow then fills the offsets of lists
    from the last list that is not null, so null indices of dense vectors cost the square of the number of rows.
    """
    structs = F.unwrap_udt(vectors)
    # An SQL expression, as each Column that Python makes takes several calls to Java.
    return structs.withField("indices", F.coalesce(structs["indices"], F.expr("cast(array() as array<int>)")))


def values_of(attribute: Mapping[str, Any], kind: str | None) -> int | None:
    """Return the number of values of a nominal or binary attribute; None: it is numeric, or the number is unknown."""
    if kind == "binary":
        return 2
    if kind != "nominal":
        return None
    if "vals" in attribute:
        return len(attribute["vals"])
    return int(attribute["num_vals"]) if "num_vals" in attribute else None


def categories_of(features: Sequence[StructField]) -> dict[int, int]:
    """Return the number of categories of each categorical feature, by feature number.

    The features are one column of vectors or arrays, or columns of numbers. InputError: a nominal feature does not have
    its number of values.
    """
    first = features[0]
    if isinstance(first.dataType, (NumericType, BooleanType)):
        by_number = [(number, field.metadata.get("ml_attr", {})) for number, field in enumerate(features)]
        described = [(number, attribute.get("type"), attribute) for number, attribute in by_number]
    else:
        by_kind = first.metadata.get("ml_attr", {}).get("attrs", {})
        described = [(int(item["idx"]), kind, item) for kind, attributes in by_kind.items() for item in attributes]
    categories = {}
    for number, kind, attribute in sorted(described, key=lambda item: item[0]):
        count = values_of(attribute, kind)
        if count is not None:
            categories[number] = count
        elif kind == "nominal":
            name = attribute.get("name", features[number].name if len(features) > 1 else number)
            raise InputError(f"feature {name}: expected a nominal attribute with its values, or their number")
    return categories


# A type for any 64-bit integer, and for the float64 to which it is rounded.
EXACT = "decimal(38,0)"


def warn_of_wide_integers(frame: DataFrame, fields: Sequence[StructField]) -> None:
    """Warn of columns with integers that float64 rounds; this takes one Spark job if columns have 64-bit integers."""
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
    """Return Spark's column of whether float64 rounds a row's feature; None: its type has no 64-bit integers."""

    def differs(value: Column) -> Column:
        return value.cast("double").cast(EXACT) != value.cast(EXACT)

    if isinstance(field.dataType, LongType):
        return differs(F.col(quoted(field.name)))
    if isinstance(field.dataType, ArrayType) and isinstance(field.dataType.elementType, LongType):
        return F.exists(F.col(quoted(field.name)), differs)
    return None
