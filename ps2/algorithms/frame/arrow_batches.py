"""Convert Arrow data in tasks: batches to blocks, tables to bytes, matrices to lists, row indices to DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ps2.array_types import Int64s
from ps2.errors import InputError
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


def collect_arrow(frame: DataFrame) -> pa.Table:
    """Collect all rows as an Arrow table."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            encoded = pa.array([to_bytes(pa.Table.from_batches([batch]))], pa.binary())
            yield pa.RecordBatch.from_pydict({"batch": encoded})

    from pyspark.sql.pandas.types import to_arrow_schema

    tables = [from_bytes(row[0]) for row in with_python(frame).mapInArrow(run, "batch binary").collect()]
    return pa.concat_tables(tables) if tables else to_arrow_schema(frame.schema).empty_table()


def collect_vectors(frame: DataFrame, id_column: str, vector_column: str) -> tuple[pa.Array, npt.NDArray[Any]]:
    """Collect a column of ids, and a column of arrays of equal length as a matrix; raise InputError if they are not."""
    from ps2.algorithms.frame.tables import column

    rows = collect_arrow(frame.select(column(id_column).alias("id"), column(vector_column).alias("vector")))
    ids, vectors = (values.combine_chunks() for values in rows.columns)
    if not len(ids):
        raise InputError(f"column {id_column!r}: expected ids, got an empty DataFrame")
    lengths = pc.list_value_length(vectors) if pa.types.is_list(vectors.type) else None
    if lengths is None or lengths.null_count or pc.count_distinct(lengths).as_py() != 1:
        got = "arrays of several lengths, or null" if lengths is not None else str(vectors.type)
        raise InputError(f"column {vector_column!r}: expected arrays of numbers, all of one length, got {got}")
    numbers = vectors.flatten().to_numpy(zero_copy_only=False)
    return ids, numbers.astype(np.float32, copy=False).reshape(len(ids), -1)


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
