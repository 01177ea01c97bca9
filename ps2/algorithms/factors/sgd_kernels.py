"""Compiled loops of stochastic gradient descent: one step for each rating.

A row is the vector of a user or an item, then what its steps need: float32, ``WIDTH`` numbers beyond the rank. Steps
adapt to each row by the reduced per-coordinate schedule, with two rates for a row: its first numbers learn from the
beginning, the others from the second iteration on (Chin et al., "A Learning-Rate Schedule for Stochastic Gradient
Methods to Matrix Factorization", sections 3 and 4).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.factors.simd_kernels import dot_lanes, step_lanes
from ps2.array_types import Float32s, Int32s, Int64s
from ps2.ops.draws import GOLDEN, TO_UNIT, scrambled
from ps2.ops.kernels import inline_reduction, kernel, reduction
from ps2.ops.prefetch import prefetch
from ps2.ops.simd import LANES

Array = npt.NDArray[Any]

# What follows a vector: the sums of squared gradients of its first numbers, of the others, and of the bias; the bias.
SLOW, FAST, BIAS_SUM, BIAS = range(4)
WIDTH = 4
# Numbers that learn from the first iteration on.
FIRST = 8
# Ratings between the request for an item's row and its use.
ITEMS_AHEAD = 4


@reduction
def descend(
    begins: Int64s,
    first_user: int,
    end_user: int,
    items: Int32s,
    values: Float32s,
    weights: Float32s,
    users: Float32s,
    block: Float32s,
    rank: int,
    rates: Float32s,
    learns_all: bool,
    biases: bool,
    nonnegative: bool,
) -> float:
    """Take a step for each rating of some users; return the weighted sum of squared errors, each before its step.

    Args:
        begins: int64: where each user's ratings begin in the next three arrays, and the end of the last one's.
        items: rows of ``block``.
        weights: of the ratings; empty: all are 1.
        users, block: rows of users and of items; changed.
        rates: the first step, and the weight of the penalties of vectors and of biases.
        learns_all: whether all numbers of a vector learn, beside the first ones.
    """
    eta, penalty, bias_penalty = rates[0], rates[1], rates[2]
    first = min(FIRST, rank)
    last = rank if learns_all else first
    of_first, of_others = np.float32(1.0 / first), np.float32(1.0 / max(rank - first, 1))
    one = np.float32(1)
    loss = 0.0
    for user in range(first_user, end_user):
        p = users[user]
        for at in range(begins[user], begins[user + 1]):
            prefetch(block, items[min(at + ITEMS_AHEAD, len(items) - 1)])
            item = items[at]
            q = block[item]
            error = values[at] - _product(users, user, block, item, rank)
            if biases:
                error -= p[rank + BIAS] + q[rank + BIAS]
            weight = weights[at] if len(weights) else one
            loss += np.float64(weight * error * error)
            slope, shrink = weight * error, weight * penalty
            steps = _steps(p, q, rank + SLOW, eta)
            sums = _move(users, user, block, item, 0, first, (slope, shrink, steps[0], steps[1]))
            p[rank + SLOW] += sums[0] * of_first
            q[rank + SLOW] += sums[1] * of_first
            if last > first:
                steps = _steps(p, q, rank + FAST, eta)
                sums = _move(users, user, block, item, first, last, (slope, shrink, steps[0], steps[1]))
                p[rank + FAST] += sums[0] * of_others
                q[rank + FAST] += sums[1] * of_others
            if biases:
                shrink = weight * bias_penalty
                for row in (p, q):
                    gradient = slope - shrink * row[rank + BIAS]
                    row[rank + BIAS] += eta / np.float32(math.sqrt(row[rank + BIAS_SUM])) * gradient
                    row[rank + BIAS_SUM] += gradient * gradient
            if nonnegative:
                for k in range(last):
                    p[k] = max(p[k], np.float32(0))
                    q[k] = max(q[k], np.float32(0))
    return loss


@inline_reduction
def _product(users: Float32s, user: int, block: Float32s, item: int, rank: int) -> np.float32:
    """Return the product of two vectors."""
    whole = rank // LANES * LANES
    dot = dot_lanes(users, user, block, item, whole)
    for k in range(whole, rank):
        dot += users[user, k] * block[item, k]
    return dot


@inline_reduction
def _steps(p: Float32s, q: Float32s, sum_: int, eta: np.float32) -> tuple[np.float32, np.float32]:
    return eta / np.float32(math.sqrt(p[sum_])), eta / np.float32(math.sqrt(q[sum_]))


@inline_reduction
def _move(
    users: Float32s,
    user: int,
    block: Float32s,
    item: int,
    begin: int,
    end: int,
    by: tuple[np.float32, np.float32, np.float32, np.float32],
) -> tuple[np.float32, np.float32]:
    """Change numbers of two rows; return the sums of their squared gradients. See ``step_lanes``."""
    slope, shrink, step_p, step_q = by
    whole = begin + (end - begin) // LANES * LANES
    sum_p, sum_q = step_lanes(users, user, block, item, begin, whole, by)
    for k in range(whole, end):
        a, b = users[user, k], block[item, k]
        of_p, of_q = slope * b - shrink * a, slope * a - shrink * b
        sum_p += of_p * of_p
        sum_q += of_q * of_q
        users[user, k] = a + step_p * of_p
        block[item, k] = b + step_q * of_q
    return sum_p, sum_q


@kernel
def squared_errors(
    users: Int32s, items: Int32s, values: Float32s, weights: Float32s, p: Float32s, q: Float32s, rank: int, biases: bool
) -> float:
    """Return the weighted sum of the squared errors of ratings."""
    loss = 0.0
    for at in range(len(values)):
        a, b = p[users[at]], q[items[at]]
        error = np.float64(values[at])
        for k in range(rank):
            error -= np.float64(a[k]) * np.float64(b[k])
        if biases:
            error -= np.float64(a[rank + BIAS]) + np.float64(b[rank + BIAS])
        loss += (np.float64(weights[at]) if len(weights) else 1.0) * error * error
    return loss


@kernel
def draw_rows(numbers: Int64s, seed: np.uint64, rank: int, low: float, high: float, rows: Float32s) -> None:
    """Set rows to their beginnings: a vector uniform in [low, high) by seed and number, sums of 1, and a bias of 0."""
    for at in range(len(numbers)):
        key = scrambled(scrambled(seed) + np.uint64(numbers[at] + 1) * GOLDEN)
        row = rows[at]
        for k in range(rank):
            drawn = np.float64(scrambled(key + np.uint64(k + 1) * GOLDEN) >> np.uint64(11)) * TO_UNIT
            row[k] = low + (high - low) * drawn
        for k in range(rank, rank + WIDTH):
            row[k] = 1.0
        row[rank + BIAS] = 0.0
