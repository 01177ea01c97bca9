import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from pyspark.ml.linalg import SparseVector

from ps2.algorithms import Embedding, KMeansClusters, LDATopics, MatrixFactors, SparseCoder
from ps2.algorithms.estimators.given_rows import finite_row_or_rows, finite_rows, given_rows
from ps2.algorithms.estimators.predict import rows_of
from ps2.data.key_rows import KeyRows
from ps2.errors import ConfigError, DTypeError, InputError, ShapeError, UsageError
from ps2.mlflow.columns import vector_column


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


HIDDEN = np.ma.array([[1.0, 2.0], [3.0, 4.0]], mask=[[False, True], [False, False]])


@pytest.mark.parametrize(
    "read",
    [
        lambda: given_rows("x", HIDDEN, 2),
        lambda: given_rows("x", list(HIDDEN), 2),
        lambda: KMeansClusters(HIDDEN),
        lambda: KMeansClusters(np.eye(2)).predict(HIDDEN),
        lambda: KMeansClusters(np.eye(2)).cost(np.eye(2), HIDDEN[0]),
        lambda: LDATopics(HIDDEN, [1.0, 1.0], 1.0),
        lambda: MatrixFactors([1, 2], [1, 2], HIDDEN, np.eye(2)),
        lambda: Embedding(["a", "b"], HIDDEN),
        lambda: rows_of(HIDDEN[0], 2, missing=False),
        lambda: KeyRows.of(HIDDEN.astype(int)),
    ],
)
def test_model_when_array_is_masked_then_refused(read) -> None:
    with pytest.raises(UsageError, match="got a masked one"):
        read()


def test_cell_when_it_is_masked_then_refused() -> None:
    with pytest.raises(InputError, match="column 'x', row 1: expected a vector"):
        vector_column(pd.DataFrame({"x": [[1.0, 2.0], HIDDEN[0]]}), "x")


@pytest.mark.parametrize("column", [-1, 2, 1 << 30])
@pytest.mark.parametrize("form", [sp.csr_array, sp.csc_matrix])
def test_rows_when_column_is_none_then_refused(form, column) -> None:
    x = form(np.ones((2, 2)))
    x.indices[-1] = column
    with pytest.raises(ShapeError, match=r"x: expected .* got a malformed sparse matrix: .*indices"):
        given_rows("x", x, 2)


@pytest.mark.parametrize("form", [sp.coo_array, sp.coo_matrix, sp.bsr_array, sp.lil_array])
@pytest.mark.parametrize("column", [-1, 2, 1 << 20])
def test_rows_when_form_converts_unchecked_then_refused(form, column) -> None:
    """scipy writes beside the arrays of the result."""
    x = form(np.ones((2, 2)), **({"blocksize": (1, 1)} if form is sp.bsr_array else {}))
    if form is sp.lil_array:
        x.rows[1] = [0, column]
    else:
        (x.indices if form is sp.bsr_array else x.col)[-1] = column
    with pytest.raises(ShapeError, match=r"x: expected .* got a malformed sparse matrix: .*ind(ices|ex)"):
        given_rows("x", x, 2)


@pytest.mark.parametrize("form", [sp.coo_array, sp.coo_matrix, sp.bsr_array, sp.lil_array, sp.dok_array, sp.dia_array])
def test_rows_when_form_is_converted_then_the_same(form) -> None:
    x = np.array([[0.0, 1.0], [2.0, 0.0]])
    np.testing.assert_array_equal(given_rows("x", form(x), 2).toarray(), x)


@pytest.mark.parametrize(("indices", "values"), [([-1], [1.0]), ([0, 7], [1.0, 2.0]), ([3], [1.0]), ([0, 1], [1.0])])
def test_vector_when_it_has_other_places_then_refused(indices, values) -> None:
    vector = SparseVector(3, {})  # as other writers make them: pyspark checks its own
    vector.indices, vector.values = np.array(indices, np.int32), np.array(values)
    with pytest.raises(InputError, match=r"vector of 3 numbers, with as many indices as values, in \[0, 3\), got"):
        rows_of(vector, 3, missing=False)


@pytest.mark.parametrize(
    "form", [sp.csr_array, sp.csr_matrix, sp.csc_array, sp.coo_array, lambda x: sp.coo_array(x[0])]
)
def test_vector_when_it_is_a_sparse_row_then_the_same(form) -> None:
    assert rows_of(form(np.array([[1.0, 0.0, 2.0]])), 3, missing=False).toarray().tolist() == [[1.0, 0.0, 2.0]]


@pytest.mark.parametrize("value", [["1", "2"], np.array(["2020-01-01"] * 2, "M8[D]"), [1j, 2], [10**400, 1]])
def test_vector_when_it_is_of_no_numbers_then_refused(value) -> None:
    with pytest.raises(InputError, match="features: expected a vector of 2 numbers, got"):
        rows_of(value, 2, missing=False)


def test_rows_when_a_place_has_two_values_then_their_sum() -> None:
    x = sp.csr_array((np.array([4.0, 0.5, 0.5, 0.0]), np.array([2, 0, 0, 1]), np.array([0, 4])), shape=(1, 3))
    found = given_rows("x", x, 3)
    assert (found.indices.tolist(), found.data.tolist()) == ([0, 1, 2], [1.0, 0.0, 4.0])
    assert x.indices.tolist() == [2, 0, 0, 1]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: KMeansClusters([[np.nan, 1.0]]), InputError, "centres: expected finite"),
        (lambda: KMeansClusters([[1.0, 1.0]], "manhattan"), ConfigError, "distance: expected one of euclidean, cosine"),
        (lambda: KMeansClusters([[1.0, 1.0]]).predict([["1", "2"]]), DTypeError, "got <U1"),
        (lambda: KMeansClusters([[1.0, 1.0]]).cost([[1.0, 2.0]], [np.nan]), InputError, "weights: expected finite"),
        (lambda: KMeansClusters([[1.0, 1.0]]).cost([[1.0, 2.0]], [-1.0]), InputError, "weights: expected finite"),
        (lambda: LDATopics(np.array([[1 << 31]]), [1.0], 1.0), InputError, "counts: expected integers from 0"),
        (lambda: LDATopics(np.array([[np.nan]]), [1.0], 1.0), InputError, "counts: expected integers from 0"),
    ],
)
def test_model_when_it_could_mean_nothing_then_refused(make, error, message) -> None:
    with pytest.raises(error, match=message):
        make()
