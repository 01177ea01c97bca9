"""Compiled passes over rows of keys: predict a row, then learn from it.

A row is a list of (key, value) pairs of distinct keys. The model is a logistic regression (k = 1), or a factorization
machine whose vectors have k - 1 numbers (Rendle, 2010): margin = sum w x + 1/2 sum_f ((sum v_f x)^2 - sum v_f^2 x^2).

``blocks`` holds what an ``EmbeddingTable`` has of each distinct key: k weights (w, then v), n of each, and z of w if w
takes steps of FTRL-Proximal (McMahan et al., 2013, Algorithm 1). Other weights take steps of Adagrad.
"""

from __future__ import annotations

from math import exp, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float32s, Float64s, Int32s, Int64s
from ps2.ops.kernels import inline, kernel

Array = npt.NDArray[Any]

# Of ``rates``: FTRL's alpha, beta, l1, l2; Adagrad's lr and eps; the L2 penalty of vectors, or of all with Adagrad.
ALPHA, BETA, L1, L2, LR, EPS, DECAY = range(7)


@inline
def sigmoid(margin: float) -> float:
    """Return 1 / (1 + exp(-margin)) without overflow."""
    if margin >= 0:
        return 1.0 / (1.0 + exp(-margin))
    odds = exp(margin)
    return odds / (1.0 + odds)


@inline
def ftrl_weight(z: float, n: float, rates: Float64s) -> float:
    """Return the weight that FTRL's sums stand for."""
    if abs(z) <= rates[L1]:
        return 0.0
    excess = z - rates[L1] if z > 0 else z + rates[L1]
    return -excess / ((rates[BETA] + sqrt(n)) / rates[ALPHA] + rates[L2])


@kernel
def learn_rows(
    indptr: Int64s,
    inverse: Int32s,
    values: Float32s,
    labels: Float32s,
    weights: Float32s,
    blocks: Float32s,
    changes: Float32s,
    tail: int,
    ftrl: bool,
    rates: Float64s,
    margins: Float64s,
) -> None:
    """Predict each row, and then take a step for it, on a copy of the model.

    Args:
        inverse: the row of each pair's key in ``blocks``.
        labels: 0 or 1, shape (n,).
        weights: the rows' weights, shape (n,); empty: all 1.
        blocks: shape (keys, block length), not changed.
        changes: zeros of shape (keys, 2 k): the additions to the blocks; with FTRL from their second number on, as w
            follows from the others.
        tail: the number of pairs at the end of each row that have a linear weight only: 1 with an intercept.
        margins: filled with the predictions, each before its row's step.
    """
    k = changes.shape[1] // 2
    shift = 1 if ftrl else 0  # of a block's number in ``changes``
    z_at = 2 * k
    sums = np.zeros(k)
    longest = 0
    for row in range(labels.size):
        longest = max(longest, indptr[row + 1] - indptr[row])
    linear = np.zeros(longest)
    for row in range(labels.size):
        begin, end = indptr[row], indptr[row + 1]
        margin = 0.0
        sums[:] = 0.0
        squares = 0.0
        for i in range(begin, end):
            key, x = inverse[i], float(values[i])
            if ftrl:
                z = float(blocks[key, z_at]) + float(changes[key, z_at - 1])
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
                changes[key, z_at - 1] += np.float32(g - sigma * linear[i - begin])
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
def sum_gradients(
    indptr: Int64s,
    inverse: Int32s,
    values: Float32s,
    labels: Float32s,
    weights: Float32s,
    pulled: Float32s,
    gradients: Float32s,
    tail: int,
    margins: Float64s,
) -> None:
    """Predict all rows, and add up their gradients; arguments as for ``learn_rows``.

    ``pulled`` has the weights of each key, shape (keys, k), and ``gradients`` zeros of that shape.
    """
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
    """Return the margin of one row, and leave in ``sums`` the sums of its vectors."""
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
    """Fill in the margins of rows; arguments as for ``sum_gradients``."""
    sums = np.zeros(pulled.shape[1])
    for row in range(margins.size):
        margins[row] = margin_of(inverse, values, indptr[row], indptr[row + 1], tail, pulled, sums)


@kernel
def merge_pairs(
    indptr: Int64s, inverse: Array, values: Float32s, keys: int, intercept: bool
) -> tuple[Int64s, Int32s, Float32s]:
    """Return rows in which each key comes once: the values of pairs of one row and key add up.

    A row is a vector of features, and a key is one of them. So a key has one weight, one gradient and one step a row.

    Args:
        intercept: each row gets one more pair at its end: ``keys``, the number of distinct keys, and 1.

    Returns:
        The rows' bounds, and the key's number and the value of each pair.
    """
    n = indptr.size - 1
    size = inverse.size + n if intercept else inverse.size
    bounds, numbers, sums = np.zeros(n + 1, np.int64), np.empty(size, np.int32), np.empty(size, np.float32)
    pair_of = np.full(keys, -1, np.int64)  # the last pair of each key
    count = 0
    for row in range(n):
        begin = count
        for i in range(indptr[row], indptr[row + 1]):
            pair = pair_of[inverse[i]]
            if pair >= begin:
                sums[pair] += values[i]
                continue
            pair_of[inverse[i]] = count
            numbers[count], sums[count] = inverse[i], values[i]
            count += 1
        if intercept:
            numbers[count], sums[count] = keys, np.float32(1.0)
            count += 1
        bounds[row + 1] = count
    return bounds, numbers[:count], sums[:count]
