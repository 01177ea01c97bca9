"""What each param of boosted trees does, from the estimator to the trees, beside xgboost and pyspark.ml."""

from __future__ import annotations

import numpy as np
import pytest
import xgboost

from ps2.algorithms import GBTClassifier, GBTRanker, GBTRegressor
from ps2.algorithms.trees.problem import automatic_rate
from ps2.algorithms.trees.settings import BoostingSettings
from ps2.errors import ConfigError, UsageError
from tests.tree_estimators import data, fit, same_trees, xgboosts

SHORT = {"maxIter": 3, "maxDepth": 3, "stepSize": 0.5, "baseScore": 0.5}
XGBOOSTS = {**SHORT, "defaults": "xgboost"}
SOFTMAX = {"objective": "multi:softprob", "num_class": 3}
X, Y = data()
CLASSES = np.digitize(Y, [-0.5, 0.5])
WEIGHTS = np.resize([1.0, 2.0, 3.0], len(Y))


# -- beside others ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        ({"regAlpha": 6.0, "regLambda": 0.5}, {"alpha": 6.0, "lambda": 0.5}),
        ({"minSplitLoss": 5.0, "minChildWeight": 25.0}, {"gamma": 5.0, "min_child_weight": 25.0}),
    ],
)
def test_penalties_when_set_then_predictions_are_xgboosts(ours, theirs):
    expected = xgboosts(X, Y, 3, tree_method="hist", **theirs)
    created = fit(GBTRegressor(**XGBOOSTS, **ours), X, Y)
    np.testing.assert_allclose(created.fitted.predict(X), expected, atol=1e-4)
    assert not theirs or np.abs(expected - xgboosts(X, Y, 3)).max() > 0.1


def test_classifier_when_values_are_few_then_matches_xgboost():
    created = fit(GBTClassifier(**XGBOOSTS, maxBins=32), X, Y > 0)
    expected = xgboosts(X, Y > 0, 3, objective="binary:logistic")
    np.testing.assert_allclose(created.fitted.margins(X)[:, 0], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        ({"weightCol": "w"}, {"weight": WEIGHTS}),
        (
            {"growth": "leaf", "maxLeaves": 6, "maxDepth": 30},
            {"tree_method": "hist", "grow_policy": "lossguide", "max_leaves": 6, "max_depth": 0},
        ),
    ],
)
def test_softmax_when_three_classes_then_margins_are_xgboosts(ours, theirs):
    created = fit(GBTClassifier(**{**XGBOOSTS, **ours}), X, CLASSES, w=WEIGHTS)
    assert (created.numClasses, created.getNumTrees) == (3, 9)
    np.testing.assert_allclose(created.fitted.margins(X), xgboosts(X, CLASSES, 3, **SOFTMAX, **theirs), atol=1e-4)
    assert "growth" not in ours or {len(tree.leaves) for tree in created.fitted.forest.trees} == {6}


@pytest.mark.parametrize(
    ("loss", "objective"),
    [
        ("absolute", {"objective": "reg:absoluteerror"}),
        ("quantile", {"objective": "reg:quantileerror", "quantile_alpha": 0.3}),
    ],
)
def test_leaves_when_quantile_loss_then_loss_matches_xgboost(loss, objective):
    y = 100 * Y
    created = fit(GBTRegressor(**{**XGBOOSTS, "maxIter": 1}, lossType=loss, lossShape=0.3), X, y)
    # Of an even number of residuals xgboost takes the mean of two: later trees have other splits.
    theirs = y - xgboosts(X, y, 1, tree_method="hist", **objective)
    share = 0.5 if loss == "absolute" else 0.3
    expected = np.maximum(share * theirs, (share - 1) * theirs).mean() * (2 if loss == "absolute" else 1)
    assert created.summary.objectiveHistory[-1] == pytest.approx(expected, rel=0.01)


def test_defaults_when_xgboosts_then_so_are_predictions():
    plain = GBTRegressor()
    for ours in (GBTRegressor(defaults="XGBoost"), plain.copy({plain.defaults: "xgboost"})):
        assert (ours.getMaxIter(), ours.getStepSize(), ours.getRegLambda(), ours.getMaxBins()) == (100, 0.3, 1.0, 256)
        created = fit(ours.setMaxIter(3).setBaseScore(0.5), X, Y)
        theirs = xgboost.train({"base_score": 0.5}, xgboost.DMatrix(X, Y), 3)
        np.testing.assert_allclose(created.fitted.predict(X), theirs.predict(xgboost.DMatrix(X)), atol=1e-4)
    assert GBTRegressor(maxDepth=3, defaults="xgboost").getMaxDepth() == 3
    assert plain.getRegAlpha() == plain.getMinSplitLoss() == 0


# What pyspark.ml 4.3's GBTRegressor(maxIter=1, maxDepth=4, stepSize=1.0) predicts for these rows: values, and how many
# rows have each.
PYSPARKS = [
    ({"minInstancesPerNode": 25}, "-1.4663:31 -1.1961:29 -0.4288:30 -0.0194:39 0.53:36 0.9681:36 1.3051:39"),
    (
        {"minInfoGain": 0.1, "weightCol": "w"},
        "-3.125:8 -2.079:3 -1.2933:41 -1.2399:17 -1.0008:3 -0.1872:9 -0.1471:8 0.0465:37 0.5691:24 0.9361:12 1.1138:1 "
        "1.178:75 2.6187:2",
    ),
    (
        {"minWeightFractionPerNode": 0.1, "weightCol": "w"},
        "-1.443:31 -1.2342:29 -0.4193:39 0.0862:30 0.4933:36 1.0099:31 1.2967:44",
    ),
    (
        {"minInfoGain": 0.01, "minWeightFractionPerNode": 0.05},
        "-1.6882:19 -1.6603:25 -0.7163:17 -0.4099:16 -0.1471:25 -0.0529:13 0.2087:14 0.2691:17 0.6779:12 0.7634:19 "
        "1.0108:15 1.1132:24 1.4891:24",
    ),
]


@pytest.mark.parametrize(("params", "expected"), PYSPARKS)
def test_tree_when_nodes_or_gains_must_be_large_then_as_pyspark(params, expected):
    shape = {"maxIter": 1, "maxDepth": 4, "stepSize": 1.0}
    created = fit(GBTRegressor(**shape, **params), X, Y, w=WEIGHTS)
    result, counts = np.unique(created.fitted.predict(X).round(5), return_counts=True)
    values, rows = zip(*(pair.split(":") for pair in expected.split()), strict=True)
    np.testing.assert_allclose(result, np.array(values, float), atol=1e-4)
    assert counts.tolist() == list(map(int, rows))
    assert 3 < created.totalNumNodes < fit(GBTRegressor(**shape), X, Y).totalNumNodes


@pytest.mark.parametrize("weight", [{}, {"weightCol": "w"}])
def test_class_leaves_when_share_is_required_then_is_weighted(weight):
    params = {"maxIter": 2, "maxDepth": 4, "minWeightFractionPerNode": 0.15, **weight}
    created = fit(GBTClassifier(**params), X, CLASSES, w=WEIGHTS)
    weights = WEIGHTS if weight else np.ones(len(Y))
    for leaves in created.fitted.leaves(X).T:
        assert np.bincount(leaves, weights).min() >= 0.149 * weights.sum()


# -- defaults --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("maker", [GBTClassifier, GBTRegressor])
def test_five_rows_when_nothing_is_set_then_are_told_apart(maker):
    x = np.arange(5.0)[:, None] * [1.0, 0.0, 0.0, 0.0]
    created = fit(maker(), x, [0, 0, 1, 1, 1])
    assert created.trees[0].numNodes == 3
    assert (created.fitted.predict(x) > 0.5).tolist() == [False, False, True, True, True]


@pytest.mark.parametrize("maker", [GBTClassifier, GBTRegressor])
def test_weights_when_scaled_then_trees_are_the_same(maker):
    estimator = maker(maxIter=3, maxDepth=3, weightCol="w")
    expected, *created = (fit(estimator, X, CLASSES, w=WEIGHTS * scale) for scale in (1.0, 0.01, 1e-9))
    for model in created:
        # Of splits that gain nearly the same, another may be chosen.
        assert model.summary.objectiveHistory == pytest.approx(expected.summary.objectiveHistory, rel=1e-3)
        assert model.totalNumNodes == expected.totalNumNodes


def test_weights_when_whole_numbers_then_match_repeated_rows():
    params = {"maxIter": 2, "maxDepth": 3, "baseScore": 0.5}
    x, y = data(90)
    weighted = fit(GBTClassifier(**params, weightCol="w"), x, y > 0, w=WEIGHTS[:90])
    times = np.repeat(np.arange(90), WEIGHTS[:90].astype(int))
    repeated = fit(GBTClassifier(**params), x[times], y[times] > 0)
    for ours, theirs in zip(weighted.fitted.forest.trees, repeated.fitted.forest.trees, strict=True):
        np.testing.assert_array_equal(ours.feature, theirs.feature)
        np.testing.assert_allclose(ours.value, theirs.value, rtol=1e-4)


def test_weights_when_0_then_rows_count_nothing():
    params, (x, y), some = {"maxIter": 2, "baseScore": 0.5}, data(60), WEIGHTS[:60] > 1
    zero = fit(GBTClassifier(**params, weightCol="w"), x, y > 0, w=some.astype(float))
    assert same_trees(zero, fit(GBTClassifier(**params), x[some], y[some] > 0))


def test_labels_when_tiny_then_trees_part_them():
    large, tiny = (fit(GBTRegressor(maxIter=2, maxDepth=3), X, Y * scale) for scale in (1.0, 1e-6))
    np.testing.assert_allclose(tiny.fitted.predict(X), large.fitted.predict(X) * 1e-6, rtol=1e-3, atol=1e-10)


def test_a_class_when_rare_then_leaves_stay_small():
    x, y = np.arange(2000.0)[:, None] * [1.0, 0.0, 0.0, 0.0], np.arange(2000) == 77
    assert fit(GBTClassifier(maxIter=1), x, y).fitted.forest.trees[0].value.min() == -2.0
    three = np.where(y, 2, np.arange(2000) % 2)
    assert fit(GBTClassifier(maxIter=1), x, three).fitted.forest.trees[2].value.max() == 8.0
    assert fit(GBTClassifier(defaults="xgboost", maxIter=1), x, y).fitted.forest.trees[0].value.min() > -1


# Losses after each tree of pyspark.ml's GBTClassifier(maxIter=6, maxDepth=3) with labels Y > 0, twice as large as ours.
PYSPARK_LOSSES = [
    ({}, [0.905745, 0.838947, 0.794423, 0.755045, 0.717996, 0.682394]),
    ({"weightCol": "w"}, [0.876109, 0.816460, 0.774677, 0.736311, 0.703369, 0.675902]),
]


@pytest.mark.parametrize(("weight", "expected"), PYSPARK_LOSSES)
def test_classes_when_pyspark_fits_the_same_then_losses_agree(weight, expected):
    created = fit(GBTClassifier(maxIter=6, maxDepth=3, **weight), X, Y > 0, w=WEIGHTS)
    np.testing.assert_allclose(np.array(created.summary.objectiveHistory[-6:]) * 2, expected, atol=2e-6)


@pytest.mark.parametrize("weight", [{}, {"weightCol": "w"}])
def test_classes_when_defaults_are_pysparks_then_leaves_means(weight):
    created = fit(GBTClassifier(maxIter=3, maxDepth=3, **weight), X, Y > 0, w=WEIGHTS)
    weights, margins = WEIGHTS if weight else np.ones(len(Y)), np.zeros(len(Y))
    for factor, leaves in zip([4.0, 0.8, 0.8], created.fitted.leaves(X).T, strict=True):
        gradients = weights * ((Y > 0) - 1 / (1 + np.exp(-margins)))
        sums, totals = (np.bincount(leaves, values)[leaves] for values in (gradients, weights))
        margins += factor * sums / totals
    np.testing.assert_allclose(created.fitted.margins(X)[:, 0], margins, atol=1e-6)


def test_labels_when_metadata_adds_classes_then_all_have_trees():
    two = CLASSES < 2
    created = fit(GBTClassifier(maxIter=1, maxDepth=1), X[two], CLASSES[two], classes=3)
    assert (created.numClasses, created.getNumTrees) == (3, 3)
    assert (created.fitted.predictProbability(X)[:, 2] < 0.05).all()


def test_empty_class_when_weights_are_small_then_not_predicted():
    some = CLASSES != 1
    created = fit(
        GBTClassifier(maxIter=1, maxDepth=1, weightCol="w"), X[some], CLASSES[some], w=np.full(some.sum(), 1e-6)
    )
    assert (created.fitted.predict(X) != 1).all()


def test_defaults_when_changed_back_then_are_the_former():
    estimator = GBTRanker(defaults="LightGBM")
    values = (estimator.getGrowth(), estimator.getMinInstancesPerNode(), estimator.getLambdarankNumPairPerSample())
    assert values == ("leaf", 20, 30)
    estimator.setDefaults("xgboost")
    values = (estimator.getGrowth(), estimator.getMinInstancesPerNode(), estimator.getLambdarankNumPairPerSample())
    assert values == ("level", 1, 32)


def test_defaults_when_lightgbms_then_leaves_have_20_rows():
    created = fit(GBTRegressor(defaults="lightgbm", maxIter=3), X, Y)
    assert all(np.unique(leaves, return_counts=True)[1].min() >= 20 for leaves in created.fitted.leaves(X).T)
    tiny = fit(GBTRegressor(defaults="lightgbm", maxIter=3), X, Y * 1e-6)
    np.testing.assert_allclose(tiny.fitted.predict(X), created.fitted.predict(X) * 1e-6, rtol=1e-3, atol=1e-10)


def test_defaults_when_lightgbms_then_first_tree_has_the_rate():
    predictions = fit(GBTRegressor(defaults="lightgbm", maxIter=1), X, Y).fitted.predict(X)
    for value in np.unique(predictions):
        assert value - Y.mean() == pytest.approx(0.1 * (Y[predictions == value].mean() - Y.mean()), abs=1e-4)


# The rates that CatBoost 1.2.10 reports in get_all_params() for these losses, rows and trees.
@pytest.mark.parametrize(
    ("loss", "rows", "trees", "rate"),
    [
        ("logistic", 1000, 300, 0.031075),
        ("logistic", 20000, 1000, 0.037023),
        ("softmax", 1000, 1000, 0.079127),
        ("softmax", 20000, 300, 0.254981),
        ("squared", 1000, 300, 0.108963),
        ("squared", 20000, 1000, 0.065727),
        ("squared", 20000, 10, 0.5),
        ("absolute", 20000, 300, 0.03),
    ],
)
def test_automatic_rate_when_computed_then_is_catboosts(loss, rows, trees, rate):
    settings = BoostingSettings(maxIter=trees, stepSize=0.03)
    assert automatic_rate(settings, loss, rows) == pytest.approx(rate, abs=1e-6)


def test_defaults_when_catboosts_then_rate_depends_on_rows():
    created = fit(GBTRegressor(defaults="catboost", maxIter=200, maxDepth=1), X, Y)
    assert created.treeWeights[1] == created.getStepSize() == 0.120925
    assert fit(GBTRegressor(defaults="catboost", maxIter=2, stepSize=0.25), X, Y).treeWeights[1] == 0.25


# -- how trees grow --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{"subsamplingRate": 0.5}, {"featureSubsetStrategy": "2"}])
def test_sampling_when_seeds_are_equal_then_trees_are(params):
    first, again, other = (fit(GBTClassifier(maxIter=3, seed=seed, **params), X, Y > 0) for seed in (3, 3, 4))
    assert same_trees(first, again)
    assert not same_trees(first, other)


def test_monotone_constraints_when_set_then_predictions_follow():
    created = fit(GBTRegressor(maxIter=5, monotoneConstraints=[0, 0, -1, 0]), X, Y)
    grid = np.repeat(X[:20, None], 7, axis=1)
    grid[:, :, 2] = np.arange(-3, 4) / 2
    assert (np.diff(created.fitted.predict(grid.reshape(-1, 4)).reshape(20, 7)) <= 0).all()


@pytest.mark.parametrize("loss", ["squared", "absolute", "huber", "poisson", "quantile"])
def test_constraints_when_all_are_zeros_then_there_are_none(loss):
    params, y = {"maxIter": 2, "lossType": loss}, np.abs(Y)
    plain, constrained = (fit(GBTRegressor(**params, **c), X, y) for c in ({}, {"monotoneConstraints": [0] * 4}))
    assert same_trees(plain, constrained)


def test_features_when_constrained_then_trees_keep_to_it():
    params = {"maxIter": 3, "maxDepth": 4, "interactionConstraints": [[0, 1], [2, 3]]}
    draws = {"featureSubsetStrategy": "2", "featureWeights": [1.0, 1.0, 1.0, 0.0]}
    one, two = (fit(GBTRegressor(numWorkers=workers, **params, **draws), X, Y) for workers in (1, 2))
    assert same_trees(one, two)
    assert one.getFeatureImportances("weight")[3] == 0
    assert one.totalNumNodes > 9


def test_trees_when_they_sample_features_then_use_only_these():
    params = {"maxIter": 8, "maxDepth": 4, "colsampleBytree": 0.5, "featureWeights": [1.0, 1.0, 1.0, 0.0]}
    models = [fit(GBTRegressor(via=via, **params), X, Y) for via in ("local", "servers")]
    assert same_trees(*models)
    used = [frozenset(tree.feature[tree.feature >= 0].tolist()) for tree in models[0]._trained.forest.trees]
    assert set(map(len, used)) == {2}
    assert set(used) == {frozenset(pair) for pair in ((0, 1), (0, 2), (1, 2))}


def test_levels_when_they_sample_features_then_use_only_these():
    model = fit(GBTRegressor(maxIter=8, maxDepth=3, colsampleBylevel=0.25, featureSubsetStrategy="0.9"), X, Y)
    for tree in model._trained.forest.trees:
        assert tree.feature[tree.left[0]] == tree.feature[tree.right[0]]


@pytest.mark.parametrize("loss", ["absolute", "huber", "poisson", "quantile"])
def test_regressor_when_it_learns_then_each_loss_gets_less(loss):
    y = Y
    if loss == "poisson":  # a few counts are far above the mean
        y = np.exp(Y / 2) + 300 * ((X[:, 0] > 1) & (X[:, 1] > 1))
    history = fit(GBTRegressor(lossType=loss, maxIter=5, stepSize=0.5), X, y).summary.objectiveHistory
    assert (np.diff(history) < 0).all()


@pytest.mark.parametrize(
    "params", [{"maxDepth": 0}, {"maxDepth": 30, "minChildWeight": 0.0}, {"maxBins": 2}, {"maxIter": 0}]
)
def test_trees_when_params_are_at_their_limits_then_still_grow(params):
    created = fit(GBTClassifier(**{"maxIter": 2, **params}), X, Y > 0)
    assert created.getNumTrees == params.get("maxIter", 2)
    assert max((tree.depth for tree in created.trees), default=0) <= params.get("maxDepth", 5)
    assert np.isfinite(created.fitted.predictProbability(X)).all()


def test_trees_when_nothing_can_be_split_then_are_leaves():
    for x, y in ((X[:20], np.ones(20)), (np.ones((1, 4)), np.ones(1)), (np.ones((20, 4)), np.arange(20) % 2)):
        created = fit(GBTClassifier(maxIter=2), x, y)
        assert created.totalNumNodes == 2
        assert created.featureImportances.numNonzeros() == 0


# -- models ----------------------------------------------------------------------------------------------------------


def test_trees_when_three_classes_then_each_has_first_tree():
    model = fit(GBTClassifier(maxIter=2, maxDepth=2, stepSize=0.5), X, CLASSES)
    message = np.array(model.treeWeights) * [tree.predict(X[0]) for tree in model.trees]
    assert model.treeWeights == [1.0] * 3 + [0.5] * 3
    np.testing.assert_allclose(
        message.reshape(2, 3).sum(axis=0), model.predictRaw(X[0]).toArray(), rtol=1e-5, atol=1e-6
    )


def test_model_when_asked_then_tells_of_its_trees():
    model = fit(GBTClassifier(maxIter=5, maxDepth=3, stepSize=0.5), X, Y > 0)
    trees = model.fitted.forest.trees
    assert model.getNumTrees == len(model.trees) == len(model.treeWeights) == model.summary.totalIterations == 5
    assert model.totalNumNodes == sum(tree.numNodes for tree in model.trees)
    assert model.featureImportances.size == 4
    assert sum(model.featureImportances.values) == pytest.approx(1.0)
    assert sum(model.getFeatureImportances("weight").values) == sum((tree.feature >= 0).sum() for tree in trees)
    with pytest.raises(ConfigError, match="importanceType: expected one of weight, split, gain, cover, total"):
        model.getFeatureImportances("share")
    assert model.toDebugString.startswith(f"GBTClassificationModel: uid = {model.uid}, numTrees=5, numClasses=2")
    assert "Tree 1 (weight 0.5)" in model.toDebugString
    assert trees[0].count[0] == len(X)
    leaves = model.predictLeaf(X[0])
    assert leaves.size == 5
    assert all(0 <= leaf < len(tree.leaves) for leaf, tree in zip(leaves, trees, strict=True))


def test_thresholds_when_set_then_largest_ratio_decides():
    created = fit(GBTClassifier(maxIter=1, maxDepth=2, thresholds=[1.0, 1.0, 0.1]), X, CLASSES)
    for row in X[:30]:
        ratios = created.predictProbability(row).toArray() / [1.0, 1.0, 0.1]
        assert created.predict(row) == np.argmax(ratios)
    assert created.setThresholds([1e-9, 1.0, 1.0]).predict(X[0]) == 0.0
    assert created.setThresholds([1.0, 1e-9, 1.0]).predict(X[0]) == 1.0


# -- what cannot be ----------------------------------------------------------------------------------------------------


def test_thresholds_when_not_one_per_class_then_usage_error():
    with pytest.raises(UsageError, match="thresholds: expected one for each of 3 classes, got 2"):
        fit(GBTClassifier(thresholds=[0.5, 0.5]), X, CLASSES)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"maxDepth": 31}, "maxDepth: expected a number in"),
        ({"growth": "wide"}, "growth: expected one of level, leaf, got 'wide'"),
        ({"maxLeaves": 1}, "maxLeaves: expected 0 or a number from 2 on, got 1"),
        ({"minInfoGain": -0.1}, "minInfoGain: expected a finite number that is not negative, got -0.1"),
        ({"minWeightFractionPerNode": 0.5}, r"minWeightFractionPerNode: expected a number in \[0, 0.5\), got 0.5"),
        ({"defaults": "h2o"}, "defaults: expected one of pyspark, xgboost, lightgbm, catboost, got 'h2o'"),
        ({"featureSubsetStrategy": "some"}, "featureSubsetStrategy: expected one of"),
        ({"baseScore": 1.0}, "baseScore: expected a probability"),
        ({"monotoneConstraints": [1]}, "monotoneConstraints: expected one for each of 4 features, got 1"),
        (
            {"weightCol": "w", "minInstancesPerNode": 2, "minWeightFractionPerNode": 0.1},
            "minInstancesPerNode: expected 1 with minInfoGain or minWeightFraction",
        ),
        ({"evalMetric": "auc"}, "evalMetric: expected with validationIndicatorCol"),
        ({"earlyStoppingRounds": 0, "validationIndicatorCol": "held"}, "earlyStoppingRounds: expected at least 1"),
        ({"evalMetric": "gini", "validationIndicatorCol": "held"}, "evalMetric: expected one of logloss, error, auc"),
        ({"evalMetric": "rmse", "validationIndicatorCol": "held"}, "evalMetric: .* for loss 'logistic', got 'rmse'"),
        ({"numTrees": 3}, "numTrees: expected for a model"),
    ],
)
def test_classifier_when_a_param_cannot_be_then_config_error(params, message):
    with pytest.raises(ConfigError, match=message):
        fit(GBTClassifier(**params), X, Y > 0, w=WEIGHTS, held=WEIGHTS > 2)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"lossType": "huber", "lossShape": 0.0}, "lossShape: expected a finite positive number, got 0"),
        ({"lossType": "quantile", "lossShape": 1.0}, r"lossShape: expected a number in \(0, 1\), got 1"),
        ({"lossType": "logistic"}, "lossType: expected one of squared, absolute, huber, poisson, quantile"),
        ({"regAlpha": -1.0}, "regAlpha: expected a finite number that is not negative, got -1.0"),
        ({"maxBins": 1}, r"maxBins: expected a number in \[2, 4000\], got 1"),
        ({"minInstancesPerNode": 0}, "minInstancesPerNode: expected at least 1, got 0"),
        ({"stepSize": 0.0}, r"stepSize: expected a number in \(0, 1\], got 0.0"),
        ({"interactionConstraints": [[0, 4]]}, "interactionConstraints: expected features from 0 to 3, got 4"),
        ({"featureWeights": [1.0]}, "featureWeights: expected with a featureSubsetStrategy, cols"),
        ({"colsampleBytree": 0.0}, r"colsampleBytree: expected a number in \(0, 1\], got 0.0"),
        ({"featureWeights": [1.0], "featureSubsetStrategy": "2"}, "featureWeights: expected one for each of 4"),
        ({"featureWeights": [0.0, -1.0]}, "featureWeights: expected finite numbers that are not negative"),
        ({"baseMarginCol": "start", "baseScore": 1.0}, "baseScore: expected without baseMarginCol"),
    ],
)
def test_regressor_when_a_param_cannot_be_then_config_error(params, message):
    with pytest.raises(ConfigError, match=message):
        fit(GBTRegressor(**params), X, Y, start=Y)
