"""Coordinate descent on products of columns, and the worker's columns, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from ps2.algorithms.linear import coordinates
from ps2.algorithms.linear.coordinate_kernels import loss_derivatives
from ps2.algorithms.linear.coordinates import NO_PRODUCTS, NO_SUPPORT, LocalColumns, Strengths, lower_bound, minimise
from ps2.algorithms.linear.loss_kernels import HALF_SQUARED, LOGISTIC
from ps2.algorithms.linear.settings import PathSettings
from ps2.algorithms.linear.solvers.sap import strengths_of
from ps2.data.rows import Rows
from ps2.errors import ConfigError

RNG = np.random.default_rng(3)
X = RNG.normal(size=(40, 6)) * (RNG.random((40, 6)) < 0.6) + [0, 0, 5, 0, 0, 0]
H = RNG.random(40)
NONE = np.empty(0, np.int64)


def local(x=X, dense=(), means=()):
    rows = Rows(sp.csr_array(np.hstack([x[:, :4], np.zeros((len(x), 1)), x[:, 4:]]))).localize()
    return LocalColumns.from_rows(rows, np.array(dense, np.int64), np.array(means, np.float64))


def test_columns_when_absent_then_are_zeros():
    columns, of = local(), np.array([0, 4, 5, 99])
    np.testing.assert_allclose(columns.dot(of, H), [X[:, 0] @ H, 0, X[:, 4] @ H, 0])
    np.testing.assert_allclose(columns.dot(columns.keys, H), X.T @ H)


def test_columns_when_dense_then_are_centred_even_if_absent():
    columns = local(dense=[2, 4], means=[5.0, 1.0])
    assert columns.keys.tolist() == [0, 1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose(columns.dot(np.array([2, 4, 6]), H), [(X[:, 2] - 5) @ H, -H.sum(), X[:, 5] @ H])


def test_columns_when_added_then_rows_get_their_multiples():
    z = np.ones(40)
    local().add_to(z, np.array([5, 4, 0]), np.array([2.0, 7.0, -1.0]))
    np.testing.assert_allclose(z, 1 + 2 * X[:, 4] - X[:, 0])


@pytest.mark.parametrize("dense", [2.0, 0.0])
def test_products_when_weighted_then_are_numpys(dense, monkeypatch):
    monkeypatch.setattr(coordinates, "DENSE_PRODUCTS", dense)
    monkeypatch.setattr(coordinates, "MIN_DENSE_COLUMNS", 1)
    of, at = np.array([5, 0, 4, 2]), [4, 0, 2]
    result = local().products(of, 2, H)
    expected = X[:, at].T @ (X[:, at] * H[:, None])
    np.testing.assert_allclose(result[0, [0, 1, 3]], expected[0])
    np.testing.assert_allclose(result[1, [1, 3]], expected[1, 1:])
    assert result[0, 2] == result[1, 2] == 0


def test_products_when_extended_then_are_those_of_all():
    columns, first, both = local(), np.array([3, 1]), np.array([6, 0, 3, 1])
    start = NO_PRODUCTS.extended(first, columns.products(first, 2, H), columns.dot(first, H), H.sum())
    created = start.extended(both, columns.products(both, 2, H), columns.dot(both, H), H.sum())
    x = X[:, [5, 0, 3, 1]]
    x = x - H @ x / H.sum()
    np.testing.assert_allclose(created.gram, x.T @ (x * H[:, None]), atol=1e-12)
    np.testing.assert_array_equal(created.gram, created.gram.T)


def of_block(curved):
    """Products of six columns, and a gradient, with or without an intercept."""
    columns, all_of = local(), np.array([0, 1, 2, 3, 5, 6])
    sums = columns.dot(all_of, H)
    products = NO_PRODUCTS.extended(all_of, columns.products(all_of, 6, H), sums, curved)
    return products, X.T @ (H * np.sin(np.arange(40)))


@pytest.mark.parametrize("curved", [0.0, H.sum()])
@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_block_when_minimised_then_conditions_hold(curved, l2):
    products, gradient = of_block(curved)
    w, down, l1 = np.arange(6.0) - 3, float(H @ np.sin(np.arange(40))) if curved else 0.0, 2.0
    result = minimise(products, gradient, w, (down, curved), Strengths(l1, l2), 0.0)
    turn = X @ result.change + result.intercept
    left = X.T @ (H * (np.sin(np.arange(40)) - turn)) - l2 * result.w
    assert (np.abs(left[result.w == 0]) <= l1 + 1e-9).all()
    np.testing.assert_allclose(left[result.w != 0], l1 * np.sign(result.w[result.w != 0]), atol=1e-7)
    assert np.count_nonzero(result.w)
    if curved:
        assert H @ (np.sin(np.arange(40)) - turn) == pytest.approx(0, abs=1e-9)
    strengths = Strengths(l1, l2)
    quadratic = 0.5 * turn @ (H * turn) - turn @ (H * np.sin(np.arange(40)))
    assert result.decrease == pytest.approx(strengths.penalty(w) - quadratic - strengths.penalty(result.w))


def test_block_when_columns_are_equal_then_minimum_is_found():
    x = np.repeat(X[:, :1], 3, axis=1)
    columns, of = LocalColumns.from_rows(Rows(sp.csr_array(x)).localize(), NONE, np.empty(0)), np.arange(3)
    products = NO_PRODUCTS.extended(of, columns.products(of, 3, np.ones(40)), columns.dot(of, np.ones(40)), 0.0)
    y = X[:, 0] + X[:, 1]
    result = minimise(products, x.T @ y, np.zeros(3), (0.0, 0.0), Strengths(2.0, 0.0), 0.0)
    alone = (X[:, 0] @ y - 2.0) / (X[:, 0] @ X[:, 0])
    assert result.w.sum() == pytest.approx(alone)
    assert (result.w >= 0).all()


def test_block_when_a_column_is_zeros_then_stays_zero():
    products = NO_PRODUCTS.extended(np.arange(2), np.array([[0.0, 0.0], [0.0, 2.0]]), np.zeros(2), 0.0)
    result = minimise(products, np.array([0.0, 3.0]), np.zeros(2), (0.0, 0.0), Strengths(1.0, 0.0), 0.0)
    assert result.w.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("code", [HALF_SQUARED, LOGISTIC])
@pytest.mark.parametrize("weights", [np.empty(0), np.array([1.0, 2.0, 0.0, 3.0])])
def test_slopes_when_computed_then_are_derivatives(code, weights):
    margins, y = np.array([0.3, -2.0, 1.0, 40.0]), np.array([1.0, 0.0, 1.0, 0.0])
    c, slope, curvature = weights if len(weights) else np.ones(4), np.empty(4), np.empty(4)
    loss, dual = loss_derivatives(code, margins, y, weights, 0.5, 0.1, slope, curvature)
    if code == HALF_SQUARED:
        down, second, losses, duals = y - margins, np.ones(4), (y - margins) ** 2 / 2, (y - margins) * (y - 0.5)
    else:
        p = 1 / (1 + np.exp(-margins))
        down, second, losses = y - p, p * (1 - p), np.logaddexp(0, margins) - y * margins
        a = np.abs(down)
        duals = -a * np.log(a) - (1 - a) * np.log(np.where(a < 1, 1 - a, 1))
    np.testing.assert_allclose(slope, 0.1 * c * down)
    np.testing.assert_allclose(curvature, 0.1 * c * second, atol=1e-16)
    assert (loss, dual) == (pytest.approx(c @ losses), pytest.approx(c @ duals))


def test_bound_when_at_the_minimum_then_is_the_objective():
    x, y, strengths = np.array([[1.0], [-1.0]]), np.array([2.0, -2.0]), Strengths(0.5, 0.25)
    w = (2.0 - 0.5) / 1.25
    left = y - x[:, 0] * w
    value = left @ left / 4 + strengths.penalty(np.array([w]))
    largest = abs(x[:, 0] @ left / 2 - 0.25 * w)
    bound = lower_bound(left @ y / 2, left @ left / 4, largest, w * w, strengths)
    assert bound == pytest.approx(value)
    off = y - x[:, 0] * (w + 0.1)
    below = lower_bound(
        off @ y / 2, off @ off / 4, abs(x[:, 0] @ off / 2 - 0.25 * (w + 0.1)), (w + 0.1) ** 2, strengths
    )
    assert below < value


def test_support_when_replaced_then_zeros_are_dropped():
    created = NO_SUPPORT.replaced(np.array([7, 2]), np.array([1.0, 3.0])).replaced(
        np.array([2, 9]), np.array([0.0, 4.0])
    )
    assert created.columns.tolist() == [7, 9]
    assert created.weights(np.array([9, 2, 7, 100])).tolist() == [4.0, 0.0, 1.0, 0.0]


def test_path_when_resolved_then_ratios_are_equal():
    path = strengths_of(PathSettings(lambdaCount=3, lambdaRatio=0.01), 5.0)
    np.testing.assert_allclose(path, [5.0, 0.5, 0.05])
    assert strengths_of(PathSettings(lambdaCount=1), 5.0) == (5.0,)


@pytest.mark.parametrize("strengths", [(1.0, 1.0), (0.5, 1.0), (1.0, 0.0), (np.inf, 1.0)])
def test_path_when_strengths_do_not_descend_then_error(strengths):
    with pytest.raises(ConfigError, match="lambdaPath: expected finite positive numbers, each smaller"):
        PathSettings(lambdaPath=strengths)
