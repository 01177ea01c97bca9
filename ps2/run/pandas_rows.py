"""The rows of a run in a pandas DataFrame in the driver's memory. Workers get Arrow batches."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from ps2.data.columns import as_arrow
from ps2.errors import InputError
from ps2.run.spark.driver_rows import LocalData

# The maximum number of rows of a batch: Spark's default.
BATCH_ROWS = 10_000
# The Arrow type of pyspark.ml's vectors in Spark's DataFrames.
VECTOR_TYPE = pa.struct(
    [("type", pa.int8()), ("size", pa.int32()), ("indices", pa.list_(pa.int32())), ("values", pa.list_(pa.float64()))]
)


class PandasRows(LocalData):
    """The rows of a pandas DataFrame, serialized as an Arrow stream of record batches."""

    def __init__(self, frame: Any) -> None:
        columns = [_to_arrow(str(name), column) for name, column in frame.items()]
        self._table = pa.Table.from_arrays(columns, list(map(str, frame.columns)))

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def serialized(self, begin: int, end: int) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._table.schema) as stream:
            stream.write_table(self._table.slice(begin, end - begin), max_chunksize=BATCH_ROWS)
        written: bytes = sink.getvalue().to_pybytes()
        return written

    @staticmethod
    def read(part: bytes) -> Iterable[Any]:
        batches: Iterable[Any] = pa.ipc.open_stream(part)
        return batches


def _to_arrow(name: str, column: Any) -> Any:
    """Return a column as an Arrow array whose type Spark supports. Missing values become nulls."""
    try:
        array = _vectors(column)
        if array is None:
            array = as_arrow(column, from_pandas=True)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise InputError(f"run: column {name!r} of the pandas DataFrame: {error}") from error
    return array


def _vectors(column: Any) -> Any:
    """Return a column of pyspark.ml's vectors as an Arrow array; None if the first value is something else."""
    linalg = sys.modules.get("pyspark.ml.linalg")  # a program that has such vectors has loaded the module
    if linalg is None or column.dtype != object:
        return None
    values = column.dropna()
    if not len(values) or not isinstance(values.iloc[0], linalg.Vector):
        return None
    fields, serialize = [field.name for field in VECTOR_TYPE], linalg.VectorUDT().serialize
    rows = zip(column, column.isna(), strict=True)
    records = [None if is_null else dict(zip(fields, serialize(row), strict=True)) for row, is_null in rows]
    return pa.array(records, VECTOR_TYPE)
