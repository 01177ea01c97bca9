"""Server operations of dictionary learning: inner products of atoms and sums, and the update of the atoms.

A column of the matrices is a feature; its block has a value for each atom. Features are summed in tiles of TILE
features, and each tile is on one shard. The sum over a tile has a fixed order, and the tiles' sums are added exactly.
So the results do not depend on how features are divided among shards. BLAS is not used: it guarantees no order of
addition, and its threads would not make such small tiles faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np

from ps2.ops.exact_sums import add_exactly, add_sums
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s, Int64s, kernel
from ps2.ops.operands import BLOCK, along
from ps2.ops.parallel import cores, over_blocks
from ps2.ops.table import Array, Blocks, Floats, op

# The number of features of a tile; matrices are made with ``align=TILE``, so that no tile is divided between shards.
TILE = 256
# The number of products that a loop over a tile updates at a time, so that they stay in the processor's cache: 256 KiB.
CACHED_PRODUCTS = 1 << 15
# The maximum number of products of two atoms in memory, over all threads of a call: 32 MiB for each result.
MAX_PRODUCTS = 1 << 22

Pairs = Annotated[Float64s, along("pairs", BLOCK, BLOCK)]
ByPair = Annotated[Floats, along(BLOCK, BLOCK)]


@op(reduce="concat", dtypes=("float64",))
def products(m: Blocks, sums: Blocks) -> Pairs:
    """Return the inner products of atoms and sums, and of sums and sums, over this shard's features.

    Returns:
        Four matrices, shape (4, k, k): the products of atom i (row) and sum j (column), and their rounding errors; the
        products of sums i and j, and their rounding errors.
    """
    atoms, sums = readable(m), readable(sums)

    def sum_tiles(starts: Int64s) -> Float64s:
        totals = np.zeros((4, m.shape[1], m.shape[1]))
        for begin in starts:
            sums_tile = sums[begin : begin + TILE]
            add_exactly(totals[:2], _products(atoms[begin : begin + TILE], sums_tile))
            add_exactly(totals[2:], _products(sums_tile, sums_tile))
        return totals

    return _over_tiles(sum_tiles, m)


@op(writes=("m", "sums"), reduce="concat", dtypes=("float64",))
def combine(m: Blocks, sums: Blocks, of_atoms: ByPair, of_sums: ByPair) -> Pairs:
    """Set each atom to a linear combination of atoms and sums, and the sums to 0.

    Args:
        of_atoms: the coefficients of the atoms; row i makes the next atom i.
        of_sums: the coefficients of the sums, in the same form.

    Returns:
        The inner products of the next atoms over this shard's features, and their rounding errors: shape (2, k, k).
    """
    by_atom, by_sum = readable(of_atoms.T), readable(of_sums.T)

    def sum_tiles(starts: Int64s) -> Float64s:
        totals = np.zeros((2, m.shape[1], m.shape[1]))
        for begin in starts:
            tile = slice(begin, begin + TILE)
            next_atoms = _combine_tile(readable(m[tile]), readable(sums[tile]), by_atom, by_sum)
            m[tile], sums[tile] = next_atoms, 0.0
            next_atoms = readable(next_atoms)
            add_exactly(totals, _products(next_atoms, next_atoms))
        return totals

    return _over_tiles(sum_tiles, m)


def _over_tiles(sum_tiles: Callable[[Int64s], Float64s], m: Array) -> Float64s:
    """Call ``sum_tiles`` with groups of tiles, given by their first features, on all cores; return the exact sum."""
    starts, square = np.arange(0, m.shape[0], TILE), m.shape[1] ** 2
    groups = np.array_split(starts, max(1, min(cores(), MAX_PRODUCTS // square)))
    indices = np.arange(len(groups))
    blocks = over_blocks(lambda block: [sum_tiles(groups[i]) for i in block], (indices,), cost=m.shape[0] * square)
    total, *group_sums = (group_sum for block in blocks for group_sum in block)
    shape = -1, 2, *total.shape[1:]  # pairs of a sum and its rounding errors
    for group_sum in group_sums:
        add_sums(total.reshape(shape), group_sum.reshape(shape))
    return total


@kernel
def _products(a: Array, b: Array) -> Float64s:
    """Return a' b: the inner products of the columns of ``a`` and the columns of ``b``."""
    count, end = a.shape[1], a.shape[0]
    products = np.zeros((count, count))
    step = max(1, CACHED_PRODUCTS // count)
    for first in range(0, count, step):
        last = min(first + step, count)
        f = 0
        while f + 3 < end:
            a_0, a_1, a_2, a_3 = a[f], a[f + 1], a[f + 2], a[f + 3]
            b_0, b_1, b_2, b_3 = b[f], b[f + 1], b[f + 2], b[f + 3]
            for i in range(first, last):
                row, w, x, y, z = products[i], a_0[i], a_1[i], a_2[i], a_3[i]
                for j in range(count):
                    row[j] += (w * b_0[j] + x * b_1[j]) + (y * b_2[j] + z * b_3[j])
            f += 4
        while f < end:
            row_a, row_b = a[f], b[f]
            for i in range(first, last):
                row, w = products[i], row_a[i]
                for j in range(count):
                    row[j] += w * row_b[j]
            f += 1
    return products


@kernel
def _combine_tile(atoms: Array, sums: Array, of_atoms: Array, of_sums: Array) -> Float64s:
    """Return the next atoms of a tile; row i of the coefficients has those of atom (or sum) i in all next atoms."""
    count = atoms.shape[1]
    next_atoms = np.zeros(atoms.shape)
    step = max(2, CACHED_PRODUCTS // (2 * count) // 2 * 2)
    for first in range(0, count, step):
        last = min(first + step, count)
        for f in range(atoms.shape[0]):
            row, atom, total, i = next_atoms[f], atoms[f], sums[f], first
            while i + 1 < last:
                w, x, y, z = atom[i], atom[i + 1], total[i], total[i + 1]
                a_0, a_1, b_0, b_1 = of_atoms[i], of_atoms[i + 1], of_sums[i], of_sums[i + 1]
                for j in range(count):
                    row[j] += (w * a_0[j] + x * a_1[j]) + (y * b_0[j] + z * b_1[j])
                i += 2
            if i < last:
                w, y, a_0, b_0 = atom[i], total[i], of_atoms[i], of_sums[i]
                for j in range(count):
                    row[j] += w * a_0[j] + y * b_0[j]
    return next_atoms
