"""One-side sampling by gradients: which rows are the top ones, and that samples keep sums right on average."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.algorithms.classification import GBTClassifier
from ps2.algorithms.trees.goss import CELLS, TopRows, magnitude_cells, sample_by_gradient, top_rows
from ps2.errors import ConfigError
from tests import plans
from tests.tree_estimators import data, fit, same_trees

X, Y = data(rows=600)
CLASSES = (Y > 0).astype(float)
GOSS = {"dataSampleStrategy": "goss", "maxIter": 6, "maxDepth": 3, "stepSize": 0.5}


def pairs(rows=20_000, width=1):
    return np.random.default_rng(0).normal(size=(width, rows, 2)) ** 2


def test_cells_when_magnitudes_grow_then_grow_too():
    values = pairs(width=3)
    magnitudes = (values[:, :, 0] * values[:, :, 1]).sum(axis=0)
    cells, _ = magnitude_cells(values)
    assert (np.diff(cells[np.argsort(magnitudes)]) >= 0).all()
    assert len(np.unique(cells)) > 100


def test_top_rows_when_sampled_then_are_the_largest():
    values = pairs()
    cells, counts = magnitude_cells(values)
    top = top_rows(counts, 0.2)
    is_top, is_other = sample_by_gradient(cells, np.arange(len(cells)), top, 0.1 / 0.8, (1, 2))
    limit = np.quantile(values[0].prod(axis=1), 0.8)
    assert is_top.mean() == pytest.approx(0.2, abs=0.003)
    assert values[0].prod(axis=1)[is_top].min() > 0.85 * limit
    assert is_other.mean() == pytest.approx(0.1, abs=0.01)
    assert not (is_top & is_other).any()


def test_sums_when_others_are_amplified_then_are_right():
    values = pairs()
    cells, counts = magnitude_cells(values)
    top = top_rows(counts, 0.2)
    plan, sums = plans.boosting(dataSampleStrategy="goss"), []
    for key in range(40):
        is_top, is_other = sample_by_gradient(cells, np.arange(len(cells)), top, 0.1 / 0.8, (key, 100 + key))
        sums.append(values[0, is_top].sum(axis=0) + plan.amplification * values[0, is_other].sum(axis=0))
    np.testing.assert_allclose(np.mean(sums, axis=0), values[0].sum(axis=0), rtol=0.01)


def test_top_rows_when_all_gradients_are_equal_then_a_share():
    counts = np.zeros(CELLS, np.int64)
    counts[7] = 40
    assert top_rows(counts, 0.25) == TopRows(7, 0.25)


def test_trees_when_rows_move_then_have_same_samples():
    fleets = ({"via": "local"}, {"numWorkers": 1}, {"numWorkers": 3})
    models = [
        fit(GBTClassifier(**GOSS, **({"via": "servers"} | fleet)), X, CLASSES, servers=servers)
        for servers, fleet in enumerate(fleets, 1)
    ]
    assert same_trees(*models)


def test_trees_when_rounds_are_the_first_then_have_all_rows():
    trees = fit(GBTClassifier(**GOSS), X, CLASSES)._trained.forest.trees
    counts = [int(tree.count[0]) for tree in trees]
    assert counts[:2] == [600, 600]
    assert max(counts[2:]) < 300


def test_model_when_it_samples_classes_then_still_learns():
    y = CLASSES + (X[:, 2] > 0)
    one, two = (fit(GBTClassifier(via=via, **GOSS), X, y) for via in ("local", "servers"))
    assert same_trees(one, two)
    assert one.summary.objectiveHistory[-1] < 0.6 * one.summary.objectiveHistory[0]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"subsamplingRate": 0.5}, "subsamplingRate: expected 1 with dataSampleStrategy='goss', got 0.5"),
        ({"topRate": 0.7, "otherRate": 0.4}, "otherRate: expected at most 1 - topRate, which is 0.3, got 0.4"),
        ({"dataSampleStrategy": "bagging", "topRate": 0.3}, "topRate: expected with dataSampleStrategy='goss'"),
    ],
)
def test_goss_when_params_do_not_go_together_then_error(params, message):
    with pytest.raises(ConfigError, match=message):
        fit(GBTClassifier(**(GOSS | params)), X, CLASSES)
