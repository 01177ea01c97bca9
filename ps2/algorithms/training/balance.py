"""Partition items of unequal cost into parts of about equal cost: words into blocks, users among workers. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ps2.ops.kernels import Int64s, kernel


def deal_by_cost(costs: Int64s, parts: int) -> npt.NDArray[np.int32]:
    """Return the part of each item, by the greedy rule: the costliest item first, to the cheapest part with room.

    No part gets more than ``ceil(n / parts)`` items.

    Args:
        costs: int64, shape (n,).
    """
    room = -(-len(costs) // parts)
    found = np.empty(len(costs), np.int32)
    _deal(np.argsort(-costs, kind="stable"), costs, room, np.zeros((2, parts), np.int64), found)
    return found


@kernel
def _deal(order: Int64s, costs: Int64s, room: int, held: Int64s, found: npt.NDArray[np.int32]) -> None:
    sums, counts = held[0], held[1]
    for item in order:
        best = -1
        for part in range(len(sums)):
            if counts[part] < room and (best < 0 or sums[part] < sums[best]):
                best = part
        found[item] = best
        sums[best] += costs[item]
        counts[best] += 1
