"""How a graph is partitioned into packs (``adjacency_kernels``), one a server, and how vertices are addressed. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.ops.kernels import Int64s

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class GraphPartitioning:
    """Each pack has consecutive vertices. All packs are padded to the longest one, so that equal column intervals cut
    them.

    Attributes:
        first: int64, shape (packs + 1,): number of each pack's first vertex; last, the number of vertices.
        width: length of a pack.
    """

    first: Int64s
    width: int

    @staticmethod
    def of(degrees: Int64s, packs: int) -> GraphPartitioning:
        """Partition a graph into packs of about equal length.

        Args:
            degrees: int64, shape (vertices,): length of each vertex's list.
        """
        taken = np.append(0, np.cumsum(degrees + 1))
        shares = taken[-1] * np.arange(1, packs) / packs
        first = np.concatenate(([0], np.searchsorted(taken, shares), [len(degrees)]))
        return GraphPartitioning(first, int(np.diff(taken[first]).max()) + 1)

    @property
    def vertices(self) -> int:
        return int(self.first[-1])

    @property
    def packs(self) -> int:
        return len(self.first) - 1

    @property
    def dim(self) -> int:
        """Columns of all packs."""
        return self.packs * self.width

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of addresses."""
        return np.dtype(np.int32 if self.dim <= np.iinfo(np.int32).max else np.int64)

    def addresses(self, numbers: Array) -> Int64s:
        """Return the columns of vertices."""
        if self.packs == 1:
            return numbers.astype(np.int64)
        pack = np.searchsorted(self.first[1:-1], numbers, side="right")
        return numbers - self.first[pack] + pack * self.width

    def empty(self, pack: int, degrees: Int64s) -> Array:
        """Return the bounds of a pack whose lists are allocated and empty, shape (its vertices + 1,).

        Args:
            degrees: as for ``of``.
        """
        own = degrees[self.first[pack] : self.first[pack + 1]]
        begins = len(own) + 1 + np.append(0, np.cumsum(own))
        # While a pack is filled, b[v + 1] is the end of list v so far.
        return np.append(begins[0], begins[:-1]).astype(self.dtype)
