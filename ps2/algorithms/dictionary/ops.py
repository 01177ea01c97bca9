"""Operations of dictionary learning: the products of atoms and sums of rows, and the atoms' next values.

A column of the matrices is a feature; its block has a value for each atom. Features are taken in tiles that no shard
cuts, each in one order, and their products are added exactly. So sums do not depend on how features are cut into
shards. A BLAS promises no order of additions, and its threads would cost more than they save on small tiles.
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

# The number of features of a tile; the matrices have this ``align``.
TILE = 256
# The number of values that a loop over a tile keeps in the processor's cache.
CACHED = 1 << 15
# The maximum number of pairs of atoms in the sums of all parts of a call.
PARTS_NUMBERS = 1 << 22

Pairs = Annotated[Float64s, along("pairs", BLOCK, BLOCK)]
ByPair = Annotated[Floats, along(BLOCK, BLOCK)]


@op(reduce="concat", dtypes=("float64",))
def products(m: Blocks, sums: Blocks) -> Pairs:
    """Return the inner products of atoms and sums, then those of sums and sums, each with its rounding error.

    Returns:
        This shard's products, shape (4, k, k). The products of atom i and sum j are in row i.
    """
    atoms, sums = readable(m), readable(sums)

    def sum_tiles(starts: Int64s) -> Float64s:
        totals = np.zeros((4, m.shape[1], m.shape[1]))
        for begin in starts:
            tile_sums = sums[begin : begin + TILE]
            add_exactly(totals[:2], _products(atoms[begin : begin + TILE], tile_sums))
            add_exactly(totals[2:], _products(tile_sums, tile_sums))
        return totals

    return _over_tiles(sum_tiles, m)


@op(writes=("m", "sums"), reduce="concat", dtypes=("float64",))
def combine(m: Blocks, sums: Blocks, of_atoms: ByPair, of_sums: ByPair) -> Pairs:
    """Set atoms to combinations of atoms and sums; sums are 0 afterwards.

    Row i of ``of_atoms`` and ``of_sums`` has the coefficients of the next atom i.

    Returns:
        This shard's inner products of the next atoms, and their rounding errors, shape (2, k, k).
    """
    by_atom, by_sum = readable(of_atoms.T), readable(of_sums.T)

    def sum_tiles(starts: Int64s) -> Float64s:
        totals = np.zeros((2, m.shape[1], m.shape[1]))
        for begin in starts:
            tile = slice(begin, begin + TILE)
            next_atoms = _combined(readable(m[tile]), readable(sums[tile]), by_atom, by_sum)
            m[tile], sums[tile] = next_atoms, 0.0
            next_atoms = readable(next_atoms)
            add_exactly(totals, _products(next_atoms, next_atoms))
        return totals

    return _over_tiles(sum_tiles, m)


def _over_tiles(sum_tiles: Callable[[Int64s], Float64s], m: Array) -> Float64s:
    """Return the sum over all tiles, on all cores. ``sum_tiles`` takes the first features of some tiles."""
    starts, square = np.arange(0, m.shape[0], TILE), m.shape[1] ** 2
    # Each part has sums of its own.
    groups = np.array_split(starts, max(1, min(cores(), PARTS_NUMBERS // square)))
    numbers = np.arange(len(groups))
    blocks = over_blocks(lambda chunk: [sum_tiles(groups[i]) for i in chunk], (numbers,), cost=m.shape[0] * square)
    parts = [part for block in blocks for part in block]
    shape = -1, 2, *parts[0].shape[1:]
    for part in parts[1:]:
        add_sums(parts[0].reshape(shape), part.reshape(shape))
    return np.asarray(parts[0])


@kernel
def _products(a: Array, b: Array) -> Float64s:
    """Return the inner products of the columns of two blocks: those of column i of ``a`` are in row i."""
    count, end = a.shape[1], a.shape[0]
    result = np.zeros((count, count))
    step = max(1, CACHED // count)
    for first in range(0, count, step):
        last = min(first + step, count)
        f = 0
        while f + 3 < end:
            a_0, a_1, a_2, a_3 = a[f], a[f + 1], a[f + 2], a[f + 3]
            b_0, b_1, b_2, b_3 = b[f], b[f + 1], b[f + 2], b[f + 3]
            for i in range(first, last):
                row, w, x, y, z = result[i], a_0[i], a_1[i], a_2[i], a_3[i]
                for j in range(count):
                    row[j] += (w * b_0[j] + x * b_1[j]) + (y * b_2[j] + z * b_3[j])
            f += 4
        while f < end:
            of_a, of_b = a[f], b[f]
            for i in range(first, last):
                row, w = result[i], of_a[i]
                for j in range(count):
                    row[j] += w * of_b[j]
            f += 1
    return result


@kernel
def _combined(atoms: Array, sums: Array, of_atoms: Array, of_sums: Array) -> Float64s:
    """Return a block of the next atoms. Row i of the coefficients has the weights of atom i, or of sum i, in them."""
    count = atoms.shape[1]
    result = np.zeros(atoms.shape)
    step = max(2, CACHED // (2 * count) // 2 * 2)
    for first in range(0, count, step):
        last = min(first + step, count)
        for f in range(atoms.shape[0]):
            row, atom, total, i = result[f], atoms[f], sums[f], first
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
    return result
