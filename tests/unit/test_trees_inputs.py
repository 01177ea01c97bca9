"""What boosted trees make of values and labels that are missing, categories, or of any size."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import xgboost
from pyspark.ml.linalg import Vectors

from ps2.algorithms import GBTClassifier, GBTRegressor
from ps2.errors import ConfigError, InputError, LimitError, UsageError
from tests.tree_estimators import data, fit, same_trees
from tests.xgboost_trees import assert_same, forest_of, rows_of_few_values

X, Y = rows_of_few_values(240, 4, 1, 0.3)
SMALLEST, LARGEST = 5e-324, 1.7e308
# Leaves are means of labels, and any split that gains something is made.
MEANS = {"maxIter": 1, "minChildWeight": 0.0, "stepSize": 1.0, "regLambda": 0.0}
KINDS = 6


def column(values):
    return np.array(values, np.float64)[:, None]


# -- missing values, and categories ------------------------------------------------------------------------------------


def test_regressor_when_values_are_missing_then_matches_xgboost(tmp_path):
    estimator = GBTRegressor(maxIter=3, maxDepth=4, stepSize=0.3, baseScore=0.0, defaults="xgboost")
    model = fit(estimator, X, Y)
    inputs = {"tree_method": "exact", "max_depth": 4, "eta": 0.3, "base_score": 0.0, "nthread": 1}
    booster = xgboost.train(inputs, xgboost.DMatrix(X, Y), 3)
    for ours, theirs in zip(model.fitted.forest.trees, forest_of(booster, (0.0,)).trees, strict=True):
        assert_same(ours, theirs, X)
    np.testing.assert_allclose(model.fitted.predict(X), booster.predict(xgboost.DMatrix(X)), atol=1e-4)
    model.saveXGBoost(str(tmp_path / "model.json"))
    others = rows_of_few_values(240, 4, 3, 0.3)[0]
    loaded = xgboost.Booster(model_file=str(tmp_path / "model.json")).predict(xgboost.DMatrix(others))
    np.testing.assert_allclose(loaded, model.fitted.predict(others), atol=1e-6)
    assert model.predict(others[0]) == pytest.approx(float(loaded[0]), abs=1e-6)


def test_classifier_when_absent_is_missing_then_same_as_nan(tmp_path):
    x, y = rows_of_few_values(240, 4, 1, 0.6)
    some = ~np.isnan(x)
    indptr = np.append(0, np.cumsum(some.sum(axis=1))).astype(np.int32)
    csr = sp.csr_array((x[some], np.nonzero(some)[1].astype(np.int32), indptr), shape=x.shape)
    estimator = GBTClassifier(maxIter=3, maxDepth=4, absentAsMissing=True)
    model = fit(estimator, csr, y > 0)
    assert same_trees(model, fit(estimator, x, y > 0))
    assert model.totalNumNodes > 9
    expected = model.fitted.predictProbability(x)
    np.testing.assert_array_equal(model.fitted.predictProbability(csr), expected)
    held = Vectors.sparse(4, np.flatnonzero(some[0]).tolist(), x[0][some[0]].tolist())
    assert model.predictLeaf(held) == model.predictLeaf(Vectors.dense(x[0].tolist()))
    model.saveXGBoost(str(tmp_path / "model.json"))
    booster = xgboost.Booster(model_file=str(tmp_path / "model.json"))
    np.testing.assert_allclose(booster.predict(xgboost.DMatrix(csr)), expected[:, 1], atol=1e-6)


def test_validation_when_only_held_out_lack_feature_then_same():
    x, y = rows_of_few_values(240, 4, 1)
    held = np.arange(len(y)) % 4 == 0
    lacking = x.copy()
    lacking[held, 0] = np.nan
    estimator = GBTRegressor(maxIter=3, validationIndicatorCol="held", validationTol=0.0)
    created = [fit(estimator, values, y, held=held).fitted.forest.trees for values in (x, lacking)]
    for one, other in zip(*created, strict=False):
        assert one.to_debug_string() == other.to_debug_string()
        assert (one.default_left == other.default_left).all()
        assert (one.value == other.value).all()


@pytest.mark.parametrize("complexity", [0, 1])
@pytest.mark.parametrize("others", [np.nan, KINDS])
def test_validation_when_category_is_held_out_only_then_same(others, complexity):
    """Only held-out rows lack the category, or have a category that no other row has."""
    rng = np.random.default_rng(3)
    x, held = rng.integers(0, KINDS, (240, 2)).astype(float), np.arange(240) % 4 == 0
    y = np.isin(x[:, 0], [1, 4]) + x[:, 1] + rng.normal(size=240) / 8
    lacking = np.where(held[:, None] & [True, False], others, x)
    estimator = GBTRegressor(
        maxIter=4, validationIndicatorCol="held", earlyStoppingRounds=4, maxCtrComplexity=complexity, minCtrCategories=2
    )
    categories = {0: KINDS + 1, 1: KINDS}
    trees = [fit(estimator, values, y, held=held, categories=categories).fitted.forest.trees for values in (x, lacking)]
    for one, other in zip(*trees, strict=False):
        assert one.to_debug_string() == other.to_debug_string()
        assert (one.default_left == other.default_left).all()
        assert (one.value == other.value).all()


@pytest.mark.parametrize("complexity", [0, 2])
def test_trees_when_workers_have_no_categories_then_any_fleet(complexity):
    x, y = np.array([[1.0, 3.0], [2.0, np.nan], [1.0, 0.0]]), [0.0, 1.0, 1.0]
    rules = {"catSmooth": 0.0, "minDataPerGroup": 1, "maxCtrComplexity": complexity, "minCtrCategories": 2}
    models = [
        fit(GBTRegressor(maxIter=2, via=via, numWorkers=workers, **rules), x, y, categories={0: 3, 1: 9})
        for via, workers in (("local", 1), ("servers", 2), ("servers", 5))
    ]
    assert models[0].totalNumNodes > 2
    assert same_trees(*models)


def test_trees_when_columns_are_uninformative_then_are_not_split():
    x = X.copy()
    x[:, 1], x[:, 2] = np.nan, 1.0
    x[:, 3] = np.where(np.isnan(x[:, 3]), np.nan, 0.0)
    model = fit(GBTRegressor(maxIter=2, minChildWeight=0.0), x, Y, categories={1: 0, 3: 1})
    used = set(np.concatenate([tree.feature for tree in model.fitted.forest.trees]))
    assert {0} < used - {-1} <= {0, 3}  # of the last, all that is known is whether it is there


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float(KINDS), "1 of 240 rows hold values that are no category, such as 6 in row .*: feature 0 has 6 categ"),
        (1.5, "such as 1.5 in row .* expected NaN or a whole number from 0 to 5"),
        (-1.0, "such as -1 in row .* expected NaN or a whole number from 0 to 5"),
        (2.0**53 + 2, "such as 9.0072e.15 in row .* expected NaN or a whole number from 0 to 5"),
        (float("inf"), "1 of 240 rows hold infinite values"),
    ],
)
def test_rows_when_a_value_cannot_be_then_error_names_it(value, message):
    x = np.resize(np.arange(KINDS), (240, 1)).astype(float)
    x[7, 0] = value
    with pytest.raises(InputError, match=message):
        fit(GBTRegressor(), x, np.arange(240) % 2, categories={0: KINDS})


def test_rows_when_feature_has_no_category_then_only_nan_fits():
    with pytest.raises(InputError, match=r"feature 0 has 0 categories, so expected NaN$"):
        fit(GBTRegressor(), np.zeros((3, 1)), np.arange(3), categories={0: 0})


@pytest.mark.parametrize(
    ("categories", "error", "message"),
    [
        ({0: 3 << 30}, LimitError, "feature 0: expected at most 2,147,483,648 categories, got 3,221,225,472"),
        ({1: 2}, ConfigError, "monotoneConstraints: expected 0 for feature 1, which has 2 categories, got 1"),
    ],
)
def test_features_when_categories_are_invalid_then_are_named(categories, error, message):
    with pytest.raises(error, match=message):
        fit(GBTRegressor(monotoneConstraints=[0, 1, 0, 0]), X, Y, categories=categories)


# -- features ----------------------------------------------------------------------------------------------------------


def test_values_when_zeros_of_either_sign_then_are_one():
    created = fit(GBTRegressor(**MEANS), column([0.0, -0.0, 0.0, -0.0, 1.0, 1.0]), [0, 5, 0, 5, 0, 0])
    assert 0 <= created.fitted.forest.trees[0].threshold[0] < 1
    assert created.predict([0.0]) == created.predict([-0.0]) == pytest.approx(2.5)
    assert created.totalNumNodes == 3


def test_values_when_smallest_and_largest_then_are_separated():
    values = column([-LARGEST, -SMALLEST, 0.0, SMALLEST, LARGEST])
    created = fit(GBTRegressor(**MEANS, maxDepth=4), values, [3, 1, 4, 1, 5])
    assert created.fitted.predict(values) == pytest.approx([3, 1, 4, 1, 5], abs=1e-4)


def test_bins_when_more_than_rows_then_each_value_has_one():
    values = column(range(12))
    created = fit(GBTRegressor(**MEANS, maxBins=4000, maxDepth=11), values, values[:, 0] % 3)
    assert created.fitted.predict(values) == pytest.approx(values[:, 0] % 3, abs=1e-4)


@pytest.mark.parametrize("workers", [1, 2])
def test_rows_when_worker_has_empty_ones_then_labels_are_learnt(workers):
    x = sp.csr_array(np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 3.0], [0.0, 0.0]]))
    created = fit(GBTRegressor(maxIter=2, numWorkers=workers), x, [1, 0, 2, 0])
    assert created.fitted.predict(x) == pytest.approx([1, 0, 2, 0])


def test_features_when_equal_in_float32_then_are_still_separated(tmp_path):
    x = np.array([[20240115.0], [20240116.0]])
    created = fit(GBTClassifier(maxIter=2), np.tile(x, (20, 1)), np.tile([0, 1], 20))
    assert created.fitted.predict(x).tolist() == [0.0, 1.0]
    assert created.predict(Vectors.dense([20240116.0])) == created.predict(Vectors.sparse(1, [0], [20240116.0])) == 1.0
    with pytest.raises(UsageError, match=r"feature 0 on both sides of 20240115\.5 are the same"):
        created.saveXGBoost(str(tmp_path / "m.json"))


def test_saved_when_middle_is_of_float32_then_is_refused(tmp_path):
    """Both values are 1 in float32, and so is the number between them."""
    x = np.tile([[1.0 - 2.0**-30], [1.0 + 2.0**-30]], (20, 1))
    created = fit(GBTClassifier(maxIter=2), x, np.tile([0, 1], 20))
    assert created.fitted.predict(x[:2]).tolist() == [0.0, 1.0]
    with pytest.raises(UsageError, match=r"feature 0 on both sides of 1\.0+2 are the same"):
        created.saveXGBoost(str(tmp_path / "m.json"))


@pytest.mark.parametrize("base", [20240115.0, 1.7e12])
@pytest.mark.parametrize("count", [30, 400])
def test_features_when_fractions_of_large_number_then_all_seen(base, count):
    steps = np.random.default_rng(0).permutation(count)
    x = np.column_stack([base + steps / 1024, np.arange(count) % 3])
    y = np.floor(steps / count * 8)
    created = []
    for order, workers in ((slice(None), 1), (slice(None, None, -1), 2)):
        estimator = GBTRegressor(maxDepth=5, maxBins=64, numWorkers=workers, **MEANS)
        created.append(fit(estimator, x[order], y[order]))
        assert np.mean(np.abs(created[-1].fitted.predict(x) - y) > 0.01) < 0.1
    for one, other in zip(*(model.fitted.forest.trees for model in created), strict=True):
        for name in ("feature", "threshold", "value"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


# -- labels and weights of any size -----------------------------------------------------------------------------------

# Features x, 0 to 9.9, and big, which one row has.
ROWS = np.column_stack([np.arange(5000) % 100 / 10, np.arange(5000) == 0]).astype(float)
SMALL = ROWS[1:101]


def learnt(label, rows=ROWS, w=None, **params):
    """Return a model, trained on labels of x and big."""
    inputs = {"maxDepth": 4, "maxBins": 128, "stepSize": 0.3, "regLambda": 0.0}
    return fit(GBTRegressor(**inputs | params), rows, label, w=np.ones(len(ROWS)) if w is None else w).fitted


@pytest.mark.parametrize(("outlier", "rounds"), [(1e9, 50), (1e12, 80)])
def test_labels_when_one_is_huge_then_the_others_are_learnt(outlier, rounds):
    created = learnt(np.where(ROWS[:, 1] == 1, outlier, ROWS[:, 0]), maxIter=rounds)
    assert np.abs(created.predict(SMALL) - SMALL[:, 0]).max() < 0.1


def test_labels_when_huge_one_is_featureless_then_others_right():
    created = learnt(np.where(ROWS[:, 1] == 1, 1e15, ROWS[:, 0]), ROWS[:, :1], maxIter=150)
    far = SMALL[SMALL[:, 0] > 3, :1]
    assert np.abs(created.predict(far) - far[:, 0]).max() < 1


@pytest.mark.parametrize("light", [1e-6, 1e-12])
def test_weights_when_far_apart_then_light_rows_are_learnt(light):
    w = np.where(ROWS[:, 0] < 5, 1.0, light)
    created = learnt(ROWS[:, 0], w=w, maxIter=50, weightCol="w", minChildWeight=0.0, maxBins=32)
    assert np.abs(created.predict(SMALL) - SMALL[:, 0]).max() < 0.4


def test_counts_when_they_reach_million_then_learns_small_ones():
    created = learnt(np.floor(4.0 ** ROWS[:, 0]), maxIter=120, lossType="poisson", minChildWeight=0.0)
    assert np.abs(np.log(created.predict(SMALL) / np.floor(4.0 ** SMALL[:, 0]))).max() < 0.3


@pytest.mark.parametrize("loss", ["squared", "absolute", "quantile"])
def test_labels_when_far_from_0_then_predictions_are_theirs(loss, tmp_path):
    x = np.arange(1000.0)[:, None] % 20
    created = fit(GBTRegressor(lossType=loss, maxIter=30, stepSize=0.3), x, 1700000033 + x[:, 0])
    errors = created.fitted.predict(x) - 1700000033 - x[:, 0]
    assert abs(np.mean(errors)) < 0.1
    # A quantile of whole numbers is a whole number: a leaf of two of them says one.
    assert np.max(np.abs(errors)) < 1.1
    with pytest.raises(UsageError, match=r"xgboost adds up margins in float32, where margins up to 1\.7e"):
        created.saveXGBoost(str(tmp_path / "m.json"))


def test_labels_when_they_are_huge_then_leaves_have_their_size():
    created = fit(GBTRegressor(**MEANS), column([0.0, 0.0, 1.0, 1.0]), [0.0, 0.0, 1e30, 1e30])
    assert [created.predict([0.0]), created.predict([1.0])] == pytest.approx([0, 1e30], abs=1e24)


@pytest.mark.parametrize(("defaults", "nodes", "share"), [("pyspark", 3, 1.0), ("xgboost", 1, 0.5)])
def test_labels_when_tiny_then_xgboost_min_gain_forbids_splits(defaults, nodes, share):
    created = fit(GBTRegressor(maxIter=1, defaults=defaults), column([0.0, 1.0]), [0.0, 1e-30])
    assert created.totalNumNodes == nodes
    assert created.predict([1.0]) == pytest.approx(share * 1e-30, rel=1e-6, abs=0)


@pytest.mark.parametrize(
    ("loss", "label", "message"),
    [
        ("poisson", -1.0, "'label': expected counts for loss 'poisson', got labels down to -1"),
        ("poisson", 0.0, "a count above 0 for loss 'poisson', got only zeros"),
        ("squared", 1e100, r"'label': expected labels up to 1e\+38, the limit for leaves, got 1e\+100"),
        ("absolute", -1e39, r"'label': expected labels up to 1e\+38, the limit for leaves, got -1e\+39"),
    ],
)
def test_labels_when_loss_rejects_them_then_input_error(loss, label, message):
    with pytest.raises(InputError, match=message):
        fit(GBTRegressor(lossType=loss), column([1.0, 1.0]), [label, label])


def test_tables_when_one_row_then_its_label_is_predicted():
    x, y = data(1)
    created = fit(GBTRegressor(maxIter=2), x, y)
    assert created.totalNumNodes == 2
    assert created.predict([0.0] * 4) == pytest.approx(y[0])


# -- many features -----------------------------------------------------------------------------------------------------

MANY = 100_000
LIMIT = 4 << 20


def sparse_rows(used, size=MANY):
    """Return 20 rows, of which every other one holds all of the first ``used`` features."""
    lengths = np.arange(20) % 2 * used
    indices = np.tile(np.arange(used, dtype=np.int32), 10)
    return sp.csr_array((np.ones(len(indices)), indices, np.append(0, np.cumsum(lengths))), shape=(20, size))


def fit_many(x, limit=LIMIT, **params):
    estimator = GBTClassifier(maxIter=1, minChildWeight=0.0, via="servers", **params)
    return fit(estimator, x, np.arange(20) % 2, memory_limit_bytes=limit)


def test_features_when_most_have_one_value_then_take_no_memory():
    assert MANY * 8 * 20 > 2 * LIMIT - MANY * 24
    created = fit_many(sparse_rows(500))
    assert (created.numFeatures, created.totalNumNodes) == (MANY, 3)


@pytest.mark.parametrize(
    ("used", "size", "params", "limit", "message"),
    [
        (
            *(30_000, MANY, {}, LIMIT),
            r"^100,000 features have 60,000 bins .* a tree that grows needs 18 histograms of \d{3},\d{3} bytes at",
        ),
        (
            *(MANY, MANY, {}, LIMIT // 2),
            "the values of 100,000 features, for cut points, do not fit the servers: ",
        ),
        (
            *(4, 2**31 - 1, {}, LIMIT),
            "2,147,483,647 features: the sums for their cut points, and the first 17 histograms",
        ),
        (
            *(4, MANY, {"absentAsMissing": True}, LIMIT),
            r"100,000 features: the sums .* of at least 200,000 bins, take at least 60,000,000 bytes",
        ),
        (
            *(4, 10**7, {"absentAsMissing": True}, 1 << 30),
            "10,000,000 features: .* of at least 20,000,000 bins, take at least 6,000,000,000 bytes, and 2,",
        ),
    ],
    ids=["bins", "values", "never", "missing bins", "2 GB"],
)
def test_features_when_memory_is_too_small_then_limit_error(used, size, params, limit, message):
    with pytest.raises(LimitError, match=message):
        fit_many(sparse_rows(used, size), limit, **params)
