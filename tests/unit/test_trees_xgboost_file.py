"""The real xgboost loads what we save, and predicts the same numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import xgboost
from tree_builder import TreeBuilder

from ps2.algorithms.trees.predict import Predictor
from ps2.algorithms.trees.tree import Forest
from ps2.algorithms.trees.xgboost_file import save_xgboost
from ps2.errors import RecoveryError, UsageError

FEATURES, CATEGORIES = 5, 6
LINKS = {
    "logistic": lambda m: 1 / (1 + np.exp(-m)),
    "poisson": np.exp,
    "softmax": lambda m: np.exp(m) / np.exp(m).sum(axis=1, keepdims=True),
}


def forest(loss, trees=12, width=1, sets=True, seed=0):
    """Random trees over whole numbers; the last feature is a category."""
    rng = np.random.default_rng(seed)
    grown = []
    for _ in range(trees):
        draft, leaves = TreeBuilder(0.0, 1.0, 1), [0]
        for _ in range(10):
            node, feature = leaves.pop(rng.integers(len(leaves))), int(rng.integers(FEATURES))
            test = float(rng.choice([-1.0, 0.0, 1.0, np.float32(0.1), 2.5, np.inf]))
            if sets and feature == FEATURES - 1:
                test = rng.random(CATEGORIES) < 0.5
            draft.split(node, feature, test, bool(rng.integers(2)), 1.0 + node)
            leaves += [draft.add_child(node, rng.normal(), 1.0 + node, 1) for _ in range(2)]
        grown.append(draft.finish(0.1))
    return Forest(tuple(grown), rng.normal(size=width) * 5, FEATURES, loss, 0.3)


def rows(seed=1):
    rng = np.random.default_rng(seed)
    x = rng.choice([-1.0, 0.0, 1.0, 2.0, 3.0, 0.1, np.nan], size=(500, FEATURES))
    x[:, -1] = rng.choice([*range(CATEGORIES), np.nan], size=500)
    return x


def loaded(model, path):
    save_xgboost(str(path), model)
    booster = xgboost.Booster(model_file=str(path))
    booster.set_param({"nthread": 1})
    return booster


def as_matrix(x, sets=True):
    types = ["q"] * (FEATURES - 1) + ["c"] if sets else None
    return xgboost.DMatrix(x, feature_types=types, enable_categorical=sets)


@pytest.mark.parametrize(
    ("kind", "theirs"),
    [
        ("weight", "weight"),
        ("gain", "gain"),
        ("cover", "cover"),
        ("totalGain", "total_gain"),
        ("totalCover", "total_cover"),
    ],
)
def test_scores_when_xgboost_has_the_trees_then_they_are_its_own(tmp_path, kind, theirs):
    model = forest("squared", sets=False)
    scores = loaded(model, tmp_path / "m.json").get_score(importance_type=theirs)
    np.testing.assert_allclose(model.scores(kind), [scores.get(f"f{i}", 0.0) for i in range(FEATURES)], rtol=1e-6)


@pytest.mark.parametrize(
    ("loss", "width"),
    [
        ("logistic", 1),
        ("softmax", 3),
        ("squared", 1),
        ("absolute", 1),
        ("huber", 1),
        ("poisson", 1),
        ("quantile", 1),
    ],
)
@pytest.mark.parametrize("sets", [True, False])
def test_saved_when_xgboost_loads_it_then_predictions_match(loss, width, sets, tmp_path):
    model, x = forest(loss, width=width, sets=sets), rows()
    booster = loaded(model, tmp_path / "model.json")
    margins = Predictor(model).margins(x)
    result = booster.predict(as_matrix(x, sets), output_margin=True).reshape(margins.shape)
    np.testing.assert_allclose(result, margins, rtol=1e-6, atol=2e-6)
    message = LINKS.get(loss, lambda m: m)(margins)
    np.testing.assert_allclose(
        booster.predict(as_matrix(x, sets)).reshape(message.shape), message, rtol=5e-6, atol=1e-6
    )


def test_saved_when_xgboost_loads_it_then_leaves_match(tmp_path):
    model, x = forest("squared"), rows()
    result = loaded(model, tmp_path / "model.json").predict(as_matrix(x), pred_leaf=True)
    np.testing.assert_array_equal(result, Predictor(model).leaves(x))


def test_saved_when_only_missing_go_right_then_xgboost_loads_it(tmp_path):
    draft = TreeBuilder(0.0, 1.0, 1)
    draft.split(0, FEATURES - 1, np.ones(CATEGORIES, np.bool_), False, 1.0)
    for value in (-1.0, 1.0):
        draft.add_child(0, value, 1.0, 1)
    model, x = Forest((draft.finish(),), np.zeros(1), FEATURES), rows()
    result = loaded(model, tmp_path / "model.json").predict(as_matrix(x))
    np.testing.assert_array_equal(result, np.where(np.isnan(x[:, -1]), 1.0, -1.0))


def test_saved_when_xgboost_loads_it_then_trains_on_and_explains(tmp_path):
    model, x = forest("squared", sets=False), rows()
    booster = loaded(model, tmp_path / "model.json")
    data = xgboost.DMatrix(x, np.nan_to_num(x[:, 0]))
    shares = booster.predict(data, pred_contribs=True)
    np.testing.assert_allclose(shares.sum(axis=1), booster.predict(data), rtol=1e-4, atol=1e-4)
    assert xgboost.train({"nthread": 1}, data, 2, xgb_model=booster).num_boosted_rounds() == 14


def test_saved_when_rows_are_sparse_then_xgboost_sees_missing(tmp_path):
    model = forest("squared", sets=False)
    x = sp.csr_array(np.nan_to_num(rows()))
    result = loaded(model, tmp_path / "model.json").predict(xgboost.DMatrix(x))
    expected = Predictor(replace(model, absent="missing")).margins(x)
    np.testing.assert_allclose(result, expected[:, 0], rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("width", [1, 3])
def test_saved_when_without_trees_then_xgboost_predicts_base(width, tmp_path):
    model = Forest((), np.arange(1.0, width + 1), FEATURES, "softmax" if width > 1 else "squared")
    result = loaded(model, tmp_path / "model.json").predict(as_matrix(rows(), False), output_margin=True)
    np.testing.assert_allclose(result.reshape(-1, width), np.tile(model.base, (500, 1)))


def test_saved_when_names_are_given_then_xgboost_has_them(tmp_path):
    names = [f"f{i}" for i in "abcde"]
    save_xgboost(str(tmp_path / "model.json"), forest("squared"), names)
    assert xgboost.Booster(model_file=str(tmp_path / "model.json")).feature_names == names


def test_saved_when_folder_is_absent_then_error_names_file(tmp_path):
    with pytest.raises(RecoveryError, match=r"model\.json"):
        save_xgboost(str(tmp_path / "none" / "model.json"), forest("squared"))


def stump(threshold, base=0.0, leaves=(-1.0, 1.0)):
    draft = TreeBuilder(0.0, 1.0, 1)
    draft.split(0, 0, threshold, False, 1.0)
    for value in leaves:
        draft.add_child(0, value, 1.0, 1)
    return Forest((draft.finish(),), np.array([base]), 1)


@pytest.mark.parametrize("threshold", [20240115.5, 1e300, -1e-320])
def test_saved_when_float32_cannot_split_values_then_is_refused(threshold, tmp_path):
    with pytest.raises(UsageError, match=r"tree 0: xgboost rounds features to float32, .* feature 0 on both sides of"):
        save_xgboost(str(tmp_path / "model.json"), stump(threshold))


@pytest.mark.parametrize(("base", "leaves"), [(1.7e9, (-10.0, 9.0)), (1e39, (-1e38, 1e38)), (0.0, (1e39, -1e39))])
def test_saved_when_float32_cannot_hold_margins_then_is_refused(base, leaves, tmp_path):
    with pytest.raises(UsageError, match="xgboost adds up margins in float32"):
        save_xgboost(str(tmp_path / "model.json"), stump(0.5, base, leaves))
    assert not (tmp_path / "model.json").exists()
