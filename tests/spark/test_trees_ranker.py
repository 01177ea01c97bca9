"""``GBTRanker`` on servers: the same trees wherever groups lie, as good as xgboost's, and errors for unusable rows."""

from __future__ import annotations

import numpy as np
import pytest
import xgboost
from pyspark.ml.linalg import Vectors
from pyspark.sql import functions as F

from ps2.algorithms import GBTModel, GBTRanker, GBTRankerModel
from ps2.errors import ConfigError, InputError

pytestmark = pytest.mark.usefixtures("ps")

PARAMS = {"groupCol": "query", "maxIter": 6, "maxDepth": 3, "stepSize": 0.5, "minChildWeight": 0.1}


@pytest.fixture(scope="module")
def table():
    """30 queries of 1 to 25 rows; the relevance depends on two features, and on the query."""
    rng = np.random.default_rng(0)
    query = np.repeat(np.arange(30), rng.integers(2, 25, 30))
    query[0] = 99
    x = np.round(rng.normal(size=(len(query), 5)) + (query % 7)[:, None] / 3, 1)
    score = x[:, 0] * 2 + x[:, 1] * (x[:, 2] > 1) + 0.5 * rng.normal(size=len(query))
    return x, np.clip(np.floor(score / 2), 0, 4), query


@pytest.fixture(scope="module")
def frame(spark, table):
    rows = [
        (Vectors.dense(f), float(y), f"q{q}", q % 3 == 0)
        for f, y, q in zip(*map(np.ndarray.tolist, table), strict=True)
    ]
    return spark.createDataFrame(rows, ["features", "label", "query", "held"]).cache()


def gains(y):
    return 2.0**y - 1


def mean_ndcg(margins, y, query, at=10):
    found = []
    for q in np.unique(query):
        mine, s = y[query == q], margins[query == q]
        best = np.sort(gains(mine))[::-1][:at] @ (1 / np.log2(np.arange(2, 2 + min(at, len(mine)))))
        ranked = gains(mine[np.lexsort((mine, -s))])[:at] @ (1 / np.log2(np.arange(2, 2 + min(at, len(mine)))))
        found.append(ranked / best if best else 1.0)
    return np.mean(found)


def trees_of(model):
    return model.toDebugString.split("\n", 1)[1]


def test_ranker_when_groups_lie_elsewhere_then_same_trees(frame, table):
    made = [
        GBTRanker(numWorkers=workers, subsamplingRate=0.8, **PARAMS).fit(rows)
        for workers, rows in ((1, frame), (2, frame.repartition(5, "label")))
    ]
    assert trees_of(made[0]) == trees_of(made[1])
    assert made[0].totalNumNodes > 30


def test_ranker_when_trained_then_as_good_as_xgboost(frame, table, tmp_path):
    x, y, query = table
    made = GBTRanker(**PARAMS).fit(frame)
    order = np.argsort(query, kind="stable")
    rows = xgboost.DMatrix(x[order], y[order], qid=query[order])
    params = {"objective": "rank:ndcg", "eta": 0.5, "max_depth": 3, "nthread": 1, "min_child_weight": 0.1}
    theirs = xgboost.train(params, rows, 6).predict(rows)
    margins = made._trained.margins(x)[:, 0]
    ours = mean_ndcg(margins, y, query)
    assert ours > mean_ndcg(theirs, y[order], query[order]) - 0.05
    assert ours > mean_ndcg(np.zeros(len(y)), y, query) + 0.05
    summary = made.evaluate(frame)
    assert summary.ndcgAt(10) == pytest.approx(ours)
    losses = made.evaluateEachIteration(frame)
    assert losses[-1] == pytest.approx(made.summary.objectiveHistory[-1])
    made.write().overwrite().save(f"{tmp_path}/model")
    assert GBTRankerModel.load(f"{tmp_path}/model").getGroupCol() == "query"
    np.testing.assert_array_equal(GBTModel.load(f"{tmp_path}/model").predict(x), margins)
    made.saveXGBoost(f"{tmp_path}/model.json")
    saved = xgboost.Booster(model_file=f"{tmp_path}/model.json")
    np.testing.assert_allclose(saved.predict(xgboost.DMatrix(x)), margins, atol=1e-5)


def test_validation_when_metric_is_of_ranks_then_best_is_kept(frame, table):
    x, y, query = table
    given = {"validationIndicatorCol": "held", "evalMetric": "ndcg@10", "earlyStoppingRounds": 2}
    made = GBTRanker(**{**PARAMS, "maxIter": 20, **given}).fit(frame)
    history = made.summary.validationHistory
    assert made.getNumTrees == int(np.argmax(history)) + 1
    held = query % 3 == 0
    ours = mean_ndcg(made._trained.margins(x[held])[:, 0], y[held], query[held])
    assert max(history) == pytest.approx(ours, abs=0.03)  # rows of equal margins are in another order


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("label", "label - 1"), "column 'label': expected a relevance, a whole number from 0 to 31, got"),
        (("label", "label + 0.5"), "column 'label': expected a relevance"),
        (("query", "IF(label > 0, query, NULL)"), "column 'query': expected a group, not null, got"),
        (("query", "label"), "column 'query': expected integers or strings as groups, got double"),
    ],
)
def test_ranker_when_rows_are_unusable_then_error(frame, change, error):
    with pytest.raises(InputError, match=error):
        GBTRanker(**PARAMS).fit(frame.withColumn(change[0], F.expr(change[1])))


def test_ranker_when_no_pair_differs_then_no_splits(frame):
    alone = frame.withColumn("query", F.monotonically_increasing_id())
    made = GBTRanker(**{**PARAMS, "maxIter": 1}).fit(alone)
    assert (made.totalNumNodes, made.predict([0.0] * 5)) == (1, 0.0)
    with pytest.raises(ConfigError, match="groupCol: expected the name of the column"):
        GBTRanker().fit(frame)
