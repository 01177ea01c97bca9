"""Kernels of deep models in a worker: embeddings of rows, their interactions, and layers' elementwise parts.

Rows are pairs of a key and a value, in CSR form: ``indptr``, and for each pair ``inverse``, the place of its key among
the distinct keys of the batch, its ``field`` and its value x. ``table`` has a block for each distinct key. Kernels
compute in the table's dtype: float32 in trainings, float64 where gradients are checked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Int32s, Int64s
from ps2.ops.draws import GOLDEN, scrambled
from ps2.ops.kernels import inline, kernel

Array = npt.NDArray[Any]


@inline
def sum_values(indptr: Int64s, inverse: Int32s, x: Array, row: int, x_of: Array) -> None:
    """Add up a row's values by key in ``x_of``, which is 0 for the row's keys."""
    for p in range(indptr[row], indptr[row + 1]):
        x_of[inverse[p]] += x[p]


@inline
def clear_values(indptr: Int64s, inverse: Int32s, row: int, x_of: Array) -> None:
    """Set to 0 what ``sum_values`` has changed."""
    for p in range(indptr[row], indptr[row + 1]):
        x_of[inverse[p]] = 0


@kernel
def embed(
    indptr: Int64s, inverse: Int32s, field: Int32s, x: Array, table: Array, first: int, deep: int,
    linear: Array, sums: Array, pairs: Array, inputs: Array,
) -> None:  # fmt: skip
    """Compute what rows' embeddings give to the parts of a model; all outputs are written.

    Args:
        first: position of the vector in a block: 1 if the first column is a linear weight, else 0.
        deep: fields below this one are inputs of the layers.
        linear: the sum of x w of each row, shape (n,); 0 without linear weights.
        sums: the sum of x v of each row, shape (n, k).
        pairs: the sum over pairs of distinct keys of <v_i, v_j> x_i x_j, shape (n,) (Rendle, 2010, Lemma 3.1); the x
            of a key that comes several times in a row is the sum of its values.
        inputs: the sum of x v in each deep field, shape (n, deep * k).
    """
    k, zero = table.shape[1] - first, table.dtype.type(0)
    squares, x_of = np.empty(k, table.dtype), np.zeros(len(table), table.dtype)
    for i in range(len(indptr) - 1):
        total, row, of_inputs = zero, sums[i], inputs[i]
        row[:] = 0
        squares[:] = 0
        of_inputs[:] = 0
        sum_values(indptr, inverse, x, i, x_of)
        for p in range(indptr[i], indptr[i + 1]):
            block, value, at, of_key = table[inverse[p]], x[p], field[p] * k, x_of[inverse[p]]
            if first:
                total += value * block[0]
            for j in range(k):
                v = value * block[first + j]
                row[j] += v
                squares[j] += v * (of_key * block[first + j])
            if field[p] < deep:
                for j in range(k):
                    of_inputs[at + j] += value * block[first + j]
        clear_values(indptr, inverse, i, x_of)
        linear[i] = total
        half = zero
        for j in range(k):
            half += row[j] * row[j] - squares[j]
        pairs[i] = half / 2


@kernel
def embed_slopes(
    indptr: Int64s, inverse: Int32s, field: Int32s, x: Array, table: Array, first: int, deep: int,
    slopes: Array, sums: Array, of_inputs: Array, has_pairs: bool, gradient: Array,
) -> None:  # fmt: skip
    """Add the gradients of the blocks of all keys to ``gradient``; arguments as of ``embed``.

    Args:
        slopes: the loss's derivative by each row's margin, shape (n,).
        of_inputs: the loss's derivative by the layers' inputs, shape (n, deep * k).
        has_pairs: whether the margin has the term of pairs.
    """
    k, x_of = table.shape[1] - first, np.zeros(len(table), table.dtype)
    for i in range(len(indptr) - 1):
        slope, row, below = slopes[i], sums[i], of_inputs[i]
        sum_values(indptr, inverse, x, i, x_of)
        for p in range(indptr[i], indptr[i + 1]):
            block, out, value, at = table[inverse[p]], gradient[inverse[p]], x[p], field[p] * k
            if first:
                out[0] += slope * value
            if has_pairs:
                of_key = x_of[inverse[p]]
                for j in range(k):
                    out[first + j] += slope * value * (row[j] - of_key * block[first + j])
            if field[p] < deep:
                for j in range(k):
                    out[first + j] += value * below[at + j]
        clear_values(indptr, inverse, i, x_of)


@kernel
def activate(z: Array, bias: Array, keep: float, seed: int) -> None:
    """Replace z, shape (n, outputs), by dropout(max(z + bias, 0)), in place.

    Args:
        keep: share of elements that dropout keeps, which are divided by it; 1: all.
        seed: seed of dropout; whether an element stays depends on the seed and its position only.
    """
    n, m = z.shape
    scale, zero = z.dtype.type(1.0 / keep), z.dtype.type(0)
    most = np.uint64(keep * 2.0**53) if keep < 1.0 else np.uint64(1) << np.uint64(53)
    for i in range(n):
        row = z[i]
        if keep >= 1.0:
            for j in range(m):
                v = row[j] + bias[j]
                row[j] = max(v, zero)
        else:
            begin = np.uint64(seed) + np.uint64(i) * np.uint64(m)
            for j in range(m):
                h = scrambled((begin + np.uint64(j)) * GOLDEN)
                v = row[j] + bias[j]
                row[j] = v * scale if v > 0 and (h >> np.uint64(11)) < most else zero


@kernel
def activate_slopes(h: Array, keep: float, slopes: Array) -> None:
    """Multiply slopes by the derivative of ``activate``, in place; h is what ``activate`` made.

    An element that dropout has taken is 0, as one that was negative: its slope is 0.
    """
    scale, zero = h.dtype.type(1.0 / keep), h.dtype.type(0)
    for i in range(h.shape[0]):
        row, out = h[i], slopes[i]
        for j in range(h.shape[1]):
            out[j] = out[j] * scale if row[j] > 0 else zero


@kernel
def row_hashes(indptr: Int64s, keys: Int64s, field: Int32s, begin: int, end: int) -> Int64s:
    """Return a hash of each row's keys in the fields [begin, end): rows with equal keys there are the same item."""
    n = len(indptr) - 1
    found = np.empty(n, np.int64)
    for i in range(n):
        total = np.uint64(0)
        for p in range(indptr[i], indptr[i + 1]):
            if begin <= field[p] < end:
                total += scrambled((np.uint64(keys[p]) ^ np.uint64(field[p]) << np.uint64(48)) * GOLDEN)
        found[i] = np.int64(total)
    return found


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

    ``marks`` is -1 for each of the worker's keys, before and after.
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
