"""The update of a dictionary by block coordinate descent (Mairal et al., 2010, Algorithm 2), in terms of products.

With codes A of rows X, and S = A'A, B = A'X, the dictionary D minimises 1/2 tr(D'SD) - tr(D'B). The step of atom k is

    u = d_k + (b_k - s_k D) / s_kk,    d_k = u / max(1, |u|).

Each new atom is a combination of old atoms and of rows of B. So the descent, lengths included, needs only inner
products, which are sums over features, and the servers of the features need only coefficients. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ps2.algorithms.dictionary import kernels
from ps2.ops.kernels import Float64s

Mask = npt.NDArray[np.bool_]

# Sweeps over all atoms for each pass over the rows.
SWEEPS = 5


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
    """Return the next atoms as coefficients of the atoms, and of the rows of B; each of shape (k, k).

    Args:
        is_new: marks the atoms that their row of B replaces, at length 1.
    """
    count = len(products.pairs)
    pairs = products.pairs.copy()
    pairs[is_new], pairs[:, is_new] = 0.0, 0.0
    pairs[is_new, is_new] = 1.0
    of_atoms, of_sums = np.eye(count), np.zeros((count, count))
    state = products.atoms.copy(), products.cross.copy(), products.sums.copy()
    for _ in range(SWEEPS):
        kernels.sweep(pairs, is_new, *state, of_atoms, of_sums)
    return of_atoms, of_sums
