"""Operations on sorted integers, faster than NumPy's ``unique`` and ``isin``, which would hash or sort them again."""

from __future__ import annotations

from typing import Any

import numpy as np

from ps2.algorithms.trees.layout import Array, Bools
from ps2.array_types import Int64s
from ps2.ops.kernels import inline

# The length of the runs that ``sort_pairs`` sorts by insertion; then it merges them.
RUN_LENGTH = 16


def run_starts(numbers: Array) -> Int64s:
    """Return the index of the first number of each run of equal numbers, int64."""
    return np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1])[: len(numbers)])


def unique_sorted(numbers: Array) -> Array:
    """Return ascending numbers without their duplicates."""
    return numbers[run_starts(numbers)]


def union_sorted(numbers: Array, others: Array) -> Array:
    """Return the union of two sets of ascending numbers, ascending."""
    # A stable sort merges two ascending runs in one pass.
    return unique_sorted(np.sort(np.concatenate([numbers, others]), kind="stable"))


def is_member(numbers: Int64s, members: Int64s, size: int) -> Bools:
    """Return for each number whether it is a member. Members are in any order; all numbers are in [0, size)."""
    flags = np.zeros(size, np.bool_)
    flags[members] = True
    return flags[numbers]


@inline
def sort_pairs(values: Array, numbers: Int64s) -> None:
    """Sort values in place, NaN last, and move their numbers with them; ``numbers`` may be longer. The sort is stable.

    Numba takes seconds to compile NumPy's own sorts.
    """
    count, size = len(values), RUN_LENGTH
    for begin in range(0, count, size):
        for i in range(begin + 1, min(begin + size, count)):
            value, number, slot = values[i], numbers[i], i
            while slot > begin and _comes_before(value, values[slot - 1]):
                values[slot], numbers[slot] = values[slot - 1], numbers[slot - 1]
                slot -= 1
            values[slot], numbers[slot] = value, number
    if count <= size:
        return
    left_values, left_numbers = np.empty(count, values.dtype), np.empty(count, np.int64)
    while size < count:  # merge runs of this size
        for begin in range(0, count - size, 2 * size):
            for i in range(size):
                left_values[i], left_numbers[i] = values[begin + i], numbers[begin + i]
            left, right, end = 0, begin + size, min(begin + 2 * size, count)
            while left < size:
                slot = right - size + left
                if right < end and _comes_before(values[right], left_values[left]):
                    values[slot], numbers[slot] = values[right], numbers[right]
                    right += 1
                else:
                    values[slot], numbers[slot] = left_values[left], left_numbers[left]
                    left += 1
        size *= 2


@inline
def _comes_before(one: Any, other: Any) -> bool:
    return one < other or (other != other and one == one)
