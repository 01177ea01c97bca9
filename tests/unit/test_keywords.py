"""The signatures of estimators show their keywords with defaults, those that type checkers know."""

from __future__ import annotations

import inspect
import pydoc
from importlib import import_module

import pytest

from ps2 import algorithms
from ps2.algorithms import KMeansModel, LogisticRegression, RandomForestClassifier, Word2Vec
from ps2.algorithms.frame.params import ByName
from tests.public_api import SPARK_4

CLASSES = [getattr(algorithms, name) for name in algorithms.__all__]
ESTIMATORS = [cls for cls in CLASSES if issubclass(cls, ByName) and cls.takes_keywords() and "__init__" in vars(cls)]


@pytest.mark.parametrize("cls", ESTIMATORS, ids=lambda cls: cls.__name__)
def test_signature_when_asked_then_keywords_of_type_checkers(cls):
    module = cls.__module__.removeprefix("ps2.algorithms.").replace(".", "_")
    known = getattr(import_module(f"ps2.algorithms.estimators.keywords.{module}"), cls.__name__)
    lacking = {name for name in SPARK_4 if not hasattr(cls, name)}
    assert set(inspect.signature(cls).parameters) == set(known.__annotations__) - lacking


def test_signature_when_asked_then_defaults():
    keywords = inspect.signature(RandomForestClassifier).parameters
    found = {name: keywords[name].default for name in ("numTrees", "impurity", "labelCol", "weightCol")}
    assert found == {"numTrees": 20, "impurity": "gini", "labelCol": "label", "weightCol": None}
    assert inspect.signature(Word2Vec).parameters["outputCol"].default is None  # the uid is part of it


def test_signature_of_model_when_asked_then_its_own_argument():
    assert list(inspect.signature(KMeansModel).parameters) == ["fitted"]


def test_help_when_asked_then_keywords_with_defaults():
    assert "regParam=0.0" in pydoc.render_doc(LogisticRegression)
