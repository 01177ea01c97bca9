"""Rows of pairs of a key and a value, as models of keys take them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ps2.ops.distinct import find_distinct

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class KeyRows:
    """Rows in CSR form.

    Attributes:
        indptr: int64, shape (n + 1,): where each row's pairs begin.
        keys: int64, shape (pairs,), in [0, 2**63).
        values: float32, shape (pairs,).
        fields: int32, shape (pairs,): of which field each pair is.
        width: pairs of a row if every row has as many; else None.
    """

    indptr: Int64s
    keys: Int64s
    values: npt.NDArray[np.float32]
    fields: npt.NDArray[np.int32]
    width: int | None = None

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def take(self, begin: int, end: int) -> KeyRows:
        """Return the rows [begin, end)."""
        first, last = int(self.indptr[begin]), int(self.indptr[end])
        part = slice(first, last)
        indptr = self.indptr[begin : end + 1] - first
        return KeyRows(indptr, self.keys[part], self.values[part], self.fields[part], self.width)

    def distinct(self) -> tuple[Int64s, Int64s]:
        """Return the distinct keys, ascending, and the position of each pair's key among them, int64."""
        return find_distinct(self.keys)
