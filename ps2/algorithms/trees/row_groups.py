"""The groups of a worker's rows, such as the results of a query, for rankings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ps2.array_types import Float64s, Int64s
from ps2.ops.guards import readable


@dataclass(frozen=True, eq=False)
class RowGroups:
    """Rows by group.

    Attributes:
        order: int64, shape (n,): numbers of the rows, those of a group side by side.
        begins: int64, shape (groups + 1,): where each group begins in ``order``, and the end.
    """

    order: Int64s
    begins: Int64s

    @staticmethod
    def of(groups: Int64s, ids: Int64s, weights: Float64s) -> RowGroups:
        """Order rows by group and, within it, by weight and ``row_ids``: the same wherever the rows lie."""
        keys = (weights, ids, groups) if len(weights) else (ids, groups)
        order = np.lexsort(keys).astype(np.int64)
        ordered = groups[order]
        starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(order) else np.empty(0, np.int64)
        return RowGroups(readable(order), readable(np.append(starts, len(order)).astype(np.int64)))

    @staticmethod
    def in_order(groups: Int64s) -> RowGroups:
        """Order rows by group, and within it as they are: for metrics, which rank equal margins in this order."""
        return RowGroups.of(groups, np.arange(len(groups)), np.empty(0))

    def __len__(self) -> int:
        return len(self.begins) - 1
