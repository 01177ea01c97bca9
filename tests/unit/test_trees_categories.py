"""Splits by categories follow their rules, and rare categories do not fit noise."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.algorithms.trees import layout, ops
from ps2.algorithms.trees.estimator import GBTClassifier, GBTRegressor
from ps2.algorithms.trees.forests.estimator import RandomForestClassifier, RandomForestRegressor
from tests.tree_estimators import fit

COUNT, LAMBDA = 12, 0.5


def histogram(seed, has_missing=False):
    """Return the sums of each category, int64, shape (COUNT + has_missing, 3): hessian, gradient, rows."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(1, 40, COUNT + has_missing)
    return np.stack([4 * rows, rng.integers(-30, 30, len(rows)), rows], axis=1)


def best_split(sums, has_missing=False, **rules):
    """Return the gain, the flags of the left categories and whether missing values go left."""
    sizes, flags = np.array([len(sums)]), layout.CATEGORICAL | layout.HAS_MISSING * has_missing
    first = np.array([0, len(sums)])
    m = np.stack([layout.layout_of(sizes, first, None, np.array([flags]), 3), sums.reshape(-1)])
    free, none = np.array([[-np.inf, np.inf]]), np.empty((1, 0), np.int64)
    penalties = np.array([1.0, 1.0, LAMBDA, 0.0, 0.0])
    operands = sums.sum(axis=0)[None], free, np.zeros(1, np.int64), penalties, none
    gain, where, left, sets = ops.best_splits(m, np.array([1]), *operands, channels=3, words=1, **rules)
    lefts = layout.category_flags(sets[0], COUNT)
    is_left = np.append(lefts, np.full(int(has_missing), where[0, 2] > 0))
    if where[0, 0] >= 0:
        np.testing.assert_array_equal(left[0], sums[is_left].sum(axis=0))
    return gain[0], lefts, bool(where[0, 2])


def gain_of(sums, is_left, category_lambda=0.0):
    """Return the gain of a split by the formula of xgboost's paper, equation 7, without its factor 1/2."""
    h, g, _ = sums.T
    parts = [(h[is_left].sum(), g[is_left].sum()), (h[~is_left].sum(), g[~is_left].sum())]
    scores = [gradient**2 / (hessian + LAMBDA + category_lambda) for hessian, gradient in parts]
    return sum(scores) - g.sum() ** 2 / (h.sum() + LAMBDA)


def allowed_sets(sums, smooth, max_categories, min_category, min_group):
    """Yield the flags of the left categories of each split that the rules of LightGBM's documentation allow."""
    candidates = [i for i in range(COUNT) if sums[i, 2] >= min_category]
    candidates.sort(key=lambda i: sums[i, 1] / (sums[i, 0] + LAMBDA + smooth))
    for order in (candidates, candidates[::-1]):
        rows_in_group = 0
        for size in range(1, min(max_categories, (len(order) + 1) // 2) + 1):
            rows_in_group += sums[order[size - 1], 2]
            if rows_in_group >= min_group:
                rows_in_group = 0
                is_left = np.isin(np.arange(COUNT), order[:size])
                if sums[~is_left, 2].sum() >= min_group:
                    yield is_left


@pytest.mark.parametrize("rules", [(0.0, 3, 0, 0), (20.0, 6, 15, 0), (5.0, 6, 0, 60), (40.0, 4, 10, 45)])
@pytest.mark.parametrize("seed", range(6))
def test_split_when_categories_have_rules_then_best_allowed(seed, rules):
    sums = histogram(seed)
    smooth, max_categories, min_category, min_group = rules
    expected = max((gain_of(sums, is_left, 3.0) for is_left in allowed_sets(sums, *rules)), default=-np.inf)
    gain, lefts, _ = best_split(
        sums,
        smooth=smooth,
        category_lambda=3.0,
        max_categories=max_categories,
        min_category=min_category,
        min_group=min_group,
    )
    assert gain == pytest.approx(expected)
    assert any(np.array_equal(lefts, is_left) for is_left in allowed_sets(sums, *rules))


@pytest.mark.parametrize("has_missing", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_split_when_one_hot_then_one_category_goes_left(seed, has_missing):
    sums = histogram(seed, has_missing)
    sets = [np.isin(np.arange(len(sums)), [i, COUNT]) for i in range(COUNT)] if has_missing else []
    sets += [np.arange(len(sums)) == i for i in range(len(sums))]
    gain, lefts, missing_left = best_split(sums, has_missing, one_hot=COUNT, category_lambda=99.0, min_group=999)
    assert gain == pytest.approx(max(gain_of(sums, is_left) for is_left in sets))
    assert lefts.sum() == 1 or (lefts.all() and not missing_left)


def test_split_when_only_missing_rows_differ_then_they_go_alone():
    sums = np.tile([40, 5, 10], (COUNT + 1, 1))
    sums[-1] = 40, -50, 10
    _, lefts, missing_left = best_split(sums, has_missing=True, min_group=50, max_categories=2, min_category=11)
    assert lefts.all()
    assert not missing_left


def noise_table(rows, ids, seed):
    """Return features, labels and the number of categories: a useful number, and an id that labels do not depend on."""
    rng = np.random.default_rng(seed)
    number = rng.normal(size=rows)
    y = rng.random(rows) < 1 / (1 + np.exp(-1.2 * number))
    return np.column_stack([number, rng.integers(0, ids, rows)]), y.astype(float), {1: ids}


def auc(y, margins):
    """Return the area under the ROC curve; margins have no ties between classes that matter."""
    ranks = np.argsort(np.argsort(margins)) + 1.0
    positives = y.sum()
    return (ranks[y > 0].sum() - positives * (positives + 1) / 2) / (positives * (len(y) - positives))


def noise_auc(**params):
    """Return the AUC of 50 trees on other rows of the noise table, less the AUC of the useful number alone."""
    x, y, categories = noise_table(20_000, 2_000, 0)
    other_x, other_y, _ = noise_table(20_000, 2_000, 1)
    estimator = GBTClassifier(maxIter=50, stepSize=0.1, minChildWeight=20.0, numWorkers=1, **params)
    model = fit(estimator, x, y, categories=categories, classes=2)
    return auc(other_y, model._trained.margins(other_x).ravel()) - auc(other_y, other_x[:, 0])


@pytest.mark.parametrize("defaults", ["pyspark", "xgboost", "lightgbm", "catboost"])
def test_fit_when_a_column_of_ids_is_noise_then_it_costs_little(defaults):
    assert noise_auc(defaults=defaults) > -0.02  # so it is above 0.75: the number alone has 0.774


def test_fit_when_ids_have_no_rules_then_noise_costs_much():
    assert noise_auc(catSmooth=0.0, catL2=0.0, maxCatThreshold=4_000, minDataPerGroup=1) < -0.05


@pytest.mark.parametrize(("bins", "lowest", "highest"), [(32, -0.01, 0.01), (2_000, -1.0, -0.05)])
def test_forest_when_ids_are_noise_then_max_bins_decides(bins, lowest, highest):
    x, y, categories = noise_table(20_000, 2_000, 0)
    other_x, other_y, _ = noise_table(20_000, 2_000, 1)
    model = fit(RandomForestClassifier(maxBins=bins, numWorkers=1), x, y, categories=categories, classes=2)
    score = auc(other_y, model.fitted.predictProbability(other_x)[:, 1])
    assert lowest < score - auc(other_y, other_x[:, 0]) < highest


@pytest.mark.parametrize(("bins", "light"), [(40, 10), (39, 20)])
@pytest.mark.parametrize(("via", "workers"), [("local", 1), ("servers", 3)])
@pytest.mark.parametrize("category", [3, 39])
def test_forest_when_categories_exceed_bins_then_groups(bins, light, category, via, workers):
    x = np.repeat(np.arange(40.0), 10)[:, None]
    one_tree = {"numTrees": 1, "maxDepth": 1, "bootstrap": False, "maxBins": bins}
    model = fit(
        RandomForestRegressor(via=via, numWorkers=workers, **one_tree),
        x,
        (x[:, 0] == category) * 1.0,
        categories={0: 40},
    )
    predictions = model.fitted.predict(x)
    assert min(np.unique(predictions, return_counts=True)[1]) == light


def test_fit_when_table_is_small_then_categories_still_split():
    x = np.repeat(np.arange(6.0), 10)[:, None]
    y = np.isin(x[:, 0], [1.0, 4.0, 5.0]).astype(float)
    model = fit(GBTRegressor(maxIter=1, maxDepth=1), x, y, categories={0: 6})
    assert len(np.unique(model._trained.margins(x))) == 2


@pytest.mark.parametrize(("bins", "rows"), [(5, 12), (4, 84)])
def test_classes_when_categories_fit_bins_then_groups_are_small(bins, rows):
    x = np.repeat(np.arange(5.0), [12, 72, 72, 72, 72])[:, None]
    model = fit(GBTClassifier(maxIter=1, maxDepth=1, catL2=0.0, maxBins=bins), x, x[:, 0] == 0, categories={0: 5})
    assert (model._trained.margins(x) == model._trained.margins(x)[0]).sum() == rows


def test_fit_when_min_data_per_group_is_set_then_groups_stay():
    x = np.repeat(np.arange(6.0), 10)[:, None]
    y = np.isin(x[:, 0], [1.0, 4.0, 5.0]).astype(float)
    model = fit(GBTRegressor(maxIter=1, maxDepth=1, minDataPerGroup=31), x, y, categories={0: 6})
    assert len(np.unique(model._trained.margins(x))) == 1
