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

# Descent ends when no coordinate of a code moves farther than this share of the row's length.
TOLERANCE = 1e-6
# Maximum numbers of dense codes in memory at a time.
BLOCK_NUMBERS = 1 << 20
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
