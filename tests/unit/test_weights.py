"""A model's weights in the driver."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from pyspark.ml.linalg import DenseMatrix, DenseVector, SparseMatrix, SparseVector

from ps2.algorithms.frame.models import check_thresholds
from ps2.algorithms.frame.predict import as_row
from ps2.algorithms.linear.model import Weights
from ps2.algorithms.linear.models import as_matrix, as_vector
from ps2.algorithms.linear.plan import Problem
from ps2.errors import InputError, ShapeError, UsageError

SOFTMAX = Problem("softmax", dim=3, width=2)
W = np.array([[1.0, 2.0], [0.0, -1.0], [3.0, 0.5]])
B = np.array([0.5, -0.5])


def test_margins_when_rows_are_sparse_then_match_matrix():
    x = np.array([[1.0, 0.0, 2.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(Weights(SOFTMAX, W, B).margins(sp.csr_array(x)), x @ W + B)


def test_margins_when_row_size_differs_then_error_names_both():
    with pytest.raises(ShapeError, match="features: expected 3 as in training, got rows of 4"):
        Weights(SOFTMAX, W, B).margins(sp.csr_array(np.ones((1, 4))))


def test_centred_when_no_penalty_then_weights_have_mean_0():
    centred = Weights(SOFTMAX, W, B + 1).centred()
    np.testing.assert_allclose(centred.weight.mean(axis=1), 0, atol=1e-15)
    np.testing.assert_allclose(centred.biases, [0.5, -0.5])


def test_centred_when_there_is_penalty_then_weights_stay():
    assert Weights(Problem("softmax", dim=3, width=2, l2=0.1), W, B).centred().weight is W


def test_as_vector_when_most_are_0_then_it_is_sparse():
    values = np.zeros(10)
    values[[2, 7]] = 1.5, -1.0
    assert as_vector(values) == SparseVector(10, [2, 7], [1.5, -1.0])
    assert isinstance(as_vector(np.ones(4)), DenseVector)


def test_as_matrix_when_mostly_0_then_is_sparse_and_equal():
    rows = np.zeros((3, 8))
    rows[0, 1], rows[2, 7] = 2.0, -3.0
    created = as_matrix(rows)
    assert isinstance(created, SparseMatrix)
    np.testing.assert_array_equal(created.toArray(), rows)


def test_as_matrix_when_few_are_0_then_it_is_dense_and_the_same():
    created = as_matrix(W)
    assert isinstance(created, DenseMatrix)
    np.testing.assert_array_equal(created.toArray(), W)


@pytest.mark.parametrize(
    "value", [SparseVector(3, [0, 2], [1.0, 2.0]), DenseVector([1.0, 0.0, 2.0]), [1.0, 0.0, 2.0], np.array([1, 0, 2])]
)
def test_rows_of_when_a_row_comes_in_any_form_then_it_is_one_row(value):
    assert as_row(value, 3, missing=False).toarray().tolist() == [[1.0, 0.0, 2.0]]


@pytest.mark.parametrize(
    "value", [[1.0, 2.0], SparseVector(4, [0], [1.0]), "abc", [[1.0, 2.0, 3.0]], [1.0, np.nan, 0.0]]
)
def test_rows_of_when_a_row_cannot_be_one_then_it_is_an_error(value):
    with pytest.raises(InputError, match="features: expected"):
        as_row(value, 3, missing=False)


@pytest.mark.parametrize(
    ("thresholds", "message"), [((0.5,), "got 1"), ((-1.0, 1.0), "positive"), ((0.0, 0.0), "one may")]
)
def test_check_thresholds_when_invalid_then_raises(thresholds, message):
    with pytest.raises(UsageError, match=message):
        check_thresholds(thresholds, 2)
