"""Convert Arrow data in tasks: batches to blocks, tables to bytes, matrices to lists, row indices to DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.array_types import Int64s
from ps2.run.spark.backend_lookup import backend_of, with_python

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")

# The maximum number of rows in a batch that ``frame_of_rows`` makes.
BATCH_ROWS = 4096


def blocks_of(items: Iterable[T], size: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """Yield consecutive items in lists; a list ends with the item at which the sum of sizes reaches the limit."""
    block: list[T] = []
    total = 0
    for item in items:
        block.append(item)
        total += size(item)
        if total >= limit:
            yield block
            block, total = [], 0
    if block:
        yield block


def to_bytes(table: pa.Table) -> bytes:
    """Encode a table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def from_bytes(encoded: Any) -> pa.Table:
    """Decode a table that ``to_bytes`` encoded."""
    return pa.ipc.open_stream(bytes(encoded)).read_all()


def as_lists(rows: npt.NDArray[Any]) -> pa.ListArray:
    """Return an Arrow array with a list for each row of a matrix."""
    n, dim = rows.shape
    offsets = pa.array(np.arange(n + 1) * dim, pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(np.ascontiguousarray(rows).reshape(-1)))


def frame_of_rows(spark: Any, count: int, make_batch: Callable[[Int64s], pa.RecordBatch], schema: Any) -> DataFrame:
    """Return a DataFrame of ``count`` rows; tasks call ``make_batch`` with the indices of consecutive rows."""

    def make_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            indices = batch.column(0).to_numpy()
            for begin in range(0, len(indices), BATCH_ROWS):
                yield make_batch(indices[begin : begin + BATCH_ROWS])

    num_tasks = max(1, min(backend_of(spark).total_slots(), count // BATCH_ROWS))
    rows: DataFrame = with_python(spark).range(0, count, 1, num_tasks)
    return rows.mapInArrow(make_batches, schema)


def spark_schema(schema: pa.Schema) -> str:
    """Return an Arrow schema of the types below as a schema string of Spark, such as "id long, name string"."""
    types = {
        pa.int32(): "int",
        pa.int64(): "long",
        pa.float64(): "double",
        pa.bool_(): "boolean",
        pa.binary(): "binary",
        pa.string(): "string",
    }
    return ", ".join(f"{field.name} {types[field.type]}" for field in schema)
