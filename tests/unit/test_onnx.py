"""ONNX Runtime scores files of models as ``transform`` scores rows: at thresholds, too, and with missing values."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import scipy.sparse as sp
from tree_builder import TreeBuilder

import ps2.onnx
from ps2 import lazy_names
from ps2.algorithms import (
    FMClassificationModel,
    FMRegressionModel,
    GBTClassificationModel,
    GBTRegressionModel,
    KMeansClusters,
    KMeansModel,
    LinearRegressionModel,
    LinearSVCModel,
    LogisticRegressionModel,
    MetricLearningModel,
    RandomForestClassificationModel,
    RandomForestRegressionModel,
)
from ps2.algorithms.frame.heads import predict_all
from ps2.algorithms.linear.model import Weights
from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.metric.model import Metric
from ps2.algorithms.trees.forests.random_forest import RandomForest
from ps2.algorithms.trees.model import GBTModel
from ps2.algorithms.trees.tree import Forest
from ps2.errors import ConfigError, UsageError

DIM, ROWS, CATEGORIES = 7, 400, 70
RNG = np.random.default_rng(8)
# Of a threshold's value, the number itself and its neighbours in float64, which float32 does not tell apart.
CUTS = np.array([0.1, -0.3, 1.7, 0.0])


def tree(splits=12):
    draft, leaves = TreeBuilder(RNG.normal(), 1.0, 1), [0]
    for _ in range(splits):
        node = leaves.pop(RNG.integers(len(leaves)))
        feature = int(RNG.integers(DIM))
        is_set = feature >= DIM - 2
        test = RNG.random(RNG.integers(1, CATEGORIES)) < RNG.choice([0.5, 1.0]) if is_set else float(RNG.choice(CUTS))
        draft.split(node, feature, test, bool(RNG.integers(2)), 1.0)
        leaves += [draft.add_child(node, RNG.normal(), 1.0, 1) for _ in range(2)]
    return draft.finish()


def forest(loss="squared", width=1, trees=6):
    return Forest(tuple(tree() for _ in range(trees)), RNG.normal(size=width), DIM, loss)


def mixed():
    draft = TreeBuilder(0.0, 1.0, 1)
    draft.split(0, 0, 1.0, True, 1.0)
    child, _ = (draft.add_child(0, 1.0, 1.0, 1) for _ in range(2))
    draft.split(child, 0, np.ones(2, np.bool_), True, 1.0)
    for _ in range(2):
        draft.add_child(child, 1.0, 1.0, 1)
    return Forest((draft.finish(),), np.zeros(1), DIM)


def shares_of(trees):
    return tuple(RNG.dirichlet(np.ones(3), len(one)) for one in trees)


def linear(cls, loss, width=1, biases=1, dim=DIM):
    return cls(Weights(Problem(loss, dim, width=width), RNG.normal(size=(dim, width)), RNG.normal(size=biases)))


def with_thresholds(model, *values):
    return model._set(thresholds=list(values))


GROWN = forest()
MODELS = {
    "binomial": linear(LogisticRegressionModel, "logistic"),
    "binomial threshold": linear(LogisticRegressionModel, "logistic")._set(threshold=0.7),
    "multinomial": linear(LogisticRegressionModel, "softmax", 3, 3),
    "multinomial thresholds": with_thresholds(linear(LogisticRegressionModel, "softmax", 3, 3), 0.0, 0.2, 0.7),
    "svc": linear(LinearSVCModel, "hinge")._set(threshold=0.4),
    "regression": linear(LinearRegressionModel, "huber", 1, 2),
    "fm classes": linear(FMClassificationModel, "fmLogistic", 4),
    "fm numbers": linear(FMRegressionModel, "fmSquared", 4),
    "clusters": KMeansModel(KMeansClusters(RNG.normal(size=(5, DIM)))),
    "clusters float32": KMeansModel(KMeansClusters(RNG.normal(size=(5, DIM)).astype(np.float32))),
    "gbt classes": GBTClassificationModel(GBTModel(forest("logistic"))),
    "gbt softmax": GBTClassificationModel(GBTModel(forest("softmax", 3, 9))),
    "gbt poisson": GBTRegressionModel(GBTModel(forest("poisson"))),
    "gbt first trees": GBTRegressionModel(GBTModel(forest()))._set(numTrees=2),
    "gbt no tree": GBTRegressionModel(GBTModel(forest(trees=0))),
    "gbt leaf": GBTRegressionModel(GBTModel(Forest((TreeBuilder(0.7, 1.0, 1).finish(), tree()), np.ones(1), DIM))),
    "forest classes": RandomForestClassificationModel(RandomForest(GROWN, shares_of(GROWN.trees))),
    "forest numbers": RandomForestRegressionModel(RandomForest(GROWN, ())),
}


def rows(takes_missing):
    x = RNG.normal(size=(ROWS, DIM))
    if takes_missing:
        cuts = np.concatenate([CUTS, np.nextafter(CUTS, np.inf), np.nextafter(CUTS, -np.inf)])
        x = RNG.choice(cuts, (ROWS, DIM))
        x[:, -2:] = RNG.choice([*range(CATEGORIES + 9), -1, 2.5], (ROWS, 2))
        x[RNG.random(x.shape) < 0.2] = np.nan
    return x


def scored(model, x, path):
    ps2.onnx.export(model, str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"features": x}), strict=True))


@pytest.mark.parametrize("kind", MODELS)
def test_onnx_file_when_scored_then_as_transform(kind, tmp_path):
    model = MODELS[kind]
    scoring = model.scoring()
    x = rows(scoring.missing)
    result = scored(model, x, tmp_path / "model.onnx")
    expected = predict_all(model.fitted, scoring.head, x if scoring.missing else sp.csr_array(x), 0.0, ())
    assert result.keys() == {name for name, _ in scoring.outputs}
    for name, what in scoring.outputs:
        exact = {"rtol": 0, "atol": 0} if what == "prediction" and model.fitted.classes else {}
        np.testing.assert_allclose(result[name], expected[what], **{"rtol": 1e-12, "atol": 1e-12, **exact})
    for name, values in scored(model, x[:0], tmp_path / "model.onnx").items():
        assert values.shape == (0, *result[name].shape[1:])


@pytest.mark.parametrize("kind", [kind for kind in MODELS if "gbt" in kind or "forest" in kind] + ["small trees"])
def test_trees_when_exported_then_branches_have_two_numbers(kind, tmp_path):
    """ONNX Runtime before 1.30 takes a root whose branches have the same number for a leaf, of the root's number."""
    small = [tree(splits) for splits in RNG.integers(0, 3, 200)]
    model = (
        GBTRegressionModel(GBTModel(Forest(tuple(small), np.ones(1), DIM))) if kind == "small trees" else MODELS[kind]
    )
    ps2.onnx.export(model, str(tmp_path / "model.onnx"))
    nodes = onnx.load(str(tmp_path / "model.onnx")).graph.node
    result = {one.name: one.ints for node in nodes if node.op_type == "TreeEnsemble" for one in node.attribute}
    assert not (np.array(result["nodes_truenodeids"]) == np.array(result["nodes_falsenodeids"])).any()


def test_export_when_runtime_scores_otherwise_then_refused(tmp_path):
    # The squares exceed float64 in the graph; KMeansClusters scales rows.
    model = KMeansModel(KMeansClusters(np.diag([1e200, -1e200])))
    with pytest.raises(
        UsageError,
        match=r"scores \d+ of 64 rows of a sample differently .*'prediction': expected \[1\.\]",
    ):
        ps2.onnx.export(model, str(tmp_path / "model.onnx"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "version", "oldest"), [("binomial", "1.17.3", "1.18.0"), ("gbt classes", "1.22.1", "1.23.0")]
)
def test_export_when_the_runtime_is_too_old_then_warns(kind, version, oldest, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(onnxruntime, "__version__", version)
    ps2.onnx.export(MODELS[kind], str(tmp_path / "model.onnx"))
    assert f"ONNX Runtime {version}, which is installed, cannot score the file, which needs {oldest}" in caplog.text


def test_export_when_centres_are_equally_near_then_written(tmp_path):
    centres = (1e6 + RNG.normal(size=(50, DIM)) * np.geomspace(1e-3, 1.0, DIM)).astype(np.float32)
    ps2.onnx.export(KMeansModel(KMeansClusters(centres)), str(tmp_path / "model.onnx"))


def test_export_when_scores_differ_by_rounding_then_written(tmp_path):
    ties = [TreeBuilder(0.1, 1.0, 1).finish() for _ in range(300)]
    shares = tuple(np.array([share]) for share in RNG.permutation([[0.1, 0.9], [0.9, 0.1]] * 150))
    model = RandomForestClassificationModel(RandomForest(Forest(tuple(ties), np.zeros(1), DIM), shares))
    ps2.onnx.export(model, str(tmp_path / "model.onnx"))


@pytest.mark.parametrize("kind", ["binomial", "multinomial", "svc", "regression", "fm classes", "clusters"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_onnx_when_a_feature_is_not_finite_then_prediction_nan(kind, wrong, tmp_path):
    x = np.zeros((2, DIM))
    x[1, 3] = wrong
    prediction = scored(MODELS[kind], x, tmp_path / "model.onnx")["prediction"]
    assert np.isnan(prediction).tolist() == [False, True]


def test_onnx_when_given_float32_then_runtime_refuses(tmp_path):
    with pytest.raises(Exception, match="double"):
        scored(MODELS["gbt classes"], np.zeros((1, DIM), np.float32), tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (MetricLearningModel(Metric(np.ones((1, 2)))), "got a MetricLearningModel"),
        (KMeansModel(KMeansClusters(np.ones((2, 2)), "cosine")), "cosine"),
        (LogisticRegressionModel(Weights(Problem("logistic", 1), np.zeros((1, 1)), np.array([np.inf]))), "one class"),
        (GBTRegressionModel(GBTModel(mixed())), "feature 0 is split by"),
        (GBTRegressionModel(GBTModel(forest()))._set(leafCol="leaf"), "column 'leaf'"),
        (GBTRegressionModel(GBTModel(forest()))._set(baseMarginCol="margin"), "baseMarginCol"),
        ("model", "got a str"),
    ],
)
def test_export_when_onnx_cannot_say_the_same_then_refused(model, why, tmp_path):
    with pytest.raises(UsageError, match=why):
        ps2.onnx.export(model, str(tmp_path / "model.onnx"))
    assert not list(tmp_path.iterdir())


def test_onnx_file_when_read_then_names_model_and_columns(tmp_path):
    ps2.onnx.export(MODELS["svc"], str(tmp_path / "model.onnx"))
    created = onnx.load(str(tmp_path / "model.onnx"))
    assert {prop.key: prop.value for prop in created.metadata_props} == {
        "model": "LinearSVCModel",
        "columns": '["features"]',
    }


def test_export_when_onnx_is_not_installed_then_extra_named(monkeypatch):
    def missing(name, *args, **kwargs):
        if name == "ps2.onnx.exporting":
            raise ModuleNotFoundError(name, name="onnx")
        return original(name, *args, **kwargs)

    original = lazy_names.import_module
    monkeypatch.setattr(lazy_names, "import_module", missing)
    with pytest.raises(ConfigError, match=r"ps2-spark\[onnx\]"):
        ps2.onnx.export(MODELS["svc"], "model.onnx")
