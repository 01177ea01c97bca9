"""The signatures of estimators show their keywords with defaults, those that type checkers know."""

from __future__ import annotations

import inspect
import pydoc

import pytest

from ps2 import algorithms
from ps2.algorithms import KMeansModel, LogisticRegression, RandomForestClassifier, Word2Vec
from ps2.algorithms.frame.params import ByName
from ps2.algorithms.frame.settings import settings_of

CLASSES = [getattr(algorithms, name) for name in algorithms.__all__]
ESTIMATORS = [cls for cls in CLASSES if issubclass(cls, ByName) and cls.takes_keywords()]
# The keywords for models, rows and functions, which are not params.
OBJECTS = ("initialModel", "validationData", "objective", "customMetric")
PARAMS = [cls for cls in CLASSES if issubclass(cls, ByName)]


@pytest.mark.parametrize("cls", ESTIMATORS, ids=lambda cls: cls.__name__)
def test_signature_when_asked_then_keywords_of_type_checkers(cls):
    objects = {name for name in OBJECTS if hasattr(cls, f"set{name[0].upper()}{name[1:]}")}
    assert set(inspect.signature(cls).parameters) == {*settings_of(cls), *objects}


@pytest.mark.parametrize("cls", PARAMS, ids=lambda cls: cls.__name__)
def test_setting_when_declared_then_has_its_accessors(cls):
    names = {verb + name[0].upper() + name[1:] for name in settings_of(cls) for verb in ("get", "set")}
    missing = {name for name in names if not hasattr(cls, name)}
    # Of a model, it is pyspark.ml's property.
    assert {name for name in missing if name.startswith("get")} <= {"getNumTrees"}
    if not cls._is_model:
        unset = {setting.name for setting in settings_of(cls).values() if setting.doc.startswith("no effect")}
        assert {name[3].lower() + name[4:] for name in missing} <= {*unset, "numTrees"}


def test_signature_when_asked_then_defaults():
    keywords = inspect.signature(RandomForestClassifier).parameters
    result = {name: keywords[name].default for name in ("numTrees", "impurity", "labelCol", "weightCol")}
    assert result == {"numTrees": 20, "impurity": "gini", "labelCol": "label", "weightCol": None}
    assert inspect.signature(Word2Vec).parameters["outputCol"].default is None  # the uid is part of it


def test_signature_of_model_when_asked_then_its_own_argument():
    assert list(inspect.signature(KMeansModel).parameters) == ["fitted"]


def test_help_when_asked_then_keywords_with_defaults():
    assert "regParam=0.0" in pydoc.render_doc(LogisticRegression)
