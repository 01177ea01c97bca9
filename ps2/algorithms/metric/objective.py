"""The objective of a metric (Xing et al., 2002, as in Petuum's distance metric learning). Pure.

    1/n (sum over similar pairs of |L d|^2  +  lambda sum over dissimilar pairs of max(0, 1 - |L d|^2))

where d is the difference of a pair's vectors, and n the number of pairs. Its gradient by L is the sum over pairs of
c (L d) d', with c = 2 for a similar pair, and -2 lambda for a dissimilar one with |L d| < 1: two short factors a pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.metric.pairs import Mask
from ps2.array_types import Float64s
from ps2.errors import ShapeError


@dataclass(frozen=True, eq=False)
class Evaluated:
    """The objective of some pairs, summed.

    Attributes:
        loss: the sum.
        slopes: float64, shape (m, rank): c (L d) of each pair; 0 where a pair has no gradient.
    """

    loss: float
    slopes: Float64s


def evaluate(differences: Any, similar: Mask, columns: Any, dissimilar_weight: float) -> Evaluated:
    """Compute the objective and the slopes of pairs.

    Args:
        differences: scipy sparse or an array, shape (m, k).
        similar: shape (m,).
        columns: L transposed: shape (k, rank).
        dissimilar_weight: lambda.

    Raises:
        ShapeError: shapes do not fit.
    """
    if differences.shape != (len(similar), len(columns)):
        raise ShapeError(f"differences: expected shape {(len(similar), len(columns))}, got {tuple(differences.shape)}")
    mapped = np.asarray(differences @ columns, np.float64)
    squares = np.einsum("ij,ij->i", mapped, mapped)
    near = ~similar & (squares < 1.0)
    loss = squares[similar].sum() + dissimilar_weight * (1.0 - squares[near]).sum()
    factors = np.where(similar, 2.0, np.where(near, -2.0 * dissimilar_weight, 0.0))
    return Evaluated(float(loss), factors[:, None] * mapped)


def objective(components: Any, differences: Any, similar: Mask, dissimilar_weight: float = 1.0) -> float:
    """Return the objective of L for pairs.

    Args:
        components: L, shape (rank, features).
        differences: scipy sparse or an array, shape (n, features).
        similar: bool, shape (n,).
        dissimilar_weight: lambda.
    """
    x = differences if sp.issparse(differences) else np.asarray(differences)
    evaluated = evaluate(x, np.asarray(similar, bool), np.asarray(components).T, dissimilar_weight)
    return evaluated.loss / max(len(similar), 1)
