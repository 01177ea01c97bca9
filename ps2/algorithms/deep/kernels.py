"""Compiled loops of deep models in a worker: embeddings, their interactions, and activations of layers.

A row has pairs of a key and a value, in CSR form: row i has the pairs from ``indptr[i]`` to ``indptr[i + 1]``. For each
pair, ``inverse`` has the index of its key among the distinct keys of the batch, ``field`` its field and x its value.
``table`` has a row of weights for each distinct key: the linear weight w, if there is one, and the vector v. Kernels
compute in the table's dtype: float32 in trainings, float64 where tests check gradients.
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
def sum_values(indptr: Int64s, inverse: Int32s, x: Array, row: int, key_values: Array) -> None:
    """Add up a row's values by key in ``key_values``; the entries of the row's keys are 0 before the call."""
    for p in range(indptr[row], indptr[row + 1]):
        key_values[inverse[p]] += x[p]


@inline
def clear_values(indptr: Int64s, inverse: Int32s, row: int, key_values: Array) -> None:
    """Set the entries of ``key_values`` for the row's keys to 0 again."""
    for p in range(indptr[row], indptr[row + 1]):
        key_values[inverse[p]] = 0


@kernel
def embed(
    indptr: Int64s, inverse: Int32s, field: Int32s, x: Array, table: Array, vector_offset: int, input_fields: int,
    linear: Array, sums: Array, pairs: Array, inputs: Array,
) -> None:  # fmt: skip
    """Compute the terms of margins that depend on the embeddings, and the inputs of the layers.

    Args:
        vector_offset: the first column of the vectors: 1 if column 0 is the linear weight, else 0.
        input_fields: the inputs of the layers are the fields 0 to input_fields - 1.
        linear: an output: the sum of x w of each row, shape (n,); 0 without linear weights.
        sums: an output: the sum of x v of each row, shape (n, k).
        pairs: an output: the sum over pairs of distinct keys of <v_i, v_j> x_i x_j, shape (n,) (Rendle, 2010, Lemma
            3.1). If a row has a key several times, the x of the key is the sum of its values.
        inputs: an output: the sum of x v in each input field, shape (n, input_fields * k).
    """
    k, zero = table.shape[1] - vector_offset, table.dtype.type(0)
    squares, key_values = np.empty(k, table.dtype), np.zeros(len(table), table.dtype)
    for i in range(len(indptr) - 1):
        linear_sum, row_sums, row_inputs = zero, sums[i], inputs[i]
        row_sums[:] = 0
        squares[:] = 0
        row_inputs[:] = 0
        sum_values(indptr, inverse, x, i, key_values)
        for p in range(indptr[i], indptr[i + 1]):
            weights, value, offset, key_x = table[inverse[p]], x[p], field[p] * k, key_values[inverse[p]]
            if vector_offset:
                linear_sum += value * weights[0]
            for j in range(k):
                v = value * weights[vector_offset + j]
                row_sums[j] += v
                squares[j] += v * (key_x * weights[vector_offset + j])
            if field[p] < input_fields:
                for j in range(k):
                    row_inputs[offset + j] += value * weights[vector_offset + j]
        clear_values(indptr, inverse, i, key_values)
        linear[i] = linear_sum
        doubled = zero
        for j in range(k):
            doubled += row_sums[j] * row_sums[j] - squares[j]
        pairs[i] = doubled / 2


@kernel
def embed_backward(
    indptr: Int64s, inverse: Int32s, field: Int32s, x: Array, table: Array, vector_offset: int, input_fields: int,
    slopes: Array, sums: Array, input_slopes: Array, has_pairs: bool, gradient: Array,
) -> None:  # fmt: skip
    """Add the gradient of the loss with respect to the table to ``gradient``; see ``embed`` for the other arguments.

    Args:
        slopes: the loss's derivative with respect to each row's margin, shape (n,).
        input_slopes: the loss's derivatives with respect to the layers' inputs, shape (n, input_fields * k).
        has_pairs: whether the margin includes ``pairs`` of ``embed``.
    """
    k, key_values = table.shape[1] - vector_offset, np.zeros(len(table), table.dtype)
    for i in range(len(indptr) - 1):
        slope, row_sums, row_slopes = slopes[i], sums[i], input_slopes[i]
        sum_values(indptr, inverse, x, i, key_values)
        for p in range(indptr[i], indptr[i + 1]):
            weights, out, value, offset = table[inverse[p]], gradient[inverse[p]], x[p], field[p] * k
            if vector_offset:
                out[0] += slope * value
            if has_pairs:
                key_x = key_values[inverse[p]]
                for j in range(k):
                    out[vector_offset + j] += slope * value * (row_sums[j] - key_x * weights[vector_offset + j])
            if field[p] < input_fields:
                for j in range(k):
                    out[vector_offset + j] += value * row_slopes[offset + j]
        clear_values(indptr, inverse, i, key_values)


@kernel
def activate(z: Array, bias: Array, keep: float, seed: int) -> None:
    """Replace z, shape (n, outputs), by dropout(max(z + bias, 0)), in place.

    Args:
        keep: the probability that dropout keeps an element, which it then divides by ``keep``; 1: no dropout.
        seed: the seed of dropout. Seed and position decide whether an element is kept.
    """
    n, m = z.shape
    scale, zero = z.dtype.type(1.0 / keep), z.dtype.type(0)
    limit = np.uint64(keep * 2.0**53) if keep < 1.0 else np.uint64(1) << np.uint64(53)
    for i in range(n):
        row = z[i]
        if keep >= 1.0:
            for j in range(m):
                v = row[j] + bias[j]
                row[j] = max(v, zero)
        else:
            first = np.uint64(seed) + np.uint64(i) * np.uint64(m)
            for j in range(m):
                bits = scrambled((first + np.uint64(j)) * GOLDEN)
                v = row[j] + bias[j]
                row[j] = v * scale if v > 0 and (bits >> np.uint64(11)) < limit else zero


@kernel
def activate_backward(outputs: Array, keep: float, slopes: Array) -> None:
    """Multiply slopes, in place, by the derivative of ``activate``, given its outputs.

    The derivative is 0 where the output is 0: the element was negative, or dropout dropped it.
    """
    scale, zero = outputs.dtype.type(1.0 / keep), outputs.dtype.type(0)
    for i in range(outputs.shape[0]):
        row, row_slopes = outputs[i], slopes[i]
        for j in range(outputs.shape[1]):
            row_slopes[j] = row_slopes[j] * scale if row[j] > 0 else zero


@kernel
def row_hashes(indptr: Int64s, keys: Int64s, field: Int32s, begin: int, end: int) -> Int64s:
    """Return a hash of each row's keys in the fields [begin, end)."""
    n = len(indptr) - 1
    hashes = np.empty(n, np.int64)
    for i in range(n):
        row_hash = np.uint64(0)
        for p in range(indptr[i], indptr[i + 1]):
            if begin <= field[p] < end:
                row_hash += scrambled((np.uint64(keys[p]) ^ np.uint64(field[p]) << np.uint64(48)) * GOLDEN)
        hashes[i] = np.int64(row_hash)
    return hashes


@kernel
def gather_rows(
    indptr: Int64s, inverse: Int32s, field: Int32s, x: Array, selected: Int64s
) -> tuple[Int64s, Int32s, Int32s, Array]:
    """Return the rows with the indices ``selected``, in this order: their indptr, inverse, fields and values."""
    bounds = np.empty(len(selected) + 1, np.int64)
    bounds[0] = 0
    for i in range(len(selected)):
        row = selected[i]
        bounds[i + 1] = bounds[i] + indptr[row + 1] - indptr[row]
    count = bounds[-1]
    inverses, fields, values = np.empty(count, np.int32), np.empty(count, np.int32), np.empty(count, x.dtype)
    for i in range(len(selected)):
        source, target = indptr[selected[i]], bounds[i]
        for p in range(bounds[i + 1] - target):
            inverses[target + p] = inverse[source + p]
            fields[target + p] = field[source + p]
            values[target + p] = x[source + p]
    return bounds, inverses, fields, values


@kernel
def compact_indices(inverse: Int32s, marks: Int32s) -> Int64s:
    """Replace each index in ``inverse`` by its position in the sorted distinct indices; return the distinct indices.

    ``marks``: a scratch array with an element for each of the worker's keys; all are -1 before and after the call.
    """
    unsorted = np.empty(min(len(inverse), len(marks)), np.int64)
    count = 0
    for p in range(len(inverse)):
        key = inverse[p]
        if marks[key] < 0:
            marks[key] = 0
            unsorted[count] = key
            count += 1
    distinct = np.sort(unsorted[:count])
    for n in range(count):
        marks[distinct[n]] = n
    for p in range(len(inverse)):
        inverse[p] = marks[inverse[p]]
    for n in range(count):
        marks[distinct[n]] = -1
    return distinct


@kernel
def add_rows(rows: Int64s, values: Array, column: int, out: Array) -> None:
    """Add each row of ``values``, (n, k), to k columns of a row of ``out``, from ``column`` on; ``rows`` has n rows."""
    for p in range(len(rows)):
        row, value = out[rows[p]], values[p]
        for j in range(values.shape[1]):
            row[column + j] += value[j]


@kernel
def multiply_pairs(x: Array, y: Array) -> Array:
    """Return the outer product of each row of x, (n, a), with that of y, (n, b), as an array of shape (n, a * b)."""
    n, a, b = x.shape[0], x.shape[1], y.shape[1]
    products = np.empty((n, a * b), x.dtype)
    for i in range(n):
        for h in range(a):
            value, row, out = x[i, h], y[i], products[i, h * b : (h + 1) * b]
            for j in range(b):
                out[j] = value * row[j]
    return products


@kernel
def multiply_pairs_backward(slopes: Array, x: Array, y: Array, x_slopes: Array, y_slopes: Array) -> None:
    """Set ``x_slopes`` to the derivatives with respect to x, and add those with respect to y to ``y_slopes``.

    ``slopes``: the loss's derivatives with respect to the result of ``multiply_pairs``.
    """
    n, a, b = x.shape[0], x.shape[1], y.shape[1]
    for i in range(n):
        row, row_slopes = y[i], y_slopes[i]
        for h in range(a):
            value, part, total = x[i, h], slopes[i, h * b : (h + 1) * b], slopes.dtype.type(0)
            for j in range(b):
                total += part[j] * row[j]
                row_slopes[j] += part[j] * value
            x_slopes[i, h] = total
