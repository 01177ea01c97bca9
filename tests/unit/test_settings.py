"""Settings as values, and what a plan tells of them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ps2.algorithms.frame.settings import Plan, param, with_values
from ps2.algorithms.metric.estimator import MetricLearning
from ps2.algorithms.metric.plan import MetricPlan
from ps2.algorithms.metric.settings import MetricSettings
from ps2.algorithms.training.record import Placement, TrainingHistory
from ps2.algorithms.trees.estimator import GBTRegressor
from ps2.algorithms.trees.settings import GBTRegressorSettings
from ps2.errors import ConfigError

SETTINGS = GBTRegressorSettings(maxDepth=3)


def test_settings_when_replaced_then_others_stay():
    other = with_values(SETTINGS, maxIter=7)
    assert (other.maxDepth, other.maxIter, SETTINGS.maxIter) == (3, 7, 20)
    with pytest.raises(AttributeError, match="maxIter cannot be set"):
        other.maxIter = 8


def test_settings_when_value_or_name_is_wrong_then_says_so():
    with pytest.raises(ConfigError, match=r"maxDepth: expected a number in \[0, 30\], got 31"):
        with_values(SETTINGS, maxDepth=31)
    with pytest.raises(TypeError, match="there is no param 'maxdepht'; did you mean 'maxDepth'"):
        GBTRegressorSettings(maxdepht=3)


@pytest.mark.parametrize("name", ["maxDepth", "stepSize", "labelCol"])
def test_fit_when_param_with_a_default_is_none_then_is_named(name):
    with pytest.raises(ConfigError, match=f"{name}: expected .*, got None"):
        GBTRegressor(**{name: None})._check()
    with pytest.raises(ConfigError, match=f"{name}: expected .*, got None"):
        with_values(SETTINGS, **{name: None})


def test_features_when_list_replaces_name_then_only_list_is_set():
    estimator = GBTRegressor(featuresCol="x").setFeaturesCol(["a", "b"])
    assert (estimator._features, estimator.isSet("featuresCol")) == (("a", "b"), False)
    estimator._check()


def test_param_when_no_default_and_no_type_then_refused():
    with pytest.raises(ConfigError, match="expected a type, as the default is None, got none for the parameter"):
        param(None, "the number of trees")
    assert param(None, "the number of trees", type=int).kind is int


@pytest.mark.parametrize(
    "values", [{"predictionCol": "p"}, {"numWorkers": 3}, {"featuresCol": "x"}, {"contribCol": "c"}, {"via": "local"}]
)
def test_plan_when_settings_decide_nothing_then_is_equal(values):
    assert Plan(settings=with_values(SETTINGS, **values)).plain() == Plan(settings=SETTINGS).plain()


@pytest.mark.parametrize(
    "values", [{"maxDepth": 4}, {"validationIndicatorCol": "held"}, {"weightCol": "w"}, {"baseMarginCol": "m"}]
)
def test_plan_when_settings_decide_the_model_then_differs(values):
    assert Plan(settings=with_values(SETTINGS, **values)).plain() != Plan(settings=SETTINGS).plain()


def test_plan_when_optional_column_is_renamed_then_is_equal():
    first, second = (Plan(settings=with_values(SETTINGS, weightCol=name)).plain() for name in ("a", "b"))
    assert first == second


def test_plan_when_a_family_resolves_it_then_the_frame_names_it(monkeypatch):
    estimator, plans = MetricLearning()._resumable("job"), []
    plan = MetricPlan(settings=MetricSettings(), dim=10, classes=2)
    monkeypatch.setattr(estimator, "_resolve", lambda *_: plan)
    monkeypatch.setattr(estimator, "_work", lambda *_: None)
    monkeypatch.setattr(estimator, "_place", lambda *_: Placement(1, 1, "servers", ""))
    monkeypatch.setattr(estimator, "_with_rows", lambda job: plans.append(job.plan) or job.plan)
    monkeypatch.setattr(estimator, "_train_in_context", lambda *_: None)
    monkeypatch.setattr(estimator, "_trained_model", lambda *_: None)
    monkeypatch.setattr(estimator, "_history", lambda *_: TrainingHistory([], [], [], 0, 0, 0, ""))
    estimator._train_model(MetricSettings(), None, lambda workers: SimpleNamespace(workers=workers))
    assert [one.name for one in plans] == ["job"]
