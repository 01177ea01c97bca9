"""For some rows, the set of columns that may differ from 0: with it, an optimizer step skips all other columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ps2.array_types import Int64s
from ps2.errors import BusyError, LimitError
from ps2.ops.table import Array, Columns, Op
from ps2.ops.touched import Touched
from ps2.server.memory import MemoryAccount

# Rows with fewer columns have no sets, because a scan of the whole row takes less time than a request.
MIN_WIDTH = 1 << 16


class TouchedRows:
    """Sets of touched columns by row; guarded by the shard's lock.

    A row gets a set when it is set to zero after an optimizer step has used it as the gradient. Invariant: outside of
    its set a row is 0 (not -0.0). Before an operation writes a row, the written columns are added to the set, so the
    invariant holds even if the operation fails. Before an operation without columns, or with too many, the set is
    dropped.
    """

    def __init__(self, memory: MemoryAccount, width: int, layout: Int64s) -> None:
        """``layout``: the shard's layout counter. Each new set increases it, because fast paths do not update sets."""
        self._memory = memory
        self._layout = layout
        self._width = width
        self._gradients: set[int] = set()  # rows that a step has used as the gradient
        self._sets: dict[int, Touched] = {}

    def __contains__(self, row: int) -> bool:
        return row in self._sets

    def __len__(self) -> int:
        """Return the number of rows with a set."""
        return len(self._sets)

    @property
    def nbytes(self) -> int:
        return len(self._sets) * Touched.bytes_for(self._width)

    def call(self, op: Op, rows: Sequence[int], operands: Sequence[Array], scalars: Mapping[str, Any]) -> Any:
        """Run an operation, with the touched columns of its row if it can use them; update the sets."""
        sparse_name = op.nonzero.row if op.nonzero is not None and op.nonzero.when(scalars) else None
        if sparse_name is None and not self._sets:
            return op.fn(*operands, **scalars)
        row_ids = dict(zip(op.row_names, rows, strict=True))
        written_rows = [row_ids[name] for name in op.writes if name in row_ids and name != sparse_name]
        if "slots" in op.operands:
            self._mark(written_rows, _columns_written(op, operands[op.operands.index("slots")], scalars))
        else:
            self.drop(written_rows)
        if any(op.operands[op.names.index(name)] in ("block", "blocks") for name in op.writes):
            self.drop_all()
        if sparse_name is None:
            return op.fn(*operands, **scalars)
        value = op.fn(*operands, **scalars, columns=self._columns(row_ids[sparse_name]))
        if sparse_name in op.writes:
            self._start_set(row_ids[sparse_name])
        else:
            self._gradients.add(row_ids[sparse_name])
        return value

    def drop(self, rows: Iterable[int]) -> None:
        """Drop the sets of rows before any of their columns may be written."""
        for row in rows:
            if self._sets.pop(row, None) is not None:
                self._memory.give(Touched.bytes_for(self._width))

    def drop_all(self) -> None:
        self.drop(list(self._sets))

    def forget(self, rows: Iterable[int]) -> None:
        """Drop the sets of rows, and forget that steps have used them as gradients."""
        self.drop(rows)
        self._gradients.difference_update(rows)

    def forget_all(self) -> None:
        self.drop_all()
        self._gradients.clear()

    def resize(self, width: int) -> None:
        """Change the number of columns, and drop all sets; a row gets a new set when it is set to zero again."""
        self.drop_all()
        self._width = width

    def _mark(self, rows: Iterable[int], slots: Array) -> None:
        for row in rows:
            if row in self._sets and not self._sets[row].mark(slots):
                self.drop([row])

    def _columns(self, row: int) -> Columns:
        touched = self._sets.get(row)
        return None if touched is None else touched.columns

    def _start_set(self, row: int) -> None:
        """Create or clear the set of a row that was set to zero, if it was a gradient and memory is available."""
        if row in self._sets:
            self._sets[row].clear()
        elif row in self._gradients and self._width >= MIN_WIDTH:
            try:
                self._memory.take(Touched.bytes_for(self._width), "a set of touched columns")
            except (LimitError, BusyError):
                return
            self._layout += 1
            self._sets[row] = Touched(self._width)


def _columns_written(op: Op, slots: Array, scalars: Mapping[str, Any]) -> Array:
    """Return the columns that an operation with slots writes."""
    if op.span is None:
        return slots
    columns: Array = (slots[slots >= 0, np.newaxis] + np.arange(scalars[op.span])).reshape(-1)
    return columns
