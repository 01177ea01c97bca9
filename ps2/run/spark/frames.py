"""Python functions of DataFrames through Arrow, with a SparkContext or Spark Connect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def map_in_arrow(frame: Any, function: Callable[[Iterator[Any]], Iterator[Any]], schema: Any) -> Any:
    """Return ``frame.mapInArrow(function, schema)``. Column names are arbitrary (new ones if it is a StructType).

    PySpark's ``mapInArrow`` looks the columns of the frame up by name, which fails for names with dots and for
    duplicate names. If two new columns have the same name, Spark's Java process reads only one of them, and can crash.
    """
    from pyspark.sql.types import StructField, StructType

    names = frame.columns
    numbered = frame.toDF(*_numbered_names(len(names)))
    if not isinstance(schema, StructType):
        return numbered.mapInArrow(lambda batches: function(_renamed(batches, names)), schema)
    new_names = _numbered_names(len(schema.fields))
    fields = zip(new_names, schema.fields, strict=True)
    typed = StructType([StructField(name, field.dataType, field.nullable, field.metadata) for name, field in fields])
    result = numbered.mapInArrow(lambda batches: _renamed(function(_renamed(batches, names)), new_names), typed)
    return result.toDF(*schema.names)


def _numbered_names(count: int) -> list[str]:
    return [f"c{number}" for number in range(count)]


def _renamed(batches: Iterator[Any], names: list[str]) -> Iterator[Any]:
    import pyarrow as pa

    # ``rename_columns`` needs pyarrow 16. A batch without columns is not replaced, which keeps its number of rows.
    return (pa.RecordBatch.from_arrays(batch.columns, names) if names else batch for batch in batches)


RANK_SCHEMA = "rank int"


def rank_of_batches(work: Callable[[Any], int]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the function for ``mapInArrow`` that calls ``work`` with a task's batches and yields the rank."""

    def serve(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        rank = work(batches)
        yield pa.RecordBatch.from_pydict({"rank": pa.array([rank], pa.int32())})

    return serve
