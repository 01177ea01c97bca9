"""Models and estimators that version 0.1 saved load, and predict what they predicted then."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

from ps2 import algorithms
from tests.saved_models import ARCHIVE, ESTIMATORS, predictions, table


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def frame(spark):
    return spark.createDataFrame(table()).coalesce(1).cache()


def test_archive_when_classes_are_listed_then_has_all():
    classes = {name for name in algorithms.__all__ if hasattr(getattr(algorithms, name), "fit")}
    assert set(ESTIMATORS) == classes


@pytest.mark.parametrize("ps", [1], indirect=True, scope="module")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_model_when_it_was_saved_before_then_predicts_the_same(ps, saved, frame, name):
    kind = getattr(algorithms, name)
    assert params(kind.load(f"{saved}/{name}/estimator")) == params(kind(**ESTIMATORS[name]))
    model = model_of(name).load(f"{saved}/{name}/model")
    expected = np.load(saved / name / "predictions.npy")
    np.testing.assert_allclose(predictions(model, frame), expected, rtol=1e-6, atol=1e-9)


def params(estimator):
    return {param.name: estimator.getOrDefault(param) for param in estimator.params if estimator.isSet(param)}


def model_of(name):
    """Return the class of an estimator's models."""
    for end, task in (("Classifier", "Classification"), ("Regressor", "Regression")):
        name = name.replace(end, task)
    return getattr(algorithms, f"{name}Model")
