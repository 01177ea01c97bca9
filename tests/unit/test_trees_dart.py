"""DART: the rounds that are dropped, the scales of trees by a reference in NumPy, and the same trees on any fleet."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from ps2.algorithms.classification import GBTClassifier
from ps2.algorithms.regression import GBTRegressor
from ps2.algorithms.trees.dropout import Dropout
from ps2.algorithms.trees.predict import Predictor
from ps2.algorithms.trees.settings import BoostingSettings
from ps2.errors import ConfigError
from tests.tree_estimators import data, fit, same_trees

X, Y = data(rows=400)
CLASSES = (Y > 0).astype(float)
DART = {"boostingType": "dart", "dropRate": 0.5, "skipDrop": 0.2, "maxIter": 7, "maxDepth": 3, "stepSize": 0.5}


def dropout(seed=3, **values):
    return Dropout(BoostingSettings(boostingType="dart", **values), seed)


def test_drops_when_asked_in_any_order_then_are_the_same():
    one, two = dropout(), dropout()
    expected = [one.drop(number) for number in range(60)]
    for number in (59, 7, 30):
        np.testing.assert_array_equal(two.drop(number).rounds, expected[number].rounds)
        np.testing.assert_array_equal(two.drop(number).scales, expected[number].scales)


def test_scales_when_rounds_are_dropped_then_follow_the_paper():
    drops, scales = dropout(dropRate=0.3, skipDrop=0.2), np.empty(0)
    for number in range(40):
        rounds, before = drops.drop(number)
        np.testing.assert_array_equal(before, scales[rounds])
        scales[rounds] *= len(rounds) / (len(rounds) + 1)
        assert drops.drop(number).new_scale == 1 / (len(rounds) + 1)
        scales = np.append(scales, 1.0)
        np.testing.assert_array_equal(drops.scales_after(number + 1), scales)
    assert scales.min() < 0.5


@pytest.mark.parametrize("uniform", [False, True])
def test_drops_when_rounds_are_many_then_have_the_rates(uniform):
    drops = dropout(skipDrop=0.4, uniformDrop=uniform, maxDrop=0)
    rates = np.array([len(drops.drop(number).rounds) / number for number in range(100, 400)])
    assert np.mean(rates == 0) == pytest.approx(0.4, abs=0.08)
    assert rates.mean() == pytest.approx(0.6 * 0.1, rel=0.15)


def test_drops_when_weights_differ_then_heavy_trees_are_likelier():
    drops, ranks = dropout(skipDrop=0.0, maxDrop=0), []
    for number in range(100, 400):
        weights = drops.scales_after(number) * [drops.drop(earlier).new_scale for earlier in range(number)]
        ranks += np.searchsorted(np.sort(weights), weights[drops.drop(number).rounds]).tolist()
        assert number > 100 or weights.min() < 0.3 * weights.max()
    assert np.mean(ranks) > 1.2 * np.mean(range(100, 400)) / 2


def test_drops_when_more_than_max_drop_then_this_many():
    rounds = [dropout(dropRate=1.0, skipDrop=0.0, maxDrop=5).drop(number).rounds for number in range(30)]
    assert [len(dropped) for dropped in rounds] == [min(number, 5) for number in range(30)]
    assert max(dropped.max() for dropped in rounds[20:]) > 15


FLEETS = (({"via": "local"}, 1), ({"via": "servers", "numWorkers": 1}, 2), ({"via": "servers", "numWorkers": 3}, 3))


def fleet_models(make, x, y, **others):
    return [fit(make(**DART, **fleet), x, y, servers=servers, **others) for fleet, servers in FLEETS]


@pytest.mark.parametrize("sparse", [False, True])
def test_trees_when_rows_move_then_bit_identical(sparse):
    x = sp.csr_array(np.where(np.random.default_rng(0).random(X.shape) < 0.7, 0, X)) if sparse else X
    assert same_trees(*fleet_models(GBTClassifier, x, CLASSES))


def test_trees_when_leaves_are_quantiles_then_bit_identical():
    models = fleet_models(lambda **params: GBTRegressor(lossType="absolute", growth="leaf", **params), X, Y)
    assert same_trees(*models)


def test_trees_when_classes_are_held_out_then_bit_identical():
    held, y = np.arange(len(X)) % 4 == 0, CLASSES + (X[:, 2] > 0)
    models = fleet_models(lambda **params: GBTClassifier(validationIndicatorCol="held", **params), X, y, held=held)
    assert same_trees(*models)
    history = models[0].summary.validationHistory
    margins = Predictor(models[0]._trained.forest).margins(X[held])
    odds = np.exp(margins - margins.max(axis=1, keepdims=True))
    losses = -np.log(odds[np.arange(held.sum()), y[held].astype(int)] / odds.sum(axis=1))
    assert losses.mean() == pytest.approx(min(history))


def test_trees_when_grown_then_gradients_lack_dropped_trees():
    """With a squared loss, leaves are means of the residuals of the margins without the dropped trees."""
    params = {**DART, "via": "local", "defaults": "xgboost", "regLambda": 0.0, "seed": 5}
    trees = fit(GBTRegressor(**params), X, Y)._trained.forest.trees
    leaves = Predictor(fit(GBTRegressor(**params), X, Y)._trained.forest).leaves(X)
    drops, base = Dropout(BoostingSettings(**params), 5), Y.mean()
    final, values, is_dropped = drops.scales_after(len(trees)), [], False
    for number, tree in enumerate(trees):
        drop = drops.drop(number)
        scales = drops.scales_after(number)
        scales[drop.rounds] = 0.0
        residuals = Y - base - sum(scale * value for scale, value in zip(scales, values, strict=True))
        means = np.array([residuals[leaves[:, number] == leaf].mean() for leaf in leaves[:, number]])
        values.append(0.5 * drop.new_scale * means)
        np.testing.assert_allclose(final[number] * values[-1], tree.value[leaves[:, number]], rtol=1e-9, atol=1e-12)
        is_dropped |= len(drop.rounds) > 1
    assert is_dropped


def test_history_when_trees_are_dropped_then_of_the_whole_model():
    models = [fit(GBTRegressor(**(DART | {"maxIter": rounds})), X, Y) for rounds in (4, 7)]
    history = models[1].summary.objectiveHistory
    for model in models:
        residuals = model._trained.margins(X)[:, 0] - Y
        assert (residuals**2).mean() / 2 == pytest.approx(history[len(model.trees)])


def test_trees_when_they_go_on_from_a_model_then_its_trees_stay():
    first = fit(GBTRegressor(maxIter=3, maxDepth=3), X, Y)
    models = [
        fit(GBTRegressor(**DART, **fleet).setInitialModel(first), X, Y, servers=servers)
        for fleet, servers in FLEETS[:2]
    ]
    assert same_trees(*models)
    forests = [model._trained.forest.trees for model in (first, models[0])]
    assert all(np.array_equal(one.value, two.value) for one, two in zip(*forests, strict=False))


def test_trees_when_goss_samples_rows_then_bit_identical():
    assert same_trees(*fleet_models(lambda **params: GBTRegressor(dataSampleStrategy="goss", **params), X, Y))


def test_dart_when_param_needs_it_then_error():
    with pytest.raises(ConfigError, match="dropRate: expected with boostingType='dart', got 'gbdt'"):
        fit(GBTRegressor(dropRate=0.2), X, Y)
