"""From margins to predictions."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.algorithms.frame.heads import ClassHead, ValueHead

MARGINS = np.array([[-1.0], [0.0], [0.5], [800.0]])
OF_THREE = np.array([[0.0, 1.0, -1.0], [2.0, 2.0, 0.0]])


def test_logistic_head_when_any_margins_then_sums_to_1():
    head = ClassHead(2, "logistic")
    probability = head.probability(head.raw(MARGINS))
    np.testing.assert_allclose(probability[:, 1], [1 / (1 + np.e), 0.5, 1 / (1 + np.exp(-0.5)), 1.0])
    np.testing.assert_allclose(probability.sum(axis=1), 1.0)


@pytest.mark.parametrize(("threshold", "expected"), [(0.5, [0, 0, 1, 1]), (0.3, [0, 1, 1, 1]), (1.0, [0, 0, 0, 0])])
def test_logistic_head_when_threshold_then_must_exceed_it(threshold, expected):
    head = ClassHead(2, "logistic", threshold=threshold)
    assert head.prediction(head.raw(MARGINS)).tolist() == expected


@pytest.mark.parametrize(("threshold", "expected"), [(0.0, [0, 0, 1, 1]), (-2.0, [1, 1, 1, 1]), (0.5, [0, 0, 0, 1])])
def test_raw_head_when_threshold_then_raw_prediction_exceeds_it(threshold, expected):
    head = ClassHead(2, None, threshold=threshold)
    assert head.probability(head.raw(MARGINS)) is None
    assert head.prediction(head.raw(MARGINS)).tolist() == expected


@pytest.mark.parametrize(
    ("thresholds", "expected"),
    [(None, [1, 0]), ((0.9, 0.9, 0.01), [2, 2]), ((0.5, 0.0, 0.5), [1, 1])],
)
def test_softmax_head_when_thresholds_then_largest_ratio_wins(thresholds, expected):
    assert ClassHead(3, "softmax", thresholds=thresholds).prediction(OF_THREE).tolist() == expected


def test_head_when_threshold_and_probability_are_0_then_loses():
    head = ClassHead(2, "logistic", thresholds=(0.0, 1.0))
    assert head.prediction(np.array([[-800.0, 800.0]])).tolist() == [1.0]


def test_value_head_when_margins_are_given_then_are_predictions():
    assert ValueHead().prediction(ValueHead().raw(MARGINS)).tolist() == MARGINS[:, 0].tolist()


def test_softmax_head_when_margin_is_infinite_then_is_certain():
    probability = ClassHead(3, "softmax").probability(np.array([[0.0, np.inf, 5.0], [0.0, 0.0, -np.inf]]))
    assert probability.tolist() == [[0.0, 1.0, 0.0], [0.5, 0.5, 0.0]]
