"""Minibatch training takes the steps that NumPy takes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from plain_steps import STEPS, expected, minibatches
from training import COLUMNS, Rows, fit, make, minimum, objective

from ps2.algorithms.linear.parameters import SPARSE_FROM
from ps2.algorithms.linear.plan import Problem
from ps2.ops.all import optimizer_steps

BOTH = {"l1": 0.02, "l2": 0.1}


@pytest.fixture(scope="module")
def rows():
    return make(cuts=(20,))


@pytest.fixture(scope="module")
def sparse():
    """Most entries are 0: a minibatch lacks some columns."""
    return make(n=40, dim=30, cuts=(25,), zeros=0.9)


# Other optimizers have an oracle of their own in tests/unit/test_ops.py.
FORMULAS = {"sgd", "momentum", "adagrad", "rmsprop", "adam", "ftrl"}
CASES = [(name, False, BOTH) for name in optimizer_steps() if name in FORMULAS]
CASES += [("ftrl", True, BOTH), ("adagrad", True, {}), ("adam", True, {})]


@pytest.mark.parametrize(("name", "lazy", "penalties"), CASES)
def test_full_steps_when_taken_then_equal_numpys(rows, name, lazy, penalties):
    problem = Problem("logistic", 5, standardize=False, **penalties)
    created = fit(rows, problem, minibatches(name, lazy))
    w, b = expected(rows, problem, name)
    # The first gradient of the intercept is rounding, and Adam's step as long as for any other.
    tolerance = 1e-7 if name == "adam" else 1e-9
    np.testing.assert_allclose(created.w[:, 0], w, rtol=tolerance, atol=1e-12)
    np.testing.assert_allclose(created.biases, b, rtol=tolerance, atol=1e-12)


@pytest.mark.parametrize(("name", "penalties"), [("adagrad", {}), ("ftrl", BOTH)])
def test_lazy_minibatches_when_columns_are_missing_then_as_plain(sparse, name, penalties):
    problem = Problem("logistic", 30, standardize=False, **penalties)
    plain, lazy = (
        fit(sparse, problem, minibatches(name, lazy, 20, miniBatchFraction=0.2, seed=4), stride=1)
        for lazy in (False, True)
    )
    np.testing.assert_allclose(lazy.w, plain.w, rtol=1e-9, atol=1e-12)
    assert np.count_nonzero(lazy.w) > 3


@pytest.mark.parametrize(("name", "lazy"), [("adagrad", False), ("ftrl", True)])
def test_full_steps_when_millions_of_features_then_little_memory(sparse, name, lazy):
    stride = SPARSE_FROM // 20
    problem = Problem("logistic", 29 * stride + 1, **BOTH)
    created = fit(sparse, problem, minibatches(name, lazy), COLUMNS, stride)
    plain = Rows(sparse.x, sparse.y, np.ones(40), sparse.cuts)
    std = np.sqrt(((plain.x - plain.x.mean(axis=0)) ** 2).sum(axis=0) / 39)
    std[std == 0] = np.inf
    w, b = expected(Rows(plain.x / std, plain.y, plain.c, plain.cuts), Problem("logistic", 30, **BOTH), name)
    assert (created.is_sparse, created.w.dtype) == (True, np.float32)
    np.testing.assert_allclose(created.w[:, 0], w / std, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(created.biases, b, rtol=1e-4)


def test_minibatches_when_worker_samples_no_row_then_goes_on(rows):
    created = fit(rows, Problem("logistic", 5), minibatches("adam", True, 10, miniBatchFraction=0.03), COLUMNS)
    assert created.history.steps == 10
    assert 0 < created.history.rows < 60
    assert np.isfinite(created.w).all()


@pytest.fixture(scope="module")
def shard():
    return make(cuts=())


@pytest.mark.parametrize(
    ("name", "lazy", "penalties", "staleness"),
    [(*case, staleness) for case, staleness in zip(CASES, itertools.cycle([3, -1]), strict=False)],
)
def test_worker_when_ahead_of_driver_then_sees_own_steps(shard, name, lazy, penalties, staleness):
    """A worker that waits for nobody takes NumPy's steps, one after the other, whatever the driver has got to."""
    problem = Problem("logistic", 5, standardize=False, **penalties)
    created = fit(shard, problem, minibatches(name, lazy, staleness=staleness))
    w, b = expected(shard, problem, name)
    tolerance = 1e-7 if name == "adam" else 1e-9
    np.testing.assert_allclose(created.w[:, 0], w, rtol=tolerance, atol=1e-12)
    np.testing.assert_allclose(created.biases, b, rtol=tolerance, atol=1e-12)


@pytest.mark.parametrize(("name", "penalties"), [("sgd", BOTH), ("adagrad", BOTH), ("adam", {}), ("ftrl", BOTH)])
def test_own_steps_when_of_two_workers_then_near_one_of_both(rows, name, penalties):
    problem = Problem("logistic", 5, standardize=False, **penalties)
    worth = []
    for staleness in (0, 1):
        options = minibatches(name, steps=40, staleness=staleness)
        created = fit(rows, problem, options)
        worth.append(objective(problem, rows, created.w, created.biases))
    assert worth[1] - minimum(problem, rows) < max(2 * (worth[0] - minimum(problem, rows)), 0.01)


def test_minibatches_when_seeds_are_equal_then_bit_identical(rows):
    options = minibatches("adam", False, 10, miniBatchFraction=0.5, seed=9)
    first, again = (fit(rows, Problem("logistic", 5), options) for _ in range(2))
    np.testing.assert_array_equal(first.w, again.w)
    np.testing.assert_array_equal(first.biases, again.biases)
    assert first.history.objective == again.history.objective


def test_history_when_rows_are_few_then_counts_rows_and_bytes(rows):
    created = fit(rows, Problem("logistic", 5), minibatches("sgd"))
    history = created.history
    assert (history.steps, history.rows, len(history.seconds)) == (STEPS, STEPS * 60, STEPS)
    assert history.objective[0] == pytest.approx(0.69, abs=0.01)
    # Two workers pull and push five weights and a bias, beside what they are told and tell.
    assert 2 * STEPS * 2 * 6 * 8 <= history.bytes <= 2 * STEPS * 400
    assert history.reason == "all steps were taken"
