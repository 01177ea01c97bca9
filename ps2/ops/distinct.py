"""Kernels for a batch of keys: sort keys, find distinct keys, group keys by partition, sum the rows of equal keys."""

from __future__ import annotations

import numpy as np

from ps2.ops.draws import GOLDEN, scrambled
from ps2.ops.guards import readable
from ps2.ops.kernels import FEW, Int64s, kernel
from ps2.ops.prefetch import prefetch
from ps2.ops.table import Array

# The number of bits of a digit in the radix sort. Of 8 to 13 bits, 9 were fastest for a thousand to a million keys.
DIGIT_BITS = 9
DIGITS = 1 << DIGIT_BITS


def sort_keys(keys: Int64s) -> tuple[Int64s, Int64s]:
    """Return the sorted keys, with duplicates, and their positions in ``keys``. The sort is stable.

    The radix sort needs one pass for every 9 bits of the range of the keys.
    """
    keys = np.array(keys, dtype=np.int64)
    if keys.size <= FEW:
        order = np.argsort(keys, kind="stable")
        return keys[order], order
    order = np.arange(keys.size)
    sorted_keys, sorted_order = np.empty_like(keys), np.empty_like(order)
    low, high = keys.min(), keys.max()
    for shift in range(0, (int(high) - int(low)).bit_length(), DIGIT_BITS):
        starts = np.zeros(DIGITS + 1, np.int64)
        if _sort_by_digit(keys, order, low.view(np.uint64), np.uint64(shift), starts, sorted_keys, sorted_order):
            keys, sorted_keys = sorted_keys, keys
            order, sorted_order = sorted_order, order
    return keys, order


@kernel
def _sort_by_digit(
    keys: Int64s,
    order: Int64s,
    low: np.uint64,
    shift: np.uint64,
    starts: Int64s,
    sorted_keys: Int64s,
    sorted_order: Int64s,
) -> bool:
    """Sort stably by a digit of ``key - low``; return False, and do not sort, if the digit is the same in all keys.

    The digit consists of the ``DIGIT_BITS`` bits from ``shift`` on. ``starts``: zeros, overwritten.
    """
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
        sorted_keys[target] = keys[i]
        sorted_order[target] = order[i]
    return True


# The initial number of cells of the hash table of keys: many batches have few distinct keys, and a small table stays in
# the cache. A table that is half full grows by the factor GROWTH.
MIN_CELLS, GROWTH = 4096, 8
# The number of rows between the current row and the prefetched row.
AHEAD = 8


def find_distinct(keys: Int64s) -> tuple[Int64s, Int64s]:
    """Return the distinct keys, ascending, and the index of each key among them. No key may be negative."""
    unsorted, inverse = number_distinct(keys)
    distinct, order = sort_keys(unsorted)
    ranks = np.empty_like(order)
    ranks[order] = np.arange(order.size)
    return distinct, ranks[inverse]


def number_distinct(keys: Int64s) -> tuple[Int64s, Int64s]:
    """Return the distinct keys in the order of their first appearance, and the index of each key among them.

    This is twice as fast as ``find_distinct``. No key may be negative.
    """
    distinct, inverse = np.empty(keys.size, np.int64), np.empty(keys.size, np.int64)
    count = _number(readable(keys), distinct, inverse, 1 << (2 * keys.size).bit_length())
    return distinct[:count], inverse


def group_by_partition(keys: Int64s, bounds: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Group the keys of a sparse matrix by partition; keys of the same partition keep their order.

    Args:
        bounds: the bounds of the p partitions, in hash buckets, shape (p + 1,).

    Returns:
        The grouped keys; their positions in ``keys``; the bounds of the groups, shape (p + 1,).
    """
    grouped, order, begins = np.empty_like(keys), np.empty_like(keys), np.zeros(bounds.size, np.int64)
    _group(readable(keys), readable(bounds), np.empty(keys.size, np.int32), grouped, order, begins)
    return grouped, order, begins


def take_rows(rows: Array, inverse: Int64s) -> Array:
    """Return ``rows[inverse]`` for rows of shape (m, k). The indices must be in [0, m); they are not checked."""
    out = np.empty((inverse.size, rows.shape[1]), rows.dtype)
    _take_rows(readable(rows), readable(inverse), out)
    return out


def sum_rows(values: Array, inverse: Int64s, count: int) -> Array:
    """Return the sums of rows with equal indices, shape (count, k). Indices must be in [0, count), unchecked."""
    sums = np.zeros((count, values.shape[1]), values.dtype)
    _sum_rows(readable(values), readable(inverse), sums)
    return sums


@kernel
def _number(keys: Int64s, distinct: Int64s, inverse: Int64s, max_cells: int) -> int:
    """Find distinct keys in the order of their first appearance; return their number.

    Args:
        distinct, inverse: outputs, of the length of ``keys``.
        max_cells: the maximum number of cells of the hash table, a power of two, more than twice the number of keys.
    """
    num_cells = min(MIN_CELLS, max_cells)
    cells = np.full(num_cells, -1, np.int32)
    count = 0
    for i in range(keys.size):
        key = keys[i]
        cell = np.int64((np.uint64(key) * GOLDEN) >> np.uint64(32)) & (num_cells - 1)
        while cells[cell] >= 0 and distinct[cells[cell]] != key:
            cell = (cell + 1) & (num_cells - 1)
        if cells[cell] >= 0:
            inverse[i] = cells[cell]
            continue
        cells[cell] = count
        distinct[count] = key
        inverse[i] = count
        count += 1
        if 2 * count > num_cells:
            num_cells = min(GROWTH * num_cells, max_cells)
            cells = np.full(num_cells, -1, np.int32)
            for index in range(count):
                new_cell = np.int64((np.uint64(distinct[index]) * GOLDEN) >> np.uint64(32)) & (num_cells - 1)
                while cells[new_cell] >= 0:
                    new_cell = (new_cell + 1) & (num_cells - 1)
                cells[new_cell] = index
    return count


@kernel
def _group(keys: Int64s, bounds: Int64s, owners: Array, grouped: Int64s, order: Int64s, begins: Int64s) -> None:
    last = bounds.size - 2
    partitions_per_bucket = (last + 1) / bounds[last + 1]
    for i in range(keys.size):
        # The same bucket as in ``ps2.matrix.partition.hash_bucket``.
        bucket = np.int64(scrambled(np.uint64(keys[i])) >> np.uint64(32))
        # This guess is nearly always right, because partitions have nearly equal numbers of buckets.
        owner: int = min(int(bucket * partitions_per_bucket), last)
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
