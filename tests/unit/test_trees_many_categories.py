"""Features with more categories than bins: the most frequent have bins of their own, the others count as missing."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp
import xgboost

from ps2.algorithms.trees.estimator import GBTRegressor
from ps2.algorithms.trees.forests.estimator import RandomForestRegressor
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.layout import MAX_CATEGORIES
from ps2.algorithms.trees.predict import Predictor
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.algorithms.trees.tree import Forest
from ps2.data.rows import LocalRows
from tests.tree_estimators import fit, same_trees

COUNT = 1_000_000


def table(rows=9_000):
    """Return a number, a category of COUNT and a category of 6, and labels."""
    rng = np.random.default_rng(0)
    codes = np.where(rng.random(rows) < 0.4, 33_100 * rng.integers(0, 30, rows), rng.integers(0, COUNT, rows))
    x = np.column_stack([rng.normal(size=rows), codes, rng.integers(0, 6, rows)])
    return x, x[:, 0] + 3 * np.sin(codes / 33_100) + (x[:, 2] == 3)


X, Y = table()
CATEGORIES = {1: COUNT, 2: 6}


@pytest.fixture(scope="module")
def model():
    return fit(GBTRegressor(maxIter=4, minDataPerGroup=20, via="local"), X, Y, categories=CATEGORIES)


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("mean_weight", [None, 2.0])
def test_bins_when_categories_are_too_many_then_are_the_heaviest(is_sparse, mean_weight):
    rng = np.random.default_rng(1)
    codes = np.concatenate([rng.integers(0, 50_000, 8_000), np.zeros(4, int)])
    weights = None if mean_weight is None else rng.choice([1.0, 3.0], len(codes))
    integers = np.ones(len(codes)) if weights is None else 256 + 128 * weights  # a row counts its weight plus the mean
    values, index = np.unique(codes, return_inverse=True)
    heaviest = np.lexsort((values, -np.bincount(index, integers)))[:MAX_CATEGORIES]
    x = sp.csr_array(codes[:, None].astype(float))
    if not is_sparse:
        x = sp.csr_array((codes.astype(float), np.zeros(len(codes), np.int32), np.arange(len(codes) + 1)), x.shape)
    quantiles = Quantiles.in_process(
        TreeProblem(Objective("squared"), 1, (0.0,), categories={0: 50_000}), 8, mean_weight
    )
    bins, _ = quantiles.find_bins(LocalRows(np.arange(1), x, np.zeros(len(codes)), weights))
    np.testing.assert_array_equal(bins.cuts, np.sort(values[heaviest]))


@pytest.mark.parametrize("estimator", [GBTRegressor(maxIter=3), RandomForestRegressor(numTrees=3)])
def test_trees_when_categories_are_too_many_then_any_fleet(estimator):
    alone = fit(estimator.copy().setVia("local").setNumWorkers(1), X, Y, categories=CATEGORIES)
    fleet = fit(estimator.copy().setVia("servers").setNumWorkers(3), X, Y, categories=CATEGORIES, servers=2)
    stored = fit(estimator.copy().setVia("servers"), sp.csr_array(X), Y, categories=CATEGORIES, servers=3)
    assert any(1 in tree.feature for tree in alone.fitted.forest.trees)
    assert same_trees(alone, fleet, stored)


def test_predict_when_category_is_rare_then_goes_with_missing(model):
    common = 33_100 * np.arange(30)
    rows = np.tile([[0.5, np.nan, 1.0]], (4, 1))
    rows[:3, 1] = np.setdiff1d(np.arange(COUNT - 40, COUNT), X[:, 1])[0], 2 * COUNT, 0.5
    assert len(set(model.fitted.margins(rows).ravel())) == 1
    rows = np.column_stack([np.full(30, 0.5), common, np.ones(30)])
    assert len(set(model.fitted.margins(rows).ravel())) > 5


def test_saved_when_categories_are_too_many_then_predicts_alike(model, tmp_path):
    forest = model.fitted.forest
    metadata = tmp_path / "metadata"
    metadata.mkdir()
    (metadata / "part-00000").write_text(json.dumps({"ps2": forest.write(str(tmp_path))}) + "\n")
    loaded = Predictor(Forest.load(str(tmp_path)))
    np.testing.assert_array_equal(loaded.margins(X), Predictor(forest).margins(X))


def test_xgboost_file_when_categories_are_too_many_then_equal(model, tmp_path):
    model.saveXGBoost(str(tmp_path / "m.json"))
    x = X[:500].copy()
    x[:100, 1] = np.arange(COUNT - 100, COUNT)
    rows = xgboost.DMatrix(x, feature_types=["q", "c", "c"])
    margins = xgboost.Booster(model_file=str(tmp_path / "m.json")).predict(rows, output_margin=True)
    np.testing.assert_allclose(margins, model.fitted.margins(x).ravel(), atol=1e-5)


def test_contributions_when_categories_are_too_many_then_add_up(model):
    sums = model.fitted.contributions(X[:300]).sum(axis=1)
    np.testing.assert_allclose(sums, model.fitted.margins(X[:300]).ravel(), atol=1e-9)
