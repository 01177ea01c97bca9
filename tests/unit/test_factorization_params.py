"""Params of MatrixFactorization: pyspark.ml's defaults, options, and what is refused before any job."""

from __future__ import annotations

import math

import pytest
from pyspark.ml import recommendation
from pyspark.ml.param import TypeConverters

from ps2.algorithms import MatrixFactorization, MatrixFactorizationModel, MatrixFactors
from ps2.errors import ConfigError

# pyspark.ml's setters of a param, and one of two.
SETTERS = [name for name in dir(recommendation.ALS) if name.startswith("set") and name not in ("set", "setParams")]


def plan(**params):
    estimator = MatrixFactorization(**params)
    estimator._check()
    return estimator._plan()


def test_params_when_nothing_is_set_then_defaults_of_pyspark():
    ours = {param.name: value for param, value in MatrixFactorization().extractParamMap().items()}
    for param, value in recommendation._ALSParams().extractParamMap().items():
        if param.name != "seed":
            assert ours[param.name] == value, param.name
    assert (ours["solver"], ours["biases"], ours["patience"], ours["seed"]) == ("auto", False, 3, 0)


def test_params_when_pyspark_has_one_then_so_have_we():
    ours, theirs = MatrixFactorization(), recommendation._ALSParams()
    kinds = {p.name: (ours.getParam(p.name).typeConverter, p.typeConverter) for p in theirs.params}
    assert {name for name, kind in kinds.items() if kind[0] is not kind[1]} == {"coldStartStrategy"}
    model = {param.name for param in MatrixFactorizationModel(MatrixFactors([1], [1], [[1.0]], [[1.0]])).params}
    assert {param.name for param in recommendation._ALSModelParams().params} <= model


@pytest.mark.parametrize("name", SETTERS)
def test_setters_when_pyspark_has_one_then_it_sets_ours(name):
    param = name[3].lower() + name[4:]
    values = {"implicitPrefs": True, "nonnegative": True, "regParam": 0.5, "alpha": 2.0}
    kind = MatrixFactorization().getParam("rank" if param == "numBlocks" else param).typeConverter
    value = values.get(param, 3 if kind is TypeConverters.toInt else "drop")
    created = getattr(MatrixFactorization(), name)(value)
    for each in ["numUserBlocks", "numItemBlocks"] if param == "numBlocks" else [param]:
        assert getattr(created, f"get{each[0].upper()}{each[1:]}")() == value


def test_options_when_params_are_set_then_has_them():
    created = plan(rank=7, maxIter=3, regParam=0.2, solver="SGD", biases=True, stepSize=0.05, seed=-5, budgetS=1.5)
    settings = created.settings
    assert (settings.rank, settings.maxIter, settings.regParam, settings.biases) == (7, 3, 0.2, True)
    assert (settings.stepSize, settings.budgetS) == (0.05, 1.5)
    assert (created.solver, created.seed, created.save_interval) == ("sgd", 2**63 - 5, 10)
    created = plan(implicitPrefs=True, alpha=4.0, checkpointInterval=-1)
    assert (created.settings.implicitPrefs, created.settings.alpha, created.save_interval) == (True, 4.0, 0)


@pytest.mark.parametrize(
    ("params", "solver"),
    [
        ({}, "ccd"),
        ({"implicitPrefs": True}, "ccd"),
        ({"nonnegative": True, "biases": True}, "ccd"),
        ({"biases": True}, "sgd"),
        ({"stepSize": 0.1}, "sgd"),
        ({"budgetS": 1.0}, "sgd"),
        ({"solver": "ccd", "biases": True}, "ccd"),
    ],
)
def test_solver_when_it_is_auto_then_chosen_by_the_task(params, solver):
    assert plan(**params).solver == solver


def test_budget_when_it_is_auto_in_any_case_then_named_so():
    assert plan(budgetS="Auto").settings.budgetS == "auto"
    assert plan().settings.budgetS is None


WRONG = [
    ({"rank": 0}, r"rank: expected a number in \[1, 4096\], got 0"),
    ({"rank": 4097}, r"rank: expected a number in \[1, 4096\], got 4097"),
    ({"maxIter": 0}, "maxIter: expected at least 1, got 0"),
    ({"regParam": -0.1}, r"regParam: expected a number in \[0, 1e.18\]"),
    ({"regParam": math.nan}, r"regParam: expected a number in \[0, 1e.18\]"),
    ({"alpha": -1.0, "implicitPrefs": True}, r"alpha: expected a number in \[0, 1e.18\]"),
    ({"solver": "als"}, "solver: expected one of auto, sgd, ccd, got 'als'"),
    ({"coldStartStrategy": "mean"}, "coldStartStrategy: expected one of nan, drop, got 'mean'"),
    ({"stepSize": 0.0}, "stepSize: expected a finite positive number, got 0.0"),
    ({"budgetS": 0.0}, "budgetS: expected a finite positive number of seconds, or 'auto', got 0.0"),
    ({"budgetS": "soon"}, "budgetS: expected a finite positive number of seconds, or 'auto', got 'soon'"),
    ({"validationTol": 1.0}, r"validationTol: expected a number in \[0, 1\), got 1.0"),
    ({"patience": -1}, "patience: expected a finite number that is not negative, got -1"),
    ({"checkpointInterval": 0}, "checkpointInterval: expected -1 or a number from 1 on, got 0"),
    ({"numWorkers": 0}, "numWorkers: expected at least 1, got 0"),
    ({"blockSize": 0}, "blockSize: expected at least 1, got 0"),
    ({"solver": "ccd", "stepSize": 0.1}, "stepSize: solver 'ccd' does not use it"),
    ({"implicitPrefs": True, "budgetS": 1.0}, "budgetS: solver 'ccd' does not use it"),
    ({"implicitPrefs": True, "solver": "sgd"}, "solver: expected 'ccd' for implicit feedback"),
    ({"implicitPrefs": True, "biases": True}, "biases: expected False with implicit feedback"),
]


@pytest.mark.parametrize(("params", "message"), WRONG)
def test_params_when_a_value_is_unusable_then_error(params, message):
    with pytest.raises(ConfigError, match=message):
        plan(**params)
