"""From margins to predictions."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.algorithms.estimators.heads import ClassHead, ValueHead

MARGINS = np.array([[-1.0], [0.0], [0.5], [800.0]])
OF_THREE = np.array([[0.0, 1.0, -1.0], [2.0, 2.0, 0.0]])


def test_a_logistic_head_when_margins_are_any_then_probabilities_add_up_to_1():
    head = ClassHead(2, "logistic")
    probability = head.probability(head.raw(MARGINS))
    np.testing.assert_allclose(probability[:, 1], [1 / (1 + np.e), 0.5, 1 / (1 + np.exp(-0.5)), 1.0])
    np.testing.assert_allclose(probability.sum(axis=1), 1.0)


@pytest.mark.parametrize(("threshold", "expected"), [(0.5, [0, 0, 1, 1]), (0.3, [0, 1, 1, 1]), (1.0, [0, 0, 0, 0])])
def test_a_logistic_head_when_it_has_a_threshold_then_probabilities_must_be_above_it(threshold, expected):
    head = ClassHead(2, "logistic", threshold=threshold)
    assert head.prediction(head.raw(MARGINS)).tolist() == expected


@pytest.mark.parametrize(("threshold", "expected"), [(0.0, [0, 0, 1, 1]), (-2.0, [1, 1, 1, 1]), (0.5, [0, 0, 0, 1])])
def test_a_head_without_probabilities_when_it_has_a_threshold_then_raw_predictions_must_be_above_it(
    threshold, expected
):
    head = ClassHead(2, None, threshold=threshold)
    assert head.probability(head.raw(MARGINS)) is None
    assert head.prediction(head.raw(MARGINS)).tolist() == expected


@pytest.mark.parametrize(
    ("thresholds", "expected"),
    [(None, [1, 0]), ((0.9, 0.9, 0.01), [2, 2]), ((0.5, 0.0, 0.5), [1, 1])],
)
def test_a_softmax_head_when_it_has_thresholds_then_the_largest_ratio_wins(thresholds, expected):
    assert ClassHead(3, "softmax", thresholds=thresholds).prediction(OF_THREE).tolist() == expected


def test_a_head_when_threshold_and_probability_are_0_then_that_class_does_not_win():
    head = ClassHead(2, "logistic", thresholds=(0.0, 1.0))
    assert head.prediction(np.array([[-800.0, 800.0]])).tolist() == [1.0]


def test_a_value_head_when_margins_are_given_then_they_are_the_predictions():
    assert ValueHead().prediction(ValueHead().raw(MARGINS)).tolist() == MARGINS[:, 0].tolist()


def test_a_softmax_head_when_a_margin_is_infinite_then_its_class_is_certain():
    probability = ClassHead(3, "softmax").probability(np.array([[0.0, np.inf, 5.0], [0.0, 0.0, -np.inf]]))
    assert probability.tolist() == [[0.0, 1.0, 0.0], [0.5, 0.5, 0.0]]
