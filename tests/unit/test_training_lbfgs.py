"""L-BFGS and OWL-QN reach the minimum that SciPy finds, and say how."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from training import Rows, fit, make, minimum, objective, plan_of

from ps2.algorithms.linear.parameters import SPARSE_FROM
from ps2.algorithms.linear.plan import Problem
from ps2.errors import InputError

OPTIONS = plan_of(maxIter=200, tol=1e-10)


@pytest.fixture(scope="module")
def rows():
    """Three classes, and features of different scales."""
    created = make(cuts=(20,), classes=3)
    return replace(created, x=created.x * [1, 3, 0.2, 1, 10])


@pytest.fixture(scope="module")
def two(rows):
    """The same features and two classes."""
    return replace(rows, y=(rows.y > 0).astype(float))


def found(rows, problem, options=OPTIONS):
    created = fit(rows, problem, options)
    return created.w, created.biases, created.history


CASES = [
    Problem("logistic", 5, l2=0.1),
    Problem("logistic", 5, l2=0.1, fit_intercept=False, standardize=False),
    Problem("softmax", 5, 3, l2=0.05),
    Problem("softmax", 5, 3, l2=0.05, fit_intercept=False),
    Problem("squared", 5, l2=0.1),
    Problem("squared", 5, standardize=False),
    Problem("huber", 5, l2=0.1),
    Problem("huber", 5, l2=0.1, fit_intercept=False),
    Problem("squaredHinge", 5, l2=0.1),
    Problem("logistic", 5, l1=0.03),
    Problem("squared", 5, l1=0.05, l2=0.05),
    Problem("squaredHinge", 5, l1=0.02, standardize=False),
]


@pytest.mark.parametrize("problem", CASES, ids=lambda p: f"{p.loss}-{p.fit_intercept:d}{p.standardize:d}-{p.l1}")
def test_training_when_converged_then_is_at_scipys_minimum(rows, two, problem):
    inputs = two if problem.classes == 2 else rows
    w, b, history = found(inputs, problem)
    reached = objective(problem, inputs, w, b)
    assert reached == pytest.approx(minimum(problem, inputs), abs=1e-6)
    assert history.objective[-1] == pytest.approx(reached, rel=1e-9)
    if not problem.fit_intercept:
        assert not b[: 3 if problem.loss == "softmax" else 1].any()


@pytest.mark.parametrize("size", [1e9, 1e-9])
def test_training_when_labels_are_scaled_then_weights_are_too(rows, size):
    problem, recipe = Problem("squared", 5), plan_of()
    w, b, history = found(rows, problem, recipe)
    other = replace(rows, y=rows.y * size)
    scaled, intercept, ended = found(other, problem, recipe)
    np.testing.assert_allclose(scaled / size, w, rtol=1e-6)
    assert intercept[0] / size == pytest.approx(b[0])
    assert ended.steps == history.steps


def test_lasso_when_trained_then_zeros_match_proximal_gradient(two):
    problem = Problem("logistic", 5, l1=0.08, standardize=False, fit_intercept=False)
    w, _, _ = found(two, problem)
    sign, share = 2 * two.y - 1, two.c / two.c.sum()
    step = 4 / np.linalg.norm(two.x * np.sqrt(share)[:, None], 2) ** 2
    expected = np.zeros(5)
    for _ in range(20_000):
        moved = expected + step * two.x.T @ (share * sign / (1 + np.exp(sign * (two.x @ expected))))
        expected = np.sign(moved) * np.maximum(np.abs(moved) - step * problem.l1, 0)
    np.testing.assert_allclose(w[:, 0], expected, atol=1e-4)
    assert ((w[:, 0] == 0) == (expected == 0)).all()
    assert 0 < np.count_nonzero(w) < 5


def test_history_when_trained_then_starts_before_step_1(two):
    problem = Problem("logistic", 5, l2=0.1)
    _, _, history = found(two, problem)
    prior = two.c @ two.y / two.c.sum()
    assert history.objective[0] == pytest.approx(-prior * np.log(prior) - (1 - prior) * np.log(1 - prior))
    assert (np.diff(history.objective) <= 0).all()
    assert len(history.objective) == history.steps + 1 == len(history.seconds) + 1
    evaluations = history.rows / 60
    assert history.steps + 1 <= evaluations <= 2 * history.steps + 2
    # Both workers pull and push five weights and a bias at each evaluation, beside what is told.
    assert evaluations * 2 * 2 * 6 * 8 <= history.bytes + 1000 <= evaluations * 2 * 400
    assert "tolerance" in history.reason


@pytest.mark.parametrize("l1", [0.0, 0.01])
def test_training_when_millions_of_features_float32_converges(l1):
    rows, stride = make(n=40, dim=30, cuts=(25,), zeros=0.8), SPARSE_FROM // 20
    problem = Problem("logistic", 29 * stride + 1, l1=l1, l2=0.02)
    created = fit(rows, problem, plan_of(maxIter=60, tol=1e-7), stride=stride)
    assert created.is_sparse
    alone = replace(problem, dim=30)
    assert objective(alone, rows, created.w, created.biases) == pytest.approx(minimum(alone, rows), abs=1e-5)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_training_when_steps_are_few_then_takes_no_more(two, steps):
    _, _, history = found(two, Problem("logistic", 5, l2=1e-3), plan_of(maxIter=steps, tol=0.0))
    assert (history.steps, history.reason) == (steps, "all iterations were made")


def test_features_when_constant_then_get_no_weight():
    rows = make(n=30, dim=3, cuts=(10,))
    rows = replace(rows, x=np.stack([rows.x[:, 0], np.full(30, 0.1), np.full(30, 7e8)], axis=1), c=rows.c / 10)
    problem = Problem("logistic", 3, l2=0.01)
    w, b, _ = found(rows, problem)
    assert w[1:].ravel().tolist() == [0, 0]
    alone, of_one = replace(rows, x=rows.x[:, :1]), replace(problem, dim=1)
    assert objective(of_one, alone, w[:1], b) == pytest.approx(minimum(of_one, alone), abs=1e-6)


def test_features_when_constant_then_intercept_is_class_prior():
    rows = make(n=20, dim=1, cuts=(10,))
    rows = replace(rows, x=np.full((20, 1), 0.3), c=np.ones(20))
    w, b, _ = found(rows, Problem("logistic", 1))
    assert (w.tolist(), b[0]) == ([[0.0]], pytest.approx(np.log(rows.y.sum() / (20 - rows.y.sum()))))


def test_features_when_means_are_large_then_few_extra_steps(two):
    problem, recipe = Problem("logistic", 5, l2=1e-3), plan_of(maxIter=100, tol=1e-9)
    far = replace(two, x=two.x + 100 * two.x.std(axis=0))
    w, b, near = found(two, problem, recipe)
    moved, shifted, history = found(far, problem, recipe)
    assert history.steps <= near.steps + 3
    np.testing.assert_allclose(moved, w, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(far.x @ moved + shifted, two.x @ w + b, atol=1e-2)


@pytest.mark.parametrize("l1", [0.0, 1e-4])
def test_features_when_scales_differ_unscaled_then_few_steps(two, l1):
    problem, recipe = Problem("logistic", 5, l1=l1, l2=1e-3, standardize=False), plan_of(maxIter=200, tol=1e-9)
    different = replace(two, x=two.x * [1, 1e3, 1e-3, 1e5, 30])
    _, _, alike = found(two, problem, recipe)
    w, b, history = found(different, problem, recipe)
    assert history.steps <= alike.steps + 5
    assert history.objective[-1] == pytest.approx(objective(problem, different, w, b), rel=1e-9)


def test_training_when_feature_separates_class_then_stays_finite():
    """Without a penalty there is no minimum: weights grow until the tolerance or the steps end it."""
    rows = Rows(np.repeat([[-1.0], [1.0]], 10, axis=0), np.repeat([0.0, 1.0], 10), np.ones(20), (7,))
    w, _, history = found(rows, Problem("logistic", 1), plan_of(maxIter=50, tol=1e-6))
    assert np.isfinite(w).all()
    assert history.objective[-1] < 1e-3


@pytest.mark.parametrize("size", [1e308, 1e-290])
def test_features_when_squares_overflow_then_match_scaled_ones(size):
    rows, problem = make(n=40, dim=2, cuts=(20,)), Problem("logistic", 2, l2=0.1)
    rows = replace(rows, x=np.clip(rows.x, -1, 1))
    expected, intercept, _ = found(rows, problem)
    extreme = replace(rows, x=rows.x * [1.0, size])
    w, b, _ = found(extreme, problem)
    np.testing.assert_allclose(w[:, 0] * [1.0, size], expected[:, 0], rtol=1e-6)
    np.testing.assert_allclose(b, intercept, rtol=1e-6)


def test_feature_when_deviation_has_no_reciprocal_then_is_named():
    rows = make(n=20, dim=2, cuts=(10,))
    rows = replace(rows, x=rows.x * [1.0, 1e-320])
    with pytest.raises(InputError, match=r"features: feature 1 has a standard deviation of .*e-32., too small"):
        found(rows, Problem("logistic", 2))


def test_factor_when_gradient_overflows_then_error_names_it():
    rows = make(n=20, dim=2, cuts=(10,))
    rows = replace(rows, x=rows.x * [1.0, 1e158])
    with pytest.raises(InputError, match=r"the gradient by the weight of feature 1 is .*e.15.: its values are too"):
        found(rows, Problem("fmLogistic", 2, 2, init_std=1e-6, standardize=False))
