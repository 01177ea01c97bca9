"""Reads columns of Arrow batches as tensors, the inputs of a module."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from ps2.data.columns import VECTOR, list_lengths, named_column, read_features, read_numbers
from ps2.errors import InputError, ShapeError


@dataclass(frozen=True, eq=False)
class Bags:
    """One array of numbers for each row, of any lengths; ``RemoteEmbedding`` takes ``Bags`` in place of a tensor.

    Attributes:
        values: tensor with the numbers of all rows, row after row.
        bounds: int64 tensor of shape (rows + 1,): row i has ``values[bounds[i]:bounds[i + 1]]``.

    Raises:
        ShapeError: the bounds do not end with the number of values.
    """

    values: Any
    bounds: Any

    def __post_init__(self) -> None:
        if self.bounds.dim() != 1 or not len(self.bounds) or int(self.bounds[-1]) != len(self.values):
            got = f"{tuple(self.bounds.shape)} that end with {int(self.bounds[-1]) if self.bounds.numel() else None}"
            raise ShapeError(f"bounds: expected shape (rows + 1,) that end with {len(self.values)}, got {got}")

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, rows: Any) -> Bags:
        """Return the rows with these numbers, a tensor of int64, in this order."""
        begins, lengths = self.bounds[:-1][rows], torch.diff(self.bounds)[rows]
        bounds = torch.zeros(len(lengths) + 1, dtype=torch.int64)
        torch.cumsum(lengths, 0, out=bounds[1:])
        moved = torch.repeat_interleave(begins - bounds[:-1], lengths)
        return Bags(self.values[moved + torch.arange(len(moved))], bounds)

    @property
    def offsets(self) -> Any:
        """Where each row begins in ``values``, as ``nn.EmbeddingBag`` takes it: int64 of shape (rows,)."""
        return self.bounds[:-1]


EXPECTED = "numbers, arrays of numbers of one length, or vectors of pyspark.ml"


def read_tensors(batches: Iterable[pa.RecordBatch], names: Sequence[str], ragged: Collection[str] = ()) -> list[Any]:
    """Return one tensor for each named column, with the n rows of all batches.

    Integers become int64, other numbers float32. A column of numbers has shape (n,), one of arrays or vectors (n, w).

    Args:
        names: columns to read.
        ragged: names of columns with arrays of any lengths, which become ``Bags``.

    Raises:
        InputError: a column is missing, has another type, or holds null, NaN, infinity or arrays of several lengths; it
            names the column and the row.
    """
    parts: list[list[Any]] = [[] for _ in names]
    before = 0
    for batch in batches:
        for name, column_parts in zip(names, parts, strict=True):
            if name in ragged:
                column_parts.append(_read_ragged(batch, name, before))
            else:
                width = column_parts[0].shape[1] if column_parts and column_parts[0].ndim == 2 else None
                column_parts.append(read_array(batch, name, before, width))
        before += batch.num_rows
    if not before:
        return [torch.empty(0) for _ in names]
    return [_joined(column_parts, name in ragged) for name, column_parts in zip(names, parts, strict=True)]


def _joined(parts: Sequence[Any], are_ragged: bool) -> Any:
    if not are_ragged:
        return torch.from_numpy(np.concatenate(parts))
    lengths, values = map(np.concatenate, zip(*parts, strict=True))
    return Bags(torch.from_numpy(values), torch.from_numpy(np.concatenate(([0], np.cumsum(lengths)))))


def _read_ragged(batch: pa.RecordBatch, name: str, before: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the length of each array of a column, int64 of shape (n,), and the values of all arrays."""
    column = named_column(batch, name)
    if not _is_list(column.type) or not (
        pa.types.is_integer(column.type.value_type) or pa.types.is_floating(column.type.value_type)
    ):
        raise InputError(f"column {name!r}: expected arrays of numbers, as raggedCols names it, got {column.type}")
    _refuse_nulls(column, name, before)
    flat, lengths = column.flatten(), list_lengths(column)
    is_integer = pa.types.is_integer(flat.type)
    values = flat.cast(pa.int64() if is_integer else pa.float32(), safe=False).to_numpy(zero_copy_only=False)
    wrong = flat.is_null().to_numpy(zero_copy_only=False)
    if not is_integer:
        wrong = wrong | ~np.isfinite(values)
    if wrong.any():
        row = before + int(np.searchsorted(np.cumsum(lengths), np.argmax(wrong), side="right"))
        raise InputError(
            f"column {name!r}, row {row}: expected finite numbers, got {flat[int(np.argmax(wrong))]} in it"
        )
    return lengths, values


def read_array(batch: pa.RecordBatch, name: str, before: int, width: int | None = None) -> np.ndarray[Any, Any]:
    """Return one column of a batch as an array; see ``read_tensors``. ``width`` None: that of the first array."""
    column = named_column(batch, name)
    if pa.types.is_integer(column.type):
        _refuse_nulls(column, name, before)
        return column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    if _is_list(column.type) and pa.types.is_integer(column.type.value_type):
        return _integers(column, name, before, width)
    if _is_list(column.type) or (pa.types.is_struct(column.type) and {part.name for part in column.type} == VECTOR):
        return _dense(batch, name, before, width)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        raise InputError(f"column {name!r}: expected {EXPECTED}, got strings; KeyHasher makes keys of them")
    return read_numbers(batch, name, before).astype(np.float32)


def _integers(column: Any, name: str, before: int, width: int | None) -> np.ndarray[Any, Any]:
    _refuse_nulls(column, name, before)
    lengths = list_lengths(column)
    expected = int(lengths[0]) if width is None and len(lengths) else width
    if (other := np.flatnonzero(lengths != expected)).size:
        raise InputError(
            f"column {name!r}, row {before + other[0]}: expected an array of {expected} numbers, as rows before have, "
            f"got {lengths[other[0]]}; raggedCols takes arrays of any lengths"
        )
    flat = column.flatten()
    if flat.null_count:
        entry = int(np.argmax(flat.is_null().to_numpy(zero_copy_only=False)))
        raise InputError(f"column {name!r}, row {before + entry // max(expected or 1, 1)}: null in the array")
    values: np.ndarray[Any, Any] = flat.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return values.reshape(len(lengths), expected or 0)


def _dense(batch: pa.RecordBatch, name: str, before: int, width: int | None) -> np.ndarray[Any, Any]:
    entries = read_features(batch, name, np.dtype(np.float32), before, width)
    size = entries.size or width or 0
    if len(entries.values) == batch.num_rows * size:
        return entries.values.reshape(batch.num_rows, size)
    dense = np.zeros((batch.num_rows, size), np.float32)
    dense[np.repeat(np.arange(batch.num_rows), entries.lengths), entries.columns] = entries.values
    return dense


def _refuse_nulls(column: Any, name: str, before: int) -> None:
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise InputError(f"column {name!r}, row {before + row}: expected {EXPECTED}, got null")


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
