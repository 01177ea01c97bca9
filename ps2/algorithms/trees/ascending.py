"""Operations on ascending integers. NumPy's ``unique`` and ``isin`` would hash or sort them again, which is slower."""

from __future__ import annotations

from typing import Any

import numpy as np

from ps2.algorithms.trees.layout import Array, Bools
from ps2.array_types import Int64s
from ps2.ops.kernels import inline

# ``sort_pairs`` sorts runs of this many keys by insertion, and then merges the runs.
RUN_LENGTH = 16


def run_starts(values: Array) -> Int64s:
    """Return the index of the first value of each run of equal values, int64."""
    return np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])


def unique_sorted(values: Array) -> Array:
    return values[run_starts(values)]


def union_sorted(first: Array, second: Array) -> Array:
    # A stable sort merges two ascending runs in one pass.
    return unique_sorted(np.sort(np.concatenate([first, second]), kind="stable"))


def is_member(values: Int64s, members: Int64s, upper_bound: int) -> Bools:
    """Return for each value whether it is in ``members``, in any order; all integers are in [0, upper_bound)."""
    flags = np.zeros(upper_bound, np.bool_)
    flags[members] = True
    return flags[values]


@inline
def sort_pairs(keys: Array, values: Int64s) -> None:
    """Sort keys in place, NaN last, and move their values with them; ``values`` may be longer. The sort is stable.

    NumPy's own sorts would take numba seconds to compile.
    """
    count, run_length = len(keys), RUN_LENGTH
    for begin in range(0, count, run_length):
        for i in range(begin + 1, min(begin + run_length, count)):
            key, value, position = keys[i], values[i], i
            while position > begin and _comes_before(key, keys[position - 1]):
                keys[position], values[position] = keys[position - 1], values[position - 1]
                position -= 1
            keys[position], values[position] = key, value
    if count <= run_length:
        return
    left_keys, left_values = np.empty(count, keys.dtype), np.empty(count, np.int64)
    while run_length < count:  # merge pairs of runs of this length
        for begin in range(0, count - run_length, 2 * run_length):
            for i in range(run_length):
                left_keys[i], left_values[i] = keys[begin + i], values[begin + i]
            left, right, end = 0, begin + run_length, min(begin + 2 * run_length, count)
            while left < run_length:
                position = right - run_length + left
                if right < end and _comes_before(keys[right], left_keys[left]):
                    keys[position], values[position] = keys[right], values[right]
                    right += 1
                else:
                    keys[position], values[position] = left_keys[left], left_values[left]
                    left += 1
        run_length *= 2


@inline
def _comes_before(key: Any, other_key: Any) -> bool:
    return key < other_key or (other_key != other_key and key == key)
