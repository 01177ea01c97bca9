"""Losses of linear models are the weighted sums of their formulas, and their gradients the derivatives of these."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp

from ps2.algorithms.linear.losses import loss_of
from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.training.table import Facts
from ps2.data.rows import LocalRows
from ps2.errors import ConfigError, ShapeError

ROWS, KEYS = 30, 7
CLASSIFIERS = ["logistic", "hinge", "squaredHinge"]
REGRESSIONS = ["squared", "huber"]
NAMES = CLASSIFIERS + REGRESSIONS


def rows_of(name, weights=True, dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    x = sp.random_array((ROWS, KEYS), density=0.4, format="csr", dtype="float64", rng=rng).astype(dtype)
    y = rng.integers(0, 2, ROWS).astype(float) if name in CLASSIFIERS else 3 * rng.standard_normal(ROWS)
    return LocalRows(np.arange(KEYS), x, y, rng.integers(0, 4, ROWS).astype(float) if weights else None)


def model_of(problem, seed=1):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(KEYS * problem.width), 0.5 * rng.standard_normal(problem.biases)


def oracle(problem, margins, y, b):
    sign = 2 * y - 1
    if problem.loss == "logistic":
        return np.logaddexp(0, margins) - y * margins
    if problem.loss == "hinge":
        return np.maximum(0, 1 - sign * margins)
    if problem.loss == "squaredHinge":
        return np.maximum(0, 1 - sign * margins) ** 2
    if problem.loss == "squared":
        return (margins - y) ** 2 / 2
    sigma, epsilon = np.exp(b[1]), problem.epsilon
    z = np.abs(margins - y) / sigma
    return (sigma + np.where(z < epsilon, z**2, 2 * epsilon * z - epsilon**2) * sigma) / 2


@pytest.mark.parametrize("name", NAMES)
def test_loss_when_rows_have_weights_then_is_weighted_sum(name):
    problem, rows = Problem(name, KEYS), rows_of(name)
    w, b = model_of(problem)
    total, weight = loss_of(problem).loss(rows, w, b)
    expected = rows.weights @ oracle(problem, rows.x.toarray() @ w + b[0], rows.y, b)
    np.testing.assert_allclose([total, weight], [expected, rows.weights.sum()], rtol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_when_checked_by_finite_differences_then_agrees(name):
    problem, rows = Problem(name, KEYS), rows_of(name)
    loss = loss_of(problem)
    model = np.concatenate(model_of(problem))
    at = loss.gradient(rows, model[:KEYS], model[KEYS:])

    def total(v):
        return loss.loss(rows, v[:KEYS], v[KEYS:])[0]

    steps = 1e-6 * np.eye(len(model))
    slopes = [(total(model + step) - total(model - step)) / 2e-6 for step in steps]
    np.testing.assert_allclose(np.concatenate([at.dw, at.db]), slopes, rtol=1e-6, atol=1e-6)
    assert (at.loss, at.weight) == loss.loss(rows, model[:KEYS], model[KEYS:])


@pytest.mark.parametrize("name", NAMES)
def test_gradient_when_weights_are_row_counts_then_is_the_same(name):
    problem, rows = Problem(name, KEYS), rows_of(name)
    loss, model = loss_of(problem), model_of(problem)
    weighted = loss.gradient(rows, *model)
    often = np.repeat(np.arange(ROWS), rows.weights.astype(int))
    repeated = loss.gradient(LocalRows(rows.keys, rows.x[often], rows.y[often]), *model)
    np.testing.assert_allclose(weighted.dw, repeated.dw, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(weighted.db, repeated.db, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose([weighted.loss, weighted.weight], [repeated.loss, repeated.weight], rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_when_values_are_float32_then_sums_are_float64(name):
    problem = Problem(name, KEYS)
    narrow, (w, b) = rows_of(name, dtype="float32"), model_of(problem)
    w = w.astype("float32")
    wide = replace(narrow, x=narrow.x.astype("float64"))
    of_narrow, of_wide = (
        loss_of(problem).gradient(narrow, w, b),
        loss_of(problem).gradient(wide, w.astype("float64"), b),
    )
    np.testing.assert_allclose(of_narrow.dw, of_wide.dw, rtol=1e-13)
    np.testing.assert_allclose(of_narrow.loss, of_wide.loss, rtol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_when_intercept_is_not_trained_then_its_is_0(name):
    problem, rows = Problem(name, KEYS), rows_of(name)
    model = model_of(problem)
    fitted = loss_of(problem).gradient(rows, *model)
    at = loss_of(replace(problem, fit_intercept=False)).gradient(rows, *model)
    assert at.db[0] == 0
    np.testing.assert_array_equal(at.dw, fitted.dw)
    np.testing.assert_array_equal(at.db[1:], fitted.db[1:])


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_gradient_when_margins_are_extreme_then_all_is_finite(name):
    x = sp.csr_array(np.array([[1e4], [-1e4], [1e4], [-1e4]]))
    rows = LocalRows(np.arange(1), x, np.array([1.0, 1, 0, 0]))
    at = loss_of(Problem(name, 1)).gradient(rows, np.ones(1), np.zeros(1))
    expected = {"logistic": 2e4, "hinge": 2 * (1e4 + 1), "squaredHinge": 2 * (1e4 + 1) ** 2}[name]
    np.testing.assert_allclose(at.loss, expected)
    assert np.isfinite(at.dw).all()


def test_gradient_when_logistic_is_certain_then_keeps_digits():
    rows = LocalRows(np.arange(1), sp.csr_array(np.ones((1, 1))), np.ones(1))
    at = loss_of(Problem("logistic", 1)).gradient(rows, np.full(1, 50.0), np.zeros(1))
    np.testing.assert_allclose(at.dw, [-np.exp(-50.0)], rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_when_there_are_no_rows_then_all_is_0(name):
    problem = Problem(name, KEYS)
    none = LocalRows(np.arange(0), sp.csr_array((0, 0)), np.empty(0))
    at = loss_of(problem).gradient(none, np.empty(0), np.zeros(problem.biases))
    assert (at.loss, at.weight, at.dw.shape) == (0, 0, (0,))
    assert not at.db.any()


@pytest.mark.parametrize("name", NAMES)
def test_gradient_when_rows_are_empty_then_only_biases_have_one(name):
    problem = Problem(name, KEYS)
    rows = LocalRows(np.arange(KEYS), sp.csr_array((3, KEYS)), np.array([0.0, 1, 1]))
    w, b = model_of(problem)
    at = loss_of(problem).gradient(rows, w, b)
    assert not at.dw.any()
    np.testing.assert_allclose(at.loss, oracle(problem, np.full(3, b[0]), rows.y, b).sum())


@pytest.mark.parametrize("name", NAMES)
def test_gradient_when_row_weight_is_0_then_content_is_ignored(name):
    problem = Problem(name, 1)
    x = sp.csr_array(np.array([[1e308], [1.0]]))
    rows = LocalRows(np.arange(1), x, np.array([0.0, 1]), np.array([0.0, 1]))
    at = loss_of(problem).gradient(rows, np.full(1, 1e10), np.zeros(problem.biases))
    assert np.isfinite(at.loss)
    assert np.isfinite(at.dw).all()


@pytest.mark.parametrize("name", NAMES)
def test_margins_when_asked_then_are_x_times_w_plus_intercept(name):
    problem, rows = Problem(name, KEYS), rows_of(name)
    w, b = model_of(problem)
    np.testing.assert_allclose(loss_of(problem).margins(rows.x, w, b), rows.x.toarray() @ w + b[0], rtol=1e-12)


def test_huber_when_sigma_is_minimised_then_solves_concomitant():
    # At the optimum of Owen's objective, sum over inliers z^2 + sum over outliers epsilon^2 = n.
    problem = Problem("huber", KEYS)
    rows = rows_of("huber", weights=False)
    rows.y[:3] += 50

    def evaluate(v):
        at = loss_of(problem).gradient(rows, v[:KEYS], v[KEYS:])
        return at.loss, np.concatenate([at.dw, at.db])

    start = np.zeros(KEYS + 2)
    best = scipy.optimize.minimize(evaluate, start, jac=True, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9})
    z = (rows.y - rows.x @ best.x[:KEYS] - best.x[KEYS]) / np.exp(best.x[-1])
    np.testing.assert_allclose(np.minimum(z**2, problem.epsilon**2).sum(), ROWS, rtol=1e-5)
    np.testing.assert_allclose(rows.x.T @ np.clip(z, -problem.epsilon, problem.epsilon), 0, atol=1e-5)


FACTS = Facts(10, 20.0, 60.0, (5.0, 15.0), 7.5, 2.0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("logistic", [np.log(3.0)]),
        ("hinge", [0.0]),
        ("squaredHinge", [0.0]),
        ("squared", [7.5]),
        ("huber", [7.5, np.log(2.0)]),
    ],
)
def test_initial_biases_when_facts_are_known_then_of_null_model(name, expected):
    np.testing.assert_allclose(loss_of(Problem(name, KEYS)).initial_biases(FACTS), expected)


@pytest.mark.parametrize("name", NAMES)
def test_initial_biases_when_intercept_is_not_trained_then_0(name):
    assert loss_of(Problem(name, KEYS, fit_intercept=False)).initial_biases(FACTS)[0] == 0


@pytest.mark.parametrize("class_weights", [(20.0, 0.0), (0.0, 20.0), (20.0,), ()])
def test_initial_biases_when_a_class_is_empty_then_finite(class_weights):
    facts = replace(FACTS, class_weights=class_weights)
    assert np.isfinite(loss_of(Problem("logistic", KEYS)).initial_biases(facts)).all()


def test_initial_biases_when_labels_are_equal_then_scale_is_1():
    assert loss_of(Problem("huber", KEYS)).initial_biases(replace(FACTS, label_std=0.0))[1] == 0


@pytest.mark.parametrize("name", NAMES)
def test_loss_of_when_pickled_then_it_is_the_same(name):
    loss = loss_of(Problem(name, KEYS))
    assert pickle.loads(pickle.dumps(loss)) == loss


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"w": np.zeros(KEYS + 1)}, "w: expected shape"),
        ({"b": np.zeros(2)}, "b: expected shape"),
        ({"y": np.zeros(ROWS - 1)}, "y: expected shape"),
        ({"y": None}, "got none"),
        ({"weights": np.zeros(ROWS + 1)}, "weights: expected shape"),
    ],
)
def test_gradient_when_shape_does_not_fit_then_error_names_it(change, named):
    rows = rows_of("logistic")
    rows = replace(rows, y=change.get("y", rows.y), weights=change.get("weights", rows.weights))
    with pytest.raises(ShapeError, match=named):
        loss_of(Problem("logistic", KEYS)).gradient(rows, change.get("w", np.zeros(KEYS)), change.get("b", np.zeros(1)))


@pytest.mark.parametrize(
    ("problem", "named"),
    [
        (Problem("absolute", KEYS), "absolute"),  # type: ignore[arg-type]
        (Problem("logistic", KEYS, width=2), "width of 1"),
        (Problem("huber", KEYS, epsilon=1.0), "epsilon above 1"),
    ],
)
def test_loss_of_when_loss_is_unknown_then_error_says_so(problem, named):
    with pytest.raises(ConfigError, match=named):
        loss_of(problem)
