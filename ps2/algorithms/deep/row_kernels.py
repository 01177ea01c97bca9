"""Kernels that take minibatches out of a worker's rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Int32s, Int64s
from ps2.ops.kernels import kernel

Array = npt.NDArray[Any]


@kernel
def gather_rows(
    indptr: Int64s, inverse: Int32s, field: Int32s, x: Array, numbers: Int64s
) -> tuple[Int64s, Int32s, Int32s, Array]:
    """Return some rows: their indptr, inverse, fields and values."""
    ends = np.empty(len(numbers) + 1, np.int64)
    ends[0] = 0
    for i in range(len(numbers)):
        row = numbers[i]
        ends[i + 1] = ends[i] + indptr[row + 1] - indptr[row]
    count = ends[-1]
    taken, fields, values = np.empty(count, np.int32), np.empty(count, np.int32), np.empty(count, x.dtype)
    for i in range(len(numbers)):
        begin, at = indptr[numbers[i]], ends[i]
        for p in range(ends[i + 1] - at):
            taken[at + p] = inverse[begin + p]
            fields[at + p] = field[begin + p]
            values[at + p] = x[begin + p]
    return ends, taken, fields, values


@kernel
def number_keys(inverse: Int32s, marks: Int32s) -> Int64s:
    """Replace numbers of a worker's keys by numbers of the distinct ones, in place; return these, sorted.

    Args:
        marks: -1 for each of the worker's keys, before and after.
    """
    found = np.empty(min(len(inverse), len(marks)), np.int64)
    count = 0
    for p in range(len(inverse)):
        key = inverse[p]
        if marks[key] < 0:
            marks[key] = 0
            found[count] = key
            count += 1
    distinct = np.sort(found[:count])
    for n in range(count):
        marks[distinct[n]] = n
    for p in range(len(inverse)):
        inverse[p] = marks[inverse[p]]
    for n in range(count):
        marks[distinct[n]] = -1
    return distinct
