"""Rows go to a file as they are read, once they exceed a limit, so that no more than that is in memory at any time."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ps2.data.block_file import BlockFile
from ps2.data.rows import Rows, are_dense
from ps2.data.spilled_rows import RowBlock, RowFile, SpilledRows
from ps2.data.spilling import Spill, folder_of, local_folders
from ps2.data.used_columns import UsedColumns
from ps2.errors import LimitError

log = logging.getLogger(__name__)

Mask = npt.NDArray[np.bool_]

MAX_COLUMNS = 2**31 - 1
# Folders in a sentence.
SHOWN = 3


@dataclass(frozen=True)
class Spilled:
    """What a worker has written: bytes of rows, and the folder on whose disk they are."""

    bytes: int
    folder: str


def said_of(spilled: Sequence[Spilled]) -> str:
    """Say what workers have written, in a sentence."""
    folders = sorted({one.folder for one in spilled})
    more = f" and {len(folders) - SHOWN} more folders" if len(folders) > SHOWN else ""
    return (
        f"{len(spilled)} workers keep rows in files, {sum(one.bytes for one in spilled):,} bytes in all, in "
        f"{', '.join(folders[:SHOWN])}{more}: they read these in each pass over their rows"
    )


class RowSpill:
    """Decides when a worker's rows go to a file, and writes them.

    Attributes:
        spill: how the worker keeps its rows.
        limit_bytes: that rows may take in memory.
        is_begun: rows are in the file.
    """

    def __init__(self, spill: Spill, rank: int, workers: int) -> None:
        self.spill = spill
        self.limit_bytes = spill.limit_of(workers)
        self.is_begun = spill.mode == "always"
        self._rank = rank
        self._file: BlockFile | None = None
        self._used: UsedColumns | None = None
        self._is_any_dense = False
        # Of rows to train on, and of those held out.
        self._blocks: tuple[list[RowBlock], list[RowBlock]] = ([], [])
        self._rows = [0, 0]

    def is_due(self, waiting_bytes: int) -> bool:
        """Return whether the rows that wait in memory are to be written now."""
        if self.spill.mode == "never":
            return False
        return waiting_bytes > (min(self.spill.block_bytes, self.limit_bytes) if self.is_begun else self.limit_bytes)

    def append(self, rows: Rows, held_out: Mask | None = None) -> None:
        """Write rows.

        Args:
            held_out: which of them are held out, shape (n,); None: none.

        Raises:
            SpillError: the disk is full, or fails.
            LimitError: there are more columns than int32 counts.
        """
        self.is_begun = True
        if held_out is None:
            self._append(rows, 0)
            return
        for of, mask in enumerate((~held_out, held_out)):
            self._append(_some(rows, np.flatnonzero(mask)), of)

    def finished(self) -> tuple[SpilledRows, SpilledRows]:
        """Number the used columns from 0; return the rows to train on, and those held out, with the same keys."""
        file = self._begun_file()
        size = 0 if self._used is None else self._used.size
        keys = np.arange(size)
        if self._used is not None and not self._is_any_dense:
            keys = self._used.keys()
            if len(keys) < size:
                self._renumber(file, self._used)
        log.info("rank %d: rows are in a file in %s, %s bytes", self._rank, file.folder, f"{file.size:,}")
        training, held_out = (
            SpilledRows(keys, RowFile.of(keys, file, tuple(blocks), self.limit_bytes)) for blocks in self._blocks
        )
        return training, held_out

    @property
    def spilled(self) -> Spilled | None:
        """What was written; None: all rows are in memory."""
        return None if self._file is None else Spilled(self._file.size, self._file.folder)

    def _begun_file(self) -> BlockFile:
        if self._file is None:
            self._file = BlockFile(folder_of(self._rank, local_folders()))
        return self._file

    def _append(self, rows: Rows, of: int) -> None:
        file, size = self._begun_file(), rows.x.shape[1]
        if size > MAX_COLUMNS:
            raise LimitError(f"rows in a file have at most {MAX_COLUMNS:,} columns, got {size:,}; use spill='never'")
        if self._used is None:
            self._used = UsedColumns(size)
        for block in self._cut(rows):
            indptr, columns, values = block.x.indptr, block.x.indices, block.x.data
            is_dense = are_dense(columns, *block.x.shape)
            arrays = {"values": values}
            if is_dense:
                self._is_any_dense = True
            else:
                columns = columns.astype(np.int32, copy=False)
                self._used.add(columns)
                arrays |= {"indptr": indptr.astype(np.int32, copy=False), "columns": columns}
            if block.y is not None:
                arrays["y"] = block.y
            if block.weights is not None:
                arrays["weights"] = block.weights
            self._blocks[of].append(RowBlock(self._rows[of], len(block), is_dense, file.append(arrays)))
            self._rows[of] += len(block)

    def _cut(self, rows: Rows) -> Iterator[Rows]:
        """Yield rows in blocks of about the same number of entries."""
        if not len(rows):
            return
        x = rows.x
        per_entry, per_row = x.data.itemsize + x.indices.itemsize, x.indptr.itemsize + 16
        sizes = per_entry * x.indptr.astype(np.int64) + per_row * np.arange(len(rows) + 1)
        count = max(1, round(int(sizes[-1]) / self.spill.block_bytes))
        cuts = np.searchsorted(sizes, sizes[-1] * np.arange(1, count) // count)
        for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
            if end > begin:
                yield _some(rows, slice(begin, end))

    def _renumber(self, file: BlockFile, used: UsedColumns) -> None:
        places = used.places()
        for block in (*self._blocks[0], *self._blocks[1]):
            columns = places.of(file.arrays(block.place)["columns"])
            file.overwrite(block.place, "columns", columns)


def _some(rows: Rows, numbers: npt.NDArray[np.int64] | slice) -> Rows:
    """Return some rows, in the column space of all."""
    return replace(
        rows,
        x=rows.x[numbers],
        y=None if rows.y is None else rows.y[numbers],
        weights=None if rows.weights is None else rows.weights[numbers],
    )
