"""Operations by which L-BFGS searches in the space of centred features, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.algorithms.linear.ops import average, center_gradient, shifts
from ps2.errors import ShapeError


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [1, 3])
def test_shifts_when_outputs_are_adjacent_then_each_has_its_sum(width, dtype):
    w, means = np.arange(12.0).astype(dtype), np.repeat(np.arange(12 // width), width).astype(dtype)
    expected = (w * means).reshape(-1, width).sum(axis=0)
    np.testing.assert_allclose(shifts(w, means, width=width), expected)


@pytest.mark.parametrize("width", [1, 3])
def test_gradient_when_centred_then_subtracts_means_times_slopes(width):
    gradient, slopes = np.ones(12), np.arange(width) + 0.5
    means = np.repeat(np.arange(12.0 // width), width)
    expected = gradient - means * np.tile(slopes, 12 // width)
    center_gradient(gradient, means, slopes, width=width)
    np.testing.assert_allclose(gradient, expected)


def test_shifts_when_the_width_is_no_divisor_then_is_an_error():
    with pytest.raises(ShapeError, match="expected a divisor of the 4 columns, got 3"):
        shifts(np.ones(4), np.ones(4), width=3)


def test_gradient_when_not_one_slope_per_output_then_error():
    with pytest.raises(ShapeError, match=r"slopes: expected shape \(2,\), got \(3,\)"):
        center_gradient(np.ones(4), np.ones(4), np.ones(3), width=2)


def test_average_when_workers_have_penalties_then_mean_of_models():
    w, change = np.array([1.0, -0.3, 0.05, 0.0]), np.array([0.0, 0.1, 0.0, 2.0])
    expected = sum(a * np.sign(w) * np.maximum(np.abs(w) - t, 0.0) for a, t in ((0.5, 0.1), (0.25, 0.4))) + change
    average(w, change, np.array([0.5, 0.25]), np.array([0.1, 0.4]))
    np.testing.assert_allclose(w, expected)
    with pytest.raises(ShapeError, match="factors: expected shape"):
        average(w, change, np.ones(2), np.ones(1))
