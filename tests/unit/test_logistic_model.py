"""A trained model in one process: settings, predictions, files."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import scipy.sparse as sp

from ps2.algorithms.logistic import LogisticModel, LRConfig, Measure, _measure
from ps2.errors import CheckpointMissingError, ConfigError, ShapeError


@pytest.fixture
def model():
    return LogisticModel(np.array([1.0, -2.0, 0.5], np.float32), 0.25, (-1.0, 1.0))


def test_config_when_left_alone_then_it_is_valid():
    assert LRConfig().steps == 200


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 0),
        ("fraction", 0.0),
        ("fraction", -0.1),
        ("fraction", 1.01),
        ("fraction", math.nan),
        ("lr", 0.0),
        ("lr", -1.0),
        ("lr", math.inf),
        ("lr", math.nan),
    ],
)
def test_config_when_a_setting_is_out_of_range_then_the_error_names_it(name, value):
    with pytest.raises(ConfigError, match=rf"^{name}: expected"):
        LRConfig(**{name: value})


def test_config_when_every_row_is_sampled_then_it_is_valid():
    assert LRConfig(fraction=1.0).fraction == 1.0


def test_predict_probability_when_given_rows_then_it_is_the_sigmoid_of_the_margin(model):
    x = sp.csr_array(np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]]))
    expected = 1 / (1 + np.exp(-np.array([2.25, -5.75])))
    np.testing.assert_allclose(model.predict_probability(x), expected, rtol=1e-12)


def test_predict_probability_when_rows_are_dense_then_it_is_the_same(model):
    x = np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])
    np.testing.assert_array_equal(model.predict_probability(x), model.predict_probability(sp.csr_array(x)))


def test_predict_probability_when_margins_are_huge_then_it_does_not_overflow(model):
    np.testing.assert_array_equal(model.predict_probability(np.array([[1e6, 0, 0], [-1e6, 0, 0]])), [1.0, 0.0])


def test_predict_probability_when_there_are_no_rows_then_there_are_no_probabilities(model):
    assert model.predict_probability(sp.csr_array((0, 3))).shape == (0,)


def test_predict_when_given_rows_then_it_answers_with_the_labels(model):
    assert model.predict(np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])).tolist() == [1.0, -1.0]


def test_predict_when_the_margin_is_0_then_it_is_class_0_as_in_the_measures():
    assert LogisticModel(np.zeros(1, np.float32), 0.0, (3.0, 7.0)).predict(np.ones((1, 1))).tolist() == [3.0]


def test_predict_when_rows_have_other_columns_then_the_error_names_both_numbers(model):
    with pytest.raises(ShapeError, match="expected 3 columns, got 4"):
        model.predict(np.zeros((1, 4)))


def test_load_when_there_is_no_model_then_it_says_what_is_missing(tmp_path):
    with pytest.raises(CheckpointMissingError, match=r"no model\.json"):
        LogisticModel.load(str(tmp_path))


def test_load_when_the_weights_are_missing_then_it_raises(tmp_path):
    (tmp_path / "model.json").write_text(json.dumps({"features": 1, "intercept": True, "classes": [0, 1]}))
    with pytest.raises(CheckpointMissingError):
        LogisticModel.load(str(tmp_path))


def test_measure_when_there_are_parts_then_it_is_the_mean_over_all_rows():
    assert _measure([(3, 1.5, 2), (1, 0.5, 1)]) == Measure(4, 0.5, 0.75)


def test_measure_when_there_are_no_rows_then_it_is_not_a_number():
    empty = _measure([])
    assert (empty.rows, math.isnan(empty.loss), math.isnan(empty.accuracy)) == (0, True, True)
