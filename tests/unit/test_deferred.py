"""Penalties that are made up for later come to what a proximal step at every step comes to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps2.errors import ConfigError
from ps2.ops import deferred, optimizers, settling

WIDTH = 400
STEPS = 12
LR = 0.1
DTYPES = {"float32": 2e-5, "float64": 1e-12}
PENALTIES = pytest.mark.parametrize(
    "penalties",
    [{"l1": 0.3, "l2": 0.0}, {"l1": 0.0, "l2": 0.4}, {"l1": 0.3, "l2": 0.4}, {"l1": 0.3, "l2": 1e-12}],
    ids=["l1", "l2", "both", "hardly l2"],
)
SGD = (optimizers.sgd, deferred.lazy_sgd, settling.settle_plain, 1)
ADAGRAD = (optimizers.adagrad, deferred.lazy_adagrad, settling.settle_scaled, 2)


def gradients(dtype, steps=STEPS):
    """Gradients of which four in five are 0 or -0."""
    rng = np.random.default_rng(4)
    g = rng.normal(size=(steps, WIDTH)).astype(dtype)
    g[rng.random(g.shape) < 0.6] = 0
    g[rng.random(g.shape) < 0.5] = -0.0
    return g


def start(count, dtype):
    """Weights, and rows of zeros for the rest."""
    rows = np.zeros((count, WIDTH), dtype)
    rows[0] = np.random.default_rng(8).normal(0, 2, WIDTH)
    return rows


@PENALTIES
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dense", "lazy", "settle", "count"), [SGD, ADAGRAD], ids=["sgd", "adagrad"])
def test_lazy_steps_when_settled_then_equal_the_full_steps(dense, lazy, settle, count, dtype, penalties):
    full, rows = start(count, dtype), start(count, dtype)
    at = np.zeros(WIDTH, dtype)
    for step, gradient in enumerate(gradients(dtype), start=1):
        dense(*full, gradient, lr=LR, **penalties)
        lazy(*rows, at, gradient, lr=LR, step=step, **penalties)
    settle(*rows, at, lr=LR, step=STEPS, **penalties)
    np.testing.assert_allclose(rows, full, rtol=DTYPES[dtype], atol=DTYPES[dtype])
    assert (at == STEPS).all()


@PENALTIES
def test_lazy_steps_when_read_columns_are_settled_first_then_equal_the_full_steps(penalties):
    """The gradient depends on the weights, and is taken at those that were settled."""
    full, rows, at = start(2, "float64"), start(2, "float64"), np.zeros(WIDTH)
    rng = np.random.default_rng(2)
    for step in range(1, STEPS + 1):
        keys = np.flatnonzero(rng.random(WIDTH) < 0.2)
        settling.settle_scaled_at(*rows, at, keys, lr=LR, step=step - 1, **penalties)
        for state, take in ((full, optimizers.adagrad), (rows, deferred.lazy_adagrad)):
            gradient = np.zeros(WIDTH)
            gradient[keys] = state[0][keys] - np.sin(keys)
            if take is optimizers.adagrad:
                take(*state, gradient, lr=LR, **penalties)
            else:
                take(*state, at, gradient, lr=LR, step=step, **penalties)
    settling.settle_scaled(*rows, at, lr=LR, step=STEPS, **penalties)
    np.testing.assert_allclose(rows, full, rtol=1e-11, atol=1e-12)


def standing_still(op, rows, gradient, step, scalars):
    """Take a full step; where the gradient is 0, let the moments stand still and take the proximal step alone."""
    before, still = rows.copy(), gradient == 0
    op(*rows, gradient, **scalars, **({"step": step} if op is optimizers.adam else {}))
    rows[:, still] = before[:, still]
    if op is optimizers.momentum:
        rate = LR / (1 - scalars["momentum"])
    else:
        rate = LR / (np.sqrt(rows[-1, still] / (1 - scalars.get("beta1", 0.0) ** step)) + scalars["eps"])
    w = rows[0, still]
    rows[0, still] = np.sign(w) * np.maximum(np.abs(w) - rate * scalars["l1"], 0) / (1 + rate * scalars["l2"])


MOMENTUM = (optimizers.momentum, deferred.lazy_momentum, 2, {"momentum": 0.6})
RMSPROP = (optimizers.rmsprop, deferred.lazy_rmsprop, 2, {"eps": 0.1})
ADAM = (optimizers.adam, deferred.lazy_adam, 3, {"eps": 0.1, "beta1": 0.99})


@PENALTIES
@pytest.mark.parametrize(("op", "lazy", "count", "own"), [MOMENTUM, RMSPROP, ADAM], ids=["momentum", "rmsprop", "adam"])
def test_lazy_steps_when_settled_then_equal_steps_with_standing_moments(op, lazy, count, own, penalties):
    expected, rows, at = start(count, "float64"), start(count, "float64"), np.zeros(WIDTH)
    scalars = {"lr": LR, **own, **penalties}
    for step, gradient in enumerate(gradients("float64"), start=1):
        standing_still(op, expected, gradient, step, scalars)
        lazy(*rows, at, gradient, step=step, **scalars)
    if op is optimizers.momentum:
        settling.settle_plain(rows[0], at, step=STEPS, **scalars)
    else:
        settling.settle_scaled(rows[0], rows[-1], at, step=STEPS, **scalars)
    np.testing.assert_allclose(rows, expected, rtol=1e-11, atol=1e-12)


def test_lazy_ftrl_when_settled_then_equals_full_steps_whose_penalties_grow():
    full, rows, keys = np.zeros((3, WIDTH)), np.zeros((3, WIDTH)), np.arange(0, WIDTH, 3)
    for step, gradient in enumerate(gradients("float64"), start=1):
        scalars = {"alpha": 0.5, "l1": 0.05 * step, "l2": 0.1 * step}
        optimizers.ftrl(*full, gradient, **scalars)
        settling.settle_ftrl_at(*rows, keys, alpha=0.5, l1=0.05 * (step - 1), l2=0.1 * (step - 1))
        touched = np.isin(np.arange(WIDTH), keys)
        gradient[~touched] = 0
        optimizers.ftrl(*rows, gradient, **scalars, lazy=True)
    settling.settle_ftrl(*rows, alpha=0.5, l1=0.05 * STEPS, l2=0.1 * STEPS)
    np.testing.assert_allclose(rows[:, keys], full[:, keys], rtol=1e-12)


def test_lazy_adam_without_penalties_then_equals_the_lazy_step_of_adam():
    rows, theirs, at = start(3, "float64"), start(3, "float64"), np.zeros(WIDTH)
    for step, gradient in enumerate(gradients("float64"), start=1):
        deferred.lazy_adam(*rows, at, gradient, lr=LR, step=step)
        optimizers.adam(*theirs, gradient, lr=LR, step=step, lazy=True)
    np.testing.assert_allclose(rows, theirs, rtol=1e-12, atol=1e-14)


def test_lazy_step_when_told_columns_then_is_the_one_that_looks_for_them():
    rows, theirs, at, their_at = start(2, "float64"), start(2, "float64"), np.zeros(WIDTH), np.zeros(WIDTH)
    for step, gradient in enumerate(gradients("float64"), start=1):
        columns = np.random.default_rng(step).permutation(np.flatnonzero(gradient))
        deferred.lazy_adagrad(*rows, at, gradient, lr=LR, step=step, l1=0.1, l2=0.1, columns=columns)
        deferred.lazy_adagrad(*theirs, their_at, gradient, lr=LR, step=step, l1=0.1, l2=0.1)
    np.testing.assert_array_equal(rows, theirs)
    np.testing.assert_array_equal(at, their_at)


@given(
    weight=st.floats(-1e3, 1e3),
    square=st.sampled_from([0.0, 1e-6, 1.0, 50.0]),
    l1=st.sampled_from([0.0, 1e-9, 0.01, 10.0]),
    l2=st.sampled_from([0.0, 1e-13, 1e-3, 2.0]),
    beta1=st.sampled_from([0.0, 0.5, 0.999]),
    gap=st.integers(0, 60),
)
def test_settle_when_many_steps_were_missed_then_equals_them_one_by_one(weight, square, l1, l2, beta1, gap):
    last, expected = 7 + gap, weight
    for t in range(8, last + 1):
        rate = LR / (np.sqrt(square / (1 - beta1**t)) + 1e-3)
        expected = np.sign(expected) * max(abs(expected) - rate * l1, 0) / (1 + rate * l2)
    w, s, at = np.array([weight]), np.array([square]), np.array([7.0])
    settling.settle_scaled(w, s, at, lr=LR, eps=1e-3, beta1=beta1, step=last, l1=l1, l2=l2)
    np.testing.assert_allclose(w, expected, rtol=1e-10, atol=1e-10 * abs(weight))
    assert at[0] == last


def test_settle_adam_when_its_metric_has_come_to_rest_then_skips_the_steps_at_once():
    """beta1**t is nothing beside 1 long before the last step: what is left is one power."""
    w, s, at = np.full(2, 1e6), np.ones(2), np.array([0.0, 10.0**9])
    settling.settle_scaled(w, s, at, lr=LR, beta1=0.9, step=2 * 10**9, l1=0, l2=1e-9)
    np.testing.assert_allclose(w, 1e6 * np.exp([-0.2, -0.1]), rtol=1e-6)


@pytest.mark.parametrize("take", ["step", "settle"])
def test_column_when_it_is_ahead_of_the_step_then_has_missed_nothing(take):
    """As workers that run ahead of others leave it."""
    w, at = np.ones(1), np.array([9.0])
    if take == "settle":
        settling.settle_plain(w, at, lr=LR, step=5, l1=0.1, l2=0.1)
    else:
        deferred.lazy_sgd(w, at, np.ones(1), lr=LR, step=5)
    assert (w[0], at[0]) == (1 if take == "settle" else 1 - LR, 9)


def test_settle_when_slots_come_twice_or_are_absent_then_catches_up_once():
    w, at = np.ones(3), np.zeros(3)
    settling.settle_plain_at(w, at, np.array([2, -1, 2]), lr=LR, step=3, l1=1.0, l2=0.0)
    np.testing.assert_allclose(w, [1, 1, 0.7])
    assert at.tolist() == [0, 0, 3]


def test_settle_when_a_weight_is_nan_then_it_stays_nan():
    w = np.array([np.nan])
    settling.settle_scaled(w, np.ones(1), np.zeros(1), lr=LR, beta1=0.9, step=5, l1=1, l2=1)
    assert np.isnan(w[0])


@pytest.mark.parametrize("at", [-1e9, -np.inf, np.nan, np.inf])
def test_settle_when_at_is_no_count_of_steps_then_touches_no_other_memory(at):
    w, counts = np.ones(1), np.array([at])
    settling.settle_scaled(w, np.ones(1), counts, lr=LR, beta1=0.9, step=5, l1=0.1, l2=0.1)
    assert 0 <= w[0] <= 1


@pytest.mark.parametrize("beta1", [0.0, 0.9])
def test_settle_when_a_negative_weight_comes_to_zero_then_it_is_plain_zero(beta1):
    w, s = np.full(2, -0.1), np.array([0.0, 1.0])
    settling.settle_scaled(w, s, np.zeros(2), lr=LR, beta1=beta1, eps=1.0, step=500, l1=1, l2=0)
    assert w.tolist() == [0, 0]
    assert not np.signbit(w).any()


def test_lazy_step_when_float32_cannot_count_so_far_then_says_so():
    rows = np.ones((3, 1), np.float32)
    with pytest.raises(ConfigError, match="step: float32 counts exactly up to 16777216, got 16777217"):
        deferred.lazy_sgd(*rows, lr=LR, step=2**24 + 1)


# -- proximal steps go to the optimum ----------------------------------------------------------------------------------


def descend(op, count, steps, lr, own):
    """Minimise |A w - b|^2 / 2 + l1 |w|_1 + l2/2 |w|^2; return w and the gradient of the first term."""
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(30, 8)) / np.sqrt(30), rng.normal(size=30)
    rows = np.zeros((count, 8))
    for step in range(1, steps + 1):
        gradient = a.T @ (a @ rows[0] - b)
        op(*rows, gradient, lr=lr, **own, **({"step": step} if op is optimizers.adam else {}))
    return rows[0], a.T @ (a @ rows[0] - b)


@pytest.mark.parametrize("penalties", [{"l1": 0.3}, {"l2": 0.5}, {"l1": 0.3, "l2": 0.5}], ids=["l1", "l2", "both"])
@pytest.mark.parametrize(
    ("op", "count", "lr", "own"),
    [
        (optimizers.sgd, 1, 0.3, {}),
        (optimizers.momentum, 2, 0.05, {"momentum": 0.8}),
        (optimizers.adagrad, 2, 0.5, {}),
        (optimizers.rmsprop, 2, 0.01, {"eps": 0.1}),
        (optimizers.adam, 3, 0.02, {"eps": 0.1}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_steps_when_they_stand_still_then_are_at_the_optimum(op, count, lr, own, penalties):
    w, gradient = descend(op, count, 6000, lr, own | penalties)
    l1, l2 = penalties.get("l1", 0), penalties.get("l2", 0)
    pull = gradient + l2 * w
    np.testing.assert_allclose(pull[w != 0], -l1 * np.sign(w[w != 0]), atol=1e-6)
    assert (np.abs(pull[w == 0]) <= l1 + 1e-9).all()
    assert (l1 == 0) or 0 < np.count_nonzero(w) < w.size


@pytest.mark.parametrize("op", [optimizers.adam, optimizers.adagrad])
def test_lazy_flag_when_there_is_a_penalty_then_names_the_twin(op):
    rows = np.ones((4 if op is optimizers.adam else 3, 2))
    step = {"step": 1} if op is optimizers.adam else {}
    with pytest.raises(ConfigError, match=f"use 'lazy_{op.__name__}'; got l1=0, l2=0.5"):
        op(*rows, lr=LR, l2=0.5, lazy=True, **step)
