"""Weighted random selection of rows that depends on the rows' values only, not on their partitions. Pure.

Each row gets a number in (0, 1) from the seed, the draw and the row's hash. The rows with the smallest
-log(number) / weight are selected (Efraimidis and Spirakis). Equal rows have equal numbers, and count as one row.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.array_types import Float64s, Int32s, Int64s
from ps2.ops.draws import GOLDEN, TO_UNIT, scrambled
from ps2.ops.guards import readable
from ps2.ops.kernels import kernel

UInt64s = npt.NDArray[np.uint64]
MODULUS = 2**64


def hashes(x: sp.csr_array, keys: Int64s) -> UInt64s:
    """Return a hash of each row's nonzero values, which does not depend on the dtype or the order of entries."""
    ids = np.empty(x.shape[0], np.uint64)
    bits = x.data.astype(np.float64).view(np.uint64)
    identify(readable(x.indptr), readable(keys[x.indices]), readable(bits), ids)
    return ids


def priorities(ids: UInt64s, weights: Float64s, seed: int, draw: int) -> Float64s:
    """Return the priorities of rows: those with the smallest ones are selected. Without weight it is infinity."""
    key = np.uint64((seed * int(GOLDEN) + (draw + 1) * (int(GOLDEN) >> 7)) % MODULUS)
    numbers = np.empty(len(ids))
    number_rows(readable(ids), key, numbers)
    with np.errstate(divide="ignore"):
        return -np.log(numbers) / weights


def smallest(values: Float64s, ids: UInt64s, count: int) -> Int64s:
    """Return the positions of up to ``count`` distinct rows with the smallest finite priorities, in ascending order."""
    size = 2 * count
    while True:
        order = np.arange(len(values)) if size >= len(values) else np.argpartition(values, size)[:size]
        order = order[np.isfinite(values[order])]
        order = order[np.lexsort((ids[order], values[order]))]
        _, first = np.unique(ids[order], return_index=True)
        if len(first) >= count or size >= len(values):
            return np.asarray(order[np.sort(first)[:count]])
        size *= 4


@kernel
def identify(indptr: Int32s, columns: Int64s, bits: UInt64s, ids: UInt64s) -> None:
    """Write a hash of each row's nonzero values and their columns, which does not depend on their order.

    ``columns`` are numbers among all features, ``bits`` the bits of the values as float64.
    """
    for i in range(len(indptr) - 1):
        total = np.uint64(0)
        for p in range(indptr[i], indptr[i + 1]):
            # Shifted by one, the bits of 0.0 and -0.0 are 0.
            if bits[p] << np.uint64(1) != np.uint64(0):
                total += scrambled(scrambled(np.uint64(columns[p]) * GOLDEN + GOLDEN) + bits[p])
        ids[i] = scrambled(total)


@kernel
def number_rows(ids: UInt64s, key: np.uint64, numbers: Float64s) -> None:
    """Write a number in (0, 1) for each row from its hash and a key."""
    for i in range(len(ids)):
        numbers[i] = (np.float64(scrambled(ids[i] ^ key) >> np.uint64(12)) + 0.5) * 2.0 * TO_UNIT
