"""Optimizers follow their formulas over several steps, written here once more in plain NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ps2.errors import ConfigError
from ps2.ops import optimizers
from ps2.ops.all import optimizer_steps

STEPS = 6
WIDTH = 50
LR = 0.1
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}


def gradients(dtype="float64"):
    return np.random.default_rng(7).normal(size=(STEPS, WIDTH)).astype(dtype)


def zeros(count, dtype="float64"):
    return tuple(np.zeros(WIDTH, dtype) for _ in range(count))


def textbook_adam(weight, grads, beta1=0.9, beta2=0.999, eps=1e-8):
    """Kingma & Ba, 2015, Algorithm 1."""
    m, v = np.zeros(WIDTH), np.zeros(WIDTH)
    for t, g in enumerate(grads, start=1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        weight = weight - LR * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
    return weight, m, v


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    "betas", [{}, {"beta1": 0.9, "beta2": 0.999}, {"beta1": 0.5, "beta2": 0.9}, {"beta1": 0.0, "beta2": 0.0}]
)
def test_adam_after_several_steps_then_equals_the_textbooks(dtype, betas):
    weight, velocity, square = zeros(3, dtype)
    for t, gradient in enumerate(gradients(dtype), start=1):
        optimizers.adam(weight, velocity, square, gradient, lr=LR, step=t, **betas)
    expected = textbook_adam(np.zeros(WIDTH), gradients(), **betas)
    for ours, theirs in zip((weight, velocity, square), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("step", [1, 2, 10])
def test_adam_when_gradient_is_constant_then_terms_are_unbiased(step):
    """s' = g^2 and v' = g at every step, so that each step moves by lr g / (abs(g) + eps)."""
    gradient = gradients()[0]
    weight, velocity, square = zeros(3)
    for t in range(1, step + 1):
        before = weight.copy()
        optimizers.adam(weight, velocity, square, gradient, lr=LR, step=t)
    np.testing.assert_allclose(square / (1 - 0.999**step), gradient**2, rtol=1e-10)
    np.testing.assert_allclose(velocity / (1 - 0.9**step), gradient, rtol=1e-10)
    np.testing.assert_allclose(before - weight, LR * gradient / (np.abs(gradient) + 1e-8), rtol=1e-10)


def test_adam_when_eps_is_large_then_adds_it_outside_the_root():
    weight, velocity, square = zeros(3)
    gradient = np.full(WIDTH, 3.0)
    optimizers.adam(weight, velocity, square, gradient, lr=LR, eps=2.0, step=1)
    np.testing.assert_allclose(weight, -LR / (3.0 + 2.0) * 3.0, rtol=1e-12)


def test_adam_when_column_is_untouched_then_leaves_it():
    weight, velocity, square = zeros(3, "float32")
    optimizers.adam(weight, velocity, square, np.zeros(WIDTH, np.float32), lr=LR, step=1)
    assert not weight.any()


def test_adam_when_a_gradient_is_nan_then_spoils_only_its_column():
    weight, velocity, square = zeros(3)
    gradient = gradients()[0]
    gradient[3] = math.nan
    optimizers.adam(weight, velocity, square, gradient, lr=LR, step=1)
    assert np.flatnonzero(np.isnan(weight)).tolist() == [3]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_sgd_after_several_steps_then_applied_every_gradient(dtype):
    (weight,) = zeros(1, dtype)
    for gradient in gradients(dtype):
        optimizers.sgd(weight, gradient, lr=LR)
    np.testing.assert_allclose(weight, -LR * gradients().sum(axis=0), atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_momentum_after_several_steps_then_equals_unrolled_sum(dtype):
    weight, velocity = zeros(2, dtype)
    for gradient in gradients(dtype):
        optimizers.momentum(weight, velocity, gradient, lr=LR, momentum=0.8)
    # The gradient of step i has been added 1 + 0.8 + ... times: once for each step since.
    gains = [sum(0.8**k for k in range(STEPS - i)) for i in range(STEPS)]
    np.testing.assert_allclose(weight, -LR * np.dot(gains, gradients()), atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_adagrad_after_several_steps_then_scales_by_root_of_sum(dtype):
    weight, square = zeros(2, dtype)
    for gradient in gradients(dtype):
        optimizers.adagrad(weight, square, gradient, lr=LR, eps=0.5)
    g = gradients()
    expected = -(LR * g / (np.sqrt(np.cumsum(g**2, axis=0)) + 0.5)).sum(axis=0)
    np.testing.assert_allclose(weight, expected, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rmsprop_after_several_steps_then_scales_by_root_of_mean(dtype):
    weight, square = zeros(2, dtype)
    expected, average = np.zeros(WIDTH), np.zeros(WIDTH)
    for gradient, g in zip(gradients(dtype), gradients(), strict=True):
        optimizers.rmsprop(weight, square, gradient, lr=LR, rho=0.7, eps=0.5)
        average = 0.7 * average + 0.3 * g**2
        expected -= LR * g / (np.sqrt(average) + 0.5)
    np.testing.assert_allclose(weight, expected, atol=TOLERANCE[dtype])


def ftrl_weight(z, n, alpha, beta, l1, l2):
    """Algorithm 1 of McMahan et al.: the weight of one coordinate."""
    if abs(z) <= l1:
        return 0.0
    return -1 / ((beta + math.sqrt(n)) / alpha + l2) * (z - math.copysign(1, z) * l1)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("penalties", [{"l1": 0.0, "l2": 0.0}, {"l1": 0.8, "l2": 0.3}])
def test_ftrl_after_several_steps_then_equals_mcmahan(dtype, penalties):
    weight, z, square = zeros(3, dtype)
    for gradient in gradients(dtype):
        optimizers.ftrl(weight, z, square, gradient, alpha=0.5, **penalties)
    expected = []
    for column in gradients().T:
        w = z_i = n_i = 0.0
        for g in column:
            sigma = (math.sqrt(n_i + g * g) - math.sqrt(n_i)) / 0.5
            z_i += g - sigma * w
            n_i += g * g
            w = ftrl_weight(z_i, n_i, 0.5, 1.0, **penalties)
        expected.append(w)
    np.testing.assert_allclose(weight, expected, atol=TOLERANCE[dtype])


def test_ftrl_when_l1_is_strong_then_weights_are_exactly_zero():
    weight, z, square = zeros(3, "float32")
    optimizers.ftrl(weight, z, square, gradients("float32")[0], alpha=0.5, l1=1.0)
    np.testing.assert_array_equal(weight == 0, np.abs(gradients("float32")[0]) <= 1)


def test_ftrl_when_beta_is_0_then_untouched_column_stays_zero():
    weight, z, square = zeros(3)
    optimizers.ftrl(weight, z, square, np.zeros(WIDTH), alpha=0.5, beta=0.0)
    assert not weight.any()


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


@pytest.mark.parametrize(("op", "rows", "step"), [(optimizers.adam, 4, {"step": 1}), (optimizers.adagrad, 3, {})])
def test_lazy_step_when_there_is_a_penalty_then_names_ftrl(op, rows, step):
    with pytest.raises(ConfigError, match=f"{op.__name__}.*use 'ftrl'; got l1=0, l2=0.5"):
        op(*np.ones((rows, 2)), lr=LR, l2=0.5, lazy=True, **step)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adagrad", "rmsprop", "adam", "ftrl"])
def test_damping_when_steps_are_shared_then_as_far_as_one(name):
    """Eight workers that take a step each with an eighth of the gradient go as far as one step with all of it."""
    step = optimizer_steps()[name]
    assert step.optimizer is not None
    moved = []
    for workers in (1, 8):
        weight, *states = (np.zeros(WIDTH) for _ in step.reads[:-1])
        rate = LR / workers**step.optimizer.damping
        for number in range(200 * workers):
            scalars = {step.optimizer.rate: rate, **({"step": number + 1} if "step" in step.params else {})}
            if name == "ftrl":
                scalars["beta"] = 0.0
            getattr(optimizers, name)(weight, *states, gradients()[0] / workers, **scalars)
        moved.append(weight)
    np.testing.assert_allclose(moved[1], moved[0], rtol=0.05)
