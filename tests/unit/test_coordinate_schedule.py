"""Schedules of coordinates on the servers, against NumPy, and independent of how columns are cut."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ps2.algorithms.linear.ops import curvature, dense_columns, draw_coordinates, predict_changes
from ps2.matrix.partition import Partition

SAP, GREEDY, RANDOM, CYCLIC = range(4)


def drawn(change, count, cuts=(), round=0, schedule=SAP):
    """The set that all shards together draw."""
    result, bounds = [], [0, *cuts, len(change)]
    for begin, end in itertools.pairwise(bounds):
        result.append(
            draw_coordinates(
                *(change[begin:end].copy(), Partition(0, begin, end)),
                count=count,
                seed=5,
                round=round,
                dim=len(change),
                schedule=schedule,
            )
        )
    columns, keys = (np.concatenate(parts) for parts in zip(*result, strict=True))
    return sorted(columns[np.lexsort((columns, -keys))[:count]].tolist())


@pytest.mark.parametrize("schedule", [SAP, GREEDY, RANDOM, CYCLIC])
def test_set_when_columns_are_cut_elsewhere_then_is_the_same(schedule):
    change = np.random.default_rng(0).normal(size=50)
    whole = drawn(change, 8, schedule=schedule, round=3)
    assert len(whole) == 8
    assert drawn(change, 8, (1, 20, 33), round=3, schedule=schedule) == whole


def test_set_when_drawn_by_change_then_squares_are_shares():
    change, counts = np.array([0.0, 1.0, -2.0, 0.0, 3.0]), np.zeros(5)
    for round in range(4000):
        counts[drawn(change, 1, round=round)] += 1
    np.testing.assert_allclose(counts / 4000, change**2 / 14, atol=0.03)


def test_set_when_nothing_would_change_then_is_empty():
    assert drawn(np.zeros(6), 6) == drawn(np.zeros(6), 6, schedule=GREEDY) == []


def test_set_when_greedy_then_has_the_largest_changes():
    assert drawn(np.array([0.0, 1.0, -2.0, 0.0, 3.0]), 2, schedule=GREEDY) == [2, 4]
    assert drawn(np.array([0.0, 1.0, -2.0, 0.0, 3.0]), 5, schedule=GREEDY) == [1, 2, 4]


def test_set_when_cyclic_then_turns_cover_all():
    sets = [drawn(np.zeros(10), 4, (5,), round=round, schedule=CYCLIC) for round in range(3)]
    assert sets == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 8, 9]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_changes_when_predicted_then_are_soft_thresholds(dtype):
    rng = np.random.default_rng(1)
    w, gradient, a = rng.normal(size=30), rng.normal(size=30), rng.random(30)
    w[::2], a[5] = 0.0, 0.0
    w[5] = 0.0
    change, l1, l2, screen = np.zeros(30, dtype), 0.4, 0.0, 0.2
    rows = [row.astype(dtype) for row in (w, gradient, a)]
    largest = predict_changes(change, *rows, l1=l1, l2=l2, screen=screen)
    w, gradient, a = (row.astype(float) for row in rows)
    pulled, bound = gradient + a * w, np.where(w == 0, screen, l1)
    moved = np.sign(pulled) * np.maximum(np.abs(pulled) - bound, 0)
    expected = np.where(a > 0, (moved / np.where(a > 0, a, 1) - w) * np.sqrt(a), 0)
    np.testing.assert_allclose(change, expected, rtol=1e-5, atol=1e-7)
    assert largest == pytest.approx(np.abs(gradient).max())


def test_columns_when_dense_then_come_with_means():
    share, mean = np.array([0.1, 0.5, 0.9]), np.array([1.0, 2.0, -3e200])
    columns, means = dense_columns(share, mean * (1 + 1e-15), Partition(1, 10, 13), least=0.5)
    assert columns.tolist() == [11, 12]
    np.testing.assert_allclose(means, mean[1:], rtol=2.0**-24)
    np.testing.assert_array_equal(means, dense_columns(share, mean, Partition(0, 0, 3), least=0.5)[1])


@pytest.mark.parametrize(("centred", "expected"), [(False, [2.0, 0.5]), (True, [1.5, 0.0])])
def test_curvature_when_centred_then_is_of_the_variance(centred, expected):
    square = np.array([4.0, 1.0])
    curvature(square, np.array([1.0, 1.0 + 1e-15]), factor=0.5, centred=centred)
    np.testing.assert_allclose(square, expected, atol=1e-12)
    assert (square > 0).all()
