"""Rows in a file, which are read in blocks: while the caller uses a block, a thread reads the next block."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.array_types import Int32s, Int64s
from ps2.data.block_file import BlockFile, BlockSlice, FileArray, read_ahead, read_pages
from ps2.data.rows import ROW_FIELDS, LocalRows, Rows, are_dense, row_numbers, sample_rows
from ps2.data.sparse_rows import sparse_matrix
from ps2.data.used_columns import ColumnNumbers, UsedColumns
from ps2.errors import OutOfRangeError

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Rows ``[begin, begin + rows)`` of a file. A dense block stores only values, because its rows have all columns."""

    begin: int
    rows: int
    is_dense: bool
    location: BlockSlice

    @staticmethod
    def write(file: BlockFile, begin: int, rows: Rows | LocalRows) -> RowBlock:
        """Append rows to a file; SpillError: the disk is full or fails."""
        x, arrays = rows.x, {"values": rows.x.data}
        is_dense = are_dense(x.indices, *x.shape)
        if not is_dense:
            indptr, columns = (array.astype(np.int32, copy=False) for array in (x.indptr, x.indices))
            arrays |= {"indptr": indptr, "columns": columns}
        fields = {name: getattr(rows, name) for name in ROW_FIELDS}
        arrays |= {name: field for name, field in fields.items() if field is not None}
        return RowBlock(begin, len(rows), is_dense, file.append(arrays))


@dataclass(frozen=True, eq=False)
class RowFile:
    """The rows of a file.

    Attributes:
        keys: the columns that the rows use.
        limit_bytes: selections of rows up to this size are copied into memory.
        dense_indptr, dense_columns: CSR arrays of the largest dense block. Smaller dense blocks use the first elements.
    """

    keys: Int64s
    file: BlockFile
    blocks: tuple[RowBlock, ...]
    limit_bytes: int
    dense_indptr: Int32s
    dense_columns: Int32s

    @staticmethod
    def from_blocks(keys: Int64s, file: BlockFile, blocks: tuple[RowBlock, ...], limit_bytes: int) -> RowFile:
        rows, columns = max((block.rows for block in blocks if block.is_dense), default=0), len(keys)
        indptr = (np.arange(rows + 1) * columns).astype(np.int32)
        return RowFile(keys, file, blocks, limit_bytes, indptr, np.tile(np.arange(columns, dtype=np.int32), rows))

    @property
    def rows(self) -> int:
        return sum(block.rows for block in self.blocks)

    @property
    def nbytes(self) -> int:
        return sum(block.location.size for block in self.blocks)

    def read(self, block: RowBlock, positions: Int64s | None) -> LocalRows:
        """Return the rows at positions in a block; None: all its rows."""
        arrays, columns = self.file.arrays(block.location), len(self.keys)
        if block.is_dense:
            indptr, indices = self.dense_indptr[: block.rows + 1], self.dense_columns[: block.rows * columns]
        else:
            indptr, indices = arrays["indptr"], arrays["columns"]
        x = sp.csr_array((arrays["values"], indices, indptr), shape=(block.rows, columns))
        rows = LocalRows(self.keys, x, *(arrays.get(name) for name in ROW_FIELDS))
        if positions is not None:
            return rows.gathered(positions)
        for array in arrays.values():
            read_pages(array)
        return rows


@dataclass(frozen=True, eq=False)
class SpilledRows:
    """Rows in a file, with only the columns that they use (``keys``), and the methods of ``LocalRows``.

    Only the blocks have ``x``, ``y`` and ``weights``.

    Attributes:
        stored: all rows of the file.
        changes: functions that are applied in order to each block after it is read.
        numbers: the row numbers of the selected rows, ascending; None: all rows.
    """

    keys: Int64s
    stored: RowFile
    changes: tuple[Callable[[LocalRows], LocalRows], ...] = ()
    numbers: Int64s | None = None

    def __len__(self) -> int:
        return self.stored.rows if self.numbers is None else len(self.numbers)

    @property
    def num_values(self) -> int:
        """The number of values that these rows store; of selected rows, approximately."""
        stored = sum(block.location.arrays["values"].length for block in self.stored.blocks)
        return stored * len(self) // max(1, self.stored.rows)

    @property
    def nbytes(self) -> int:
        """Approximate size of these rows in the file, in bytes."""
        return self.stored.nbytes * len(self) // max(1, self.stored.rows)

    @property
    def entries(self) -> int:
        """The number of stored values of all rows of the file."""
        return sum(block.location.arrays["values"].length for block in self.stored.blocks)

    @property
    def weight(self) -> float:
        """The sum of the rows' weights."""
        return sum(block.weight for block in self.blocks())

    def blocks(self) -> Iterator[LocalRows]:
        """Yield all rows in order, in blocks of some megabytes with all keys; a thread reads the next block."""
        parts = [(block, positions) for block, positions in self._selection() if positions is None or len(positions)]
        yield from read_ahead([partial(self._read, block, positions) for block, positions in parts])

    def new_array(self, length: int, dtype: npt.DTypeLike) -> FileArray:
        """Return an array of zeros in the rows' file, for values that belong to these rows.

        Raises:
            SpillError: the disk is full, or fails.
        """
        return self.stored.file.reserve(length, dtype)

    def mapped(self, change: Callable[[LocalRows], LocalRows]) -> SpilledRows:
        """Return the same rows, with a function that is applied to each block after it is read."""
        return replace(self, changes=(*self.changes, change))

    def chosen(self, numbers: npt.ArrayLike) -> LocalRows | SpilledRows:
        """Return the rows with these ascending row numbers, with all keys: a copy in memory if it fits ``limit_bytes``.

        Raises:
            DTypeError: the numbers are not integers.
            OutOfRangeError: the numbers do not ascend, or are not in ``[0, n)``.
        """
        rows = row_numbers(numbers, len(self))
        if not_ascending := np.flatnonzero(np.diff(rows) <= 0).tolist():
            before, after = rows[not_ascending[0] : not_ascending[0] + 2]
            raise OutOfRangeError(
                f"rows in a file: expected ascending row numbers without duplicates, got {after} after {before}"
            )
        selected = replace(self, numbers=rows if self.numbers is None else self.numbers[rows])
        return selected if selected.nbytes > self.stored.limit_bytes else selected._in_memory()

    def take(self, numbers: npt.ArrayLike) -> LocalRows | SpilledRows:
        """Return rows like ``chosen``, with only the keys that they use."""
        selected = self.chosen(numbers)
        return (
            selected.take(np.arange(len(selected))) if isinstance(selected, LocalRows) else selected._with_used_keys()
        )

    def sample(self, fraction: float, rng: np.random.Generator) -> LocalRows | SpilledRows:
        """Return the random minibatch that ``LocalRows.sample`` would return, with the keys that it uses."""
        rows = sample_rows(len(self), fraction, rng)
        return self if rows is None else self.take(rows)

    def _selection(self) -> Iterator[tuple[RowBlock, Int64s | None]]:
        """Yield each block with the positions of its selected rows in the block; None: all rows."""
        for block in self.stored.blocks:
            if self.numbers is None:
                yield block, None
                continue
            begin, end = np.searchsorted(self.numbers, [block.begin, block.begin + block.rows])
            yield block, self.numbers[begin:end] - block.begin

    def _read(self, block: RowBlock, positions: Int64s | None) -> LocalRows:
        rows = self.stored.read(block, positions)
        for change in self.changes:
            rows = change(rows)
        return rows

    def _in_memory(self) -> LocalRows:
        """Copy the rows into memory, with all keys."""
        blocks = list(self.blocks())
        if not blocks:
            if self.stored.blocks:
                return self._read(self.stored.blocks[0], np.empty(0, np.int64))
            return LocalRows(self.keys, sp.csr_array((0, len(self.keys))), np.empty(0))
        matrices = [block.x for block in blocks]
        lengths = np.concatenate([np.diff(x.indptr) for x in matrices])
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        values, columns = (np.concatenate([getattr(x, name) for x in matrices]) for name in ("data", "indices"))
        matrix = sparse_matrix(values, columns, indptr, len(self.keys))
        fields = (join_blocks([getattr(block, name) for block in blocks]) for name in ROW_FIELDS)
        return LocalRows(self.keys, matrix, *fields)

    def _with_used_keys(self) -> SpilledRows:
        used = UsedColumns(len(self.keys))
        for block in self.blocks():
            used.add(block.x.indices)
        columns = used.keys()
        return replace(self.mapped(_Renumbering(self.keys[columns], used.numbers())), keys=self.keys[columns])


# A worker's rows: in memory, or in a file.
KeptRows = LocalRows | SpilledRows


@dataclass(frozen=True, eq=False)
class _Renumbering:
    """The change of a block after which the columns that a selection of rows uses are numbered from 0."""

    keys: Int64s
    numbers: ColumnNumbers

    def __call__(self, rows: LocalRows) -> LocalRows:
        x = rows.x
        columns = self.numbers.number(x.indices)
        return replace(
            rows, keys=self.keys, x=sp.csr_array((x.data, columns, x.indptr), shape=(len(rows), len(self.keys)))
        )


def join_blocks(arrays: Sequence[Array | None]) -> Array | None:
    """Return an array of all rows from those of blocks of rows, of which some may be None; None: all are."""
    present = [array for array in arrays if array is not None]
    return np.concatenate(present) if present else None


class RowArrays:
    """Arrays with values of each row, filled block by block; those of rows in a file are mapped from this file.

    Attributes:
        arrays: by name, of shape (rows, ...).
    """

    def __init__(self, rows: KeptRows, compute: Callable[[LocalRows], Mapping[str, Array | None]]) -> None:
        """Make no array yet; compute: returns the values of a block by name; None: the rows do not have them."""
        self._rows, self._compute, self._end = rows, compute, 0
        self.arrays: dict[str, Array] = {}

    def add(self, block: LocalRows) -> None:
        """Compute the values of the next block."""
        part = slice(self._end, self._end + len(block))
        self._end = part.stop
        for name, values in self._compute(block).items():
            if values is None:
                continue
            if isinstance(self._rows, LocalRows):
                self.arrays[name] = values
                continue
            if name not in self.arrays:
                self.arrays[name] = new_table(self._rows, (len(self._rows), *values.shape[1:]), values.dtype)
            self.arrays[name][part] = values


def row_arrays(rows: KeptRows, compute: Callable[[LocalRows], Mapping[str, Array | None]]) -> dict[str, Array]:
    """Return the ``RowArrays`` of all rows, in one pass."""
    result = RowArrays(rows, compute)
    for block in rows.blocks():
        result.add(block)
    return result.arrays


def row_fields(rows: KeptRows, *names: str) -> tuple[Array | None, ...]:
    """Return fields of all rows, some of ``ROW_FIELDS``; None: the rows do not have the field."""
    arrays = row_arrays(rows, lambda block: {name: getattr(block, name) for name in names})
    return tuple(arrays.get(name) for name in names)


def rewrite(rows: KeptRows, change: Callable[[LocalRows, slice], LocalRows]) -> KeptRows:
    """Change rows and their columns; rows in a file go to a new file, block by block.

    Args:
        change: called with the rows of each block and the interval of their numbers; the keys it returns never differ.

    Raises:
        SpillError: the disk is full, or fails.
    """
    if isinstance(rows, LocalRows):
        return change(rows, slice(0, len(rows)))
    file, keys, blocks, begin = BlockFile(rows.stored.file.folder), rows.keys, list[RowBlock](), 0
    for block in rows.blocks():
        changed = change(block, slice(begin, begin + len(block)))
        keys = changed.keys
        blocks.append(RowBlock.write(file, begin, changed))
        begin += len(block)
    return SpilledRows(keys, RowFile.from_blocks(keys, file, tuple(blocks), rows.stored.limit_bytes))


def new_table(rows: KeptRows, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return zeros for values of the rows: in memory, or mapped from the rows' file until they are freed."""
    return rows.new_array(math.prod(shape), dtype)[:].reshape(shape)
