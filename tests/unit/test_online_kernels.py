"""Kernels of online models against the formulas, row by row."""

from __future__ import annotations

from math import exp, sqrt

import numpy as np
import pytest

from ps2.algorithms import OnlineFM, OnlineLogisticRegression
from ps2.algorithms.online import kernels, ops
from ps2.algorithms.online.plan import OnlinePlan
from ps2.algorithms.online.program import check_changes
from ps2.algorithms.online.scoring import BIAS, score
from ps2.data.key_rows import KeyRows
from ps2.errors import ConfigError, InputError
from ps2.ops.guards import readable

ROWS, WIDTH, KEYS = 300, 4, 20
RNG = np.random.default_rng(0)
PLACES = np.concatenate([RNG.permutation(KEYS)[:WIDTH] for _ in range(ROWS)]).astype(np.int32)
VALUES = RNG.normal(size=ROWS * WIDTH).astype(np.float32)
LABELS = (RNG.random(ROWS) < 0.3).astype(np.float32)
WEIGHTS = RNG.random(ROWS).astype(np.float32)
INDPTR = np.arange(ROWS + 1) * WIDTH
GIVEN = tuple(map(readable, (INDPTR, PLACES, VALUES, LABELS, WEIGHTS)))


def learned(settings, blocks, tail=0):
    changes, margins = np.zeros((KEYS, 2 * settings.k), np.float32), np.empty(ROWS)
    kernels.learn_rows(GIVEN, readable(blocks), changes, tail, settings.is_ftrl, settings.rates, margins)
    return changes, margins


def test_ftrl_when_rows_come_then_algorithm_1_of_the_paper():
    settings = OnlinePlan(alpha=0.3, beta=0.7, l1=0.2, l2=0.1)
    z, n, expected = np.zeros(KEYS), np.zeros(KEYS), np.empty(ROWS)

    def weight(key):
        if abs(z[key]) <= 0.2:
            return 0.0
        return -(z[key] - np.sign(z[key]) * 0.2) / ((0.7 + sqrt(n[key])) / 0.3 + 0.1)

    for row in range(ROWS):
        pairs = slice(row * WIDTH, (row + 1) * WIDTH)
        w = [weight(key) for key in PLACES[pairs]]
        expected[row] = np.dot(w, VALUES[pairs].astype(float))
        slope = (1 / (1 + exp(-expected[row])) - LABELS[row]) * WEIGHTS[row]
        for key, x, wi in zip(PLACES[pairs], VALUES[pairs].astype(float), w, strict=True):
            g = slope * x
            z[key] += g - (sqrt(n[key] + g * g) - sqrt(n[key])) / 0.3 * wi
            n[key] += g * g
    changes, margins = learned(settings, np.zeros((KEYS, 3), np.float32))
    np.testing.assert_allclose(margins, expected, atol=1e-5)
    np.testing.assert_allclose(changes, np.column_stack((n, z)), atol=1e-4)


def test_add_changes_when_ftrl_then_weights_follow_from_sums():
    settings = OnlinePlan(alpha=0.3, l1=0.2)
    blocks = np.zeros((KEYS, 3), np.float32)
    changes, _ = learned(settings, blocks)
    for half in (changes / 2, changes / 2):
        ops.add_changes(blocks, np.arange(KEYS), half, ftrl=True, alpha=0.3, beta=1.0, l1=0.2, l2=0.0)
    expected = [kernels.ftrl_weight(float(z), float(n), settings.rates) for n, z in changes]
    np.testing.assert_allclose(blocks[:, 0], expected, rtol=1e-5)
    np.testing.assert_allclose(blocks[:, 1:], changes, rtol=1e-6)


@pytest.mark.parametrize("tail", [0, 1])
def test_gradients_of_fm_when_summed_then_those_of_differences(tail):
    weights = (RNG.normal(size=(KEYS, 3)) * 0.3).astype(np.float32)
    gradients, margins = np.zeros((KEYS, 3), np.float32), np.empty(ROWS)
    kernels.sum_gradients(GIVEN, readable(weights), gradients, tail, margins)

    def loss(at):
        result = np.empty(ROWS)
        kernels.predict_rows(*GIVEN[:3], readable(at.astype(np.float32)), tail, result)
        return np.sum(WEIGHTS * (np.logaddexp(0, result) - LABELS * result), dtype=np.float64)

    for position in [(0, 0), (3, 1), (7, 2)]:
        step = np.zeros_like(weights)
        step[position] = 1e-2
        assert gradients[position] == pytest.approx((loss(weights + step) - loss(weights - step)) / 2e-2, abs=2e-3)


@pytest.mark.parametrize("optimizer", ["ftrl", "adagrad"])
def test_fm_when_it_learns_a_row_again_then_its_loss_falls(optimizer):
    settings = OnlinePlan(factors=2, optimizer=optimizer)
    blocks = np.zeros((KEYS, 7), np.float32)
    blocks[:, 1:3] = RNG.normal(size=(KEYS, 2)) * 0.1
    losses = []
    for _ in range(3):
        changes, margins = learned(settings, blocks)
        losses.append(np.mean(WEIGHTS * (np.logaddexp(0, margins) - LABELS * margins)))
        ops.add_changes(blocks, np.arange(KEYS), changes, ftrl=settings.is_ftrl, alpha=settings.alpha)
    assert losses[0] > losses[1] > losses[2]


@pytest.mark.parametrize("optimizer", ["ftrl", "adagrad"])
@pytest.mark.parametrize("value", [1e20, 1e30])
def test_changes_when_a_value_is_huge_then_are_refused(optimizer, value):
    """The square of its gradient overflows float32: on the servers it would end the key's learning without a word."""
    inputs = readable(np.array([0, 1])), np.zeros(1, np.int32), readable(np.array([value], np.float32))
    one, none, changes = readable(np.ones(1, np.float32)), np.empty(0, np.float32), np.zeros((1, 2), np.float32)
    settings, margins = OnlinePlan(optimizer=optimizer), np.empty(1)
    blocks = readable(np.zeros((1, 3), np.float32))
    rows = *inputs, one, readable(none)
    kernels.learn_rows(rows, blocks, changes, 0, settings.is_ftrl, settings.rates, margins)
    assert margins[0] == 0
    with pytest.raises(InputError, match=r"gradients of at most 1e\+15.* got a larger one for key 7"):
        check_changes(changes, np.array([7]))


def test_settings_when_adam_has_l1_then_is_refused():
    with pytest.raises(ConfigError, match="l1: expected 0 with 'adam'"):
        OnlinePlan(optimizer="adam", local_steps=False, l1=1.0)


@pytest.mark.parametrize(
    ("estimator", "given"),
    [
        (OnlineLogisticRegression, {"lr": 0.1}),
        (OnlineLogisticRegression, {"optimizer": "adagrad", "alpha": 0.1}),
        (OnlineFM, {"optimizer": "adam", "factorL2": 0.1}),
    ],
)
def test_params_when_one_has_no_effect_then_is_refused(estimator, given):
    with pytest.raises(ConfigError, match=f"{list(given)[-1]}: optimizer '.*' does not use it, got 0.1"):
        estimator(**given)._check()


def test_params_when_seed_is_negative_then_settings_have_one():
    assert OnlineFM(seed=-1)._make_plan().seed == 2**63 - 1


def test_score_when_there_is_an_intercept_then_it_is_added():
    rows = KeyRows(INDPTR, PLACES.astype(np.int64), VALUES, np.zeros(ROWS * WIDTH, np.int32))
    weights = RNG.normal(size=(KEYS, 1)).astype(np.float32)
    margins = (weights[PLACES, 0] * VALUES).reshape(ROWS, WIDTH).sum(axis=1, dtype=float) + 0.5
    result = score({}, rows, weights[PLACES], {BIAS: np.array([0.5])})
    np.testing.assert_allclose(result, 1 / (1 + np.exp(-margins)), rtol=1e-5)
