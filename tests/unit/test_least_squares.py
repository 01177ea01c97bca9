"""Products of shards of rows are those of the whole matrix, and their normal equations have NumPy's solutions."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from ps2.algorithms.linear.solvers import least_squares
from ps2.algorithms.linear.solvers.least_squares import (
    Products,
    objective,
    packed_size,
    products,
    residual_products,
    solve,
)
from ps2.data.rows import Rows

ROWS, K = 60, 5
NONE = np.zeros(K)


def data(density=1.0, far=3.0):
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((ROWS, K)) + far) * (rng.random((ROWS, K)) < density)
    return x, x @ np.arange(K) + rng.standard_normal(ROWS), rng.random(ROWS)


def dense(x, y, c):
    """The products of the whole matrix, centred."""
    mean, label_mean = np.average(x, axis=0, weights=c), np.average(y, weights=c)
    x, y = x - mean, y - label_mean
    return Products(x.T @ (x * c[:, None]), x.T @ (c * y), float(c @ y**2)), mean, label_mean


@pytest.mark.parametrize(("density", "block"), [(1.0, 1 << 22), (1.0, 35), (0.05, 1 << 22)])
def test_products_when_shards_are_summed_then_match_matrix(density, block, monkeypatch):
    monkeypatch.setattr(least_squares, "BLOCK_ENTRIES", block)
    x, y, c = data(density)
    expected, mean, label_mean = dense(x, y, c)
    shards = [slice(0, 7), slice(7, 40), slice(40, ROWS)]
    parts = [Rows(sp.csr_array(x[part]), y[part], c[part]).localize() for part in shards]
    packed = sum(products(part, mean, label_mean).packed() for part in parts)
    assert len(packed) == packed_size(K)
    result = Products.unpacked(packed, K)
    np.testing.assert_allclose(result.xx, expected.xx, atol=1e-10)
    np.testing.assert_allclose(result.xy, expected.xy, atol=1e-10)
    assert result.yy == pytest.approx(expected.yy)


@pytest.mark.parametrize("others", [0.02, 1.0])
def test_products_when_a_mean_is_large_then_nothing_cancels(others):
    """A time among rare features, of which one worker has all the rows that hold another one."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((400, 40)) * (rng.random((400, 40)) < others)
    x[:, 7] = 1e7 + rng.standard_normal(400)
    x[200:, 9] = rng.standard_normal(200)
    x[:200, 9] = 0.0
    y, c = 2.0 * (x[:, 7] - 1e7) + x[:, 9], rng.random(400) + 0.1
    expected, mean, label_mean = dense(x, y, c)
    parts = [Rows(sp.csr_array(x[part]), y[part], c[part]).localize() for part in (slice(0, 200), slice(200, 400))]
    result = Products.unpacked(sum(products(part, mean, label_mean).packed() for part in parts), 40)
    np.testing.assert_allclose(result.xx, expected.xx, rtol=1e-7, atol=1e-6)
    np.testing.assert_allclose(result.xy, expected.xy, rtol=1e-7, atol=1e-6)
    w = np.linspace(-1.0, 1.0, 40)
    rest = sum(residual_products(part, mean, label_mean, w) for part in parts)
    np.testing.assert_allclose(rest, expected.xy - expected.xx @ w, rtol=1e-6, atol=1e-5)


def test_solve_when_features_are_nearly_alike_then_finds_weights():
    """A pivot of 1e-12 leaves three digits of what the products tell."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((300, 3))
    x[:, 2] = x[:, 1] + 1e-6 * x[:, 2]
    x -= x.mean(axis=0)
    w = np.array([1.0, 2.0, 3.0])
    rows, mean = Rows(sp.csr_array(x), x @ w).localize(), np.zeros(3)
    result = solve(products(rows, mean, 0.0), mean, mean, 100, 1e-6)
    assert 0 < result.pivot < 1e-10
    assert np.abs(result.w - w).max() > 1e-6
    for _ in range(3):
        result = result.refined(residual_products(rows, mean, 0.0, result.w))
    np.testing.assert_allclose(result.w, w, rtol=1e-8)


def test_solve_when_feature_is_constant_then_its_weight_is_0():
    of, _, _ = dense(*data())
    of.xx[2], of.xx[:, 2], of.xy[2] = 0.0, 0.0, 0.0
    result, rest = solve(of, NONE, NONE, 100, 1e-6), [0, 1, 3, 4]
    np.testing.assert_allclose(result.w[rest], np.linalg.solve(of.xx[np.ix_(rest, rest)], of.xy[rest]))
    assert (result.w[2], result.pivot > 0) == (0, True)


def test_solve_when_weights_are_determined_then_matches_numpy():
    of, mean, _ = dense(*data())
    l2 = np.arange(K) / 10.0
    result, inverse = solve(of, NONE, l2, 100, 1e-6), np.linalg.inv(of.xx + np.diag(l2))
    np.testing.assert_allclose(result.w, inverse @ of.xy)
    np.testing.assert_allclose(result.inverse_diagonal(), np.diag(inverse))
    assert result.inverse_form(mean) == pytest.approx(mean @ inverse @ mean)


def test_solve_when_feature_is_duplicated_then_both_share_weight():
    x, y, c = data()
    x[:, 4] = x[:, 1]
    result = solve(dense(x, y, c)[0], NONE, NONE, 100, 1e-6)
    assert (result.factor, result.pivot, result.feature) == (None, 0, 4)
    assert result.w[4] == pytest.approx(result.w[1])
    of, _, _ = dense(x[:, :4], y, c)
    np.testing.assert_allclose(
        [*result.w[:1], 2 * result.w[1], *result.w[2:4]], np.linalg.solve(of.xx, of.xy), rtol=1e-6
    )


@pytest.mark.parametrize("size", [1.0, 1e-9, 1e12])
def test_solve_when_l1_penalty_then_no_single_move_improves(size):
    x, y, c = data()
    of = dense(x, y * size, c)[0]
    l1, l2 = np.full(K, 12.0 * size), np.full(K, 0.5)
    w = solve(of, l1, l2, 1000, 1e-15).w
    assert 0 < np.count_nonzero(w) < K
    residual_products = of.xx @ w - of.xy + l2 * w
    np.testing.assert_allclose(residual_products[w != 0], -l1[0] * np.sign(w[w != 0]), rtol=1e-5)
    assert (np.abs(residual_products[w == 0]) <= l1[0]).all()


def test_objective_when_from_products_then_matches_rows():
    x, y, c = data()
    of, mean, label_mean = dense(x, y, c)
    w, l1, l2 = np.arange(K) - 2.0, np.arange(K) / 7.0, np.arange(K) / 5.0
    residuals = (x - mean) @ w - (y - label_mean)
    assert objective(of, w, l1, l2) == pytest.approx(0.5 * c @ residuals**2 + l1 @ np.abs(w) + 0.5 * l2 @ w**2)
