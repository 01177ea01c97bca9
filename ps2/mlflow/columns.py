"""Columns of the DataFrames that MLflow passes to models, as Arrow arrays that PS2 checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import scipy.sparse as sp

from ps2.algorithms.frame.row_matrices import as_rows
from ps2.data.columns import VECTOR, VECTORS, as_arrow, listed
from ps2.data.plain_arrays import as_array, as_numbers
from ps2.errors import InputError

_STRUCT = pa.struct(
    [
        ("type", pa.int8()),
        ("size", pa.int32()),
        ("indices", pa.list_(pa.int32())),
        ("values", pa.list_(pa.float64())),
    ]
)
DENSE = 1


def check_columns(frame: Any, names: Sequence[str]) -> None:
    """Raise InputError unless ``frame`` is a pandas DataFrame with these columns, each once."""
    if not isinstance(frame, pd.DataFrame):
        raise InputError(f"expected a pandas DataFrame with columns {listed(names)}, got {type(frame).__name__}")
    counts = Counter(map(str, frame.columns))
    for name in names:
        if name not in counts:
            raise InputError(f"there is no column {name!r}; there are: {listed(list(map(str, frame.columns)))}")
        if counts[name] > 1:
            raise InputError(f"column {name!r}: expected one column of that name, got {counts[name]}")


def _named(frame: pd.DataFrame, name: str) -> pd.Series:
    """Return a column; pandas may have a number as its name, as for columns of an array."""
    if name in frame.columns:
        return frame[name]
    return frame.iloc[:, list(map(str, frame.columns)).index(name)]


def vector_column(frame: pd.DataFrame, name: str) -> pa.Array:
    """Return a column of lists, arrays or pyspark's vectors as lists of float64 or structs, null where there is none.

    Raises:
        InputError: a value is none of these; the message names column and row.
    """
    cells = [
        None if cell is pd.NA or (isinstance(cell, float) and cell != cell) else cell for cell in _named(frame, name)
    ]
    try:
        if any(hasattr(cell, "indices") or sp.issparse(cell) or isinstance(cell, dict) for cell in cells):
            return pa.array([None if cell is None else _as_struct(cell) for cell in cells], _STRUCT)
        return pa.array([None if cell is None else _as_array(cell) for cell in cells], pa.list_(pa.float64()))
    except (pa.ArrowException, TypeError, ValueError, KeyError) as error:
        row = next(number for number, cell in enumerate(cells) if not _is_vector(cell))
        raise InputError(f"column {name!r}, row {row}: expected {VECTORS}, got {cells[row]!r:.80}") from error


def plain_column(frame: pd.DataFrame, name: str, kind: pa.DataType | None = None) -> pa.Array:
    """Return a column as an Arrow array; a missing value is null, and in columns of floats NaN.

    Args:
        kind: type of the result; None: the type of the values.

    Raises:
        InputError: the values have several types, or another one than ``kind``.
    """
    values = _named(frame, name)
    if kind is not None and pa.types.is_list(kind):  # Arrow would take a string for a list of its letters
        for row, cell in enumerate(values):
            if isinstance(cell, (str, bytes)):
                raise InputError(f"column {name!r}, row {row}: expected a list, got {cell!r:.80}")
    try:
        array = as_arrow(values, kind, from_pandas=values.dtype.kind != "f")
    except (pa.ArrowException, TypeError, ValueError) as error:
        expected = "values of one type" if kind is None else f"values of type {kind}"
        raise InputError(f"column {name!r}: expected {expected}: {error}") from error
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def no_nulls(column: pa.Array, name: str, expected: str) -> pa.Array:
    """Return a column; raise InputError if a value is null."""
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise InputError(f"column {name!r}, row {row}: expected {expected}, got null")
    return column


def _as_array(cell: Any) -> Any:
    values = as_array("features", cell.toArray() if hasattr(cell, "toArray") else cell)
    if values.ndim != 1 or isinstance(cell, (str, bytes)):
        raise TypeError("no vector")
    if values.dtype == object:  # None within a list is a missing value
        return [None if value != value else value for value in as_numbers(values).tolist()]
    return as_numbers(values).astype(np.float64)


def _as_struct(cell: Any) -> dict[str, Any]:
    if isinstance(cell, dict):
        if set(cell) != VECTOR:
            raise KeyError(f"expected {sorted(VECTOR)}")
        return cell
    if sp.issparse(cell):
        row = as_rows("features", cell.reshape(1, -1))
        return {"type": 0, "size": row.shape[1], "indices": row.indices, "values": row.data}
    if not hasattr(cell, "indices"):
        return {"type": DENSE, "size": None, "indices": None, "values": _as_array(cell)}
    return {"type": 0, "size": cell.size, "indices": np.asarray(cell.indices), "values": np.asarray(cell.values)}


def _is_vector(cell: Any) -> bool:
    if cell is None:
        return True
    try:
        pa.array([_as_struct(cell)], _STRUCT)
    except (pa.ArrowException, TypeError, ValueError, KeyError):
        return False
    return True
