"""Scale values by powers of two, without rounding errors, to keep their squares within the range of float32. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

# Values are scaled if the exponent of the largest value is outside of [-50, 50]. Squares have twice the exponent, and
# float32's exponents are -126 to 127, so sums of 2^26 squares do not overflow.
MAX_EXPONENT = 50


def exponent_of(*values: npt.ArrayLike) -> int:
    """Return the exponent of the power of two by which to divide all values; 0: their squares are within the range."""
    largest = max((float(np.abs(array).max(initial=0.0)) for array in map(np.asarray, values)), default=0.0)
    exponent = int(np.frexp(largest)[1])
    return exponent if abs(exponent) > MAX_EXPONENT else 0


def shifted(values: Any, exponent: Any) -> Any:
    """Return values times 2**exponent."""
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(values, exponent) if np.any(exponent) else values


def scaled_rows(x: sp.csr_array, exponent: int) -> sp.csr_array:
    """Return rows whose values are divided by 2**exponent; the index arrays are shared."""
    return sp.csr_array((shifted(x.data, -exponent), x.indices, x.indptr), shape=x.shape)
