from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from pyspark.ml.linalg import SparseVector

from ps2.algorithms import (
    Embedding,
    KMeansClusters,
    LDATopics,
    MatrixFactorizationModel,
    MatrixFactors,
    SparseCoder,
)
from ps2.algorithms.frame.predict import as_row
from ps2.algorithms.frame.row_matrices import as_rows, finite_row_or_rows, finite_rows
from ps2.data.key_rows import KeyRows
from ps2.errors import ConfigError, DTypeError, InputError, ShapeError, UsageError
from ps2.mlflow.predicting import RatingPredictor, check_columns, plain_column, vector_column
from ps2.run.pandas_rows import PandasRows


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        ([["a", "b"]], DTypeError, "x: expected numbers, got <U1"),
        ([[1.0, 2.0], [3.0]], ShapeError, "x: expected .* got a value that is not an array"),
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
    assert np.isnan(as_rows("x", [[np.nan, 1.0]], 2)[0, 0])


def test_coder_when_products_of_atoms_overflow_then_refused() -> None:
    with pytest.raises(InputError, match="inner products of its atoms exceed float64"):
        SparseCoder([[1e200, 1.0]]).transform([[1.0, 1.0]])


HIDDEN = np.ma.array([[1.0, 2.0], [3.0, 4.0]], mask=[[False, True], [False, False]])


@pytest.mark.parametrize(
    "read",
    [
        lambda: as_rows("x", HIDDEN, 2),
        lambda: as_rows("x", list(HIDDEN), 2),
        lambda: KMeansClusters(HIDDEN),
        lambda: KMeansClusters(np.eye(2)).predict(HIDDEN),
        lambda: KMeansClusters(np.eye(2)).cost(np.eye(2), HIDDEN[0]),
        lambda: LDATopics(HIDDEN, [1.0, 1.0], 1.0),
        lambda: MatrixFactors([1, 2], [1, 2], HIDDEN, np.eye(2)),
        lambda: Embedding(["a", "b"], HIDDEN),
        lambda: as_row(HIDDEN[0], 2, missing=False),
        lambda: KeyRows.from_keys(HIDDEN.astype(int)),
    ],
)
def test_model_when_array_is_masked_then_refused(read) -> None:
    with pytest.raises(UsageError, match="got a masked array"):
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
        as_rows("x", x, 2)


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
        as_rows("x", x, 2)


@pytest.mark.parametrize("form", [sp.coo_array, sp.coo_matrix, sp.bsr_array, sp.lil_array, sp.dok_array, sp.dia_array])
def test_rows_when_form_is_converted_then_the_same(form) -> None:
    x = np.array([[0.0, 1.0], [2.0, 0.0]])
    np.testing.assert_array_equal(as_rows("x", form(x), 2).toarray(), x)


@pytest.mark.parametrize(("indices", "values"), [([-1], [1.0]), ([0, 7], [1.0, 2.0]), ([3], [1.0]), ([0, 1], [1.0])])
def test_vector_when_it_has_other_places_then_refused(indices, values) -> None:
    vector = SparseVector(3, {})  # as other writers make them: pyspark checks its own
    vector.indices, vector.values = np.array(indices, np.int32), np.array(values)
    with pytest.raises(InputError, match=r"vector of 3 numbers, with as many indices as values, in \[0, 3\), got"):
        as_row(vector, 3, missing=False)


@pytest.mark.parametrize(
    "form", [sp.csr_array, sp.csr_matrix, sp.csc_array, sp.coo_array, lambda x: sp.coo_array(x[0])]
)
def test_vector_when_it_is_a_sparse_row_then_the_same(form) -> None:
    assert as_row(form(np.array([[1.0, 0.0, 2.0]])), 3, missing=False).toarray().tolist() == [[1.0, 0.0, 2.0]]


@pytest.mark.parametrize("value", [["1", "2"], np.array(["2020-01-01"] * 2, "M8[D]"), [1j, 2], [10**400, 1]])
def test_vector_when_it_is_of_no_numbers_then_refused(value) -> None:
    with pytest.raises(InputError, match="features: expected a vector of 2 numbers, got"):
        as_row(value, 2, missing=False)


def test_rows_when_a_place_has_two_values_then_their_sum() -> None:
    x = sp.csr_array((np.array([4.0, 0.5, 0.5, 0.0]), np.array([2, 0, 0, 1]), np.array([0, 4])), shape=(1, 3))
    result = as_rows("x", x, 3)
    assert (result.indices.tolist(), result.data.tolist()) == ([0, 1, 2], [1.0, 0.0, 4.0])
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


ROWS = np.array([[3.0, 1.0], [2.0, 4.0]])
FRAME = pd.DataFrame(ROWS, columns=["a", "b"])


@pytest.mark.parametrize(
    "x",
    [
        ROWS.astype(object),
        FRAME.astype("Int64"),
        FRAME.astype("double[pyarrow]"),
        FRAME.astype({"a": "category"}),
        FRAME.map(Decimal),
        FRAME.astype(pd.SparseDtype(float)),
        ROWS.astype(">f8"),
    ],
)
def test_rows_when_numbers_have_any_type_then_read(x) -> None:
    np.testing.assert_array_equal(finite_rows("x", x, 2), ROWS)
    np.testing.assert_array_equal(KMeansClusters(ROWS).predict(x), [0, 1])


def test_rows_when_pandas_has_na_then_it_is_nan() -> None:
    x = pd.DataFrame({"a": pd.array([1, pd.NA], "Int64"), "b": [True, False], "c": [None, 0.5]})
    np.testing.assert_array_equal(as_rows("x", x), [[1, 1, np.nan], [np.nan, 0, 0.5]])
    with pytest.raises(InputError, match="x: expected finite numbers, got nan in row 0"):
        finite_rows("x", x)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (FRAME.astype(str), "expected numbers, got '3.0'"),
        (FRAME.assign(a=pd.Timestamp("2024-01-02")), "expected numbers, got Timestamp"),
        (np.array([[10**400, 1]], object), "expected numbers, got an integer beyond float64"),
    ],
)
def test_rows_when_objects_are_no_numbers_then_named(x, message) -> None:
    with pytest.raises(DTypeError, match=f"x: {message}"):
        as_rows("x", x)


@pytest.mark.parametrize("cell", [["1", "2"], np.array(["1", "2"], object), np.array(["2024"], "M8[D]")])
def test_vector_when_it_is_of_texts_or_dates_then_refused(cell) -> None:
    with pytest.raises(InputError, match="features: expected a vector of 2 numbers"):
        as_row(cell, 2, missing=False)
    with pytest.raises(InputError, match="column 'x', row 0: expected a vector"):
        vector_column(pd.DataFrame({"x": [cell]}), "x")


@pytest.mark.parametrize("form", [sp.csr_array, sp.csr_matrix, sp.coo_array])
def test_cell_when_it_is_a_row_of_scipy_then_read(form) -> None:
    cells = [form(ROWS[:1]), form(ROWS[1:])]
    assert [cell["values"] for cell in vector_column(pd.DataFrame({"x": cells}), "x").to_pylist()] == ROWS.tolist()


@pytest.mark.parametrize(
    "values",
    [
        pd.Series(["b", "a"], dtype="category"),
        pd.Series(["b", "a"], dtype="string[pyarrow]"),
        pd.Series([2, 1], dtype="category"),
        pd.Series(np.array([2, 1], ">i8")),
        pd.Series([2, 1], dtype=pd.SparseDtype(int)),
    ],
)
def test_column_of_ids_when_of_any_type_of_pandas_then_read(values) -> None:
    expected = [value if isinstance(value, str) else int(value) for value in values]
    factors = MatrixFactors(sorted(expected), [5, 6], ROWS, ROWS)
    predictor = RatingPredictor(MatrixFactorizationModel(factors).scoring(), factors)
    answer = predictor.predict(pd.DataFrame({"user": values, "item": [5, 6]}))
    np.testing.assert_array_equal(answer["prediction"], factors.predict(expected, [5, 6]))
    assert factors.user.names.positions(values).tolist() == [1, 0]
    assert PandasRows(pd.DataFrame({"x": values}))._table["x"].to_pylist() == expected


def test_columns_when_their_names_are_numbers_then_found_by_text() -> None:
    frame = pd.DataFrame(ROWS)
    check_columns(frame, ["0", "1"])
    assert plain_column(frame, "1").to_pylist() == [1.0, 4.0]


@pytest.mark.parametrize(
    ("sentences", "message"), [(["oak elm"], "got 'oak elm'"), ([["oak"], [7]], ": .*int"), ([["oak"], 7], ": .*int")]
)
def test_sentences_when_they_are_no_lists_of_names_then_refused(sentences, message) -> None:
    with pytest.raises(InputError, match=f"sentences: expected lists of names, each string.*{message}"):
        Embedding(["oak", "elm"], np.eye(2)).transform(sentences)
