"""The multinomial loss is the cross-entropy of the softmax, its gradient the derivative, also as sufficient factors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.special

from ps2.algorithms.linear.losses import loss_of
from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.training.table import Facts
from ps2.data.rows import LocalRows
from ps2.errors import ConfigError, OutOfRangeError, ShapeError

ROWS, KEYS, CLASSES = 25, 6, 4
PROBLEM = Problem("softmax", KEYS, CLASSES)
LOSS = loss_of(PROBLEM)


def rows_of(dtype="float64"):
    rng = np.random.default_rng(0)
    x = sp.random_array((ROWS, KEYS), density=0.4, format="csr", dtype="float64", rng=rng).astype(dtype)
    weights = rng.integers(0, 4, ROWS).astype(float)
    return LocalRows(np.arange(KEYS), x, rng.integers(0, CLASSES, ROWS).astype(float), weights)


ROWS_64 = rows_of()
W, B = np.random.default_rng(1).standard_normal(KEYS * CLASSES), np.array([0.5, -0.2, 0.1, 0.0])


def test_gradient_when_rows_are_sparse_then_matches_dense():
    x, one_hot = ROWS_64.x.toarray(), np.eye(CLASSES)[ROWS_64.y.astype(int)]
    margins = x @ W.reshape(KEYS, CLASSES) + B
    slopes = ROWS_64.weights[:, None] * (scipy.special.softmax(margins, axis=1) - one_hot)
    at = LOSS.gradient(ROWS_64, W, B)
    expected = ROWS_64.weights @ (scipy.special.logsumexp(margins, axis=1) - (margins * one_hot).sum(axis=1))
    np.testing.assert_allclose(at.loss, expected, rtol=1e-13)
    np.testing.assert_allclose(at.dw, (x.T @ slopes).reshape(-1), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(at.db, slopes.sum(axis=0), rtol=1e-11, atol=1e-13)
    assert LOSS.loss(ROWS_64, W, B) == (at.loss, at.weight)
    np.testing.assert_allclose(LOSS.margins(ROWS_64.x, W, B), margins, rtol=1e-12)


def test_factors_when_multiplied_with_rows_then_are_the_gradient():
    at, (factors, slopes) = LOSS.gradient(ROWS_64, W, B), LOSS.factors(ROWS_64, W, B)
    np.testing.assert_allclose((ROWS_64.x.T @ slopes).reshape(-1), at.dw, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(factors.db, at.db, rtol=1e-11, atol=1e-13)
    assert (factors.loss, factors.weight) == (at.loss, at.weight)


def test_gradient_when_two_classes_then_is_logistic():
    of_two = Problem("softmax", KEYS, 2)
    rows = replace(ROWS_64, y=np.minimum(ROWS_64.y, 1))
    w = np.random.default_rng(2).standard_normal(KEYS)
    both = loss_of(of_two).gradient(rows, np.column_stack([0 * w, w]).reshape(-1), np.array([0.0, 0.3]))
    logistic = loss_of(Problem("logistic", KEYS)).gradient(rows, w, np.array([0.3]))
    np.testing.assert_allclose(both.loss, logistic.loss, rtol=1e-12)
    np.testing.assert_allclose(both.dw.reshape(KEYS, 2)[:, 1], logistic.dw, rtol=1e-11, atol=1e-13)


def test_gradient_when_values_are_float32_then_sums_are_float64():
    narrow, w = rows_of("float32"), W.astype("float32")
    at = LOSS.gradient(narrow, w, B)
    wide = LOSS.gradient(replace(narrow, x=narrow.x.astype("float64")), w.astype("float64"), B)
    np.testing.assert_allclose(at.dw, wide.dw, rtol=1e-12, atol=1e-14)


def test_gradient_when_margins_are_extreme_then_all_is_finite():
    x = sp.csr_array(np.array([[1e6], [-1e6]]))
    rows = LocalRows(np.arange(1), x, np.array([0.0, 0.0]))
    at = loss_of(Problem("softmax", 1, 2)).gradient(rows, np.array([1.0, -1.0]), np.zeros(2))
    assert at.loss == 2e6
    np.testing.assert_array_equal(at.dw, [1e6, -1e6])


def test_gradient_when_intercepts_are_fixed_then_theirs_is_0():
    loss = loss_of(replace(PROBLEM, fit_intercept=False))
    assert not loss.gradient(ROWS_64, W, B).db.any()
    assert not loss.factors(ROWS_64, W, B)[0].db.any()
    assert not loss.initial_biases(Facts(2, 2.0, 2.0, (1.0, 1.0, 0.0, 0.0), 0.5, 1.0)).any()


def test_gradient_when_there_are_no_rows_then_all_is_0():
    at = LOSS.gradient(LocalRows(np.arange(0), sp.csr_array((0, 0)), np.empty(0)), np.empty(0), B)
    assert (at.loss, at.weight, at.dw.shape, at.db.any()) == (0, 0, (0,), False)


def test_initial_biases_when_classes_weigh_then_are_log_priors():
    first = LOSS.initial_biases(Facts(10, 20.0, 60.0, (5.0, 10.0, 4.0, 1.0), 0.5, 1.0))
    np.testing.assert_allclose(scipy.special.softmax(first), [0.25, 0.5, 0.2, 0.05])
    np.testing.assert_allclose(first.mean(), 0, atol=1e-15)


def test_initial_biases_when_class_is_empty_then_are_finite():
    first = LOSS.initial_biases(Facts(10, 20.0, 60.0, (5.0, 10.0, 5.0, 0.0), 0.5, 1.0))
    assert np.isfinite(first).all()
    assert np.argmin(first) == 3


def test_gradient_when_a_label_is_no_class_then_it_is_an_error():
    with pytest.raises(OutOfRangeError, match="y: expected labels in"):
        LOSS.gradient(replace(ROWS_64, y=ROWS_64.y + 1), W, B)


def test_gradient_when_weights_have_fewer_classes_then_raises():
    with pytest.raises(ShapeError, match="w: expected shape"):
        LOSS.gradient(ROWS_64, W[:KEYS], B)


def test_loss_of_when_there_is_no_class_then_it_is_an_error():
    with pytest.raises(ConfigError, match="at least 1 class"):
        loss_of(Problem("softmax", KEYS, 0))
