"""Gradients and hessians are derivatives of the losses."""

from __future__ import annotations

import numpy as np
import pytest
import xgboost

from ps2.algorithms.trees import gradients as kernels
from ps2.algorithms.trees.gradients import CODES, Objective, exponent_counts, sum_bounds

SHAPE, STEP = 0.7, 1e-5
NONE = np.empty(0)


def sample(name, rows=200, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, rows) if name == "logistic" else rng.poisson(2, rows)
    return rng.normal(size=rows) * 2, y.astype(float), rng.random(rows) + 0.5


def pairs_of(name, margins, y, weights=NONE):
    return Objective(name, shape=SHAPE).gradients(margins[:, None], y, weights)[0][0]


def each_loss(name, margins, y):
    return np.array([kernels.loss_at(CODES[name], SHAPE, m, label) for m, label in zip(margins, y, strict=True)])


@pytest.mark.parametrize("name", CODES)
def test_gradients_when_computed_then_are_loss_derivatives(name):
    margins, y, _ = sample(name)
    slopes = (each_loss(name, margins + STEP, y) - each_loss(name, margins - STEP, y)) / (2 * STEP)
    np.testing.assert_allclose(pairs_of(name, margins, y)[:, 1], slopes, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["logistic", "squared", "poisson"])
def test_hessians_when_losses_are_curved_then_match_derivatives(name):
    margins, y, _ = sample(name)
    slopes = (pairs_of(name, margins + STEP, y) - pairs_of(name, margins - STEP, y))[:, 1] / (2 * STEP)
    np.testing.assert_allclose(pairs_of(name, margins, y)[:, 0], slopes, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", CODES)
def test_gradients_when_rows_have_weights_then_are_multiplied(name):
    margins, y, weights = sample(name)
    weights[::7] = 0.0
    plain = pairs_of(name, margins, y)
    margins[::7] = np.inf
    result = pairs_of(name, margins, y, weights)
    np.testing.assert_allclose(result, plain * weights[:, None])
    total, weight = Objective(name, shape=SHAPE).losses(margins[:, None], y, weights)
    kept = weights > 0
    np.testing.assert_allclose(total, (each_loss(name, margins[kept], y[kept]) * weights[kept]).sum())
    np.testing.assert_allclose(weight, weights.sum())


@pytest.mark.parametrize("margin", [-800.0, -40.0, 0.0, 40.0, 800.0])
def test_logistic_when_margins_are_extreme_then_stays_finite(margin):
    (pair,) = pairs_of("logistic", np.array([margin]), np.array([1.0]))
    np.testing.assert_allclose(pair[1], -np.exp(-np.logaddexp(0, margin)), rtol=1e-12)
    assert pair[0] > 0
    np.testing.assert_allclose(each_loss("logistic", [margin], [1.0]), np.logaddexp(0, -margin), rtol=1e-12)


@pytest.mark.parametrize("is_weighted", [False, True])
def test_logistic_when_rows_fill_tiles_then_each_row_is_right(is_weighted):
    margins, y, weights = sample("logistic", 1700)
    margins[::50] *= 30
    weights = weights if is_weighted else NONE
    pairs, (loss, weight) = Objective("logistic").gradients(margins[:, None], y, weights)
    p, row_weights = 1 / (1 + np.exp(-margins)), weights if is_weighted else np.ones(1700)
    np.testing.assert_allclose(pairs[0, :, 1], (p - y) * row_weights, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(pairs[0, :, 0], p * (1 - p) * row_weights, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(loss, (np.logaddexp(0, np.where(y > 0, -margins, margins)) * row_weights).sum())
    np.testing.assert_allclose(weight, row_weights.sum())


def test_logistic_when_losses_are_tiny_then_sum_keeps_its_digits():
    margins = np.full((512, 1), 45.0)
    _, (loss, _) = Objective("logistic").gradients(margins, np.ones(512))
    np.testing.assert_allclose(loss, 512 * np.exp(-45.0), rtol=1e-12)


def test_logistic_when_a_margin_is_nan_then_so_are_gradients():
    assert np.isnan(pairs_of("logistic", np.array([0.0, np.nan]), np.ones(2))[1]).any()


def test_softmax_when_computed_then_gradients_match_loss():
    rng = np.random.default_rng(1)
    margins, y, weights = rng.normal(size=(50, 4)) * 3, rng.integers(0, 4, 50).astype(float), rng.random(50)
    weights[::5] = 0.0
    softmax = Objective("softmax", 4)
    out, _ = softmax.gradients(margins, y, weights)
    p = np.exp(margins) / np.exp(margins).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(out[:, :, 0].T, 2 * p * (1 - p) * weights[:, None], rtol=1e-10)
    for c in range(4):
        ends = []
        for step in (STEP, -STEP):
            moved = margins.copy()
            moved[:, c] += step
            ends.append([softmax.losses(moved[[i]], y[[i]], weights[[i]])[0] for i in range(50)])
        np.testing.assert_allclose(out[c, :, 1], np.subtract(*ends) / (2 * STEP), rtol=1e-4, atol=1e-6)


def sums_of(pairs):
    return np.abs(pairs).sum(axis=(0, 1))


@pytest.mark.parametrize("size", [1e-300, 1e-9, 1.0, 3.7, 1e12, 1e300])
def test_sums_below_when_summed_by_exponent_then_at_most_twice(size):
    rng = np.random.default_rng(5)
    pairs = size * rng.normal(size=(2, 300, 2)) * np.exp(3 * rng.normal(size=(2, 300, 2)))
    pairs[:, ::3] = 0.0
    weights = size * rng.random(300)
    result = sum_bounds(exponent_counts(pairs, weights))
    exact = np.append(sums_of(pairs), weights.sum())
    assert (exact <= result).all()
    assert (result <= 2 * exact * (1 + 1e-12)).all()
    parts = [exponent_counts(pairs[:, part], weights[part]) for part in (slice(0, 70), slice(70, None))]
    assert sum_bounds(sum(parts)).tolist() == result.tolist()


def test_sums_below_when_gradient_is_infinite_then_is_infinite():
    assert sum_bounds(exponent_counts(np.array([[[0.25, np.inf], [0.5, 1.0]]]), NONE)).tolist() == [1.5, np.inf, 2.0]


@pytest.mark.parametrize("step", [0.0, 0.3, 4.0])
@pytest.mark.parametrize("name", [*CODES, "softmax"])
def test_bounds_after_when_margins_move_by_step_then_bound_sums(name, step):
    rng = np.random.default_rng(3)
    width = 3 if name == "softmax" else 1
    y = rng.integers(0, 3, 500).astype(float) if width == 3 else sample(name, 500)[1]
    objective, weights, margins = Objective(name, width, SHAPE), rng.random(500) + 0.5, rng.normal(size=(500, width))
    before = np.append(sums_of(objective.gradients(margins, y, weights)[0]), weights.sum())
    moves = step * rng.random(margins.shape) * rng.choice([-1.0, 1.0], margins.shape)
    result = sums_of(objective.gradients(margins + moves, y, weights)[0])
    assert (result <= np.array(objective.bounds_after(before, step)) * (1 + 1e-12)).all()
    if width == 1:
        known = objective.bounds_after(before, step, float(weights @ np.abs(moves[:, 0])))
        assert (result <= np.array(known) * (1 + 1e-12)).all()
        assert known[1] <= objective.bounds_after(before, step)[1]


@pytest.mark.parametrize("name", [*CODES, "softmax"])
def test_gradients_when_computed_then_losses_come_with_them(name):
    width = 3 if name == "softmax" else 1
    margins, y, weights = sample(name)
    weights[::7] = 0.0
    if width == 3:
        margins, y = np.random.default_rng(4).normal(size=(200, 3)), np.arange(200) % 3.0
    margins, objective = margins.reshape(200, width), Objective(name, width, SHAPE)
    np.testing.assert_allclose(
        objective.gradients(margins, y, weights)[1], objective.losses(margins, y, weights), rtol=1e-12
    )


@pytest.mark.parametrize(
    ("name", "metric"), [("logistic", "logloss"), ("poisson", "poisson-nloglik"), ("quantile", "quantile")]
)
def test_losses_when_summed_then_their_mean_is_xgboosts_metric(name, metric):
    margins, y, weights = sample(name)
    objective = {"logistic": "binary:logistic", "poisson": "count:poisson", "quantile": "reg:quantileerror"}[name]
    data = xgboost.DMatrix(np.zeros((len(y), 1)), y, weight=weights, base_margin=margins)
    params = {"objective": objective, "eval_metric": metric, "max_depth": 1, "nthread": 1, "eta": 0.0}
    if name == "quantile":
        params["quantile_alpha"] = SHAPE
    results = {}
    xgboost.train(params, data, 1, evals=[(data, "train")], evals_result=results, verbose_eval=False)
    total, weight = Objective(name, shape=SHAPE).losses(margins[:, None], y, weights)
    if name == "poisson":  # xgboost's has what does not depend on the margin
        total += (weights * np.array([np.log(np.arange(1, int(label) + 1)).sum() for label in y])).sum()
    np.testing.assert_allclose(total / weight, results["train"][metric][0], rtol=1e-5)


@pytest.mark.parametrize("name", [*CODES, "softmax"])
def test_base_when_there_are_no_trees_then_is_best_margin(name):
    rng = np.random.default_rng(2)
    width = 3 if name == "softmax" else 1
    y = rng.integers(0, 3, 201).astype(float) if width == 3 else sample(name, 201)[1]
    objective = Objective(name, width, SHAPE)
    quantile = np.quantile(y, objective.label_quantile_level or 0.5, method="inverted_cdf")
    base = objective.base(y.mean(), np.bincount(y.astype(int)).astype(float), quantile)
    assert base.shape == (width,)
    best = objective.losses(np.tile(base, (201, 1)), y)[0]
    for c in range(width):
        for step in (-0.05, 0.05):
            moved = np.tile(base + step * (np.arange(width) == c), (201, 1))
            # A median is where Huber's loss begins; it is not its minimum.
            assert objective.losses(moved, y)[0] >= best * (0.95 if name == "huber" else 1 - 1e-12)


def test_base_when_class_is_empty_or_weightless_then_is_finite():
    assert np.isfinite(Objective("logistic").base(0.0, np.array([0.0, 9.0]))).all()
    assert Objective("softmax", 3).base(0.0, np.array([0.4, 0.0, 0.9]), row_weight=0.1).argmin() == 1
    assert np.isfinite(Objective("softmax", 3).base(0.0, np.array([4.0, 0.0, 9.0]))).all()
    assert Objective("poisson").base(0.0, np.empty(0)).tolist() == [0.0]
