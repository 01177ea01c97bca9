"""A factorization machine is a sum over all pairs of features, and its gradient the derivative of its loss."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from ps2.algorithms.linear.losses import loss_of
from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.training.table import Facts
from ps2.data.rows import LocalRows
from ps2.errors import ConfigError

ROWS, KEYS, FACTORS = 20, 6, 3
WIDTH = 1 + FACTORS
NAMES = ["fmLogistic", "fmSquared"]
RNG = np.random.default_rng(0)
X = sp.random_array((ROWS, KEYS), density=0.5, format="csr", dtype="float64", rng=RNG)
ROWS_64 = LocalRows(np.arange(KEYS), X, RNG.integers(0, 2, ROWS).astype(float), RNG.integers(0, 4, ROWS).astype(float))
W, B = RNG.standard_normal(KEYS * WIDTH), np.array([0.3])


def margins_of_pairs(x, w, b):
    w = w.reshape(KEYS, WIDTH)
    margins = x @ w[:, 0] + b[0]
    for i, j in itertools.combinations(range(KEYS), 2):
        margins += (w[i, 1:] @ w[j, 1:]) * x[:, i] * x[:, j]
    return margins


@pytest.mark.parametrize("name", NAMES)
def test_loss_when_compared_with_all_pairs_then_it_is_the_same(name):
    margins = margins_of_pairs(X.toarray(), W, B)
    y = ROWS_64.y
    of_rows = {"fmLogistic": np.logaddexp(0, margins) - y * margins, "fmSquared": (margins - y) ** 2}[name]
    loss = loss_of(Problem(name, KEYS, WIDTH))
    np.testing.assert_allclose(loss.margins(X, W, B), margins, rtol=1e-11)
    np.testing.assert_allclose(loss.loss(ROWS_64, W, B), [ROWS_64.weights @ of_rows, ROWS_64.weights.sum()], rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_when_checked_by_finite_differences_then_agrees(name):
    loss = loss_of(Problem(name, KEYS, WIDTH))
    at = loss.gradient(ROWS_64, W, B)

    def total(v):
        return loss.loss(ROWS_64, v[:-1], v[-1:])[0]

    model = np.append(W, B)
    slopes = [(total(model + step) - total(model - step)) / 2e-6 for step in 1e-6 * np.eye(len(model))]
    np.testing.assert_allclose(np.append(at.dw, at.db), slopes, rtol=1e-6, atol=1e-6)
    assert (at.loss, at.weight) == loss.loss(ROWS_64, W, B)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_when_weights_are_row_counts_then_is_the_same(name):
    loss = loss_of(Problem(name, KEYS, WIDTH))
    often = np.repeat(np.arange(ROWS), ROWS_64.weights.astype(int))
    repeated = loss.gradient(LocalRows(ROWS_64.keys, X[often], ROWS_64.y[often]), W, B)
    np.testing.assert_allclose(loss.gradient(ROWS_64, W, B).dw, repeated.dw, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_when_values_are_float32_then_sums_are_float64(name):
    loss, narrow, w = loss_of(Problem(name, KEYS, WIDTH)), X.astype("float32"), W.astype("float32")
    at = loss.gradient(replace(ROWS_64, x=narrow), w, B)
    wide = loss.gradient(replace(ROWS_64, x=narrow.astype("float64")), w.astype("float64"), B)
    np.testing.assert_allclose(at.dw, wide.dw, rtol=1e-12, atol=1e-14)


def test_gradient_when_linear_is_not_trained_then_only_it_is_0():
    problem = Problem("fmSquared", KEYS, WIDTH)
    both = loss_of(problem).gradient(ROWS_64, W, B).dw.reshape(KEYS, WIDTH)
    factors = loss_of(replace(problem, fit_linear=False)).gradient(ROWS_64, W, B).dw.reshape(KEYS, WIDTH)
    assert not factors[:, 0].any()
    np.testing.assert_array_equal(factors[:, 1:], both[:, 1:])


def test_gradient_when_intercept_is_not_trained_then_its_is_0():
    loss = loss_of(Problem("fmSquared", KEYS, WIDTH, fit_intercept=False))
    assert loss.gradient(ROWS_64, W, B).db.tolist() == [0]


@pytest.mark.parametrize("name", NAMES)
def test_gradient_when_there_are_no_rows_then_all_is_0(name):
    none = LocalRows(np.arange(0), sp.csr_array((0, 0)), np.empty(0))
    at = loss_of(Problem(name, KEYS, WIDTH)).gradient(none, np.empty(0), B)
    assert (at.loss, at.weight, at.dw.shape, at.db.tolist()) == (0, 0, (0,), [0])


def test_gradient_when_margins_are_extreme_then_all_is_finite():
    x = sp.csr_array(np.full((2, 2), 1e3))
    rows = LocalRows(np.arange(2), x, np.array([0.0, 1.0]))
    at = loss_of(Problem("fmLogistic", 2, 2)).gradient(rows, np.ones(4), np.zeros(1))
    assert np.isfinite(at.dw).all()
    np.testing.assert_allclose(at.loss, 1e6 + 2e3)


BEGINNING = loss_of(Problem("fmSquared", 10**6, 1 + 8, init_std=0.5))


def test_initial_values_when_many_keys_then_normal_and_linear_0():
    first = BEGINNING.initial_weights(np.arange(5000), 7).reshape(5000, 9)
    assert not first[:, 0].any()
    factors = first[:, 1:] / 0.5
    shares = [(np.abs(factors) < bound).mean() for bound in (1, 2, 3)]
    np.testing.assert_allclose(shares, [0.6827, 0.9545, 0.9973], atol=0.01)
    np.testing.assert_allclose([factors.mean(), factors.std()], [0, 1], atol=0.02)
    np.testing.assert_allclose(np.corrcoef(factors.T), np.eye(8), atol=0.07)
    np.testing.assert_allclose(np.corrcoef(factors[:-1, 0], factors[1:, 0])[0, 1], 0, atol=0.07)


def test_initial_values_when_other_worker_asks_some_then_same():
    keys = np.array([3, 77, 999_999])
    some = BEGINNING.initial_weights(keys[1:], 7)
    np.testing.assert_array_equal(BEGINNING.initial_weights(keys, 7)[9:], some)


@pytest.mark.parametrize("seed", [8, -1, 2**63])
def test_initial_values_when_seed_differs_then_factors_differ(seed):
    one, other = BEGINNING.initial_weights(np.arange(50), 7), BEGINNING.initial_weights(np.arange(50), seed)
    assert not np.intersect1d(one[one != 0], other).size


@pytest.mark.parametrize("name", ["fmLogistic", "fmSquared"])
def test_initial_biases_when_facts_are_known_then_0_as_pyspark(name):
    facts = Facts(10, 20.0, 60.0, (5.0, 15.0), 7.5, 2.0)
    assert loss_of(Problem(name, KEYS, WIDTH)).initial_biases(facts) == [0]


def test_loss_of_when_there_is_no_factor_then_it_is_an_error():
    with pytest.raises(ConfigError, match="at least 2"):
        loss_of(Problem("fmSquared", KEYS, 1))
