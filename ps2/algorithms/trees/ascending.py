"""Sets of whole numbers that ascend: NumPy's ``unique`` and ``isin`` hash or sort anew what is in order already."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Int64s
from ps2.ops.kernels import inline

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]

# Values that are sorted by insertion, at most.
FEW = 32


def runs(numbers: Array) -> Int64s:
    """Return where the runs of equal numbers begin, int64."""
    return np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1])[: len(numbers)])


def distinct_of(numbers: Array) -> Array:
    """Return each of some ascending numbers once."""
    return numbers[runs(numbers)]


def merged(numbers: Array, others: Array) -> Array:
    """Return the numbers of two ascending sets, each once, ascending."""
    # Runs that ascend already are merged in one pass.
    return distinct_of(np.sort(np.concatenate([numbers, others]), kind="stable"))


def are_in(numbers: Int64s, members: Int64s, size: int) -> Bools:
    """Return for each number whether it is one of the members, in any order; all are in [0, size)."""
    flags = np.zeros(size, np.bool_)
    flags[members] = True
    return flags[numbers]


@inline
def sort_pairs(values: Array, counts: Int64s) -> None:
    """Let values ascend, with their counts; ``counts`` may be longer."""
    if len(values) > FEW:
        order = np.argsort(values)
        sorted_values, sorted_counts = values[order], counts[order]
        for i in range(len(values)):
            values[i], counts[i] = sorted_values[i], sorted_counts[i]
        return
    for i in range(1, len(values)):
        value, count, at = values[i], counts[i], i
        while at > 0 and values[at - 1] > value:
            values[at], counts[at] = values[at - 1], counts[at - 1]
            at -= 1
        values[at], counts[at] = value, count
