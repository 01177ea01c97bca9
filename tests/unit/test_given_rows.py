import numpy as np
import pytest
import scipy.sparse as sp

from ps2.algorithms import SparseCoder
from ps2.algorithms.estimators.given_rows import finite_row_or_rows, finite_rows, given_rows
from ps2.errors import DTypeError, InputError, ShapeError


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        ([["a", "b"]], DTypeError, "x: expected numbers, got <U1"),
        ([[1.0, 2.0], [3.0]], ShapeError, "x: expected .* got what is no array"),
        ([[1.0, 2.0, 3.0]], ShapeError, r"x: expected shape \(n, 2\) of numbers, got \(1, 3\)"),
        (np.array([[1j, 2j]]), DTypeError, "x: expected numbers, got complex128"),
        ([[1.0, 2.0], [np.nan, 1.0]], InputError, "x: expected finite numbers, got nan in row 1"),
        (sp.csr_array([[0.0, 0.0], [0.0, np.inf]]), InputError, "x: expected finite numbers, got inf in row 1"),
    ],
)
def test_rows_when_no_finite_numbers_then_named(x: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        finite_rows("x", x, 2)


def test_rows_when_given_one_list_then_one_row() -> None:
    assert finite_row_or_rows("x", [1, 2], 2).shape == (1, 2)


def test_rows_when_nan_allowed_then_kept_as_given() -> None:
    assert np.isnan(given_rows("x", [[np.nan, 1.0]], 2)[0, 0])


def test_coder_when_products_of_atoms_overflow_then_refused() -> None:
    with pytest.raises(InputError, match="inner products of its atoms exceed float64"):
        SparseCoder([[1e200, 1.0]]).transform([[1.0, 1.0]])
