"""The update of a dictionary by block coordinate descent (Mairal et al., 2010, Algorithm 2), in terms of products.

With codes A of rows X, and S = A'A, B = A'X, the dictionary D minimises 1/2 tr(D'SD) - tr(D'B). By atom k, that is

    u = d_k + (b_k - s_k D) / s_kk,    d_k = u / max(1, |u|).

Each new atom is a combination of old atoms and of rows of B. So inner products, which are sums over features, say all
that the descent needs, lengths included, and only coefficients have to go where the features lie. Pure.
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
        pairs: S, of codes.
        atoms: DD'.
        cross: DB': row i is of atom i.
        sums: BB'.
    """

    pairs: Float64s
    atoms: Float64s
    cross: Float64s
    sums: Float64s


def update(given: Products, fresh: Mask) -> tuple[Float64s, Float64s]:
    """Return the coefficients of the next atoms: of the atoms, and of the sums; each of shape (k, k).

    Args:
        fresh: atoms to replace by their row of B, at length 1.
    """
    count = len(given.pairs)
    pairs = given.pairs.copy()
    pairs[fresh], pairs[:, fresh] = 0.0, 0.0
    pairs[fresh, fresh] = 1.0
    of_atoms, of_sums = np.eye(count), np.zeros((count, count))
    state = given.atoms.copy(), given.cross.copy(), given.sums.copy()
    for _ in range(SWEEPS):
        kernels.sweep(pairs, fresh, *state, of_atoms, of_sums)
    return of_atoms, of_sums
