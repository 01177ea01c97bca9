"""Kernels for a batch of keys: sort keys, find distinct keys, group keys by partition, add up rows of equal keys."""

from __future__ import annotations

import numpy as np

from ps2.ops.draws import GOLDEN, scrambled
from ps2.ops.guards import readable
from ps2.ops.kernels import FEW, Int64s, kernel
from ps2.ops.prefetch import prefetch
from ps2.ops.table import Array

# The bits of a digit of the radix sort: of 8 to 13 bits, 9 were fastest for all sizes from 1000 to a million keys.
DIGIT_BITS = 9
DIGITS = 1 << DIGIT_BITS


def sort_keys(keys: Int64s) -> tuple[Int64s, Int64s]:
    """Return the sorted keys, duplicates included, and the order that sorts them; the sort is stable.

    It takes one pass for every 9 bits in which the keys differ.
    """
    keys = np.array(keys, dtype=np.int64)
    if keys.size <= FEW:
        order = np.argsort(keys, kind="stable")
        return keys[order], order
    order = np.arange(keys.size)
    keys_after, order_after = np.empty_like(keys), np.empty_like(order)
    low, high = keys.min(), keys.max()
    for shift in range(0, (int(high) - int(low)).bit_length(), DIGIT_BITS):
        starts = np.zeros(DIGITS + 1, np.int64)
        if _sort_by_digit(keys, order, low.view(np.uint64), np.uint64(shift), starts, keys_after, order_after):
            keys, keys_after = keys_after, keys
            order, order_after = order_after, order
    return keys, order


@kernel
def _sort_by_digit(
    keys: Int64s,
    order: Int64s,
    low: np.uint64,
    shift: np.uint64,
    starts: Int64s,
    keys_after: Int64s,
    order_after: Int64s,
) -> bool:
    """Sort stably by 9 bits of ``key - low``; return False, without sorting, if these bits are equal in all keys."""
    mask = np.uint64(DIGITS - 1)
    for i in range(keys.size):
        starts[((np.uint64(keys[i]) - low) >> shift & mask) + np.uint64(1)] += 1
    for next_digit in range(1, DIGITS + 1):
        if starts[next_digit] == keys.size:
            return False
        starts[next_digit] += starts[next_digit - 1]
    for i in range(keys.size):
        digit = (np.uint64(keys[i]) - low) >> shift & mask
        target = starts[digit]
        starts[digit] = target + 1
        keys_after[target] = keys[i]
        order_after[target] = order[i]
    return True


# The initial number of cells of the hash table of keys. Many batches have few distinct keys, and a small table stays in
# cache. When the table is half full, it grows by the factor GROWTH.
MIN_CELLS, GROWTH = 4096, 8
# The number of rows between the current row and the row that is prefetched.
AHEAD = 8


def find_distinct(keys: Int64s) -> tuple[Int64s, Int64s]:
    """Return the distinct keys, ascending, and the inverse: each key's position among them. No key may be negative."""
    numbered, numbers = number_distinct(keys)
    distinct, order = sort_keys(numbered)
    ranks = np.empty_like(order)
    ranks[order] = np.arange(order.size)
    return distinct, ranks[numbers]


def number_distinct(keys: Int64s) -> tuple[Int64s, Int64s]:
    """Return the distinct keys in the order of their first appearance, and the inverse: each key's position among them.

    It is twice as fast as ``find_distinct``. No key may be negative.
    """
    distinct, inverse = np.empty(keys.size, np.int64), np.empty(keys.size, np.int64)
    count = _number(readable(keys), distinct, inverse, 1 << (2 * keys.size).bit_length())
    return distinct[:count], inverse


def group_by_partition(keys: Int64s, bounds: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Group sparse keys by partition; keys of a partition keep their order.

    Args:
        bounds: the bounds of the p partitions, in hash buckets, shape (p + 1,).

    Returns:
        The grouped keys; their positions in ``keys``; and the bounds of the groups, int64, shape (p + 1,).
    """
    grouped, order, begins = np.empty_like(keys), np.empty_like(keys), np.zeros(bounds.size, np.int64)
    _group(readable(keys), readable(bounds), np.empty(keys.size, np.int32), grouped, order, begins)
    return grouped, order, begins


def take_rows(rows: Array, inverse: Int64s) -> Array:
    """Return ``rows[inverse]`` of rows of shape (m, k); the indices, in [0, m), are not checked."""
    out = np.empty((inverse.size, rows.shape[1]), rows.dtype)
    _take_rows(readable(rows), readable(inverse), out)
    return out


def sum_rows(values: Array, inverse: Int64s, count: int) -> Array:
    """Return the sum of the rows of each number in [0, count), shape (count, k); ``inverse`` has the rows' numbers."""
    sums = np.zeros((count, values.shape[1]), values.dtype)
    _sum_rows(readable(values), readable(inverse), sums)
    return sums


@kernel
def _number(keys: Int64s, distinct: Int64s, inverse: Int64s, max_cells: int) -> int:
    """Number keys in the order of their first appearance; return the number of distinct keys.

    Args:
        distinct, inverse: outputs, as long as ``keys``.
        max_cells: the maximum number of cells of the hash table, a power of two, more than twice the number of keys.
    """
    size = min(MIN_CELLS, max_cells)
    cells = np.full(size, -1, np.int32)
    count = 0
    for i in range(keys.size):
        key = keys[i]
        cell = np.int64((np.uint64(key) * GOLDEN) >> np.uint64(32)) & (size - 1)
        while cells[cell] >= 0 and distinct[cells[cell]] != key:
            cell = (cell + 1) & (size - 1)
        if cells[cell] >= 0:
            inverse[i] = cells[cell]
            continue
        cells[cell] = count
        distinct[count] = key
        inverse[i] = count
        count += 1
        if 2 * count > size:
            size = min(GROWTH * size, max_cells)
            cells = np.full(size, -1, np.int32)
            for number in range(count):
                new_cell = np.int64((np.uint64(distinct[number]) * GOLDEN) >> np.uint64(32)) & (size - 1)
                while cells[new_cell] >= 0:
                    new_cell = (new_cell + 1) & (size - 1)
                cells[new_cell] = number
    return count


@kernel
def _group(keys: Int64s, bounds: Int64s, owners: Array, grouped: Int64s, order: Int64s, begins: Int64s) -> None:
    last = bounds.size - 2
    per_bucket = (last + 1) / bounds[last + 1]
    for i in range(keys.size):
        # The bucket is that of ``ps2.matrix.partition.hash_bucket``.
        bucket = np.int64(scrambled(np.uint64(keys[i])) >> np.uint64(32))
        # A guess that is nearly always right, as partitions have nearly equal sizes.
        owner: int = min(int(bucket * per_bucket), last)
        while bucket < bounds[owner]:
            owner -= 1
        while bucket >= bounds[owner + 1]:
            owner += 1
        owners[i] = owner
        begins[owner + 1] += 1
    for owner in range(last + 1):
        begins[owner + 1] += begins[owner]
    next_position = begins.copy()
    for i in range(keys.size):
        target = next_position[owners[i]]
        next_position[owners[i]] = target + 1
        grouped[target] = keys[i]
        order[target] = i


@kernel
def _take_rows(rows: Array, inverse: Int64s, out: Array) -> None:
    for i in range(inverse.size):
        if i + AHEAD < inverse.size:
            prefetch(rows, inverse[i + AHEAD])
        row, target = rows[inverse[i]], out[i]
        for j in range(row.size):
            target[j] = row[j]


@kernel
def _sum_rows(values: Array, inverse: Int64s, sums: Array) -> None:
    for i in range(inverse.size):
        if i + AHEAD < inverse.size:
            prefetch(sums, inverse[i + AHEAD])
        row, target = values[i], sums[inverse[i]]
        for j in range(row.size):
            target[j] += row[j]
