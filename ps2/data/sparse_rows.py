"""Sparse rows as scipy's CSR matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

Array = npt.NDArray[Any]


def sparse_matrix(values: Array, columns: Array, indptr: Array, size: int) -> sp.csr_array:
    """Return a sparse matrix with 32-bit indices if they fit: scipy converts both index arrays to the wider dtype."""
    fits_int32 = columns.dtype == np.int32 and indptr[-1] <= np.iinfo(np.int32).max
    indptr = indptr.astype(np.int32, copy=False) if fits_int32 else indptr
    return sp.csr_array((values, columns, indptr), shape=(len(indptr) - 1, size))


def canonical(x: sp.csr_array) -> sp.csr_array:
    """Return a matrix with ascending columns in each row; values of duplicate entries are added up, in a copy."""
    if not x.has_canonical_format:
        x = x.copy()
        x.sum_duplicates()
    return x
