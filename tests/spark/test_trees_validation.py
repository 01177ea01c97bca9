"""Rounds of trees that are measured, watched, and used in part."""

from __future__ import annotations

import numpy as np
import pytest
from tree_frames import data, frame_of

from ps2.algorithms import GBTClassifier, GBTRegressor
from ps2.errors import ConfigError

pytestmark = pytest.mark.usefixtures("ps")


@pytest.fixture(scope="module")
def rows():
    x, y = data(rows=300)
    y += np.random.default_rng(5).normal(size=300)
    return x, (y > 0).astype(float), np.arange(300) % 3 == 0


@pytest.fixture(scope="module")
def frame(spark, rows):
    return frame_of(spark, *rows).cache()


def margins(model, x, rounds):
    first = model._trained.first(rounds)
    return first.margins(x.astype(np.float64))[:, 0]


def test_training_when_auc_stops_rising_then_best_is_kept(frame, rows):
    x, y, held = rows
    seen = []
    estimator = GBTClassifier(maxIter=40, stepSize=0.5, maxDepth=4, validationIndicatorCol="held")
    estimator.setEarlyStoppingRounds(4).setEvalMetric("auc").onRound(lambda report: seen.append(report.validation))
    made = estimator.fit(frame)
    history = made.summary.validationHistory
    best = int(np.argmax(history))
    assert history == seen
    assert len(history) == best + 5 <= 40
    assert made.getNumTrees == best + 1
    for rounds in range(1, best + 2):
        m, label = margins(made, x[held], rounds), y[held]
        pairs = m[label == 1][:, None] - m[label == 0]
        assert history[rounds - 1] == pytest.approx((np.sign(pairs) / 2 + 0.5).mean(), abs=2e-4)


def test_predictions_when_first_trees_are_asked_then_their_sum(frame, rows):
    made = GBTClassifier(maxIter=4, maxDepth=3).fit(frame)
    short = made.copy({made.numTrees: 2}).setLeafCol("leaves")
    found = [(row.rawPrediction[1], row.leaves.size) for row in short.transform(frame).collect()]
    assert found == [(margin, 2) for margin in margins(made, rows[0], 2)]
    alone = made._trained.predictProbability(rows[0].astype(float), numTrees=2)[0, 1]
    assert short.predictProbability(rows[0][0])[1] == alone
    assert made.predictProbability(rows[0][0])[1] != alone
    with pytest.raises(ConfigError, match="numTrees: expected a number from 1 to 4, got 5"):
        made.setNumTrees(5).transform(frame)


def test_training_when_callback_returns_true_then_ends(frame):
    numbers = []

    def is_enough(report):
        numbers.append(report.number)
        return report.number == 2

    made = GBTRegressor(maxIter=9, maxDepth=2).onRound(is_enough).fit(frame)
    assert (numbers, made.getNumTrees, made.summary.reason) == ([1, 2], 2, "the callback has ended it")


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"evalMetric": "auc"}, "evalMetric: expected with validationIndicatorCol"),
        ({"earlyStoppingRounds": 0, "validationIndicatorCol": "held"}, "earlyStoppingRounds: expected 1 at least"),
        ({"evalMetric": "gini", "validationIndicatorCol": "held"}, "evalMetric: expected one of logloss, error, auc"),
        ({"evalMetric": "rmse", "validationIndicatorCol": "held"}, "evalMetric: .* for loss 'logistic', got 'rmse'"),
        ({"numTrees": 3}, "numTrees: expected for a model"),
    ],
)
def test_params_when_they_make_no_sense_then_error(frame, params, expected):
    with pytest.raises(ConfigError, match=expected):
        GBTClassifier(**params).fit(frame)
