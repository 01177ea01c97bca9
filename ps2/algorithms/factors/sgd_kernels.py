"""Compiled loops of stochastic gradient descent: they sort ratings, and take a gradient step for each rating.

A row is the vector of a user or an item, followed by ``WIDTH`` float32s that its steps need. Step sizes adapt to each
row (the "reduced per-coordinate schedule"). A row has two step sizes: one for the first ``FIRST`` factors, which learn
from the first iteration on, and one for the other factors, which learn from the second iteration on (Chin et al., "A
Learning-Rate Schedule for Stochastic Gradient Methods to Matrix Factorization", sections 3 and 4).

Loops over two rows process eight float32s at a time with SIMD intrinsics. LLVM would vectorize a plain loop by 32
float32s and process the remainder one by one, but the number of factors with one step size is seldom a multiple of 32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.extending import intrinsic

from ps2.array_types import Float32s, Int32s, Int64s
from ps2.ops import simd
from ps2.ops.draws import GOLDEN, TO_UNIT, scrambled
from ps2.ops.kernels import inline_reduction, kernel, reduction
from ps2.ops.prefetch import prefetch
from ps2.ops.simd import FLAGS, FLOAT_BYTES, LANES, VECTOR, cgutils, types

Array = npt.NDArray[Any]

# The columns of a row after its vector: the sums over steps of the mean squared gradient of the first factors (SLOW, as
# in LIBMF), of the other factors (FAST), and of the bias, all plus 1; the bias.
SLOW, FAST, BIAS_SUM, BIAS = range(4)
WIDTH = 4
# The number of factors that learn from the first iteration on.
FIRST = 8
# The number of ratings between the prefetch of an item's row and its use.
ITEMS_AHEAD = 4


@kernel
def fill_cells(
    users: Int32s,
    items: Int32s,
    groups: Int32s,
    num_users: int,
    first_cell: int,
    ends: Int64s,
    source: tuple[Float32s, Float32s],
    block_items: Int32s,
    cells: tuple[Int32s, Float32s, Float32s],
) -> None:
    """Copy ratings into their cells; see ``grid.Grid``.

    Args:
        users, items: indices below ``num_users``, and positions.
        groups: the group of each item.
        first_cell: the first cell of ``ends``.
        ends: where the next rating of each cell is written; changed.
        source: values and weights; weights are empty if all are 1.
        block_items: the index of each item within its block.
        cells: outputs: items, values and weights by cell.
    """
    values, weights = source
    cell_items, cell_values, cell_weights = cells
    for rating in range(len(users)):
        cell = groups[items[rating]] * num_users + users[rating] - first_cell
        index = ends[cell]
        ends[cell] += 1
        cell_items[index] = block_items[items[rating]]
        cell_values[index] = values[rating]
        if len(weights):
            cell_weights[index] = weights[rating]


@kernel
def sort_cells(begins: Int64s, items: Int32s, values: Float32s, weights: Float32s) -> None:
    """Sort the ratings of each cell by item, rating and weight, because rows arrive in any order."""
    for cell in range(len(begins) - 1):
        first, count = begins[cell], begins[cell + 1] - begins[cell]
        gap = 1
        while 3 * gap + 1 < count:
            gap = 3 * gap + 1
        while gap:  # Shell's sort
            for i in range(first + gap, first + count):
                item, value = items[i], values[i]
                weight = weights[i] if len(weights) else np.float32(1)
                j = i
                while j >= first + gap:
                    other = j - gap
                    if items[other] < item or (items[other] == item and values[other] < value):
                        break
                    is_equal = items[other] == item and values[other] == value
                    if is_equal and (not len(weights) or weights[other] <= weight):
                        break
                    items[j], values[j] = items[other], values[other]
                    if len(weights):
                        weights[j] = weights[other]
                    j = other
                items[j], values[j] = item, value
                if len(weights):
                    weights[j] = weight
            gap //= 3


class _RowPair:
    """Generates LLVM code that loads from two rows, each of a C-contiguous float32 matrix."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self._builder = builder
        self._rows = [
            simd.row_pointer(context, builder, signature.args[i], arguments[i], arguments[i + 1]) for i in (0, 2)
        ]

    def load(self, which: int, index: Any) -> tuple[Any, Any]:
        """Return the address of eight float32s of row ``which`` (0 or 1) from ``index`` on, and their values."""
        address = simd.vector_pointer(self._builder, self._rows[which], index)
        return address, self._builder.load(address, align=FLOAT_BYTES)


def _dot(_: Any, p: Any, p_row: Any, q: Any, q_row: Any, end: Any) -> Any:
    """Return the dot product of the first ``end`` float32s of two rows; ``end`` is a multiple of ``LANES``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows = _RowPair(context, builder, signature, arguments)
        sums = cgutils.alloca_once_value(builder, ir.Constant(VECTOR, [0.0] * LANES))
        count = arguments[4]
        begin, step = ir.Constant(count.type, 0), ir.Constant(count.type, LANES)
        with cgutils.for_range_slice(builder, begin, count, step) as (index, _):
            a, b = rows.load(0, index)[1], rows.load(1, index)[1]
            builder.store(simd.multiply_add(builder, a, b, builder.load(sums)), sums)
        return simd.sum_lanes(builder, builder.load(sums))

    return types.float32(p, types.intp, q, types.intp, types.intp), generate


def _step(_: Any, p: Any, p_row: Any, q: Any, q_row: Any, begin: Any, end: Any, factors: Any) -> Any:
    """Take a step for the columns from ``begin`` to ``end`` of rows p and q; return the sums of squared gradients.

    ``p += step_p * g`` with ``g = slope * q - shrink * p``, and likewise for q with the old p. ``end - begin`` is a
    multiple of ``LANES``; ``factors`` is (slope, shrink, step_p, step_q).
    """
    returned = types.UniTuple(types.float32, 2)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows = _RowPair(context, builder, signature, arguments)
        factor_values = cgutils.unpack_tuple(builder, arguments[6], 4)
        slope, shrink, *steps = (simd.broadcast(builder, value) for value in factor_values)
        minus = builder.fneg(shrink)
        zero = ir.Constant(VECTOR, [0.0] * LANES)
        sums = [cgutils.alloca_once_value(builder, zero) for _ in range(2)]
        first, last = arguments[4], arguments[5]
        with cgutils.for_range_slice(builder, first, last, ir.Constant(first.type, LANES)) as (index, _):
            addresses, values = zip(*(rows.load(which, index) for which in range(2)), strict=True)
            for which in range(2):
                other = builder.fmul(slope, values[1 - which], flags=FLAGS)
                gradient = simd.multiply_add(builder, minus, values[which], other)
                builder.store(simd.multiply_add(builder, gradient, gradient, builder.load(sums[which])), sums[which])
                changed = simd.multiply_add(builder, steps[which], gradient, values[which])
                builder.store(changed, addresses[which], align=FLOAT_BYTES)
        return context.make_tuple(builder, returned, [simd.sum_lanes(builder, builder.load(total)) for total in sums])

    signature = returned(p, types.intp, q, types.intp, types.intp, types.intp, types.UniTuple(types.float32, 4))
    return signature, generate


dot_lanes: Any = intrinsic(_dot)  # numba infers the types
step_lanes: Any = intrinsic(_step)


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
    """Take a step for each rating of some users; return the weighted sum of the squared errors before each step.

    Args:
        begins: the index of each user's first rating in ``items``, ``values`` and ``weights``, and the end.
        items: each rating's row of ``block``.
        weights: the weights of the ratings; empty: all are 1.
        users, block: the rows of users and of items; changed.
        rates: the first step size, and the weights of the penalties of vectors and of biases.
        learns_all: whether all factors learn; else only the first ``FIRST`` factors.
    """
    eta, penalty, bias_penalty = rates[0], rates[1], rates[2]
    first = min(FIRST, rank)
    last = rank if learns_all else first
    first_inverse, other_inverse = np.float32(1.0 / first), np.float32(1.0 / max(rank - first, 1))
    one = np.float32(1)
    loss = 0.0
    for user in range(first_user, end_user):
        p = users[user]
        for rating in range(begins[user], begins[user + 1]):
            prefetch(block, items[min(rating + ITEMS_AHEAD, len(items) - 1)])
            item = items[rating]
            q = block[item]
            error = values[rating] - _dot_product(users, user, block, item, rank)
            if biases:
                error -= p[rank + BIAS] + q[rank + BIAS]
            weight = weights[rating] if len(weights) else one
            loss += np.float64(weight * error * error)
            slope, shrink = weight * error, weight * penalty
            steps = _step_sizes(p, q, rank + SLOW, eta)
            sums = _step_range(users, user, block, item, 0, first, (slope, shrink, steps[0], steps[1]))
            p[rank + SLOW] += sums[0] * first_inverse
            q[rank + SLOW] += sums[1] * first_inverse
            if last > first:
                steps = _step_sizes(p, q, rank + FAST, eta)
                sums = _step_range(users, user, block, item, first, last, (slope, shrink, steps[0], steps[1]))
                p[rank + FAST] += sums[0] * other_inverse
                q[rank + FAST] += sums[1] * other_inverse
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
def _dot_product(users: Float32s, user: int, block: Float32s, item: int, rank: int) -> np.float32:
    lanes_end = rank // LANES * LANES
    dot = dot_lanes(users, user, block, item, lanes_end)
    for k in range(lanes_end, rank):
        dot += users[user, k] * block[item, k]
    return dot


@inline_reduction
def _step_sizes(p: Float32s, q: Float32s, column: int, eta: np.float32) -> tuple[np.float32, np.float32]:
    return eta / np.float32(math.sqrt(p[column])), eta / np.float32(math.sqrt(q[column]))


@inline_reduction
def _step_range(
    users: Float32s,
    user: int,
    block: Float32s,
    item: int,
    begin: int,
    end: int,
    factors: tuple[np.float32, np.float32, np.float32, np.float32],
) -> tuple[np.float32, np.float32]:
    """Like ``_step``, for any number of columns from ``begin`` to ``end``."""
    slope, shrink, step_p, step_q = factors
    lanes_end = begin + (end - begin) // LANES * LANES
    sum_p, sum_q = step_lanes(users, user, block, item, begin, lanes_end, factors)
    for k in range(lanes_end, end):
        a, b = users[user, k], block[item, k]
        gradient_p, gradient_q = slope * b - shrink * a, slope * a - shrink * b
        sum_p += gradient_p * gradient_p
        sum_q += gradient_q * gradient_q
        users[user, k] = a + step_p * gradient_p
        block[item, k] = b + step_q * gradient_q
    return sum_p, sum_q


@kernel
def squared_errors(
    users: Int32s, items: Int32s, values: Float32s, weights: Float32s, p: Float32s, q: Float32s, rank: int, biases: bool
) -> float:
    """Return the weighted sum of the squared errors of ratings, with rows ``p`` of users and ``q`` of items."""
    loss = 0.0
    for rating in range(len(values)):
        a, b = p[users[rating]], q[items[rating]]
        error = np.float64(values[rating])
        for k in range(rank):
            error -= np.float64(a[k]) * np.float64(b[k])
        if biases:
            error -= np.float64(a[rank + BIAS]) + np.float64(b[rank + BIAS])
        loss += (np.float64(weights[rating]) if len(weights) else 1.0) * error * error
    return loss


@kernel
def draw_rows(indices: Int64s, seed: np.uint64, rank: int, low: float, high: float, rows: Float32s) -> None:
    """Set initial rows: random factors in [low, high), which depend on ``seed`` and a row's index; biases of 0."""
    for index in range(len(indices)):
        key = scrambled(scrambled(seed) + np.uint64(indices[index] + 1) * GOLDEN)
        row = rows[index]
        for k in range(rank):
            uniform = np.float64(scrambled(key + np.uint64(k + 1) * GOLDEN) >> np.uint64(11)) * TO_UNIT
            row[k] = low + (high - low) * uniform
        for k in range(rank, rank + WIDTH):
            row[k] = 1.0
        row[rank + BIAS] = 0.0
