"""What servers compute for a dictionary: products of atoms and sums of rows, and the atoms' next values.

A column of the matrices is a feature; its block has a number for each atom. Features are taken in tiles that no shard
cuts. Products of a tile are added in two float64 numbers, the second one being what the first one has lost. So sums do
not depend on how features are cut into shards.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ps2.ops.kernels import Float64s
from ps2.ops.operands import BLOCK, along
from ps2.ops.table import Array, Blocks, Floats, op

# Features of a tile: matrices are made with this ``align``.
TILE = 256

Pairs = Annotated[Float64s, along("pairs", BLOCK, BLOCK)]
ByPair = Annotated[Floats, along(BLOCK, BLOCK)]


@op(reduce="concat", dtypes=("float64",))
def products(m: Blocks, sums: Blocks) -> Pairs:
    """Return the inner products of atoms and sums, then those of sums and sums, each with what the sum has lost.

    Returns:
        Of this shard, shape (4, k, k). The products of atom i and sum j are in row i.
    """
    found = np.zeros((4, m.shape[1], m.shape[1]))
    for begin in range(0, m.shape[0], TILE):
        of_sums = sums[begin : begin + TILE]
        add_exactly(found[:2], m[begin : begin + TILE].T @ of_sums)
        add_exactly(found[2:], of_sums.T @ of_sums)
    return found


@op(writes=("m", "sums"), reduce="concat", dtypes=("float64",))
def combine(m: Blocks, sums: Blocks, of_atoms: ByPair, of_sums: ByPair) -> Pairs:
    """Set atoms to combinations of atoms and sums; sums are 0 afterwards.

    Args:
        of_atoms, of_sums: coefficients: row i is of the next atom i.

    Returns:
        The inner products of the next atoms, with what the sum has lost, of this shard: shape (2, k, k).
    """
    found = np.zeros((2, m.shape[1], m.shape[1]))
    for begin in range(0, m.shape[0], TILE):
        tile = slice(begin, begin + TILE)
        following = m[tile] @ of_atoms.T + sums[tile] @ of_sums.T
        m[tile], sums[tile] = following, 0.0
        add_exactly(found, following.T @ following)
    return found


def add_exactly(total: Float64s, values: Array) -> None:
    """Add values to ``total[0]`` in place, and to ``total[1]`` what that loses (Knuth's TwoSum)."""
    added = total[0] + values
    part = added - total[0]
    total[1] += (total[0] - (added - part)) + (values - part)
    total[0] = added


def folded(found: Float64s, kinds: int) -> Float64s:
    """Return the sums of what shards returned: shape (kinds, k, k)."""
    total = np.zeros((kinds, 2, *found.shape[1:]))
    for shard in found.reshape(-1, kinds, 2, *found.shape[1:]):
        for one, part in zip(total, shard, strict=True):
            add_exactly(one, part[0])
            one[1] += part[1]
    return np.asarray(total[:, 0] + total[:, 1])
