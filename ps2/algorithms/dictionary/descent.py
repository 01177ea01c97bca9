"""Coordinate descent for the codes of rows, given a dictionary, and for the dictionary, given codes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.dictionary import kernels
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

# Descent for a code ends when no coordinate moves farther than this share of the row's norm.
TOLERANCE = 1e-6
# The maximum number of values of dense codes in memory at a time.
MAX_DENSE_VALUES = 1 << 20
# The number of sweeps over all atoms in an update of the dictionary.
SWEEPS = 5
# The codes of scaled rows are 0 with this penalty and any larger one.
MAX_PENALTY = 1e100


def code(
    x: sp.csr_array, atoms: Float64s, products: Float64s, penalty: float, positive: bool
) -> tuple[sp.csr_array, Float64s]:
    """Return the code of each row, and its loss, 1/2 |x - code D|^2 + penalty |code|_1.

    Args:
        x: float64, shape (n, columns); the squares of its values do not overflow.
        atoms: the dictionary D, transposed, shape (columns, k).
        products: the inner products of atoms, DD', shape (k, k).
        positive: whether codes must not be negative.
    """
    rows, count = x.shape[0], len(products)
    losses, penalty = np.empty(rows), min(penalty, MAX_PENALTY)
    atoms, products, indices, data = (readable(array) for array in (atoms, products, x.indices, x.data))
    blocks, step = [], max(1, MAX_DENSE_VALUES // count)
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        block = np.zeros((end - begin, count))
        entries = readable(x.indptr[begin : end + 1]), indices, data
        kernels.code_rows(*entries, atoms, products, penalty, positive, TOLERANCE, block, losses[begin:end])
        blocks.append(sp.csr_array(block))
    codes = sp.csr_array(sp.vstack(blocks, format="csr")) if blocks else sp.csr_array((0, count))
    return codes, losses


@dataclass(frozen=True, eq=False)
class Products:
    """The inner products that an update needs, float64, each of shape (k, k); ``update`` explains the symbols.

    Attributes:
        pairs: S, the products of the codes of two atoms, summed over rows.
        atoms: DD', the inner products of atoms.
        cross: DB', the inner products of atoms (rows) and sums (columns).
        sums: BB', the inner products of sums.
    """

    pairs: Float64s
    atoms: Float64s
    cross: Float64s
    sums: Float64s


def update(products: Products, is_new: Mask) -> tuple[Float64s, Float64s]:
    """Update a dictionary by block coordinate descent (Mairal et al., 2010, Algorithm 2), using only inner products.

    For codes A of rows X, with S = A'A and B = A'X, the dictionary D minimises 1/2 tr(D'SD) - tr(D'B). The step of atom
    k is u = d_k + (b_k - s_k D) / s_kk, d_k = u / max(1, |u|). Each new atom is a linear combination of old atoms and
    rows of B. So the descent needs only inner products, which are sums over features. The servers, which have the
    features, need only the coefficients of the combinations.

    Args:
        is_new: marks the atoms that are replaced by their rows of B, scaled to norm 1.

    Returns:
        Two coefficient matrices, each of shape (k, k). Row i has the coefficients of the next atom i: in the first
        matrix those of the old atoms, in the second those of the rows of B.
    """
    count = len(products.pairs)
    pairs = products.pairs.copy()
    pairs[is_new], pairs[:, is_new] = 0.0, 0.0
    pairs[is_new, is_new] = 1.0
    from_atoms, from_sums = np.eye(count), np.zeros((count, count))
    state = products.atoms.copy(), products.cross.copy(), products.sums.copy()
    for _ in range(SWEEPS):
        kernels.sweep(pairs, is_new, *state, from_atoms, from_sums)
    return from_atoms, from_sums
