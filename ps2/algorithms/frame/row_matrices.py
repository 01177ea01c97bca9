"""Check matrices of rows that a user passes to a local model."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from ps2.data.plain_arrays import as_array, as_numbers
from ps2.data.sparse_rows import canonical
from ps2.errors import DTypeError, InputError, ShapeError


def as_rows(name: str, x: Any, features: int | None = None, content: str = "numbers") -> Any:
    """Return rows as an array or a scipy CSR array of numbers, shape (n, features), in the dtype of ``x``.

    The columns of a CSR row are sorted and distinct: values with equal indices are added up, as in scipy.

    Args:
        name: the name of the argument for errors.
        x: a scipy sparse matrix, or anything that NumPy converts to an array, such as a pandas DataFrame (NA: NaN).
        features: the expected number of features; None: any.
        content: a word for the values in messages.

    Raises:
        ShapeError, DTypeError: x does not have this shape, or its values are not numbers.
        UsageError: x is a masked array.
    """
    expected = f"{name}: expected shape (n, {'features' if features is None else features}) of {content}"
    rows = _as_array(name, expected, x)
    if rows.ndim != 2 or features not in (None, rows.shape[1]):
        raise ShapeError(f"{expected}, got {rows.shape}")
    try:
        return as_numbers(rows)
    except TypeError as error:
        raise DTypeError(f"{name}: expected {content}, got {error}") from error


def finite_rows(name: str, x: Any, features: int | None = None) -> Any:
    """Return rows like ``as_rows``, but as float64 (float64 arrays uncopied); InputError: a number is not finite."""
    rows = as_rows(name, x, features).astype(np.float64, copy=False)
    is_sparse = sp.issparse(rows)
    values = rows.data if is_sparse else rows.reshape(-1)
    if not (finite := np.isfinite(values)).all():
        position = int(np.argmin(finite))
        row = int(np.searchsorted(rows.indptr, position, side="right")) - 1 if is_sparse else position // rows.shape[1]
        raise InputError(f"{name}: expected finite numbers, got {values[position]} in row {row}")
    return rows


def finite_row_or_rows(name: str, x: Any, features: int) -> Any:
    """Return rows like ``finite_rows``; a list or a one-dimensional array of numbers becomes one row."""
    array = _as_array(name, f"{name}: expected rows of {features} numbers", x)
    return finite_rows(name, array.reshape(1, -1) if array.ndim == 1 else array, features)


def _as_array(name: str, expected: str, x: Any) -> Any:
    if sp.issparse(x):
        return _canonical(expected, x)
    try:
        return as_array(name, x)
    except (ShapeError, TypeError) as error:
        raise ShapeError(f"{expected}, got a value that is not an array: {error}") from error


def _canonical(expected: str, x: Any) -> sp.csr_array:
    """Return a sparse matrix as CSR in canonical form; the caller's arrays are not changed."""
    if x.format not in ("csr", "csc", "bsr"):
        # scipy converts other formats, too, but does not check their indices.
        x = sp.csr_array(x) if x.format == "lil" else _checked_csr(expected, x.tocoo())
    try:
        x.check_format(full_check=True)
    except ValueError as error:
        raise ShapeError(f"{expected}, got a malformed sparse matrix: {error}") from error
    return canonical(sp.csr_array(x))


def _checked_csr(expected: str, x: Any) -> sp.csr_array:
    """Return a COO matrix as CSR; raise ShapeError if an index is out of range."""
    for indices, size in zip((x.col, x.row), reversed(x.shape), strict=False):  # a one-dimensional array has no rows
        if len(indices) and not 0 <= indices.min() <= indices.max() < size:
            raise ShapeError(
                f"{expected}, got a malformed sparse matrix: indices must be in [0, {size}), and are "
                f"{indices.min()} to {indices.max()}"
            )
    return sp.csr_array(x)
