"""What does not need Spark's driver pickles: estimators, their params, models, and scorers as their paths."""

from __future__ import annotations

import copy
import gc
import pickle
import threading

import numpy as np
import pytest
from pyspark.ml import Model
from pyspark.ml.param import Params

from ps2 import STOP, algorithms
from ps2.algorithms import GBTClassifier, LogisticRegression, MatrixFactorization, RandomForestRegressor
from ps2.serving import Scorer
from tests.array_fits import fit_arrays, numbers
from tests.exporting import export, values_of
from tests.tree_estimators import fit

CLASSES = [
    cls
    for cls in (getattr(algorithms, name) for name in dir(algorithms))
    if isinstance(cls, type) and issubclass(cls, Params)
]
MODELS = [cls for cls in CLASSES if issubclass(cls, Model)]
X = np.random.default_rng(0).normal(size=(40, 3))
Y = (X[:, 0] > X[:, 1]).astype(float)


def pickled(value):
    return pickle.loads(pickle.dumps(value))


def values(params):
    return {param.name: params.getOrDefault(param) for param in params.params if params.isDefined(param)}


@pytest.mark.parametrize("maker", [cls for cls in CLASSES if cls not in MODELS])
def test_estimator_when_pickled_then_has_its_params(maker):
    estimator = maker()
    if estimator.hasParam("numWorkers"):
        estimator.setParams(numWorkers=3)
    copy = pickled(estimator)
    assert (type(copy), copy.uid, values(copy)) == (maker, estimator.uid, values(estimator))
    assert pickled(estimator.params) == estimator.params


@pytest.mark.parametrize("maker", MODELS)
def test_model_when_pickled_then_has_what_was_fitted(maker):
    model = maker("fitted")
    assert vars(pickled(model)) == vars(model)


def test_stop_when_pickled_or_copied_then_is_itself():
    """A run compares what onClock returns with it."""
    assert pickled(STOP) is copy.copy(STOP) is copy.deepcopy({"end": STOP})["end"] is STOP


def test_name_when_estimator_was_pickled_then_may_have_any_case():
    assert pickled(MatrixFactorization()).setParams(solver="CCD").getSolver() == "ccd"


def test_model_when_it_has_a_summary_then_pickles_without_it():
    """The summary has the DataFrame: here a function stands for what does not pickle of it."""
    model = fit_arrays(LogisticRegression(maxIter=3), X, label=Y)
    model.summary.unpicklable = lambda: None
    copy = pickled(model)
    assert (model.hasSummary, copy.hasSummary) == (True, False)
    np.testing.assert_array_equal(numbers(copy), numbers(model))
    assert [copy.predict(row) for row in X] == [model.predict(row) for row in X]


@pytest.mark.parametrize("maker", [GBTClassifier, RandomForestRegressor])
def test_trees_when_pickled_then_predict_the_same(maker):
    model = fit(maker(seed=1), X, Y)
    copy = pickled(model)
    assert [copy.predict(row) for row in X] == [model.predict(row) for row in X]


def test_scorer_when_pickled_then_reads_the_same_export(tmp_path, monkeypatch):
    """Also where the working folder is another one, as in tasks."""
    monkeypatch.chdir(tmp_path)
    export("export", [3, 5])
    with Scorer("export", refreshS=60) as scorer:
        written = pickle.dumps(scorer)
    monkeypatch.chdir("/")
    with pickle.loads(written) as copy:
        np.testing.assert_array_equal(copy.vectors([5, 3]), values_of([5, 3]))
        assert pickle.loads(pickle.dumps(copy)).path == str(tmp_path / "export")


def test_scorer_when_nobody_has_it_any_more_then_its_thread_ends(tmp_path, until):
    """Each task of a job unpickles one, in a process that goes on."""
    export(tmp_path, [3, 5])
    before = set(threading.enumerate())
    Scorer(str(tmp_path), refreshS=60)
    gc.collect()
    until(lambda: set(threading.enumerate()) <= before, "the thread ends")
