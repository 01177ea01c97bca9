"""Compiled passes over rows of keys: predict a row, then learn from it.

A row is a list of (key, value) pairs with distinct keys. The model is a logistic regression (k = 1), or a factorization
machine whose vectors v have k - 1 values (Rendle, 2010): margin = sum w x + 1/2 sum_f ((sum v_f x)^2 - sum v_f^2 x^2).

``blocks`` has the row of an ``EmbeddingTable`` for each distinct key. Its columns are the k weights (w, then v), then
n, the sum of squared gradients of each weight. With FTRL-Proximal (McMahan et al., 2013, Algorithm 1) there is one more
column, z of w; Adagrad updates the weights that FTRL does not.
"""

from __future__ import annotations

from math import exp, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float32s, Float64s, Int32s, Int64s
from ps2.ops.kernels import inline, kernel

Array = npt.NDArray[Any]

# The positions in ``rates``: FTRL's alpha, beta, l1 and l2; Adagrad's lr, eps and L2 penalty.
ALPHA, BETA, L1, L2, LR, EPS, DECAY = range(7)
# The rows' arrays: indptr; each pair's key, as an index of the distinct keys, and value; the rows' labels 0 or 1; the
# rows' weights, or an empty array if all are 1.
LabelledPairs = tuple[Int64s, Int32s, Float32s, Float32s, Float32s]


@inline
def sigmoid(margin: float) -> float:
    """Return 1 / (1 + exp(-margin)) without overflow."""
    if margin >= 0:
        return 1.0 / (1.0 + exp(-margin))
    odds = exp(margin)
    return odds / (1.0 + odds)


@inline
def ftrl_weight(z: float, n: float, rates: Float64s) -> float:
    """Return the weight that FTRL computes from its sums z and n."""
    if abs(z) <= rates[L1]:
        return 0.0
    excess = z - rates[L1] if z > 0 else z + rates[L1]
    return -excess / ((rates[BETA] + sqrt(n)) / rates[ALPHA] + rates[L2])


@kernel
def learn_rows(
    rows: LabelledPairs, blocks: Float32s, changes: Float32s, tail: int, ftrl: bool, rates: Float64s, margins: Float64s
) -> None:
    """Predict each row, then take a step for it. The model is ``blocks`` plus ``changes``.

    Args:
        rows: the rows; ``inverse`` has indices of rows of ``blocks``.
        blocks: the model before the pass, shape (keys, columns); it is not changed.
        changes: zeros of shape (keys, 2 k), to which the changes of columns 0 to 2 k - 1 of ``blocks`` are added; with
            FTRL, of columns 1 to 2 k, because column 0, w, follows from n and z.
        tail: the number of pairs at the end of each row that have a linear weight but no vector: 1 with an intercept.
        margins: output: each row's margin before its step.
    """
    indptr, inverse, values, labels, weights = rows
    k = changes.shape[1] // 2
    shift = 1 if ftrl else 0  # column 0 of ``changes`` is this column of ``blocks``
    z_column = 2 * k
    sums = np.zeros(k)
    max_pairs = 0
    for row in range(labels.size):
        max_pairs = max(max_pairs, indptr[row + 1] - indptr[row])
    linear = np.zeros(max_pairs)  # w of each pair of the current row
    for row in range(labels.size):
        begin, end = indptr[row], indptr[row + 1]
        margin = 0.0
        sums[:] = 0.0
        squares = 0.0
        for i in range(begin, end):
            key, x = inverse[i], float(values[i])
            if ftrl:
                z = float(blocks[key, z_column]) + float(changes[key, z_column - 1])
                n = float(blocks[key, k]) + float(changes[key, k - 1])
                w = ftrl_weight(z, n, rates)
            else:
                w = float(blocks[key, 0]) + float(changes[key, 0])
            linear[i - begin] = w
            margin += w * x
            if i >= end - tail:
                continue
            for j in range(1, k):
                product = (float(blocks[key, j]) + float(changes[key, j - shift])) * x
                sums[j] += product
                squares += product * product
        for j in range(1, k):
            margin += 0.5 * sums[j] * sums[j]
        margin -= 0.5 * squares
        margins[row] = margin
        slope = sigmoid(margin) - float(labels[row])
        if weights.size:
            slope *= float(weights[row])
        if slope == 0.0:
            continue
        for i in range(begin, end):
            key, x = inverse[i], float(values[i])
            g = slope * x
            n = float(blocks[key, k]) + float(changes[key, k - shift])
            if ftrl:
                sigma = (sqrt(n + g * g) - sqrt(n)) / rates[ALPHA]
                changes[key, z_column - 1] += np.float32(g - sigma * linear[i - begin])
                changes[key, k - 1] += np.float32(g * g)
            else:
                g += rates[DECAY] * linear[i - begin]
                changes[key, k] += np.float32(g * g)
                changes[key, 0] -= np.float32(rates[LR] * g / (sqrt(n + g * g) + rates[EPS]))
            if i >= end - tail:
                continue
            for j in range(1, k):
                v = float(blocks[key, j]) + float(changes[key, j - shift])
                g = slope * x * (sums[j] - v * x) + rates[DECAY] * v
                n = float(blocks[key, k + j]) + float(changes[key, k + j - shift]) + g * g
                changes[key, k + j - shift] += np.float32(g * g)
                changes[key, j - shift] -= np.float32(rates[LR] * g / (sqrt(n) + rates[EPS]))


@kernel
def sum_gradients(rows: LabelledPairs, pulled: Float32s, gradients: Float32s, tail: int, margins: Float64s) -> None:
    """Predict all rows, and add up their gradients; see ``learn_rows`` for the other arguments.

    ``pulled`` has the weights of each key, shape (keys, k). ``gradients``, zeros of that shape, is the output.
    """
    indptr, inverse, values, labels, weights = rows
    k = pulled.shape[1]
    sums = np.zeros(k)
    for row in range(labels.size):
        begin, end = indptr[row], indptr[row + 1]
        margin = margin_of(inverse, values, begin, end, tail, pulled, sums)
        margins[row] = margin
        slope = sigmoid(margin) - float(labels[row])
        if weights.size:
            slope *= float(weights[row])
        for i in range(begin, end):
            key, x = inverse[i], float(values[i])
            gradients[key, 0] += np.float32(slope * x)
            if i >= end - tail:
                continue
            for j in range(1, k):
                gradients[key, j] += np.float32(slope * x * (sums[j] - float(pulled[key, j]) * x))


@inline
def margin_of(
    inverse: Int32s, values: Float32s, begin: int, end: int, tail: int, pulled: Float32s, sums: Float64s
) -> float:
    """Return the margin of one row; set ``sums`` to the sums of v x over its pairs."""
    margin, squares = 0.0, 0.0
    k = pulled.shape[1]
    sums[:] = 0.0
    for i in range(begin, end):
        key, x = inverse[i], float(values[i])
        margin += float(pulled[key, 0]) * x
        if i >= end - tail:
            continue
        for j in range(1, k):
            product = float(pulled[key, j]) * x
            sums[j] += product
            squares += product * product
    for j in range(1, k):
        margin += 0.5 * sums[j] * sums[j]
    return margin - 0.5 * squares


@kernel
def predict_rows(
    indptr: Int64s, inverse: Int32s, values: Float32s, pulled: Float32s, tail: int, margins: Float64s
) -> None:
    """Set the margins of rows; see ``sum_gradients`` for the arguments."""
    sums = np.zeros(pulled.shape[1])
    for row in range(margins.size):
        margins[row] = margin_of(inverse, values, indptr[row], indptr[row + 1], tail, pulled, sums)


@kernel
def merge_pairs(
    indptr: Int64s, inverse: Array, values: Float32s, keys: int, intercept: bool
) -> tuple[Int64s, Int32s, Float32s]:
    """Return rows in which each key occurs once; the values of a row's pairs with equal keys are added.

    A key is a feature of the row, so it has one gradient and one step per row. With an intercept, each row gets one
    more pair at its end, with index ``keys``, the number of distinct keys, and value 1.
    """
    n = indptr.size - 1
    num_pairs = inverse.size + n if intercept else inverse.size
    merged_indptr, merged_inverse = np.zeros(n + 1, np.int64), np.empty(num_pairs, np.int32)
    sums = np.empty(num_pairs, np.float32)
    last_pair = np.full(keys, -1, np.int64)  # the last output pair of each key
    count = 0
    for row in range(n):
        begin = count
        for i in range(indptr[row], indptr[row + 1]):
            pair = last_pair[inverse[i]]
            if pair >= begin:
                sums[pair] += values[i]
                continue
            last_pair[inverse[i]] = count
            merged_inverse[count], sums[count] = inverse[i], values[i]
            count += 1
        if intercept:
            merged_inverse[count], sums[count] = keys, np.float32(1.0)
            count += 1
        merged_indptr[row + 1] = count
    return merged_indptr, merged_inverse[:count], sums[:count]
