"""MLflow's format: models of all families score pandas rows without Spark as ``transform`` scores Spark's."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from pyspark.ml import PipelineModel
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import Vectors
from tree_builder import TreeBuilder

import ps2.mlflow
from ps2.algorithms import (
    DeepFM,
    DeepWalkModel,
    DictionaryLearningModel,
    Embedding,
    FMRegressionModel,
    GBTClassificationModel,
    KMeansClusters,
    KMeansModel,
    LDAModel,
    LDATopics,
    LinearRegressionModel,
    LinearSVCModel,
    LogisticRegressionModel,
    MatrixFactorizationModel,
    MatrixFactors,
    Metric,
    MetricLearningModel,
    OnlineFM,
    RandomForestClassificationModel,
    SparseCoder,
    TwoTower,
    Word2VecModel,
)
from ps2.algorithms.linear.model import Weights
from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.trees.forests.random_forest import RandomForest
from ps2.algorithms.trees.model import GBTModel
from ps2.algorithms.trees.tree import Forest
from ps2.errors import CheckpointMissingError, ConfigError, InputError, LimitError, UsageError
from ps2.mlflow import predicting
from ps2.storage.files import resolve_url

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of MLflow's own type hints
    import mlflow
    import mlflow.pyfunc

# MLflow's advice to give an example.
pytestmark = [pytest.mark.usefixtures("ps"), pytest.mark.filterwarnings("ignore:.*An input example was:UserWarning")]

DIM, ROWS = 4, 60
COLUMNS = list("abcd")
RNG = np.random.default_rng(6)


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    """A file store of the test's own, the one that works without a server and a database."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    yield
    mlflow.set_tracking_uri(before)


def linear(cls, loss, width=1, biases=1):
    return cls(Weights(Problem(loss, DIM, width=width), RNG.normal(size=(DIM, width)), RNG.normal(size=biases)))


def forest(loss, width):
    trees = []
    for _ in range(2 * width):
        draft, leaf = TreeBuilder(0.0, 1.0, 1), 0
        for _ in range(4):
            draft.split(leaf, int(RNG.integers(DIM)), float(RNG.integers(4)), bool(RNG.integers(2)), 1.0)
            leaf, _ = (draft.add_child(leaf, RNG.normal(), 1.0, 1) for _ in range(2))
        trees.append(draft.finish())
    return Forest(tuple(trees), RNG.normal(size=width), DIM, loss)


def voting():
    grown = forest("squared", 1)
    return RandomForest(grown, tuple(RNG.dirichlet(np.ones(3), len(tree)) for tree in grown.trees))


def boosted():
    model = GBTClassificationModel(GBTModel(forest("softmax", 3)))._set(leafCol="leaf", contribCol="why")
    return model._set(thresholds=[0.1, 0.5, 0.9], numTrees=1, featuresCols=COLUMNS)


FAMILIES = {
    "binomial": linear(LogisticRegressionModel, "logistic")._set(threshold=0.6),
    "multinomial": linear(LogisticRegressionModel, "softmax", 3, 3)._set(probabilityCol="p"),
    "svc": linear(LinearSVCModel, "hinge"),
    "columns": linear(LinearRegressionModel, "squared")._set(featuresCols=COLUMNS),
    "machine": linear(FMRegressionModel, "fmSquared", 3),
    "boosted": boosted(),
    "forest": RandomForestClassificationModel(voting()),
    "k-means": KMeansModel(KMeansClusters(RNG.normal(size=(3, DIM)))),
    "topics": LDAModel(LDATopics(RNG.integers(1, 9, (DIM, 2)), [0.5, 0.5], 0.1)),
    "metric": MetricLearningModel(Metric(RNG.normal(size=(2, DIM)))),
    "dictionary": DictionaryLearningModel(SparseCoder(RNG.normal(size=(3, DIM)), 0.2)),
    "words": Word2VecModel(Embedding(["oak", "elm"], RNG.normal(size=(2, 3))))._set(inputCol="words", outputCol="mean"),
    "vertices": DeepWalkModel(Embedding(np.arange(4), RNG.normal(size=(4, 3)), [4, 3, 2, 1], "deepwalk"))._set(
        srcCol="user", dstCol="friend"
    ),
    "factors": MatrixFactorizationModel(
        MatrixFactors(np.arange(3), ["x", "y"], RNG.normal(size=(3, 2)), RNG.normal(size=(2, 2)))
    ),
}


@pytest.fixture(scope="module")
def rows(spark):
    """Vectors, the same in columns, ids of which some are unknown, lists of words, and labels."""
    x = RNG.integers(0, 5, (ROWS, DIM)).astype(float)
    created = [
        (
            Vectors.dense(row) if number % 2 else Vectors.sparse(DIM, dict(enumerate(row.tolist()))),
            number % 5,
            number * 3 % 5,
            "xyz"[number % 3],
            ["oak", "elm", "fir"][: number % 4],
            float(number % 2),
        )
        for number, row in enumerate(x)
    ]
    frame = spark.createDataFrame(created, ["features", "user", "friend", "item", "words", "label"])
    for number, name in enumerate(COLUMNS):
        frame = frame.withColumn(name, vector_to_array("features")[number])
    return frame.coalesce(1).cache()


def as_arrays(frame):
    """Vectors of pyspark as arrays, as clients of a model have them."""
    return frame.map(lambda value: value.toArray() if hasattr(value, "toArray") else value)


def check_same(model, frame, folder, added=None, rtol=1e-12):
    """Check that the saved model adds to pandas rows what ``transform`` adds to Spark's."""
    ps2.mlflow.save_model(model, str(folder))
    inputs, expected = as_arrays(frame.toPandas()), as_arrays(model.transform(frame).toPandas())
    result = mlflow.pyfunc.load_model(str(folder)).predict(inputs)
    assert set(result) == (added or set(expected) - set(inputs))
    for name in result:
        values = (np.stack([np.asarray(one, float) for one in side[name]]) for side in (result, expected))
        np.testing.assert_allclose(*values, rtol=rtol, atol=rtol, equal_nan=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_pyfunc_of_a_family_when_loaded_then_as_transform(family, rows, tmp_path):
    check_same(FAMILIES[family], rows, tmp_path / "model")


KEYS = {"categoricalCols": ["user", "item"], "factorSize": 2}
OF_KEYS = {
    "online": OnlineFM(**KEYS),
    "deep": DeepFM(**KEYS, hiddenLayers=[4]),
    "towers": TwoTower(**KEYS, hiddenLayers=[4], userCols=["user"]),
}


@pytest.mark.parametrize("family", OF_KEYS)
def test_pyfunc_of_keys_when_loaded_then_as_transform(family, rows, tmp_path):
    model = OF_KEYS[family].fit(rows)
    added = {"prediction"} if family == "towers" else {"prediction", "probability"}
    check_same(model, rows, tmp_path / "model", added, rtol=1e-6)
    ours = ps2.mlflow.load_model(str(tmp_path / "model"))
    assert type(ours) is type(model)
    assert ours.transform(rows).select("prediction").collect() == model.transform(rows).select("prediction").collect()
    ours.free()
    model.free()


@pytest.mark.parametrize("shared", ["memory://models[1]/{a,b}*", "runs [1]"])
def test_shared_folder_when_like_a_pattern_then_model_moves(shared, tmp_path):
    model = KMeansModel(KMeansClusters(RNG.normal(size=(2, DIM))))
    folder = shared if "://" in shared else str(tmp_path / shared)
    ps2.mlflow.save_model(model, str(tmp_path / "saved"), sharedDir=folder)
    fs, root = resolve_url(folder)
    assert not fs.exists(root) or not fs.find(root)
    loaded = ps2.mlflow.load_model(str(tmp_path / "saved"))
    np.testing.assert_array_equal(loaded.clusterCenters(), model.clusterCenters())


def test_pyfunc_when_loaded_in_another_process_then_no_java(tmp_path):
    ps2.mlflow.save_model(FAMILIES["boosted"], str(tmp_path / "model"))
    program = (
        "import warnings; warnings.simplefilter('ignore'); import mlflow.pyfunc, pandas, psutil;"
        f"model = mlflow.pyfunc.load_model({str(tmp_path / 'model')!r});"
        "found = model.predict(pandas.DataFrame([[1.0, 2.0, 3.0, 4.0]], columns=list('abcd')));"
        "print(len(found), len(psutil.Process().children()))"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert finished.stdout.split() == ["1", "0"], finished.stderr


def test_log_model_when_loaded_then_model_flavours_and_signature(rows):
    model = FAMILIES["columns"]
    with mlflow.start_run() as run:
        info = ps2.mlflow.log_model(model, "prices", metadata={"team": "a"}, extra_pip_requirements=["xxhash"])
    assert info.run_id == run.info.run_id
    assert info.metadata == {"team": "a"}
    assert info.flavors["ps2"]["family"] == "LinearRegression"
    assert info.signature.inputs.input_names() == COLUMNS
    assert info.signature.outputs.to_dict() == [{"type": "double", "name": "prediction", "required": True}]
    folder = mlflow.artifacts.download_artifacts(info.model_uri)
    with open(f"{folder}/requirements.txt") as file:
        expected = file.read().split()
    assert {line.partition("==")[0] for line in expected} >= {"ps2-spark", "xxhash"}
    loaded = ps2.mlflow.load_model(info.model_uri)
    assert loaded.uid == model.uid
    assert loaded.getFeaturesCols() == COLUMNS
    np.testing.assert_array_equal(loaded.coefficients.toArray(), model.coefficients.toArray())


def test_signature_when_an_example_is_given_then_of_the_example(tmp_path):
    example = pd.DataFrame([[1, 2, 3, 4]], columns=COLUMNS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's, of integers that cannot be missing
        ps2.mlflow.save_model(FAMILIES["columns"], str(tmp_path / "model"), input_example=example)
    signature = mlflow.models.get_model_info(str(tmp_path / "model")).signature
    assert [str(kind) for kind in signature.inputs.input_types()] == ["DataType.long"] * DIM


WRONG = {
    "no column": ("columns", {"a": [1.0], "b": [1.0], "c": [1.0]}, "'d'"),
    "strings": ("columns", {**{key: [1.0] for key in "abc"}, "d": ["x"]}, "column 'd'"),
    "null": ("columns", {**{key: [1.0] for key in "abc"}, "d": [None]}, "column 'd'"),
    "infinite": ("boosted", {**{key: [1.0] for key in "abc"}, "d": [np.inf]}, "column 'd'"),
    "no vector": ("svc", {"features": [3.0]}, "column 'features', row 0"),
    "null vector": ("svc", {"features": [[1.0] * DIM, None]}, "column 'features', row 1"),
    "null in vector": ("svc", {"features": [[1.0, None, 1.0, 1.0]]}, "column 'features', row 0"),
    "short vector": ("svc", {"features": [[1.0]]}, "column 'features', row 0: expected size 4"),
    "word": ("words", {"words": ["oak"]}, "column 'words'"),
    "null words": ("words", {"words": [["oak"], None]}, "column 'words', row 1"),
    "null id": ("factors", {"user": [1], "item": [None]}, "column 'item', row 0"),
    "id of another type": ("factors", {"user": ["1"], "item": ["x"]}, "column 'user'"),
}


@pytest.fixture(scope="module")
def loaded(ps, tmp_path_factory):
    """``loaded(family, signature)``: the model as MLflow loads it; signature False: all checks are PS2's."""
    models = {}

    def load(family, signature=False):
        if (family, signature) not in models:
            path = str(tmp_path_factory.mktemp("models") / "model")
            ps2.mlflow.save_model(FAMILIES[family], path, signature=signature)
            models[family, signature] = mlflow.pyfunc.load_model(path)
        return models[family, signature]

    return load


@pytest.mark.parametrize("what", WRONG)
def test_pyfunc_when_a_value_is_wrong_then_column_named(what, loaded):
    family, columns, message = WRONG[what]
    with pytest.raises(InputError, match=message):
        loaded(family).predict(pd.DataFrame(columns))


@pytest.mark.parametrize(
    ("columns", "message"),
    [({"a": [1.0]}, "'b'"), ({"a": [1.0], "b": [1.0], "c": [1.0], "d": ["x"]}, "column d"), ({"d": [1.0]}, "'a'")],
)
def test_pyfunc_when_rows_do_not_fit_signature_then_column_named(columns, message, loaded):
    with pytest.raises(mlflow.MlflowException, match=message):
        loaded("columns", None).predict(pd.DataFrame(columns))


def test_pyfunc_when_given_a_matrix_then_rows_are_features(loaded):
    model, x = FAMILIES["machine"], RNG.normal(size=(5, DIM))
    result = loaded("machine").predict(x)
    np.testing.assert_allclose(result["prediction"], [model.predict(row) for row in x], rtol=1e-12)


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (PipelineModel([]), ConfigError, r"stages\[-1\]"),
        (OnlineFM(), ConfigError, "trained model of PS2, got a OnlineFM"),
        (GBTClassificationModel(GBTModel(forest("logistic", 1))).trees[0], UsageError, "whole model"),
        (linear(LinearSVCModel, "hinge")._set(predictionCol="", rawPredictionCol=""), UsageError, "empty"),
    ],
)
def test_log_model_when_it_cannot_be_scored_then_no_run(model, error, message):
    with pytest.raises(error, match=message):
        ps2.mlflow.log_model(model)
    assert mlflow.search_runs(output_format="list") == []


def test_load_model_when_of_another_flavour_then_error(tmp_path):
    mlflow.pyfunc.save_model(str(tmp_path / "model"), loader_module="json", pip_requirements=[])
    with pytest.raises(CheckpointMissingError, match="flavour 'ps2'"):
        ps2.mlflow.load_model(str(tmp_path / "model"))


def test_saved_model_when_larger_than_memory_then_refused(tmp_path, monkeypatch):
    ps2.mlflow.save_model(FAMILIES["svc"], str(tmp_path / "model"))
    (file,) = (tmp_path / "model").rglob("scoring.json")
    assert json.loads(file.read_text())["loader"] == "ps2.algorithms.linear.model:LinearModel"
    monkeypatch.setattr(predicting, "available_bytes", lambda: 100)
    with pytest.raises(LimitError, match="this process may use 100"):
        mlflow.pyfunc.load_model(str(tmp_path / "model"))
