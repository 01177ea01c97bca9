"""A pass of local SGD with a lazily shrunk model is the pass that shrinks all weights at every step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from ps2.algorithms.linear.losses import loss_of
from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.linear.solvers.averaging import LocalSteps, local_sgd
from ps2.data.rows import LocalRows
from ps2.errors import ConfigError, OutOfRangeError, ShapeError

ROWS, KEYS = 23, 8
NAMES = ["logistic", "hinge", "squaredHinge", "squared"]
RNG = np.random.default_rng(0)
X = sp.random_array((ROWS, KEYS), density=0.3, format="csr", dtype="float64", rng=RNG)
ROWS_64 = LocalRows(np.arange(KEYS), X, RNG.integers(0, 2, ROWS).astype(float), RNG.integers(0, 3, ROWS).astype(float))
W, B = RNG.standard_normal(KEYS), np.array([0.3])
ORDER = RNG.permutation(ROWS)


def plain_pass(loss, rows, order, steps):
    """The same in NumPy; each step shrinks all weights."""
    w, b, shrink = W.copy(), B.copy(), 1.0
    batch = steps.batch or len(order)
    for t, first in enumerate(range(0, len(order), batch), steps.first_step):
        part = order[first : first + batch]
        weights = None if rows.weights is None else rows.weights[part]
        at = loss.gradient(LocalRows(rows.keys, rows.x[part], rows.y[part], weights), w, b)
        eta = steps.step_size / (1 + steps.step_size * steps.l2 * t)
        average = at.weight or 1.0
        w = (1 - eta * steps.l2) * w - eta * at.dw / average
        w = np.sign(w) * np.maximum(np.abs(w) - eta * steps.l1, 0.0)
        b = b - eta * at.db / average
        shrink *= 1 - eta * steps.l2
    return w, b, shrink


def check(name, steps, rows=ROWS_64, order=ORDER, **options):
    loss = loss_of(Problem(name, KEYS, **options))
    created = local_sgd(loss, rows, W, B, order, steps)
    w, b, shrink = plain_pass(loss, rows, order, steps)
    np.testing.assert_allclose(created.w, w, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(created.b, b, rtol=1e-9, atol=1e-12)
    assert created.shrink == pytest.approx(shrink, rel=1e-9)
    return created


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps", [LocalSteps(1, 0.1, 0.2), LocalSteps(5, 0.5, 0.0), LocalSteps(4, 0.3, 0.1, 17)])
def test_local_sgd_when_compared_with_dense_shrinking_then_same(name, steps):
    created = check(name, steps)
    assert created.next_step == steps.first_step + -(-ROWS // steps.batch)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "steps", [LocalSteps(1, 0.1, 0.2, l1=0.3), LocalSteps(5, 0.2, l1=0.05), LocalSteps(3, 0.1, 15.0, 2, 0.1)]
)
def test_local_sgd_when_thresholds_are_lazy_then_same_as_dense(name, steps):
    check(name, steps)
    check(name, steps, order=np.tile(ORDER, 40))


def test_local_sgd_when_no_row_uses_feature_then_unused_weight():
    wide = LocalRows(
        np.arange(KEYS + 3), sp.csr_array((X.data, X.indices, X.indptr), shape=(ROWS, KEYS + 3)), ROWS_64.y
    )
    w, steps = np.append(W, [0.4, -0.5, 0.01]), LocalSteps(2, 0.1, 0.3, 1, 0.2)
    created = local_sgd(loss_of(Problem("logistic", KEYS + 3)), wide, w, B, ORDER, steps)
    np.testing.assert_allclose(created.w[KEYS:], created.shrink_unused(w)[KEYS:], rtol=1e-12)
    assert created.w[KEYS] > 0.1
    assert created.w[-1] == 0.0


@pytest.mark.parametrize("l2", [5.0, 10.0, 15.0])
def test_local_sgd_when_step_shrinks_by_half_or_more_then_same(l2):
    check("logistic", LocalSteps(1, 0.1, l2))


def test_local_sgd_when_the_scale_gets_tiny_then_it_is_the_same():
    many = np.tile(ORDER, 40)
    check("squared", LocalSteps(1, 0.1, 9.0), order=many)


def test_local_sgd_when_rows_have_no_weights_then_it_is_the_same():
    check("logistic", LocalSteps(3, 0.1, 0.2), rows=replace(ROWS_64, weights=None))


def test_local_sgd_when_intercept_is_not_trained_then_stays():
    created = check("logistic", LocalSteps(3, 0.1, 0.2), fit_intercept=False)
    np.testing.assert_array_equal(created.b, B)


@pytest.mark.parametrize("batch", [0, ROWS, 10 * ROWS])
def test_local_sgd_when_batch_is_all_rows_then_one_gradient_step(batch):
    loss = loss_of(Problem("logistic", KEYS))
    at = loss.gradient(ROWS_64, W, B)
    created = local_sgd(loss, ROWS_64, W, B, ORDER, LocalSteps(batch, 0.5, 0.2))
    np.testing.assert_allclose(created.w, (1 - 0.5 * 0.2) * W - 0.5 * at.dw / at.weight, rtol=1e-12)
    np.testing.assert_allclose(created.b, B - 0.5 * at.db / at.weight, rtol=1e-12)
    assert created.next_step == 1


def test_local_sgd_when_called_again_then_two_passes_are_one():
    loss, order = loss_of(Problem("logistic", KEYS)), np.arange(ROWS)
    first = local_sgd(loss, ROWS_64, W, B, order, LocalSteps(1, 0.1, 0.2))
    second = local_sgd(loss, ROWS_64, first.w, first.b, order, LocalSteps(1, 0.1, 0.2, first.next_step))
    both = local_sgd(loss, ROWS_64, W, B, np.tile(order, 2), LocalSteps(1, 0.1, 0.2))
    np.testing.assert_allclose(second.w, both.w, rtol=1e-12)
    np.testing.assert_allclose(first.shrink * second.shrink, both.shrink, rtol=1e-12)


def test_local_sgd_when_values_are_float32_then_model_is_float64():
    loss, narrow = loss_of(Problem("logistic", KEYS)), X.astype("float32")
    created = local_sgd(loss, replace(ROWS_64, x=narrow), W.astype("float32"), B, ORDER, LocalSteps(1, 0.1, 0.2))
    rows = replace(ROWS_64, x=narrow.astype("float64"))
    wide = local_sgd(loss, rows, W.astype("float32").astype("float64"), B, ORDER, LocalSteps(1, 0.1, 0.2))
    np.testing.assert_allclose(created.w, wide.w, rtol=1e-12)


def test_local_sgd_when_there_are_no_rows_then_the_model_stays():
    none = LocalRows(np.arange(0), sp.csr_array((0, 0)), np.empty(0))
    created = local_sgd(loss_of(Problem("logistic", 1)), none, np.empty(0), B, np.arange(0), LocalSteps(0, 0.1, 0.2, 3))
    assert (created.b.tolist(), created.shrink, created.next_step) == (B.tolist(), 1, 3)


def test_local_sgd_when_done_then_the_model_given_is_unchanged():
    w, b = W.copy(), B.copy()
    local_sgd(loss_of(Problem("logistic", KEYS)), ROWS_64, w, b, ORDER, LocalSteps(1, 0.1, 0.2))
    np.testing.assert_array_equal(w, W)
    np.testing.assert_array_equal(b, B)


@pytest.mark.parametrize(
    ("problem", "w", "order", "steps", "error"),
    [
        (Problem("huber", KEYS), W, ORDER, LocalSteps(1, 0.1), ConfigError),
        (Problem("softmax", KEYS, 2), W, ORDER, LocalSteps(1, 0.1), ConfigError),
        (Problem("logistic", KEYS), W, ORDER, LocalSteps(-1, 0.1), ConfigError),
        (Problem("logistic", KEYS), W, ORDER, LocalSteps(1, 0.0), ConfigError),
        (Problem("logistic", KEYS), W[1:], ORDER, LocalSteps(1, 0.1), ShapeError),
        (Problem("logistic", KEYS), W, np.array([ROWS]), LocalSteps(1, 0.1), OutOfRangeError),
        (Problem("logistic", KEYS), W, np.array([-1]), LocalSteps(1, 0.1), OutOfRangeError),
    ],
)
def test_local_sgd_when_it_cannot_work_then_it_is_an_error(problem, w, order, steps, error):
    with pytest.raises(error):
        local_sgd(loss_of(problem), ROWS_64, w, B, order, steps)
