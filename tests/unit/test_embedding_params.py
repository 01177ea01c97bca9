"""Params of what learns vectors: defaults, the settings that they make, and what they refuse before any job."""

from __future__ import annotations

import math

import pytest
from pyspark.ml import feature
from pyspark.ml.param import TypeConverters

from ps2.algorithms import (
    LDA,
    LINE,
    DeepWalk,
    FMClassifier,
    FMRegressor,
    GBTClassifier,
    GBTRegressor,
    LinearRegression,
    LinearSVC,
    LogisticRegression,
    MatrixFactorization,
    Node2Vec,
    RandomWalks,
    Word2Vec,
)
from ps2.algorithms.embeddings.settings import Node2VecSettings, Word2VecSettings
from ps2.errors import ConfigError

ALL = (Word2Vec, DeepWalk, Node2Vec, LINE)
EVERY = (
    *(*ALL, RandomWalks, LDA, MatrixFactorization, GBTClassifier, GBTRegressor),
    *(LogisticRegression, LinearRegression, LinearSVC, FMClassifier, FMRegressor),
)


def test_word2vec_when_nothing_is_set_then_as_pyspark_but_passes():
    ours = {param.name: value for param, value in Word2Vec().extractParamMap().items()}
    theirs = feature._Word2VecParams()
    for param, value in theirs.extractParamMap().items():
        if param.name not in ("seed", "outputCol", "maxIter"):
            assert ours[param.name] == value, param.name
    assert (ours["negative"], ours["nsExponent"], ours["sample"], ours["architecture"]) == (5, 0.75, 0.0, "skipgram")
    assert ours["maxIter"] == 5  # passes with negative samples; pyspark.ml's one is with hierarchical softmax


def test_settings_when_params_are_set_then_has_them():
    estimator = Word2Vec(vectorSize=7, windowSize=2, negative=3, stepSize=0.1, via="rows", seed=-5)
    plan = estimator._plan(estimator._values(Word2VecSettings), 9, 100)
    assert (plan.vocabulary, plan.total, plan.size, plan.settings.negative, plan.window) == (9, 100, 7, 3, 2)
    assert (plan.settings.stepSize, plan.settings.via, plan.seed) == (0.1, "rows", 2**63 - 5)


def test_walks_when_of_node2vec_then_have_p_and_q():
    settings = Node2Vec(numWalks=3, walkLength=9, p=0.5, q=2.0)._values(Node2VecSettings)
    assert (settings.numWalks, settings.walkLength, settings.p, settings.q) == (3, 9, 0.5, 2.0)
    assert DeepWalk(numWalks=3)._values(Node2VecSettings) == Node2VecSettings(numWalks=3)
    assert not DeepWalk().hasParam("p")


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vectorSize", 0),
        ("negative", 0),
        ("maxIter", 0),
        ("stepSize", 0.0),
        ("stepSize", math.nan),
        ("nsExponent", math.inf),
        ("via", "moon"),
        ("numWorkers", 0),
    ],
)
def test_params_when_they_cannot_be_then_the_error_names_one(cls, name, value):
    with pytest.raises(ConfigError, match=f"^{name}: expected"):
        cls(**{name: value})._check()


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (Word2Vec(windowSize=0), "windowSize: expected at least 1, got 0"),
        (Word2Vec(sample=-1.0), "sample: expected a finite number that is not negative, got -1.0"),
        (Word2Vec(architecture="glove"), "architecture: expected one of skipgram, cbow, got 'glove'"),
        (Word2Vec(maxSentenceLength=0), "maxSentenceLength: expected at least 1, got 0"),
        (Word2Vec(minCount=-1), "minCount: expected"),
        (DeepWalk(windowSize=0), "windowSize: expected at least 1, got 0"),
        (DeepWalk(walkLength=1), "walkLength: expected at least 2: a single vertex has no context, got 1"),
        (Node2Vec(walkLength=1), "walkLength: expected at least 2"),
        (Node2Vec(p=0.0), "p: expected a finite positive number, got 0.0"),
        (Node2Vec(q=0.0), "q: expected a finite positive number, got 0.0"),
        (LINE(order="third"), "order: expected one of both, first, second, got 'third'"),
        (LINE(vectorSize=9), "vectorSize: expected an even number, half for each order, got 9"),
        (LINE(hashed=True, via="servers"), "via: hashed ids require 'rows', got 'servers'"),
        (DeepWalk(graphOn="moon"), "graphOn: expected one of auto, workers, servers"),
    ],
)
def test_params_when_invalid_for_one_estimator_then_names_one(estimator, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        estimator._check()


def numbers_of(estimator, converter):
    return [param.name for param in estimator.params if param.typeConverter is converter]


@pytest.mark.parametrize("cls", EVERY)
def test_an_integer_when_pysparks_cannot_be_it_then_it_is_named(cls):
    for name in set(numbers_of(cls(), TypeConverters.toInt)) - {"seed"}:
        for value in (2**31, -(2**31) - 1, 2**63):
            with pytest.raises(ConfigError, match=f"^{name}: expected an integer of 32 bits.*got {value}"):
                cls(**{name: value})._check_values()
    for seed in (2**63, -(2**63) - 1):
        with pytest.raises(ConfigError, match=f"^seed: expected an integer of 64 bits, got {seed}"):
            cls(seed=seed)._check_values()
    for seed in (2**63 - 1, -(2**63), 2**31, -1):
        cls(seed=seed)._check_values()


@pytest.mark.parametrize("cls", EVERY)
def test_a_float_when_it_is_not_finite_then_it_is_named(cls):
    for name in set(numbers_of(cls(), TypeConverters.toFloat)) - {"threshold"}:
        for value in (math.nan, math.inf, -math.inf):
            with pytest.raises(ConfigError, match=f"^{name}: expected .*, got {value}"):
                cls(**{name: value})._check_values()


def test_params_when_name_is_unknown_then_error_names_it():
    with pytest.raises(TypeError, match=r"DeepWalk: there is no param 'q'; DeepWalk.*explainParams"):
        DeepWalk(q=1.0)


def test_help_when_asked_for_then_it_tells_all_params():
    assert {"numWalks", "walkLength", "p", "q", "vectorSize", "weightCol"} <= set(Node2Vec.__signature__.parameters)
