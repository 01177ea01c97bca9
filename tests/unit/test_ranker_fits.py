"""``GBTRanker`` is as good as xgboost's ranker, and has the trees of LightGBM's."""

from __future__ import annotations

import numpy as np
import pytest
import xgboost

from ps2.algorithms import GBTRanker
from ps2.errors import ConfigError
from tests.rankings import mean_ndcg, queries
from tests.tree_estimators import fit

# The margins of every 40th row, less ``base``, that LightGBM 4.7.0 predicts after
#   sizes = np.diff(np.flatnonzero(np.append(np.append(True, np.diff(query) != 0), True)))
#   rows = lightgbm.Dataset(x, y, group=sizes, init_score=base)
#   params = {"objective": "lambdarank", "num_leaves": 8, "min_data_in_leaf": 0, "min_data_in_bin": 1}
#   lightgbm.train(params, rows, 6).predict(x)[::40]
# Margins differ from the start, because of equal ones PS2 ranks by a hash. LightGBM estimates the number of rows of a
# leaf from its hessians; 0 makes this irrelevant.
LIGHTGBM = [-1.0191, 0.2876, -0.838, -0.9311, -0.2055, -1.0191, -0.8046, 0.8653, 0.8758, -0.6464, 0.6717]
PARAMS = {"groupCol": "query", "maxIter": 6, "maxDepth": 3, "stepSize": 0.5, "minChildWeight": 0.1, "numWorkers": 1}


def test_ranker_when_trained_then_as_good_as_xgboost(tmp_path):
    x, y, query = queries()
    created = fit(GBTRanker(**PARAMS), x, y, query=query)
    order = np.argsort(query, kind="stable")
    rows = xgboost.DMatrix(x[order], y[order], qid=query[order])
    params = {"objective": "rank:ndcg", "eta": 0.5, "max_depth": 3, "nthread": 1, "min_child_weight": 0.1}
    theirs = mean_ndcg(xgboost.train(params, rows, 6).predict(rows), y[order], query[order])
    margins = created.fitted.margins(x)[:, 0]
    assert mean_ndcg(margins, y, query) > max(theirs - 0.05, mean_ndcg(np.zeros(len(y)), y, query) + 0.05)
    created.saveXGBoost(f"{tmp_path}/model.json")
    saved = xgboost.Booster(model_file=f"{tmp_path}/model.json")
    np.testing.assert_allclose(saved.predict(xgboost.DMatrix(x)), margins, atol=1e-5)


def test_ranker_when_params_are_lightgbms_then_same_trees():
    x, y, query = queries()
    params = {"defaults": "lightgbm", "maxLeaves": 8, "minInstancesPerNode": 1, "maxIter": 6, "numWorkers": 1}
    ranker = GBTRanker(groupCol="query", baseMarginCol="base", **params)
    created = fit(ranker, x, y, query=query, base=np.sin(np.arange(len(y))))
    np.testing.assert_allclose(created.fitted.margins(x)[::40, 0], LIGHTGBM, atol=1e-4)


def test_validation_when_metric_is_of_ranks_then_best_is_kept():
    x, y, query = queries()
    held = query % 3 == 0
    inputs = {"maxIter": 20, "validationIndicatorCol": "held", "evalMetric": "ndcg@10", "earlyStoppingRounds": 2}
    created = fit(GBTRanker(**{**PARAMS, **inputs}), x, y, query=query, held=held)
    history = created.summary.validationHistory
    assert created.getNumTrees == int(np.argmax(history)) + 1
    ours = mean_ndcg(created.fitted.margins(x[held])[:, 0], y[held], query[held])
    assert max(history) == pytest.approx(ours)  # rows of equal margins are in the order of the rows


def test_ranker_when_no_pair_differs_then_no_splits():
    x, y, query = queries()
    created = fit(GBTRanker(**{**PARAMS, "maxIter": 1}), x, y, query=np.arange(len(query)))
    assert (created.totalNumNodes, created.predict([0.0] * 5)) == (1, 0.0)
    with pytest.raises(ConfigError, match="groupCol: expected the name of the column"):
        fit(GBTRanker(), x, y)
