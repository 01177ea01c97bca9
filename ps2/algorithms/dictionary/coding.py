"""Codes of many rows, as sparse matrices. Pure."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.dictionary import kernels
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s

Array = npt.NDArray[Any]

# Relative to a row's length, how far no coordinate of its code moves any more.
TOLERANCE = 1e-6
# Numbers of codes that are in memory at a time with their zeros.
AT_ONCE = 1 << 20
# Exponents of the largest value beyond which squares may leave the range of float64.
MAX_EXPONENT = 50
# A penalty beyond this leaves no code of rows that are scaled.
MAX_PENALTY = 1e100


def code(
    x: sp.csr_array, atoms: Float64s, products: Float64s, penalty: float, positive: bool
) -> tuple[sp.csr_array, Float64s]:
    """Return the code of each row, and its loss, 1/2 |x - code D|^2 + penalty |code|_1.

    Args:
        x: float64, shape (n, columns); its squares are in float64's range.
        atoms: shape (columns, k).
        products: DD', shape (k, k).
        penalty: not negative.
        positive: whether codes are not negative.
    """
    rows, count = x.shape[0], len(products)
    losses = np.empty(rows)
    atoms, products, indices, data = (readable(one) for one in (atoms, products, x.indices, x.data))
    parts, step = [], max(1, AT_ONCE // count)
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        found = np.zeros((end - begin, count))
        given = readable(x.indptr[begin : end + 1]), indices, data, atoms, products
        kernels.code_rows(*given, min(penalty, MAX_PENALTY), positive, TOLERANCE, found, losses[begin:end])
        parts.append(sp.csr_array(found))
    codes = sp.csr_array(sp.vstack(parts, format="csr")) if parts else sp.csr_array((0, count))
    return codes, losses


def exponent_of(largest: float) -> int:
    """Return the power of two by which values are to be divided so that their squares stay within float64's range.

    Args:
        largest: absolute value.
    """
    exponent = math.frexp(largest)[1]
    return exponent if abs(exponent) > MAX_EXPONENT else 0


def shifted(values: Any, exponent: Any) -> Any:
    """Return numbers times powers of two."""
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(values, exponent) if np.any(exponent) else values
