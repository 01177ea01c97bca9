"""Coordinate descent: the codes of rows for a dictionary, and the update of the dictionary for codes. Pure."""

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

# Descent ends when no coordinate of a code moves farther than this share of the row's length.
TOLERANCE = 1e-6
# The maximum number of values of dense codes in memory at a time.
BLOCK_NUMBERS = 1 << 20
# The number of sweeps over all atoms for each pass over the rows.
SWEEPS = 5
# With a larger penalty, all codes of scaled rows are 0.
MAX_PENALTY = 1e100


def code(
    x: sp.csr_array, atoms: Float64s, products: Float64s, penalty: float, positive: bool
) -> tuple[sp.csr_array, Float64s]:
    """Return the code of each row, and its loss, 1/2 |x - code D|^2 + penalty |code|_1.

    Args:
        x: float64, shape (n, columns); its squares are in float64's range.
        atoms: shape (columns, k).
        products: DD', shape (k, k).
    """
    rows, count = x.shape[0], len(products)
    losses, penalty = np.empty(rows), min(penalty, MAX_PENALTY)
    atoms, products, indices, data = (readable(array) for array in (atoms, products, x.indices, x.data))
    parts, step = [], max(1, BLOCK_NUMBERS // count)
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        block = np.zeros((end - begin, count))
        entries = readable(x.indptr[begin : end + 1]), indices, data
        kernels.code_rows(*entries, atoms, products, penalty, positive, TOLERANCE, block, losses[begin:end])
        parts.append(sp.csr_array(block))
    codes = sp.csr_array(sp.vstack(parts, format="csr")) if parts else sp.csr_array((0, count))
    return codes, losses


@dataclass(frozen=True, eq=False)
class Products:
    """Inner products, float64, each of shape (k, k).

    Attributes:
        pairs: S.
        atoms: DD'.
        cross: DB'; row i belongs to atom i.
        sums: BB'.
    """

    pairs: Float64s
    atoms: Float64s
    cross: Float64s
    sums: Float64s


def update(products: Products, is_new: Mask) -> tuple[Float64s, Float64s]:
    """Update a dictionary by block coordinate descent (Mairal et al., 2010, Algorithm 2), in terms of products.

    With codes A of rows X, and S = A'A, B = A'X, the dictionary D minimises 1/2 tr(D'SD) - tr(D'B). The step of atom k
    is u = d_k + (b_k - s_k D) / s_kk, d_k = u / max(1, |u|). Each new atom is a combination of old atoms and of rows of
    B. So the descent and the lengths need only inner products, which are sums over features. Servers need only the
    coefficients to compute the new atoms.

    Args:
        is_new: the mask of the atoms to be replaced by their row of B, scaled to length 1.

    Returns:
        The next atoms as coefficients of the atoms, and of the rows of B; each of shape (k, k).
    """
    count = len(products.pairs)
    pairs = products.pairs.copy()
    pairs[is_new], pairs[:, is_new] = 0.0, 0.0
    pairs[is_new, is_new] = 1.0
    atom_weights, sum_weights = np.eye(count), np.zeros((count, count))
    state = products.atoms.copy(), products.cross.copy(), products.sums.copy()
    for _ in range(SWEEPS):
        kernels.sweep(pairs, is_new, *state, atom_weights, sum_weights)
    return atom_weights, sum_weights
