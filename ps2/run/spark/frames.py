"""DataFrames through Arrow, whichever way the driver reaches Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def map_in_arrow(frame: Any, function: Callable[[Iterator[Any]], Iterator[Any]], schema: Any) -> Any:
    """Return ``frame.mapInArrow(function, schema)``, for columns of any names if ``schema`` is a StructType.

    PySpark looks the columns of the frame up by their names there, which fails for names with dots, and for names
    that come twice. Of two new columns with one name, Spark's Java process reads one alone, and may end.
    """
    from pyspark.sql.types import StructField, StructType

    names = frame.columns
    numbered = frame.toDF(*_numbered_names(len(names)))
    if not isinstance(schema, StructType):
        return numbered.mapInArrow(lambda batches: function(_renamed(batches, names)), schema)
    new_names = _numbered_names(len(schema.fields))
    fields = zip(new_names, schema.fields, strict=True)
    typed = StructType([StructField(name, one.dataType, one.nullable, one.metadata) for name, one in fields])
    result = numbered.mapInArrow(lambda batches: _renamed(function(_renamed(batches, names)), new_names), typed)
    return result.toDF(*schema.names)


def _numbered_names(count: int) -> list[str]:
    return [f"c{number}" for number in range(count)]


def _renamed(batches: Iterator[Any], names: list[str]) -> Iterator[Any]:
    import pyarrow as pa

    # ``rename_columns`` came with pyarrow 16. A batch without columns has rows all the same.
    return (pa.RecordBatch.from_arrays(batch.columns, names) if names else batch for batch in batches)


RANK_SCHEMA = "rank int"


def rank_of_batches(work: Callable[[Any], int]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the function of batches that ``mapInArrow`` calls in a worker's task."""

    def serve(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        rank = work(batches)
        yield pa.RecordBatch.from_pydict({"rank": pa.array([rank], pa.int32())})

    return serve
