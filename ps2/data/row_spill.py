"""Writes the rows that a worker reads to a file when they exceed a limit of memory."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ps2.data.block_file import BlockFile
from ps2.data.rows import ROW_FIELDS, Float, RowParts, Rows, checked_dtype
from ps2.data.spilled_rows import KeptRows, RowBlock, RowFile, SpilledRows
from ps2.data.spilling import Spill, local_folders, worker_folder
from ps2.data.used_columns import UsedColumns
from ps2.errors import LimitError

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

Mask = npt.NDArray[np.bool_]

MAX_COLUMNS = 2**31 - 1
# A message lists at most this many folders.
MAX_SHOWN = 3


@dataclass(frozen=True)
class Spilled:
    """A worker's rows in a file: their size in bytes, and the folder of the file."""

    bytes: int
    folder: str


def spill_message(spilled: Sequence[Spilled]) -> str:
    """Return a message about the files of all workers."""
    folders = sorted({rows.folder for rows in spilled})
    more = f" and {len(folders) - MAX_SHOWN} more folders" if len(folders) > MAX_SHOWN else ""
    return (
        f"{len(spilled)} workers store rows in files, {sum(rows.bytes for rows in spilled):,} bytes in total, in "
        f"{', '.join(folders[:MAX_SHOWN])}{more}: they read the files in each pass over their rows"
    )


class RowSpill:
    """Decides when a worker's rows are written to a file, and writes them."""

    def __init__(self, spill: Spill, rank: int, workers: int) -> None:
        self.spill = spill
        self.limit_bytes = spill.worker_limit_bytes(workers)  # the maximum size of the rows in memory
        self.uses_file = spill.mode == "always"  # True if rows are written to a file
        self._rank = rank
        self._file: BlockFile | None = None
        self._used: UsedColumns | None = None
        self._is_any_dense = False
        # For training rows and for held-out rows: the blocks in the file, and the number of rows.
        self._blocks: tuple[list[RowBlock], list[RowBlock]] = ([], [])
        self._rows = [0, 0]

    def is_due(self, memory_bytes: int) -> bool:
        """Return True if the rows in memory, which take ``memory_bytes``, must be written now."""
        if self.spill.mode == "never":
            return False
        return memory_bytes > (min(self.spill.block_bytes, self.limit_bytes) if self.uses_file else self.limit_bytes)

    def append(self, rows: Rows, held_out: Mask | None = None) -> None:
        """Write rows. ``held_out``: the mask of held-out rows, shape (n,); None: there are none.

        Raise SpillError if the disk is full or fails, and LimitError if there are more columns than int32 values.
        """
        self.uses_file = True
        if held_out is None:
            self._append(rows, 0)
            return
        for part, mask in enumerate((~held_out, held_out)):
            self._append(_select(rows, np.flatnonzero(mask)), part)

    def finish(self) -> tuple[SpilledRows, SpilledRows]:
        """Number the used columns from 0; return the training rows and the held-out rows, with the same keys."""
        file = self._open_file()
        size = 0 if self._used is None else self._used.size
        keys = np.arange(size)
        if self._used is not None and not self._is_any_dense:
            keys = self._used.keys()
            if len(keys) < size:
                self._renumber(file, self._used)
        log.info("rank %d: rows are in a file in %s, %s bytes", self._rank, file.folder, f"{file.size:,}")
        training, held_out = (
            SpilledRows(keys, RowFile.from_blocks(keys, file, tuple(blocks), self.limit_bytes))
            for blocks in self._blocks
        )
        return training, held_out

    @property
    def spilled(self) -> Spilled | None:
        """The rows in the file; None: all rows are in memory."""
        return None if self._file is None else Spilled(self._file.size, self._file.folder)

    def new_file(self) -> BlockFile:
        """Return an empty file on the worker's disk; SpillError: that fails."""
        self.uses_file = True
        return BlockFile(worker_folder(self._rank, local_folders()))

    def _open_file(self) -> BlockFile:
        if self._file is None:
            self._file = self.new_file()
        return self._file

    def _append(self, rows: Rows, part: int) -> None:
        file, size = self._open_file(), rows.x.shape[1]
        if size > MAX_COLUMNS:
            raise LimitError(f"spilled rows: expected at most {MAX_COLUMNS:,} columns, got {size:,}; use spill='never'")
        if self._used is None:
            self._used = UsedColumns(size)
        for block in self._cut(rows):
            stored = RowBlock.write(file, self._rows[part], block)
            if stored.is_dense:
                self._is_any_dense = True
            else:
                self._used.add(block.x.indices.astype(np.int32, copy=False))
            self._blocks[part].append(stored)
            self._rows[part] += len(block)

    def _cut(self, rows: Rows) -> Iterator[Rows]:
        """Yield rows in blocks of about ``block_bytes``."""
        if not len(rows):
            return
        x = rows.x
        entry_bytes, row_bytes = x.data.itemsize + x.indices.itemsize, x.indptr.itemsize + 16  # 16: label and weight
        offsets = entry_bytes * x.indptr.astype(np.int64) + row_bytes * np.arange(len(rows) + 1)
        count = max(1, round(int(offsets[-1]) / self.spill.block_bytes))
        cuts = np.searchsorted(offsets, offsets[-1] * np.arange(1, count) // count)
        for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
            if end > begin:
                yield _select(rows, slice(begin, end))

    def _renumber(self, file: BlockFile, used: UsedColumns) -> None:
        column_numbers = used.numbers()
        for block in (*self._blocks[0], *self._blocks[1]):
            columns = column_numbers.number(file.arrays(block.location)["columns"])
            file.overwrite(block.location, "columns", columns)


def _select(rows: Rows, numbers: npt.NDArray[np.int64] | slice) -> Rows:
    """Return the rows with these row numbers, with all columns."""
    fields = (getattr(rows, name) for name in ROW_FIELDS)
    return Rows(rows.x[numbers], *(None if field is None else field[numbers] for field in fields))


def keep_batches(
    batches: Iterable[pa.RecordBatch],
    features: str | Sequence[str],
    label: str | None,
    weight: str | None,
    dtype: Float,
    spill: RowSpill,
) -> KeptRows:
    """Read rows like ``Rows.fromBatches``, and number their columns; see ``Worker.keep``."""
    parts = RowParts(checked_dtype(dtype))
    if not isinstance(features, str):
        parts.size = len(features)
    has_y, has_weights = label is not None, weight is not None

    def write() -> None:
        for rows in parts.drain(has_y, has_weights, spill.spill.block_bytes):
            spill.append(rows)

    for batch in batches:
        parts.read(batch, features, label, weight)
        if spill.is_due(parts.nbytes):
            write()
    if not spill.uses_file:
        return parts.to_rows(has_y, has_weights).localize()
    write()
    training, _ = spill.finish()
    return training
