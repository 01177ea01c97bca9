"""Reads columns of Arrow batches as tensors, the inputs of a PyTorch module."""

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
    """One array for each row, of any lengths. ``RemoteEmbedding`` takes ``Bags`` instead of a tensor.

    Attributes:
        values: tensor with the elements of all rows, in the order of the rows.
        bounds: int64 tensor of shape (rows + 1,): row i has ``values[bounds[i]:bounds[i + 1]]``.

    Raises:
        ShapeError: the bounds do not end with the number of values.
    """

    values: Any
    bounds: Any

    def __post_init__(self) -> None:
        if self.bounds.dim() != 1 or not len(self.bounds) or int(self.bounds[-1]) != len(self.values):
            last_bound = int(self.bounds[-1]) if self.bounds.numel() else None
            raise ShapeError(
                f"bounds: expected shape (rows + 1,) and the last bound {len(self.values)}, got shape "
                f"{tuple(self.bounds.shape)} and the last bound {last_bound}"
            )

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, rows: Any) -> Bags:
        """Return the bags of some rows. ``rows``: int64 tensor of row numbers."""
        begins, lengths = self.bounds[:-1][rows], torch.diff(self.bounds)[rows]
        bounds = torch.zeros(len(lengths) + 1, dtype=torch.int64)
        torch.cumsum(lengths, 0, out=bounds[1:])
        shifts = torch.repeat_interleave(begins - bounds[:-1], lengths)
        return Bags(self.values[shifts + torch.arange(len(shifts))], bounds)

    @property
    def offsets(self) -> Any:
        """The index in ``values`` at which each row begins, for ``nn.EmbeddingBag``: int64 of shape (rows,)."""
        return self.bounds[:-1]


# What messages say about a column's type.
EXPECTED = "numbers, arrays of numbers of one length, or vectors of pyspark.ml"


def read_tensors(batches: Iterable[pa.RecordBatch], names: Sequence[str], ragged: Collection[str] = ()) -> list[Any]:
    """Return one tensor for each named column, with the n rows of all batches.

    Integers become int64, other numbers float32. A column of numbers becomes a tensor of shape (n,). A column of arrays
    or vectors becomes a tensor of shape (n, w). A column in ``ragged``, with arrays of any lengths, becomes ``Bags``.

    Raise InputError, which names the column and the row, for another type, null, NaN, infinity, or another length.
    """
    parts: list[list[Any]] = [[] for _ in names]
    first_row = 0
    for batch in batches:
        for name, column_parts in zip(names, parts, strict=True):
            if name in ragged:
                column_parts.append(_read_ragged(batch, name, first_row))
            else:
                width = column_parts[0].shape[1] if column_parts and column_parts[0].ndim == 2 else None
                column_parts.append(read_array(batch, name, first_row, width))
        first_row += batch.num_rows
    if not first_row:
        return [torch.empty(0) for _ in names]
    return [_concatenate(column_parts, name in ragged) for name, column_parts in zip(names, parts, strict=True)]


def _concatenate(parts: Sequence[Any], is_ragged: bool) -> Any:
    if not is_ragged:
        return torch.from_numpy(np.concatenate(parts))
    lengths, values = map(np.concatenate, zip(*parts, strict=True))
    return Bags(torch.from_numpy(values), torch.from_numpy(np.concatenate(([0], np.cumsum(lengths)))))


def _read_ragged(batch: pa.RecordBatch, name: str, first_row: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the length of each array in a column, int64 of shape (n,), and the values of all arrays."""
    column = named_column(batch, name)
    if not _is_list(column.type) or not (
        pa.types.is_integer(column.type.value_type) or pa.types.is_floating(column.type.value_type)
    ):
        raise InputError(f"column {name!r}: expected arrays of numbers, because it is in raggedCols, got {column.type}")
    _check_no_nulls(column, name, first_row)
    flat, lengths = column.flatten(), list_lengths(column)
    is_integer = pa.types.is_integer(flat.type)
    values = flat.cast(pa.int64() if is_integer else pa.float32(), safe=False).to_numpy(zero_copy_only=False)
    is_invalid = flat.is_null().to_numpy(zero_copy_only=False)
    if not is_integer:
        is_invalid = is_invalid | ~np.isfinite(values)
    if is_invalid.any():
        entry = int(np.argmax(is_invalid))
        row = first_row + int(np.searchsorted(np.cumsum(lengths), entry, side="right"))
        raise InputError(f"column {name!r}, row {row}: expected finite numbers, got {flat[entry]} in the array")
    return lengths, values


def read_array(batch: pa.RecordBatch, name: str, first_row: int, width: int | None = None) -> np.ndarray[Any, Any]:
    """Return one column of a batch as an array; see ``read_tensors``. ``width`` None: the width of the first array."""
    column = named_column(batch, name)
    if pa.types.is_integer(column.type):
        _check_no_nulls(column, name, first_row)
        return column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    if _is_list(column.type) and pa.types.is_integer(column.type.value_type):
        return _integers(column, name, first_row, width)
    if _is_list(column.type) or (pa.types.is_struct(column.type) and {part.name for part in column.type} == VECTOR):
        return _dense(batch, name, first_row, width)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        raise InputError(f"column {name!r}: expected {EXPECTED}, got strings; KeyHasher makes keys of them")
    return read_numbers(batch, name, first_row).astype(np.float32)


def _integers(column: Any, name: str, first_row: int, width: int | None) -> np.ndarray[Any, Any]:
    _check_no_nulls(column, name, first_row)
    lengths = list_lengths(column)
    expected = int(lengths[0]) if width is None and len(lengths) else width
    if (invalid_rows := np.flatnonzero(lengths != expected)).size:
        raise InputError(
            f"column {name!r}, row {first_row + invalid_rows[0]}: expected an array of {expected} numbers, as in the "
            f"rows before, got {lengths[invalid_rows[0]]}; raggedCols takes arrays of any lengths"
        )
    flat = column.flatten()
    if flat.null_count:
        entry = int(np.argmax(flat.is_null().to_numpy(zero_copy_only=False)))
        raise InputError(f"column {name!r}, row {first_row + entry // max(expected or 1, 1)}: got null in the array")
    values: np.ndarray[Any, Any] = flat.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return values.reshape(len(lengths), expected or 0)


def _dense(batch: pa.RecordBatch, name: str, first_row: int, width: int | None) -> np.ndarray[Any, Any]:
    entries = read_features(batch, name, np.dtype(np.float32), first_row, width)
    size = entries.size or width or 0
    if len(entries.values) == batch.num_rows * size:
        return entries.values.reshape(batch.num_rows, size)
    dense = np.zeros((batch.num_rows, size), np.float32)
    dense[np.repeat(np.arange(batch.num_rows), entries.lengths), entries.columns] = entries.values
    return dense


def _check_no_nulls(column: Any, name: str, first_row: int) -> None:
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise InputError(f"column {name!r}, row {first_row + row}: expected {EXPECTED}, got null")


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
