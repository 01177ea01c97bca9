"""Data of the driver's own memory as the rows of a run: lists, tuples, ranges and pandas DataFrames.

The driver serializes one part for each worker. A worker reads its part alone.
"""

from __future__ import annotations

import reprlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import cloudpickle
import pyarrow as pa

from ps2.errors import InputError, UsageError

ACCEPTED = "a DataFrame or an RDD of Spark, a list, a tuple, a range, or a pandas DataFrame"
# Rows of one batch: Spark's default.
BATCH_ROWS = 10_000
# A vector of pyspark.ml, as Spark's DataFrames have it in Arrow.
VECTOR_TYPE = pa.struct(
    [("type", pa.int8()), ("size", pa.int32()), ("indices", pa.list_(pa.int32())), ("values", pa.list_(pa.float64()))]
)


class LocalData(ABC):
    """Rows in the driver's memory, in order."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def serialized(self, begin: int, end: int) -> bytes:
        """Return rows in an interval as ``read`` takes them."""

    @staticmethod
    @abstractmethod
    def read(part: bytes) -> Iterable[Any]:
        """Return what a worker gets of a part."""

    def parts(self, count: int) -> list[bytes]:
        """Return equal parts, in order.

        Raises:
            UsageError: an element cannot be pickled.
        """
        bounds = [len(self) * part // count for part in range(count + 1)]
        return [self.serialized(bounds[part], bounds[part + 1]) for part in range(count)]


def local_data(data: Any) -> LocalData | None:
    """Return the rows of data in the driver's memory; None if the data are of another kind.

    Raises:
        InputError: there are no rows, or Arrow has no type for a column of a pandas DataFrame.
    """
    pandas = sys.modules.get("pandas")
    if isinstance(data, (list, tuple, range)):
        kind: type[_Elements | _Batches] = _Elements
    elif pandas is not None and isinstance(data, pandas.DataFrame):
        kind = _Batches
    else:
        return None
    if not len(data):
        raise InputError(f"run: the data, a {type(data).__name__}, are empty: each worker needs a row")
    return kind(data)


class _Elements(LocalData):
    """The elements of a sequence, pickled."""

    def __init__(self, elements: Sequence[Any]) -> None:
        self._elements = elements

    def __len__(self) -> int:
        return len(self._elements)

    def serialized(self, begin: int, end: int) -> bytes:
        try:
            pickled: bytes = cloudpickle.dumps(self._elements[begin:end])
            return pickled
        except Exception as error:  # an element may be any object, which may raise anything
            raise self._refused(begin, end) or UsageError(f"run: the data cannot be pickled: {error}") from error

    @staticmethod
    def read(part: bytes) -> Iterable[Any]:
        elements: Sequence[Any] = cloudpickle.loads(part)
        return elements

    def _refused(self, begin: int, end: int) -> UsageError | None:
        """Return an error that names the first element that cannot be pickled."""
        for at in range(begin, end):
            element = self._elements[at]
            try:
                cloudpickle.dumps(element)
            except Exception as error:
                return UsageError(f"run: element {at} of the data, {reprlib.repr(element)}, cannot be pickled: {error}")
        return None


class _Batches(LocalData):
    """The rows of a pandas DataFrame, as Arrow's stream of record batches."""

    def __init__(self, frame: Any) -> None:
        columns = [_arrow_of(str(name), column) for name, column in frame.items()]
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


def _arrow_of(name: str, column: Any) -> Any:
    """Return a column of pandas as an Arrow array of a type that Spark has, too: nulls for missing values."""
    try:
        found = _vectors(column)
        if found is None:
            found = pa.array(column, from_pandas=True)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise InputError(f"run: column {name!r} of the pandas DataFrame: {error}") from error
    return found.cast(found.type.value_type) if pa.types.is_dictionary(found.type) else found


def _vectors(column: Any) -> Any:
    """Return a column of pyspark.ml's vectors as an Arrow array; None if the first value is something else."""
    linalg = sys.modules.get("pyspark.ml.linalg")  # whoever has such vectors has loaded it
    if linalg is None or column.dtype != object:
        return None
    values = column.dropna()
    if not len(values) or not isinstance(values.iloc[0], linalg.Vector):
        return None
    fields, serialize = [field.name for field in VECTOR_TYPE], linalg.VectorUDT().serialize
    rows = zip(column, column.isna(), strict=True)
    found = [None if is_null else dict(zip(fields, serialize(row), strict=True)) for row, is_null in rows]
    return pa.array(found, VECTOR_TYPE)
