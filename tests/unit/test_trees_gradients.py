"""Gradients and hessians are derivatives of the losses."""

from __future__ import annotations

import numpy as np
import pytest
import xgboost

from ps2.algorithms.trees import gradient_kernels as kernels

CODES = {
    "logistic": kernels.LOGISTIC,
    "squared": kernels.SQUARED,
    "absolute": kernels.ABSOLUTE,
    "huber": kernels.HUBER,
    "poisson": kernels.POISSON,
    "quantile": kernels.QUANTILE,
}
SHAPE, STEP = 0.7, 1e-5
NONE = np.empty(0)


def sample(name, rows=200, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, rows) if name == "logistic" else rng.poisson(2, rows)
    return rng.normal(size=rows) * 2, y.astype(float), rng.random(rows) + 0.5


def pairs_of(name, margins, y, weights=NONE):
    out = np.empty((len(y), 2))
    most = kernels.gradients(margins, y, weights, CODES[name], SHAPE, out)
    return out, most


def each_loss(name, margins, y):
    return np.array([kernels.loss_at(CODES[name], SHAPE, m, label) for m, label in zip(margins, y, strict=True)])


@pytest.mark.parametrize("name", CODES)
def test_gradients_when_computed_then_they_are_derivatives_of_the_loss(name):
    margins, y, _ = sample(name)
    slopes = (each_loss(name, margins + STEP, y) - each_loss(name, margins - STEP, y)) / (2 * STEP)
    np.testing.assert_allclose(pairs_of(name, margins, y)[0][:, 1], slopes, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["logistic", "squared", "poisson"])
def test_hessians_when_losses_are_curved_then_they_are_derivatives_of_gradients(name):
    margins, y, _ = sample(name)
    slopes = (pairs_of(name, margins + STEP, y)[0] - pairs_of(name, margins - STEP, y)[0])[:, 1] / (2 * STEP)
    np.testing.assert_allclose(pairs_of(name, margins, y)[0][:, 0], slopes, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", CODES)
def test_gradients_when_rows_have_weights_then_they_are_multiplied_and_the_largest_is_told(name):
    margins, y, weights = sample(name)
    weights[::7] = 0.0
    plain, _ = pairs_of(name, margins, y)
    margins[::7] = np.inf
    found, most = pairs_of(name, margins, y, weights)
    np.testing.assert_allclose(found, plain * weights[:, None])
    np.testing.assert_allclose(most, np.abs(found).max(axis=0))
    total, weight = kernels.losses(margins, y, weights, CODES[name], SHAPE)
    kept = weights > 0
    np.testing.assert_allclose(total, (each_loss(name, margins[kept], y[kept]) * weights[kept]).sum())
    np.testing.assert_allclose(weight, weights.sum())


@pytest.mark.parametrize("margin", [-800.0, -40.0, 0.0, 40.0, 800.0])
def test_logistic_when_margins_are_far_out_then_nothing_is_lost_or_infinite(margin):
    (pair,), _ = pairs_of("logistic", np.array([margin]), np.array([1.0]))
    np.testing.assert_allclose(pair[1], -np.exp(-np.logaddexp(0, margin)), rtol=1e-12)
    assert pair[0] > 0
    np.testing.assert_allclose(each_loss("logistic", [margin], [1.0]), np.logaddexp(0, -margin), rtol=1e-12)


def test_softmax_when_computed_then_they_are_derivatives_of_the_loss():
    rng = np.random.default_rng(1)
    margins, y, weights = rng.normal(size=(50, 4)) * 3, rng.integers(0, 4, 50).astype(float), rng.random(50)
    weights[::5] = 0.0
    out = np.empty((4, 50, 2))
    most = kernels.softmax_gradients(margins, y, weights, out)
    np.testing.assert_allclose(most, np.abs(out).max(axis=(0, 1)))
    p = np.exp(margins) / np.exp(margins).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(out[:, :, 0].T, 2 * p * (1 - p) * weights[:, None], rtol=1e-10)
    for c in range(4):
        ends = []
        for step in (STEP, -STEP):
            moved = margins.copy()
            moved[:, c] += step
            ends.append([kernels.softmax_losses(moved[[i]], y[[i]], weights[[i]])[0] for i in range(50)])
        np.testing.assert_allclose(out[c, :, 1], np.subtract(*ends) / (2 * STEP), rtol=1e-4, atol=1e-6)


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
    total, weight = kernels.losses(margins, y, weights, CODES[name], SHAPE)
    if name == "poisson":  # xgboost's has what does not depend on the margin
        total += (weights * np.array([np.log(np.arange(1, int(label) + 1)).sum() for label in y])).sum()
    np.testing.assert_allclose(total / weight, results["train"][metric][0], rtol=1e-5)
