"""FTSGD's local steps turn as Algorithm 3 says, and its gate answers as Table I does."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.algorithms.linear.solvers.ftsgd import cosine, cosine_of, descend, ftsgd, is_gaussian, shrink_factor
from ps2.errors import ShapeError

ALPHA, BETA = 0.9, 0.4
START = np.array([1.0, 1.0])
RIGHT, UP = np.array([1.0, 0.0]), np.array([0.0, 1.0])


def taken(old, gradients, steps=None):
    """Run with gradients of a list; return the result and the weights at which they were asked for."""
    seen, left = [], list(gradients)

    def gradient_of(w):
        seen.append(w.copy())
        return left.pop(0)

    return ftsgd(gradient_of, START, old, ALPHA, BETA, len(gradients) if steps is None else steps), seen


def test_ftsgd_when_gradients_agree_then_momentum_grows():
    tilted = np.array([1.0, 1.0])
    created, _ = taken(RIGHT, [RIGHT, tilted])
    first = BETA / 2 * RIGHT
    second = ALPHA * (1 + np.sqrt(0.5)) * first + BETA / 2 * tilted
    np.testing.assert_allclose(created.w, START - first - second)
    np.testing.assert_array_equal(created.gradient, tilted)
    assert (created.oscillated, len(created.momenta)) == (False, 2)


def test_weights_when_gradient_is_a_penalty_then_momenta_shrink():
    created = ftsgd(lambda w: 0.3 * w, START, START, ALPHA, BETA, 5, l2=0.3)
    np.testing.assert_allclose(created.w, created.shrink * START)
    assert created.shrink == shrink_factor(created.momenta, BETA / 2 * 0.3)
    assert max(created.momenta) == pytest.approx(2 * ALPHA)


def test_descend_when_gradient_is_a_penalty_then_steps_are_plain():
    created = descend(lambda w: 0.3 * w, START, BETA, 3, l2=0.3)
    np.testing.assert_allclose(created.w, (1 - BETA * 0.3) ** 3 * START)
    assert created.shrink == pytest.approx((1 - BETA * 0.3) ** 3)


def test_ftsgd_when_a_gradient_turns_back_once_then_no_momentum():
    created, _ = taken(RIGHT, [RIGHT, -RIGHT, -RIGHT])
    step = BETA / 2 * RIGHT
    np.testing.assert_allclose(created.w, START - step + step - (ALPHA * 2 * -step - step))
    assert not created.oscillated


def test_ftsgd_when_gradients_turn_back_twice_then_it_stops():
    created, seen = taken(RIGHT, [RIGHT, -RIGHT, RIGHT, RIGHT])
    assert (created.oscillated, len(created.momenta), len(seen)) == (True, 2, 3)
    np.testing.assert_allclose(created.w, START)
    np.testing.assert_array_equal(created.gradient, RIGHT)


def test_ftsgd_when_gradients_turn_back_apart_then_it_goes_on():
    created, _ = taken(RIGHT, [-RIGHT, -RIGHT, RIGHT, RIGHT])
    assert (created.oscillated, len(created.momenta)) == (False, 4)


def test_ftsgd_when_first_gradient_turns_back_then_it_counts():
    created, _ = taken(RIGHT, [-RIGHT, RIGHT])
    assert (created.oscillated, len(created.momenta)) == (True, 1)


@pytest.mark.parametrize("old", [None, np.zeros(2), UP])
def test_ftsgd_when_there_is_no_old_gradient_then_step_is_plain(old):
    created, _ = taken(old, [RIGHT])
    np.testing.assert_allclose(created.w, START - BETA / 2 * RIGHT)


def test_ftsgd_when_the_rate_is_too_large_then_it_oscillates():
    created = ftsgd(lambda w: 5.0 * w, START, None, ALPHA, 1.0, 10)
    assert created.oscillated


def test_ftsgd_when_there_is_no_step_then_nothing_changes():
    created, _ = taken(RIGHT, [], steps=0)
    np.testing.assert_array_equal(created.w, START)
    np.testing.assert_array_equal(created.gradient, RIGHT)


def test_cosine_when_vectors_are_huge_or_tiny_then_is_in_range():
    assert cosine(1e150 * RIGHT, 1e-150 * RIGHT) == 1
    assert cosine(np.array([0.1, 0.3, 0.7]), np.array([0.1, 0.3, 0.7])) <= 1


@pytest.mark.parametrize(("dot", "norm"), [(np.inf, 1e300), (-np.inf, np.inf), (1.0, np.inf), (np.nan, 1.0)])
def test_cosine_when_a_number_overflows_then_it_is_none(dot, norm):
    assert np.isnan(cosine_of(dot, norm, 1.0))


# Ratio as integers, mean, deviation and answer of Table I. The numbers under 3:1 are those of 100:33.
SIZE = 0.012987013
TABLE = [
    ((1, 1), 0.0, 0.012987013, False),
    ((2, 1), 0.004329004, 0.012244273, False),
    ((100, 33), 0.00654233, 0.011218753, False),
    ((4, 1), 0.007792208, 0.01038961, False),
    ((5, 1), 0.008658009, 0.009679948, False),
    ((10, 1), 0.010625738, 0.007467007, False),
    ((20, 1), 0.011750155, 0.005531399, False),
    ((1000, 3), 0.012909324, 0.001418401, True),
]


@pytest.mark.parametrize(("ratio", "mean", "deviation", "answer"), TABLE)
def test_gate_when_given_table_1_then_answers_as_printed(ratio, mean, deviation, answer):
    values = np.repeat([SIZE, -SIZE], ratio)
    np.testing.assert_allclose([values.mean(), values.std()], [mean, deviation], atol=1e-9)
    assert is_gaussian(values) is answer


def test_gate_when_the_ratio_is_3_to_1_then_it_refuses():
    values = np.repeat([SIZE, -SIZE], (3, 1))
    mean, deviation = values.mean(), values.std()
    assert np.all(np.abs(values - mean) <= 3 * deviation)
    assert not is_gaussian(values)


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        ([0.9] * 20, True),
        ([0.1] * 19 + [np.nextafter(0.1, 1)], True),
        ([-0.5] * 4, True),
        ([0.0] * 4, False),
        ([0.7], True),
        ([0.9, np.nan], False),
        ([0.9, np.inf], False),
        ([1.0, 0.6], True),
        ([1.0, 0.59], False),
    ],
)
def test_gate_when_values_are_at_an_edge_then_no_rounding(values, answer):
    assert is_gaussian(np.array(values)) is answer


def test_gate_when_one_value_is_far_then_its_share_decides():
    rng = np.random.default_rng(0)
    values = 0.9 + 0.01 * np.clip(rng.standard_normal(1000), -2, 2)
    assert is_gaussian(np.append(values, [0.5] * 3))
    assert not is_gaussian(np.append(values, [0.5] * 4))


@pytest.mark.parametrize("values", [[], [[0.9]]])
def test_gate_when_there_are_no_values_then_it_is_an_error(values):
    with pytest.raises(ShapeError, match="similarities"):
        is_gaussian(np.array(values))
