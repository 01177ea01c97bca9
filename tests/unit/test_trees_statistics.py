"""Target statistics replace categories, never contain a row's own label, and are the same on any fleet."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import scipy.sparse as sp

from ps2.algorithms.training.checkpoint_names import UNNAMED
from ps2.algorithms.trees.boosted_rows import BoostedRows
from ps2.algorithms.trees.estimator import GBTClassifier, GBTRegressor
from ps2.algorithms.trees.model import GBTModel
from ps2.algorithms.trees.rows import row_ids
from ps2.algorithms.trees.statistic_sums import FOLDS, AddStatistics, CountCopies, StatisticSums
from ps2.algorithms.trees.target_statistics import StatisticColumns, append_columns
from ps2.data.rows import LocalRows
from ps2.errors import ConfigError, LimitError, UsageError
from ps2.splitmix import GOLDEN, scrambled
from tests.in_process import training_context
from tests.tree_estimators import fit

COUNT = 70
CATEGORIES = {1: COUNT, 2: COUNT}
COLUMNS = StatisticColumns.combine(3, CATEGORIES, 2, 0, 8.0)


def table(rows=600, seed=0):
    """Return rows of a number and two categories, some missing, and labels of the categories' combination."""
    rng = np.random.default_rng(seed)
    codes, effects = rng.integers(0, COUNT, (rows, 2)), np.random.default_rng(9).normal(size=(COUNT, COUNT))
    x = np.column_stack([rng.normal(size=rows), codes]).astype(float)
    y = effects[codes[:, 0] // 10, codes[:, 1] // 10] * 2 + x[:, 0]
    x[rng.random(rows) < 0.05, 1] = np.nan
    return x, np.clip(y, -7, 7)


def local_rows(x, y):
    full = sp.csr_array((x.ravel(), np.tile(np.arange(3), len(x)), np.arange(len(x) + 1) * 3), shape=x.shape)
    return LocalRows(np.arange(3), full, y)


def groups(x, features):
    """Return for each row the tuple of its categories; a missing one is COUNT."""
    return [tuple(COUNT if np.isnan(row[f]) else int(row[f]) for f in features) for row in x]


def test_training_row_has_mean_of_same_group_in_other_folds():
    x, y = table()
    rows = local_rows(x, y)
    ids = row_ids(rows, "zero")
    folds = scrambled(ids.view(np.uint64) + GOLDEN) % np.uint64(FOLDS)
    with training_context(2):
        sums = StatisticSums.make(COLUMNS, "zero", UNNAMED)
        for task in (CountCopies(), AddStatistics()):
            sums.do(task, rows, ids, 0)
        got = sums.training_rows(rows, ids, 0).x.toarray()
    rounded = np.rint(y / COLUMNS.label_unit) * COLUMNS.label_unit
    prior = rounded.mean()
    for column, features in enumerate([(1,), (2,), (1, 2)], 3):
        group = groups(x, features)
        for row in range(0, len(x), 7):
            others = [other for other in range(len(x)) if group[other] == group[row] and folds[other] != folds[row]]
            expected = (rounded[others].sum() + prior) / (len(others) + 1)
            assert got[row, column] == pytest.approx(expected, rel=1e-6, abs=1e-7)


def test_counts_are_those_of_all_training_rows():
    x, y = table()
    rows = local_rows(x, y)
    with training_context(1):
        sums = StatisticSums.make(COLUMNS, "zero", UNNAMED)
        for task in (CountCopies(), AddStatistics()):
            sums.do(task, rows, row_ids(rows, "zero"), 0)
        got = sums.training_rows(rows, row_ids(rows, "zero"), 0).x.toarray()
    for column, feature in ((6, 1), (7, 2)):
        group = groups(x, (feature,))
        np.testing.assert_array_equal(got[:, column], [group.count(key) for key in group])


def test_new_row_of_unknown_category_has_mean_of_all_rows():
    x, y = table()
    model = fit(GBTRegressor(maxIter=2, maxCtrComplexity=1), x, y, categories=CATEGORIES)
    statistics = model._trained.forest.statistics
    got = statistics.with_columns(np.array([[0.0, 10**6, 1.5]]), 0.0)
    # Feature 1 has rows without a category; feature 2 has none.
    assert got[0, 4] == pytest.approx(y.mean(), abs=1e-3)


@pytest.mark.parametrize("classes", [0, 2, 3])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_statistics_on_any_fleet_give_the_same_bits(classes, is_sparse):
    x, y = table()
    x = np.nan_to_num(x)
    if classes:
        y = np.digitize(y, [0.0] if classes == 2 else [-1.0, 1.0]).astype(float)
    estimator = GBTClassifier if classes else GBTRegressor
    results = []
    for via, workers, servers in (("local", 1, 1), ("servers", 1, 2), ("servers", 3, 3)):
        model = fit(
            estimator(maxIter=3, maxCtrComplexity=2, via=via, numWorkers=workers, subsamplingRate=0.7),
            sp.csr_array(x) if is_sparse else x,
            y,
            servers=servers,
            categories=CATEGORIES,
            classes=classes,
        )
        forest = model._trained.forest
        table_arrays = forest.statistics.keys, forest.statistics.sums
        results.append([array.tobytes() for array in (forest.arrays()["nodes"], *table_arrays)])
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("workers", [1, 4])
def test_copies_of_a_row_are_in_different_folds(workers):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, COUNT, (4000, 1)).astype(float), rng.integers(0, 2, 4000).astype(float)
    model = fit(
        GBTClassifier(maxIter=20, maxCtrComplexity=1, via="servers", numWorkers=workers),
        x,
        y,
        categories={0: COUNT},
        classes=2,
    )
    # In one fold, copies would have the mean of the rows of the other class.
    probability = model._trained.predictProbability(x)[:, 1]
    means = np.bincount(x[:, 0].astype(int), y) / np.bincount(x[:, 0].astype(int))
    assert np.corrcoef(probability, means[x[:, 0].astype(int)])[0, 1] > 0


def test_copies_on_any_number_of_workers_give_the_same_bits():
    x, y = table(40)
    repeats = np.random.default_rng(1).integers(1, 40, 40)
    x, y = np.repeat(x, repeats, axis=0), np.repeat(y, repeats)
    order = np.random.default_rng(2).permutation(len(x))
    arrays = []
    for via, workers in (("local", 1), ("servers", 2), ("servers", 5)):
        estimator = GBTRegressor(maxIter=2, maxCtrComplexity=2, via=via, numWorkers=workers, weightCol="w")
        weights = np.round(y[order]) ** 2 + 1
        model = fit(estimator, x[order], y[order], categories=CATEGORIES, w=weights)
        arrays.append(model._trained.forest.arrays()["nodes"].tobytes())
    assert arrays[0] == arrays[1] == arrays[2]


def test_workers_without_rows_give_the_same_bits():
    x, y = table(12)
    arrays = []
    for via, workers in (("local", 1), ("servers", 20)):
        params = {"maxCtrComplexity": 1, "validationIndicatorCol": "v", "validationTol": 0.0}
        estimator = GBTRegressor(maxIter=2, via=via, numWorkers=workers, **params)
        model = fit(estimator, x, y, categories=CATEGORIES, v=np.arange(12) < 2)
        arrays.append(model._trained.forest.arrays()["nodes"].tobytes())
    assert arrays[0] == arrays[1]


@pytest.mark.parametrize("complexity", [-1, 17, 10**9])
def test_complexity_outside_its_range_is_an_error(complexity):
    x, y = table(12)
    with pytest.raises(ConfigError, match="maxCtrComplexity"):
        fit(GBTRegressor(maxCtrComplexity=complexity), x, y, categories=CATEGORIES)


def test_combinations_predict_new_rows_better_than_sets():
    rng = np.random.default_rng(0)
    effects, codes = rng.normal(size=(COUNT, 5)), np.column_stack([rng.integers(0, n, 6000) for n in (COUNT, 5)])
    x, y = codes.astype(float), effects[codes[:, 0], codes[:, 1]]

    def error(complexity):
        estimator = GBTRegressor(maxIter=30, via="local", maxCtrComplexity=complexity, minCtrCategories=5)
        model = fit(estimator, x[:4000], y[:4000], categories={0: COUNT, 1: 5})
        return np.mean((model._trained.predict(x[4000:]) - y[4000:]) ** 2)

    assert error(2) < 0.5 * error(0)


def test_held_out_rows_have_the_statistics_of_new_rows():
    x, y = table()
    is_held_out = np.arange(len(x)) % 3 == 0
    model = fit(
        GBTRegressor(maxIter=3, maxCtrComplexity=2, validationIndicatorCol="v", validationTol=0.0, via="local"),
        x,
        y,
        categories=CATEGORIES,
        v=is_held_out,
    )
    error = np.mean((model._trained.predict(x[is_held_out]) - y[is_held_out]) ** 2) / 2
    validation = model.summary.validationHistory
    assert min(validation) == pytest.approx(error, rel=1e-9)


def test_saved_model_when_loaded_predicts_the_same(tmp_path):
    x, y = table()
    model = fit(GBTRegressor(maxIter=3, maxCtrComplexity=2), x, y, categories=CATEGORIES)._trained
    content = model.forest.write(str(tmp_path))
    loaded = GBTModel(type(model.forest).read(str(tmp_path), str(tmp_path), content))
    np.testing.assert_array_equal(loaded.predict(x), model.predict(x))


def test_sparse_rows_predict_as_dense_rows():
    x, y = table()
    x = np.nan_to_num(x)
    model = fit(GBTRegressor(maxIter=3, maxCtrComplexity=2), x, y, categories=CATEGORIES)._trained
    np.testing.assert_array_equal(model.predict(sp.csr_array(x)), model.predict(x))


def test_contributions_of_features_add_up_to_margins():
    x, y = table()
    model = fit(GBTRegressor(maxIter=3, maxCtrComplexity=2), x, y, categories=CATEGORIES)._trained
    contributions = model.contributions(x[:50])
    assert contributions.shape == (50, 4)
    np.testing.assert_allclose(contributions.sum(axis=1), model.predict(x[:50]), atol=1e-9)


def test_importance_of_combination_is_divided_among_features():
    x, y = table()
    model = fit(GBTRegressor(maxIter=3, maxCtrComplexity=2), x, y, categories=CATEGORIES)
    assert model.featureImportances.size == 3
    assert model.featureImportances.toArray().sum() == pytest.approx(1)
    assert "mean label by feature 1 and 2 <= " in model.toDebugString


def test_few_categories_keep_splits_by_sets():
    x, y = table()
    model = fit(GBTRegressor(maxIter=1, maxCtrComplexity=2, minCtrCategories=71), x, y, categories=CATEGORIES)
    assert model._trained.forest.statistics is None


def test_more_combinations_than_the_limit_are_an_error():
    with pytest.raises(
        LimitError, match=r"maxCtrComplexity: expected at most 1,000 combinations.*30 features make 4,525"
    ):
        StatisticColumns.combine(30, dict.fromkeys(range(30), 99), 3, 0, 1.0)


def test_default_complexity_has_at_most_200_combinations():
    by_count = {
        count: StatisticColumns.combine(40, dict.fromkeys(range(count), 99), None, 0, 1.0) for count in (9, 15, 40)
    }
    assert [max(map(len, columns.combinations)) for columns in by_count.values()] == [3, 2, 1]


@pytest.mark.parametrize(
    "params",
    [{"monotoneConstraints": [1, 0, 0]}, {"interactionConstraints": [[0, 1]]}, {"featureWeights": [1.0, 2.0, 3.0]}],
)
def test_constraints_of_features_with_statistics_are_an_error(params):
    x, y = table()
    estimator = GBTRegressor(maxCtrComplexity=1, featureSubsetStrategy="0.5", **params)
    with pytest.raises(ConfigError, match=f"{next(iter(params))}: expected with maxCtrComplexity=0"):
        fit(estimator, x, y, categories=CATEGORIES)


def test_initial_model_with_statistics_is_an_error():
    x, y = table()
    model = fit(GBTRegressor(maxIter=1, maxCtrComplexity=1), x, y, categories=CATEGORIES)
    with pytest.raises(ConfigError, match="initialModel: expected a model without target statistics"):
        fit(GBTRegressor(maxIter=1).setInitialModel(model), x, y, categories=CATEGORIES)


def test_xgboost_file_of_model_with_statistics_is_an_error(tmp_path):
    x, y = table()
    model = fit(GBTRegressor(maxIter=1, maxCtrComplexity=1), x, y, categories=CATEGORIES)
    with pytest.raises(UsageError, match="xgboost has no target statistics"):
        model._trained.saveXGBoost(str(tmp_path / "model.json"))


@pytest.mark.parametrize("via", ["local", "servers"])
def test_rows_with_statistics_are_freed_after_they_were_binned(via, monkeypatch):
    references, are_freed = [], []
    training_rows, plant = StatisticSums.training_rows, BoostedRows.plant

    def watched_rows(self, *args):
        rows = training_rows(self, *args)
        references.append(weakref.ref(rows))
        return rows

    def watched_plant(self, *args):
        are_freed.append(all(reference() is None for reference in references))
        return plant(self, *args)

    monkeypatch.setattr(StatisticSums, "training_rows", watched_rows)
    monkeypatch.setattr(BoostedRows, "plant", watched_plant)
    fit(GBTRegressor(maxIter=2, maxCtrComplexity=1, via=via), *table(), categories=CATEGORIES)
    assert len(references) >= 1
    assert are_freed[-1]


def test_values_that_are_no_category_share_one_code():
    codes = COLUMNS.category_codes(np.array([[0.0, v, 0.0] for v in (np.nan, -1, 1.5, COUNT, 2.0**60, np.inf)]), 0.0)
    assert set(codes[1].tolist()) == {COUNT}


def test_columns_from_their_json_are_equal():
    assert StatisticColumns.from_json(COLUMNS.to_json()) == COLUMNS


def test_appended_columns_come_after_stored_entries():
    x = sp.csr_array(np.array([[0.0, 2.0], [3.0, 0.0]]))
    got = append_columns(x, np.array([[0.0, 5.0], [6.0, 7.0]]), zeros=[0])
    np.testing.assert_array_equal(got.toarray(), [[0, 2, 0, 5], [0, 0, 6, 7]])
    assert got.nnz == 6
