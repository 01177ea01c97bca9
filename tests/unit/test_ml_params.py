"""Params of estimators: what they refuse, and the recipe that they make."""

from __future__ import annotations

import inspect
import math
import os
import re
import subprocess
import sys

import pytest
from pyspark.ml.linalg import DenseMatrix, Vectors

from ps2 import algorithms
from ps2.algorithms import (
    LDA,
    LINE,
    DeepWalk,
    FMClassifier,
    FMRegressor,
    GBTClassifier,
    GBTRegressor,
    KeyHasher,
    LinearRegression,
    LinearSVC,
    LogisticRegression,
    MatrixFactorization,
    OnlineFM,
    OnlineFMModel,
    OnlineLogisticRegression,
    OnlineLogisticRegressionModel,
    Word2Vec,
)
from ps2.algorithms.linear.plan import Problem
from ps2.errors import ConfigError

# Of each estimator, its params whose values are names, and one.
NAMES = [
    (LogisticRegression, {"family": "auto", "solver": "minibatch", "optimizer": "adagrad"}),
    (LinearSVC, {"loss": "squaredHinge", "solver": "ma-sgd"}),
    (LinearRegression, {"loss": "squaredError", "solver": "normal"}),
    (FMClassifier, {"solver": "adamW"}),
    (FMRegressor, {"solver": "minibatch", "optimizer": "ftrl"}),
    (GBTClassifier, {"lossType": "logistic", "growth": "leaf", "defaults": "xgboost"}),
    (GBTRegressor, {"lossType": "absolute"}),
    (LDA, {"optimizer": "online", "sync": "rotation", "sampler": "sparse", "inference": "sampled"}),
    (Word2Vec, {"via": "local", "architecture": "cbow"}),
    (DeepWalk, {"via": "rows", "graphOn": "servers"}),
    (LINE, {"order": "first"}),
    (MatrixFactorization, {"solver": "ccd", "coldStartStrategy": "drop"}),
]
ALL = [LogisticRegression, LinearSVC, LinearRegression, FMClassifier, FMRegressor]


@pytest.mark.parametrize(("maker", "params"), NAMES)
def test_names_when_written_in_any_case_then_are_the_same(maker, params):
    other = maker(**{name: value.swapcase() for name, value in params.items()})
    other._check()
    assert {name: other.getOrDefault(name) for name in params} == params
    for name, value in params.items():
        other.set(other.getParam(name), value.upper())
    assert {name: other.getOrDefault(name) for name in params} == params


def recipe(estimator):
    estimator._check()
    return estimator._plan()


@pytest.mark.parametrize(
    ("params", "solver", "optimizer"),
    [
        ({}, "l-bfgs", "adam"),
        ({"optimizer": "ftrl"}, "minibatch", "ftrl"),
        ({"solver": "auto", "optimizer": "sgd"}, "minibatch", "sgd"),
        ({"solver": "minibatch"}, "minibatch", "adam"),
        ({"solver": "ma-sgd"}, "ma-sgd", "adam"),
        ({"solver": "ftsgd"}, "ftsgd", "adam"),
        ({"solver": "sap", "regParam": 0.1, "elasticNetParam": 1.0}, "sap", "adam"),
    ],
)
def test_recipe_when_linear_model_names_solver_then_uses_it(params, solver, optimizer):
    created = recipe(LogisticRegression(**params))
    assert (created.solver, created.optimizer) == (solver, optimizer)


def test_recipe_when_params_of_ftsgd_are_set_then_has_them():
    asked = {"momentum": 0.3, "localSteps": 7, "localSearch": "ALWAYS"}
    created = recipe(LogisticRegression(solver="ftsgd", **asked)).settings
    assert (created.momentum, created.localSteps, created.localSearch, created.adaptiveMomentum) == (
        0.3,
        7,
        "always",
        True,
    )
    assert not recipe(LogisticRegression(solver="ftsgd", adaptiveMomentum=False)).settings.adaptiveMomentum


@pytest.mark.parametrize(
    ("params", "solver", "optimizer"),
    [
        ({}, "l-bfgs", "adam"),
        ({"regParam": 0.0, "maxIter": 5}, "l-bfgs", "adam"),
        ({"regParam": 0.1}, "minibatch", "adamW"),
        ({"stepSize": 1.0}, "minibatch", "adamW"),
        ({"miniBatchFraction": 0.5}, "minibatch", "adamW"),
        ({"staleness": 1}, "minibatch", "adamW"),
        ({"lazy": True, "optimizer": "adagrad"}, "minibatch", "adagrad"),
        ({"solver": "gd"}, "minibatch", "gd"),
        ({"solver": "adamW"}, "minibatch", "adamW"),
        ({"solver": "minibatch"}, "minibatch", "adam"),
        ({"optimizer": "adagrad"}, "minibatch", "adagrad"),
        ({"solver": "l-bfgs"}, "l-bfgs", "adam"),
    ],
)
def test_recipe_when_fm_names_solver_then_uses_it(params, solver, optimizer):
    created = recipe(FMRegressor(**params))
    assert (created.solver, created.optimizer) == (solver, optimizer)


@pytest.mark.parametrize(
    ("params", "dim", "solver"),
    [
        ({}, 4096, "normal"),
        ({}, 4097, "l-bfgs"),
        ({"loss": "huber"}, 2, "l-bfgs"),
        ({"validationIndicatorCol": "held"}, 2, "l-bfgs"),
        ({"optimizer": "adam"}, 2, "minibatch"),
        ({"solver": "l-bfgs"}, 2, "l-bfgs"),
    ],
)
def test_recipe_when_regression_solver_is_auto_then_as_pyspark(params, dim, solver):
    estimator = LinearRegression(**params)
    assert estimator._complete(recipe(estimator), Problem("squared", dim)).solver == solver


def test_recipe_when_features_exceed_normal_then_names_both():
    estimator = LinearRegression(solver="normal")
    with pytest.raises(ConfigError, match="solver: 'normal' takes 4,096 features at most, got 4,097"):
        estimator._complete(recipe(estimator), Problem("squared", 4097))


def test_recipe_when_staleness_is_minus_1_then_nobody_waits():
    assert recipe(LogisticRegression(optimizer="adam", staleness=-1)).staleness is None


def test_seed_when_not_set_then_is_the_same_in_every_process():
    script = (
        "from ps2.algorithms import FMClassifier, FMRegressor; print(FMClassifier().getSeed(), FMRegressor().getSeed())"
    )
    there = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert there.split() == [str(estimator().getSeed()) for estimator in (FMClassifier, FMRegressor)]


def test_recipe_when_seed_hash_is_negative_then_seed_is_not():
    assert recipe(FMClassifier(seed=-3)).seed >= 0


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (
            LogisticRegression(solver="normal"),
            "solver: expected one of auto, l-bfgs, minibatch, ma-sgd, ftsgd, sap, got 'norm",
        ),
        (LinearRegression(solver="normal", loss="huber"), "solver: loss 'huber' has no normal equations"),
        (LinearRegression(solver="normal", validationIndicatorCol="held"), "validationIndicatorCol: solver 'normal' "),
        (LinearRegression(solver="normal", stepSize=0.5), "stepSize: solver 'normal' does not take it"),
        (LogisticRegression(solver="adamW"), "solver: expected one of auto, "),
        (FMClassifier(solver="sap"), "solver: expected one of auto, l-bfgs, adamW, gd, "),
        (
            FMClassifier(solver="gd", optimizer="adam"),
            "optimizer: solver 'gd' has an update rule of its own, got 'adam'",
        ),
        (
            FMClassifier(lazy=True, regParam=0.1),
            "lazy: with a penalty, .* only optimizer 'ftrl' takes it, got 'adamW' with regParam 0.1",
        ),
        (LinearRegression(optimizer="sgd", lazy=True, regParam=0.1), "lazy: with a penalty, .* only optimizer 'ftrl'"),
        (LinearRegression(optimizer="sgd", lazy=True), "'sgd' does not take it, only 'adagrad', 'adam', 'ftrl'"),
        (LogisticRegression(solver="l-bfgs", optimizer="sgd"), "optimizer: solver 'l-bfgs' does not take it"),
        (LogisticRegression(optimizer="newton"), "optimizer: expected one of adam, .*, got 'newton'"),
        (LogisticRegression(lazy=True), "lazy: solver 'auto' does not take it, only 'minibatch'"),
        (LogisticRegression(staleness=2), "staleness: solver 'auto' does not take it"),
        (LogisticRegression(solver="ma-sgd", staleness=2), "staleness: solver 'ma-sgd' does not take it"),
        (LogisticRegression(miniBatchFraction=0.5), "miniBatchFraction: .* only 'minibatch', 'ftsgd'"),
        (LogisticRegression(solver="ftsgd", localPasses=2), "localPasses: solver 'ftsgd' does not take it"),
        (LogisticRegression(solver="ftsgd", regParam=1.0, elasticNetParam=0.5), "elasticNetParam: solver 'ftsgd'"),
        (LogisticRegression(momentum=0.5), "momentum: solver 'auto' does not take it, only 'ftsgd'"),
        (LogisticRegression(solver="ftsgd", momentum=1.0), r"momentum: expected a number in \[0, 1\), got 1.0"),
        (FMRegressor(solver="ftsgd", localSearch="maybe"), "localSearch: expected one of auto, always, never, got 'm"),
        (
            LinearSVC(solver="ftsgd", momentum=0.3, adaptiveMomentum=False),
            "momentum: adaptiveMomentum=False uses no momentum, got 0.3",
        ),
        (
            LinearRegression(solver="ftsgd", localSearch="never", localSteps=2),
            "localSteps: localSearch='never' takes no local steps, got 2",
        ),
        (LinearRegression(loss="huber", regParam=1.0, elasticNetParam=0.5), "elasticNetParam: loss 'huber'"),
        (LinearRegression(loss="absolute"), "loss: expected one of squaredError, huber, got 'absolute'"),
        (LinearSVC(loss="squared"), "loss: expected one of hinge, squaredHinge, got 'squared'"),
        (LogisticRegression(family="poisson"), "family: expected one of auto, binomial, multinomial"),
        (LogisticRegression(threshold=1.5), r"threshold: expected a number in \[0, 1\], got 1.5"),
        (LogisticRegression(regParam=-1.0), "regParam: expected a finite number that is not negative, got -1.0"),
        (LogisticRegression(elasticNetParam=2.0), r"elasticNetParam: expected a number in \[0, 1\], got 2.0"),
        (LogisticRegression(maxIter=-1), "maxIter: expected a finite number that is not negative, got -1"),
        (LogisticRegression(stepSize=0.0), "stepSize: expected a finite positive number, got 0.0"),
        (LogisticRegression(numWorkers=0), "numWorkers: expected at least 1, got 0"),
        (LogisticRegression(numServers=0), "numServers: expected at least 1, got 0"),
        (LogisticRegression(staleness=-2), "staleness: expected a number of steps, or -1"),
        (LinearRegression(epsilon=1.0), "epsilon: expected a finite number above 1, got 1.0"),
        (FMRegressor(factorSize=0), "factorSize: expected at least 1, got 0"),
        (FMRegressor(miniBatchFraction=0.0), r"miniBatchFraction: expected a number in \(0, 1\], got 0.0"),
    ],
)
def test_recipe_when_params_cannot_be_then_the_error_names_them(estimator, message):
    with pytest.raises(ConfigError, match=message):
        recipe(estimator)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("cls", ALL)
def test_estimator_when_number_is_not_finite_then_names_param(cls, value):
    names = "regParam", "elasticNetParam", "tol", "stepSize", "miniBatchFraction", "momentum", "epsilon", "initStd"
    for name in names:
        if cls().hasParam(name):
            with pytest.raises(ConfigError, match=rf"{name}: expected a .*number.*, got {value}"):
                recipe(cls(**{name: value}))


# Its training computes with them in float64.
FLOAT64 = {("DictionaryLearning", "regParam")}
FITTED = [name for name in algorithms.__all__ if hasattr(getattr(algorithms, name), "fit")]


@pytest.mark.parametrize("name", FITTED)
def test_float_param_when_no_number_of_float32_then_named(name):
    estimator = getattr(algorithms, name)()
    floats = [param.name for param in estimator.params if isinstance(estimator._defaultParamMap.get(param), float)]
    assert floats
    for param in floats:
        for value in [math.nan, -1e39] if (name, param) in FLOAT64 else [math.nan, 1e39, -1e39]:
            with pytest.raises(ConfigError, match=rf"^{param}: expected .*, got {re.escape(repr(value))}"):
                getattr(algorithms, name)(**{param: value})._check_values()


@pytest.mark.parametrize("values", [[0.5, math.nan], [0.5, math.inf], [-0.5, 1.5], [0.0, 0.0, 1.0]])
def test_recipe_when_thresholds_are_invalid_then_names_them(values):
    with pytest.raises(ConfigError, match="thresholds: expected positive numbers, of which one may be 0, got "):
        recipe(LogisticRegression(thresholds=values))


def test_recipe_when_threshold_is_nan_then_error_names_it():
    with pytest.raises(ConfigError, match="threshold: expected a number, got nan"):
        recipe(LinearSVC(threshold=math.nan))


def test_recipe_when_param_equals_default_then_any_solver_works():
    assert recipe(LogisticRegression(solver="l-bfgs", stepSize=0.1, staleness=0)).solver == "l-bfgs"


COEFFICIENTS = DenseMatrix(1, 2, [0.0, -1.0])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"solver": "ma-sgd"}, "lowerBoundsOnCoefficients: only solver 'l-bfgs' takes bounds, got 'ma-sgd'"),
        ({"elasticNetParam": 0.5}, "lowerBoundsOnCoefficients: bounds take L2 penalties only, got elasticNetParam 0.5"),
        (
            {"fitIntercept": False, "upperBoundsOnIntercepts": Vectors.dense(1.0)},
            "upperBoundsOnIntercepts: expected fitIntercept",
        ),
    ],
)
def test_recipe_when_option_conflicts_with_bounds_names_both(params, message):
    with pytest.raises(ConfigError, match=message):
        recipe(LogisticRegression(lowerBoundsOnCoefficients=COEFFICIENTS, **params))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"lowerBoundsOnCoefficients": DenseMatrix(2, 1, [0.0, 0.0])}, "expected 1 x 2, one for each cl.*, got 2 x 1"),
        ({"upperBoundsOnIntercepts": Vectors.dense(1.0, 2.0)}, "upperBoundsOnIntercepts: expected 1 values, one for"),
        ({"upperBoundsOnIntercepts": Vectors.dense(math.nan)}, "upperBoundsOnIntercepts: expected numbers, got nan"),
        (
            {"upperBoundsOnCoefficients": DenseMatrix(1, 2, [0.0, -2.0])},
            "lowerBoundsOnCoefficients: expected no bound above upperBoundsOnCoefficients, got -1 above -2",
        ),
    ],
)
def test_recipe_when_bounds_cannot_be_then_the_error_names_them(params, message):
    estimator = LogisticRegression(**{"lowerBoundsOnCoefficients": COEFFICIENTS, **params})
    with pytest.raises(ConfigError, match=message):
        estimator._complete(recipe(estimator), Problem("logistic", 2))


def test_recipe_when_some_bounds_are_set_then_rest_are_infinite():
    estimator = LogisticRegression(lowerBoundsOnCoefficients=COEFFICIENTS)
    bounds = estimator._complete(recipe(estimator), Problem("logistic", 2)).bounds
    assert bounds.lower.tolist() == [[0.0], [-1.0]]
    assert bounds.upper.tolist() == [[math.inf], [math.inf]]
    assert (bounds.lower_biases.tolist(), bounds.upper_biases.tolist()) == ([-math.inf], [math.inf])
    assert not bounds.are_on_biases


@pytest.mark.parametrize("cls", ALL)
def test_estimator_when_param_is_misspelt_then_error_has_nearest(cls):
    with pytest.raises(TypeError, match=rf"{cls.__name__}: there is no param 'maxiter'; did you mean 'maxIter'\?"):
        cls(maxiter=3)


def test_estimator_when_no_param_is_near_then_error_tells_where():
    with pytest.raises(TypeError, match=r"there is no param 'zzz'; LogisticRegression.*explainParams"):
        LogisticRegression(zzz=3)


def test_cross_when_separated_otherwise_then_error_writes_it():
    with pytest.raises(TypeError, match="crosses: expected columns such as u:x, got 'u-x'"):
        KeyHasher(crosses=["u-x"])


@pytest.mark.parametrize("cls", ALL)
def test_estimator_when_signature_is_asked_then_lists_all_params(cls):
    names = [param.name for param in cls().params]
    assert sorted(inspect.signature(cls).parameters) == sorted([*names, "initialModel", "validationData"])


@pytest.mark.parametrize("cls", ALL)
def test_setters_when_asked_for_then_each_param_has_one(cls):
    missing = [param.name for param in cls().params if not hasattr(cls, f"set{param.name[0].upper()}{param.name[1:]}")]
    assert missing == []


@pytest.mark.parametrize("cls", ALL)
def test_setter_when_called_then_getter_returns_value(cls):
    values = {"numWorkers": 3, "solver": "ma-sgd", "stepSize": 0.5, "lazy": True, "optimizer": "sgd", "maxIter": 7}
    estimator = cls()
    for name, value in values.items():
        capital = name[0].upper() + name[1:]
        assert getattr(estimator, f"set{capital}")(value) is estimator
        assert getattr(estimator, f"get{capital}")() == value


def test_features_when_featurescol_is_list_then_in_those_columns():
    estimator = LogisticRegression(featuresCol=["a", "b"])
    assert estimator.getFeaturesCols() == ["a", "b"]
    assert estimator._features == ("a", "b")


def test_features_when_featurescol_is_set_after_list_then_in_it():
    assert LogisticRegression(featuresCols=["a", "b"]).setFeaturesCol("x")._features == "x"


def test_thresholds_when_they_contradict_threshold_then_error():
    with pytest.raises(ValueError, match="inconsistent values for threshold"):
        LogisticRegression(threshold=0.5, thresholds=[0.2, 0.8])


@pytest.mark.parametrize(
    ("estimator", "model"),
    [(OnlineLogisticRegression, OnlineLogisticRegressionModel), (OnlineFM, OnlineFMModel)],
)
def test_online_model_when_made_then_has_its_training_s_params(estimator, model):
    assert {param.name for param in estimator().params} <= set(dir(model))
