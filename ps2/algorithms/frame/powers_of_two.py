"""Scaling by powers of two, which changes no digit: squares stay within the range of float32. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

# Exponents of the largest value beyond which squares may leave the range of float32.
MAX_EXPONENT = 50


def exponent_of(*values: npt.ArrayLike) -> int:
    """Return the power of two by which values are to be divided so that their squares stay within range; often 0."""
    largest = max((float(np.abs(array).max(initial=0.0)) for array in map(np.asarray, values)), default=0.0)
    exponent = int(np.frexp(largest)[1])
    return exponent if abs(exponent) > MAX_EXPONENT else 0


def shifted(values: Any, exponent: Any) -> Any:
    """Return numbers times powers of two."""
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(values, exponent) if np.any(exponent) else values


def scaled_rows(x: sp.csr_array, exponent: int) -> sp.csr_array:
    """Return rows whose values are divided by a power of two; the arrays of columns are shared."""
    return sp.csr_array((shifted(x.data, -exponent), x.indices, x.indptr), shape=x.shape)
