"""Sets of whole numbers that ascend: NumPy's ``unique`` and ``isin`` hash or sort anew what is in order already."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


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
