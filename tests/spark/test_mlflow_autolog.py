"""Fits that log themselves to MLflow: what a run has, which fits are runs, and servers that fail."""

from __future__ import annotations

import logging
import socket
import warnings

import numpy as np
import pytest
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder

import ps2.mlflow
from ps2.algorithms import DeepFM, KMeans, LinearRegression, OnlineLogisticRegression
from ps2.errors import ConfigError, InputError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of MLflow's own type hints
    import mlflow
    import mlflow.pyfunc

    from ps2.mlflow import autologging

# MLflow's advice to give an example.
pytestmark = [pytest.mark.usefixtures("ps"), pytest.mark.filterwarnings("ignore:.*An input example was:UserWarning")]

# A fit that is logged whole, one that fails, and what no fit logs are tested in each build.
NIGHTLY = pytest.mark.nightly

COLUMNS = ["a", "b"]


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    """A file store of the test's own; no fit is logged after the test."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    yield
    ps2.mlflow.autolog(disable=True)
    mlflow.set_tracking_uri(before)


@pytest.fixture(scope="module")
def rows(spark):
    x = np.random.default_rng(4).normal(size=(80, 2))
    created = [(*map(float, row), float(row @ [1.0, -2.0]), f"k{number % 7}") for number, row in enumerate(x)]
    return spark.createDataFrame(created, [*COLUMNS, "label", "key"]).coalesce(1).cache()


def regression(**params):
    return LinearRegression(featuresCols=COLUMNS, maxIter=4, solver="l-bfgs", **params)


def runs():
    return mlflow.search_runs(search_all_experiments=True, output_format="list")


def test_fit_when_autologged_then_run_has_all_of_it(rows):
    ps2.mlflow.autolog(extra_tags={"team": "a"})
    model = regression(regParam=0.01).fit(rows)
    (run,) = runs()
    params, metrics, tags = run.data.params, run.data.metrics, run.data.tags
    assert run.info.status == "FINISHED"
    assert (params["regParam"], params["tol"], params["labelCol"]) == ("0.01", "1e-06", "label")
    assert (tags["team"], tags["estimator_name"], tags["reason"]) == ("a", "LinearRegression", model.summary.reason)
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
    logged = {one.step: one.value for one in history}
    assert logged == pytest.approx(dict(enumerate(model.summary.objectiveHistory)))
    assert metrics["training_steps"] == model.summary.totalIterations
    assert metrics["training_rows_per_s"] > 0
    assert [one.path for one in mlflow.artifacts.list_artifacts(run_id=run.info.run_id)] == ["loss.png"]
    (logged_model,) = mlflow.search_logged_models(output_format="list")
    assert logged_model.source_run_id == run.info.run_id
    assert ps2.mlflow.load_model(logged_model.model_uri).coefficients == model.coefficients


@NIGHTLY
def test_fits_when_in_one_run_then_names_are_apart(rows):
    ps2.mlflow.autolog(log_models=False, log_every_n_step=2)
    with mlflow.start_run():
        Pipeline(stages=[regression(), KMeans(k=2, featuresCols=COLUMNS, predictionCol="cluster")]).fit(rows)
    (run,) = runs()
    assert run.data.params["maxIter"] == "4"
    assert run.data.params["KMeans_1/k"] == "2"
    assert {"loss", "KMeans_1/loss"} <= set(run.data.metrics)
    assert mlflow.active_run() is None
    steps = [one.step for one in mlflow.MlflowClient().get_metric_history(run.info.run_id, "seconds")]
    assert [step for step in steps if step % 2] == []
    assert mlflow.search_logged_models(output_format="list") == []


@NIGHTLY
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # pyspark leaves its pool open
def test_cross_validation_when_autologged_then_one_run(rows):
    estimator = regression()
    grid = ParamGridBuilder().addGrid(estimator.regParam, [0.0, 0.5]).build()
    ps2.mlflow.autolog(log_models=False)
    validator = CrossValidator(
        estimator=Pipeline(stages=[estimator]),
        estimatorParamMaps=grid,
        evaluator=RegressionEvaluator(),
        numFolds=2,
        parallelism=2,
    )
    validator.fit(rows)
    (run,) = runs()
    assert run.data.params["regParam"] == "0.0"


@NIGHTLY
def test_online_fit_when_autologged_then_loss_of_each_pass(rows):
    ps2.mlflow.autolog(log_models=False)
    labelled = rows.selectExpr("key", "double(label > 0) label")
    OnlineLogisticRegression(categoricalCols=["key"], maxIter=2).fit(labelled)
    (run,) = runs()
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
    assert [one.step for one in history] == [1, 2]


@NIGHTLY
@pytest.mark.parametrize(
    "estimator",
    [
        OnlineLogisticRegression(categoricalCols=["key"]),
        DeepFM(categoricalCols=["key"], hiddenLayers=[4], factorSize=2),
    ],
    ids=["online", "deep"],
)
def test_partial_fit_when_autologged_then_run_has_loss(rows, estimator):
    ps2.mlflow.autolog()
    estimator.partialFit(rows.selectExpr("key", "double(label > 0) label"))
    (run,) = runs()
    assert run.data.params["categoricalCols"] == "['key']"
    assert run.data.metrics["loss"] > 0
    assert len(mlflow.search_logged_models(output_format="list")) == 1


def learned_from_stream(spark, rows, folder, column="label > 0"):
    """Learn a stream of two files, one in each batch, to its end."""
    rows.selectExpr("key", f"double({column}) label").repartition(2).write.parquet(f"{folder}/rows")
    reader = spark.readStream.schema("key string, label double").option("maxFilesPerTrigger", 1)
    estimator = OnlineLogisticRegression(categoricalCols=["key"])
    once = {"availableNow": True}
    training = estimator.fitStream(reader.parquet(f"{folder}/rows"), f"{folder}/job", trigger=once)
    training.awaitTermination()
    return training


@NIGHTLY
def test_stream_when_autologged_then_metrics_of_each_batch(spark, rows, tmp_path):
    ps2.mlflow.autolog(extra_tags={"team": "a"})
    training = learned_from_stream(spark, rows, tmp_path)
    (run,) = runs()
    assert (run.info.status, run.data.tags["team"]) == ("FINISHED", "a")
    assert run.data.params["categoricalCols"] == "['key']"
    for name in ("logLoss", "auc"):
        history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss" if name == "logLoss" else name)
        logged = {one.step: one.value for one in history}
        assert logged == {one.batch: getattr(one.validation, name) for one in training.recentProgress}
    assert len(mlflow.search_logged_models(output_format="list")) == 1


@NIGHTLY
def test_stream_when_rows_are_wrong_then_run_failed(spark, rows, tmp_path):
    ps2.mlflow.autolog()
    with pytest.raises(InputError, match="batch 0"):
        learned_from_stream(spark, rows, tmp_path, "7")
    (run,) = runs()
    assert run.info.status == "FAILED"


def test_fit_when_it_fails_then_run_failed(rows):
    ps2.mlflow.autolog()
    with pytest.raises(InputError, match="no column 'z'"):
        regression(weightCol="z").fit(rows)
    (run,) = runs()
    assert run.info.status == "FAILED"


def test_fit_when_disabled_again_then_no_run(rows):
    ps2.mlflow.autolog()
    ps2.mlflow.autolog(disable=True)
    regression().fit(rows)
    assert runs() == []


def test_fit_when_server_refuses_then_warning_names_it(rows, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    mlflow.set_tracking_uri("http://127.0.0.1:9")
    ps2.mlflow.autolog()
    with caplog.at_level(logging.WARNING, "ps2.mlflow"):
        assert regression().fit(rows).hasSummary
    (message,) = [one.getMessage() for one in caplog.records if one.name == autologging.__name__]
    assert message.startswith("MLflow at http://127.0.0.1:9: the fit of LinearRegression continues, but is not logged")


@NIGHTLY
def test_fit_when_server_does_not_answer_then_fit_ends(rows, monkeypatch, caplog):
    monkeypatch.setattr(autologging, "WAIT_S", 0.1)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mlflow.set_tracking_uri(f"http://127.0.0.1:{silent.getsockname()[1]}")
        ps2.mlflow.autolog()
        with caplog.at_level(logging.WARNING, "ps2.mlflow"):
            regression().fit(rows)
    (message,) = [one.getMessage() for one in caplog.records if one.name == autologging.__name__]
    assert message.endswith("no answer within 0.1 s")


def test_autolog_when_step_is_not_positive_then_refused():
    with pytest.raises(ConfigError, match="log_every_n_step"):
        ps2.mlflow.autolog(log_every_n_step=0)
