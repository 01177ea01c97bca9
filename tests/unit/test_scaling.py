"""Standard deviations by two rounds over sparse shards are the unbiased weighted ones of the dense matrix."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from ps2.algorithms.linear.scaling import column_sums, deviations, inverse, scaled, shrink_factors, squared_distances
from ps2.algorithms.training.table import Facts
from ps2.data.rows import LocalRows, Rows
from ps2.errors import ShapeError

ROWS, DIM = 40, 6


def dense_matrix(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((ROWS, DIM)) * (rng.random((ROWS, DIM)) < 0.4)
    x[:, 2], x[:, 3] = 0.0, 5.0
    return x, rng.integers(0, 4, ROWS).astype(float)


def facts_of(weights):
    return Facts(len(weights), weights.sum(), (weights**2).sum(), (), 0.0, 0.0)


def rounds(x, weights, shards=3):
    """Both rounds over row shards, each with keys of its own: deviations times h^2, and h."""
    parts = [
        Rows(sp.csr_array(part), None, of_part).localize()
        for part, of_part in zip(np.array_split(x, shards), np.array_split(weights, shards), strict=True)
    ]
    mean, nonzero, squares, sizes = np.zeros((4, x.shape[1]))
    facts = facts_of(weights)
    for part in parts:
        of_part = column_sums(part, facts)
        mean[part.keys] += of_part.means
        nonzero[part.keys] += of_part.weights
        sizes[part.keys] += of_part.sizes
    h = shrink_factors(sizes)
    for part in parts:
        squares[part.keys] += squared_distances(part, mean[part.keys], h[part.keys])
    return deviations(squares, nonzero, mean, h, facts), h


def deviations_of_shards(x, weights, shards=3):
    result, h = rounds(x, weights, shards)
    return result / h / h


def dense_deviations(x, weights):
    mean = weights @ x / weights.sum()
    return np.sqrt(weights @ (x - mean) ** 2 / (weights.sum() - (weights**2).sum() / weights.sum()))


def test_deviations_when_rows_have_weights_then_match_dense():
    x, weights = dense_matrix()
    result = deviations_of_shards(x, weights)
    np.testing.assert_allclose(result, dense_deviations(x, weights), rtol=1e-12, atol=1e-15)
    assert result[2] == 0


def test_deviations_when_rows_are_unweighted_then_of_sample():
    x, _ = dense_matrix()
    np.testing.assert_allclose(deviations_of_shards(x, np.ones(ROWS)), x.std(axis=0, ddof=1), rtol=1e-12, atol=1e-15)


def test_deviations_when_a_mean_is_huge_then_nothing_cancels():
    x = 1e8 + np.random.default_rng(0).standard_normal((ROWS, 2))
    np.testing.assert_allclose(deviations_of_shards(x, np.ones(ROWS)), x.std(axis=0, ddof=1), rtol=1e-7)


def test_deviations_when_features_are_constant_then_are_0():
    rng = np.random.default_rng(2)
    weights = rng.random(5000) + 0.1
    x = np.tile([0.1, 1e9 + 0.3, -7e-5], (5000, 1))
    assert deviations_of_shards(x, weights).tolist() == [0.0, 0.0, 0.0]
    x[0, 0] += 1e-6
    assert deviations_of_shards(x, weights)[0] > 0.0


@pytest.mark.parametrize("weights", [np.ones(1), np.zeros(3), np.empty(0), np.array([0.0, 2.0])])
def test_deviations_when_at_most_one_row_counts_then_they_are_0(weights):
    assert not deviations_of_shards(np.ones((len(weights), 2)), weights, shards=1).any()


def test_column_sums_when_row_stores_zero_then_is_not_counted():
    rows = LocalRows(
        np.arange(2), sp.csr_array((np.array([0.0, 3.0]), np.array([0, 1]), np.array([0, 2])), shape=(1, 2))
    )
    of_rows = column_sums(rows, facts_of(np.ones(2)))
    assert (of_rows.means.tolist(), of_rows.weights.tolist()) == ([0, 1.5], [0, 1])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scaled_when_divided_then_deviation_is_1_or_0(dtype):
    x, weights = dense_matrix()
    rows = Rows(sp.csr_array(x.astype(dtype)), None, weights).localize()
    by = inverse(dense_deviations(x, weights)[rows.keys], np.ones(len(rows.keys)))
    result = scaled(rows, by)
    assert result.x.dtype == dtype
    assert result.weights is rows.weights
    tolerance = 1e-6 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(result.x.toarray(), rows.x.toarray() * by, rtol=tolerance)
    expected = (by > 0).astype(float)
    np.testing.assert_allclose(dense_deviations(result.x.toarray().astype("float64"), weights), expected, atol=1e-6)


def test_inverse_when_a_deviation_is_0_then_it_is_0():
    assert inverse(np.array([2.0, 0.0]), np.ones(2)).tolist() == [0.5, 0.0]


@pytest.mark.parametrize("size", [1e308, 1e200, 1e-160, 1e-250, 1e-300])
def test_inverse_when_squares_overflow_then_uses_deviation(size):
    x, weights = dense_matrix()
    x /= np.abs(x).max()
    result = inverse(*rounds(x * size, weights))
    np.testing.assert_allclose(result * size, inverse(*rounds(x, weights)), rtol=1e-12)


def test_inverse_when_deviation_has_no_reciprocal_then_infinite():
    assert inverse(*rounds(np.array([[1e-320], [-1e-320], [0.0]]), np.ones(3))).tolist() == [np.inf]


def test_scaled_when_factors_have_other_keys_then_raises():
    rows = Rows(sp.csr_array(np.ones((2, 3)))).localize()
    with pytest.raises(ShapeError, match="factors"):
        scaled(rows, np.ones(2))
    with pytest.raises(ShapeError, match="mean"):
        squared_distances(rows, np.ones(4), np.ones(3))
