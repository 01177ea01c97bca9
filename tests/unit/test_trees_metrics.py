"""Metrics of workers' rows add up to those of all rows; a training ends when they stop improving."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.algorithms.trees.boosting_record import EarlyStopping
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.metrics import CELLS, Metric
from ps2.errors import ConfigError

NONE = np.empty(0)
FALLING = [0.5, 0.4, 0.41, 0.42, 0.39, 0.40, 0.41, 0.42]


def pair_share(margins, y, w):
    """The AUC, pair by pair."""
    of_1, of_0 = y == 1, y == 0
    above = np.sign(margins[of_1][:, None] - margins[of_0]) / 2 + 0.5
    pairs = w[of_1][:, None] * w[of_0]
    return (above * pairs).sum() / pairs.sum()


@pytest.mark.parametrize("weighted", [False, True])
def test_auc_when_workers_add_cells_then_near_pairs_of_rows(weighted):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 2000).astype(float)
    margins, w = y - 7 + 0.3 * rng.normal(size=2000), rng.random(2000) + 0.1 if weighted else NONE
    metric, objective = Metric.parse("AUC"), Objective("logistic")
    parts = [(s, w[s] if weighted else NONE) for s in (slice(0, 700), slice(700, 2000))]
    sums = sum(metric.sums(objective, margins[s][:, None], y[s], some, (-12.0, 3.0)) for s, some in parts)
    assert sums.shape == (2, CELLS)
    assert metric.value(sums) == pytest.approx(pair_share(margins, y, w if weighted else np.ones(2000)), abs=1e-4)


def test_auc_when_all_margins_are_equal_then_half():
    y = np.array([0.0, 1.0, 1.0])
    sums = Metric("auc").sums(Objective("logistic"), np.zeros((3, 1)), y, NONE, (0.0, 0.0))
    assert Metric("auc").value(sums) == 0.5
    assert np.isnan(Metric("auc").value(sums * [[0], [1]]))


def test_means_when_weighted_then_are_those_of_numpy():
    rng = np.random.default_rng(1)
    margins, y, w = rng.normal(size=(50, 3)), rng.integers(0, 3, 50).astype(float), rng.random(50)
    span = (-9.0, 9.0)

    def found(name, objective, at=slice(0, 1)):
        return Metric(name).value(Metric(name).sums(objective, margins[:, at], y, w, span))

    residuals = margins[:, 0] - y
    assert found("rmse", Objective("squared")) == pytest.approx(np.sqrt(np.average(residuals**2, weights=w)))
    of_counts = np.average(np.abs(np.exp(margins[:, 0]) - y), weights=w)
    assert found("mae", Objective("poisson")) == pytest.approx(of_counts)
    wrong = margins.argmax(axis=1) != y
    assert found("error", Objective("softmax", 3), slice(0, 3)) == pytest.approx(np.average(wrong, weights=w))
    odds = np.exp(margins)
    logs = -np.log(odds[np.arange(50), y.astype(int)] / odds.sum(axis=1))
    assert found("logloss", Objective("softmax", 3), slice(0, 3)) == pytest.approx(np.average(logs, weights=w))


@pytest.mark.parametrize(("name", "loss"), [("auc", "softmax"), ("rmse", "logistic"), ("error", "poisson")])
def test_metric_when_loss_has_no_such_then_error(name, loss):
    with pytest.raises(ConfigError, match=f"evalMetric: expected one of .* for loss '{loss}', got '{name}'"):
        Metric.parse(name).check(loss)


@pytest.mark.parametrize(
    ("rule", "rounds"),
    [
        (EarlyStopping(), 3),
        (EarlyStopping(patience=2), 4),
        (EarlyStopping(patience=3), 8),
        (EarlyStopping(patience=3, tolerance=0.2), 5),
        (EarlyStopping(patience=2, is_larger_better=True), 3),
    ],
)
def test_stopping_when_rounds_do_not_improve_then_over(rule, rounds):
    over = [rule.is_over(FALLING[:count]) for count in range(1, 9)]
    assert over.index(True) + 1 == rounds
    assert FALLING[rule.best(FALLING)] == (max if rule.is_larger_better else min)(FALLING)


def test_stopping_when_metric_stays_then_pyspark_goes_on():
    assert not EarlyStopping().is_over([0.5] * 5)
    assert EarlyStopping(patience=4).is_over([0.5] * 5)
