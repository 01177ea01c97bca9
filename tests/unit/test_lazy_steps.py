"""A lazy step is a full step at the columns whose gradient is not 0, and no step elsewhere."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ps2.ops import elementwise, optimizers

WIDTH = 300
STEPS = 5
DTYPES = ("float32", "float64")
# The function, how many rows it changes, and its scalars at a step.
ADAM = (optimizers.adam, 3, lambda step: {"lr": 0.1, "step": step})
ADAGRAD = (optimizers.adagrad, 2, lambda step: {"lr": 0.1})
FTRL = (optimizers.ftrl, 3, lambda step: {"alpha": 0.5, "l1": 0.2, "l2": 0.1})
ALL = pytest.mark.parametrize(("op", "changed", "scalars"), [ADAM, ADAGRAD, FTRL], ids=["adam", "adagrad", "ftrl"])


@pytest.fixture(autouse=True)
def _looks_through_few_columns_at_a_time(monkeypatch):
    monkeypatch.setattr(optimizers, "SCAN_COLUMNS", 128)


def gradients(dtype):
    """Gradients with two thirds of zeros, of either sign, at other columns in each step."""
    rng = np.random.default_rng(11)
    g = rng.normal(size=(STEPS, WIDTH)).astype(dtype)
    g[rng.random(g.shape) < 0.4] = 0
    g[rng.random(g.shape) < 0.4] = -0.0
    return g


def state(count, dtype):
    """Rows as some steps have left them."""
    return np.abs(np.random.default_rng(5).normal(size=(count, WIDTH))).astype(dtype)


@ALL
@pytest.mark.parametrize("dtype", DTYPES)
def test_lazy_step_when_gradient_is_nonzero_then_is_full_step(op, changed, scalars, dtype):
    rows = state(changed, dtype)
    for step, gradient in enumerate(gradients(dtype), start=1):
        full, before = rows.copy(), rows.copy()
        op(*full, gradient, **scalars(step))
        op(*rows, gradient, **scalars(step), lazy=True)
        np.testing.assert_array_equal(rows, np.where(gradient != 0, full, before))


@ALL
@pytest.mark.parametrize("dtype", DTYPES)
def test_lazy_step_when_given_columns_then_matches_search(op, changed, scalars, dtype):
    """In any order, with some at which the gradient is 0 or -0."""
    rows, theirs = state(changed, dtype), state(changed, dtype)
    rng = np.random.default_rng(3)
    for step, gradient in enumerate(gradients(dtype), start=1):
        columns = rng.permutation(np.flatnonzero((gradient != 0) | (rng.random(WIDTH) < 0.5)))
        op(*rows, gradient, **scalars(step), lazy=True, columns=columns)
        op(*theirs, gradient, **scalars(step), lazy=True)
        np.testing.assert_array_equal(rows, theirs)


@ALL
@pytest.mark.parametrize("dtype", DTYPES)
def test_lazy_step_when_gradient_is_nan_then_touches_its_column(op, changed, scalars, dtype):
    rows = state(changed, dtype)
    gradient = np.zeros(WIDTH, dtype)
    gradient[200] = math.nan
    op(*rows, gradient, **scalars(1), lazy=True)
    assert np.flatnonzero(np.isnan(rows[0])).tolist() == [200]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("op", "changed", "scalars"), [ADAGRAD, FTRL], ids=["adagrad", "ftrl"])
def test_lazy_steps_when_from_zeros_then_match_full_steps(op, changed, scalars, dtype):
    """Where the gradient is 0, these two change nothing: not by a bit."""
    rows, full = np.zeros((2, changed, WIDTH), dtype)
    for step, gradient in enumerate(gradients(dtype), start=1):
        op(*rows, gradient, **scalars(step), lazy=True)
        op(*full, gradient, **scalars(step))
        np.testing.assert_array_equal(rows, full)


def test_lazy_ftrl_when_penalties_grow_then_matches_full_steps():
    full, rows = np.zeros((2, 3, WIDTH))
    for step, gradient in enumerate(gradients("float64"), start=1):
        scalars, before = ({"alpha": 0.5, "l1": 0.05 * t, "l2": 0.1 * t} for t in (step, step - 1))
        optimizers.ftrl(*full, gradient + (gradient != 0) * full[0], **scalars)
        keys = np.flatnonzero(gradient)
        optimizers.ftrl_weights_at(*rows, keys, **before)
        optimizers.ftrl(*rows, gradient + (gradient != 0) * rows[0], **scalars, lazy=True)
    optimizers.ftrl_weights(*rows, **scalars)
    np.testing.assert_allclose(rows, full, rtol=1e-12)


def test_lazy_ftrl_when_weight_is_foreign_then_keeps_it():
    rows, full = np.zeros((2, 3, 1))
    rows[0] = full[0] = 7
    optimizers.ftrl(*rows, np.zeros(1), alpha=0.5, lazy=True)
    optimizers.ftrl(*full, np.zeros(1), alpha=0.5)
    assert (rows[0, 0], full[0, 0]) == (7, 0)


def test_lazy_adam_when_gradient_becomes_zero_then_moments_stay():
    rows = np.zeros((3, 1))
    optimizers.adam(*rows, np.ones(1), lr=0.1, step=1, lazy=True)
    before = rows.copy()
    optimizers.adam(*rows, np.zeros(1), lr=0.1, step=2, lazy=True)
    np.testing.assert_array_equal(rows, before)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_fill_when_told_columns_then_writes_them_only(dtype):
    row = np.arange(1, 6).astype(dtype)
    elementwise.fill(row, value=0, columns=np.array([3, 0]))
    assert row.tolist() == [0, 2, 3, 0, 5]
