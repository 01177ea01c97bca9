"""``GBTRanker`` of DataFrames: the same trees wherever groups lie, and errors for unusable rows."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors
from pyspark.sql import functions as F

from ps2.algorithms import GBTModel, GBTRanker, GBTRankerModel
from ps2.errors import InputError
from tests.rankings import mean_ndcg, queries
from tests.tree_estimators import same_trees

pytestmark = pytest.mark.usefixtures("ps")

PARAMS = {"groupCol": "query", "maxIter": 6, "maxDepth": 3, "stepSize": 0.5, "minChildWeight": 0.1}


@pytest.fixture(scope="module")
def frame(spark):
    rows = [(Vectors.dense(f), float(y), f"q{q}") for f, y, q in zip(*map(np.ndarray.tolist, queries()), strict=True)]
    return spark.createDataFrame(rows, ["features", "label", "query"]).cache()


def test_ranker_when_groups_lie_elsewhere_then_same_trees(frame, tmp_path):
    one, two = (
        GBTRanker(numWorkers=workers, subsamplingRate=0.8, **PARAMS).fit(rows)
        for workers, rows in ((1, frame), (2, frame.repartition(5, "label")))
    )
    assert same_trees(one, two)
    assert one.totalNumNodes > 30
    x, y, query = queries()
    assert one.evaluate(frame).ndcgAt(10) == pytest.approx(mean_ndcg(one.fitted.margins(x)[:, 0], y, query))
    with pytest.raises(InputError, match="expected rows to evaluate, got none"):
        one.evaluate(frame.where("false")).ndcgAt(10)
    # Rows of equal margins are in another order while trees grow.
    assert one.evaluateEachIteration(frame)[-1] == pytest.approx(one.summary.objectiveHistory[-1], abs=0.01)
    one.write().overwrite().save(f"{tmp_path}/model")
    assert GBTRankerModel.load(f"{tmp_path}/model").getGroupCol() == "query"
    np.testing.assert_array_equal(GBTModel.load(f"{tmp_path}/model").predict(x), one.fitted.predict(x))


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


def test_ranker_when_margins_are_equal_then_metrics_agree(frame, spark):
    """The NDCG of LightGBM: rows of equal margins are in the order of the DataFrame, wherever workers have them."""
    held = frame.withColumn("held", F.col("query").isin([f"q{n}" for n in range(0, 30, 3)]))
    inputs = {**PARAMS, "maxIter": 1, "maxDepth": 1, "numWorkers": 2}
    created = GBTRanker(validationIndicatorCol="held", evalMetric="ndcg@10", **inputs).fit(held)
    some = held.where("held")
    x, y, query = (
        np.array(column) for column in zip(*some.select("features", "label", "query").collect(), strict=True)
    )
    expected = mean_ndcg(created.fitted.margins(x)[:, 0], y, query)
    assert len(np.unique(created.fitted.margins(x))) == 2
    assert created.summary.validationHistory[-1] == pytest.approx(expected)
    assert created.evaluate(some).ndcgAt(10) == pytest.approx(expected)
