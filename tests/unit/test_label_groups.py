"""The only worker's survey of labels and weights."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from ps2.algorithms.frame.labels import PART_COLUMN, ReadAndSurvey
from ps2.algorithms.training.faults import PLAIN, ColumnNames


def surveyed(labels, weights, classes, most_bytes=1 << 20):
    batch = pa.record_batch(
        {
            "features": pa.array([[1.0], [2.0]], pa.list_(pa.float64())),
            "label": pa.array(labels),
            "weight": pa.array(weights),
            PART_COLUMN: pa.array([0, 0], pa.int32()),
        }
    )
    return ReadAndSurvey(ColumnNames(weight="weight"), PLAIN, classes, 2, most_bytes)(None, [batch])[1]


@pytest.mark.parametrize("weight", [1e308, 1e-308])
@pytest.mark.parametrize("classes", [None, 2])
def test_survey_when_weights_are_extreme_then_sums_are_exact(weight, classes):
    survey = surveyed([1.0, 1.0], [weight, weight / 2], classes)
    group = survey.groups()[0]
    unit = weight * survey.unit
    assert 0.25 <= unit <= 1.0
    assert [group[name] for name in ("max_weight", "weight", "weight_squared")] == pytest.approx(
        [unit, 1.5 * unit, 1.25 * unit**2]
    )
    assert group["wy"] == (1.5 * unit if classes else 0.0)


def test_survey_when_labels_overflow_then_sums_say_so():
    survey = surveyed([-1e300, 1e300], [1.0, 1.0], None)
    assert math.isinf(survey.groups()[0]["wyy"])
    assert np.isfinite(survey.shift)


def test_survey_when_table_is_larger_than_expected_then_none():
    assert surveyed([0.0, 1.0], [1.0, 1.0], 2, most_bytes=1000) is not None
    assert surveyed([0.0, 1.0], [1.0, 1.0], 2, most_bytes=10) is None
