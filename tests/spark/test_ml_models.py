"""Models: predictions as pyspark.ml's own, in the driver or on the fleet; their files; what fit refuses."""

from __future__ import annotations

import gc
import json
import threading

import numpy as np
import pandas as pd
import pytest
from pyspark.ml import classification
from pyspark.ml.evaluation import BinaryClassificationEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import DenseMatrix, Vectors
from pyspark.ml.tuning import CrossValidator
from pyspark.sql import functions as F
from scipy.sparse import csr_array

from ps2 import DCV, PS2Context, algorithms
from ps2.algorithms import (
    FactorizationMachine,
    FMClassificationModel,
    FMClassifier,
    FMRegressionModel,
    LinearModel,
    LinearRegression,
    LinearRegressionModel,
    LinearSVC,
    LinearSVCModel,
    LogisticRegression,
    LogisticRegressionModel,
)
from ps2.algorithms.linear.model import Weights
from ps2.algorithms.linear.plan import Problem
from ps2.client.matrix import DCVMatrix
from ps2.errors import (
    CheckpointCorruptError,
    ConfigError,
    InputError,
    LimitError,
    NotFoundError,
    SlotsError,
    StoppedError,
    UsageError,
)

pytestmark = pytest.mark.usefixtures("ps")

DIM = 5
RNG = np.random.default_rng(3)
ROWS = [(Vectors.dense(RNG.normal(size=DIM)),) for _ in range(4)] + [(Vectors.sparse(DIM, [1, 3], [2.0, -1.0]),)]


def model(cls, loss, width=1, biases=1, **of_problem):
    problem = Problem(loss, DIM, width=width, **of_problem)
    return cls(Weights(problem, RNG.normal(size=(DIM, width)), RNG.normal(size=biases)))


MODELS = {
    "binomial": model(LogisticRegressionModel, "logistic"),
    "multinomial": model(LogisticRegressionModel, "softmax", 3, 3),
    "svc": model(LinearSVCModel, "squaredHinge"),
    "linear": model(LinearRegressionModel, "squared"),
    "huber": model(LinearRegressionModel, "huber", 1, 2),
    "fm classes": model(FMClassificationModel, "fmLogistic", 3),
    "fm numbers": model(FMRegressionModel, "fmSquared", 3),
}


@pytest.fixture(scope="module")
def df(spark):
    return spark.createDataFrame(ROWS, ["features"]).coalesce(2).cache()


def arrays(frame):
    """Predictions of all rows, side by side."""
    names = [name for name in ("rawPrediction", "probability", "prediction") if name in frame.columns]
    return np.array([np.hstack([np.asarray(row[name]) for name in names]) for row in frame.collect()])


@pytest.mark.parametrize("kind", MODELS)
def test_transform_when_compared_with_pyspark_then_same(kind, df):
    ours, theirs = MODELS[kind].transform(df), MODELS[kind].toPyspark().transform(df)
    np.testing.assert_allclose(arrays(ours), arrays(theirs), rtol=1e-10, atol=1e-12)
    assert ours.columns == theirs.columns


@pytest.mark.parametrize("kind", ["binomial", "multinomial", "fm classes"])
def test_predict_when_given_row_then_matches_transform(kind, df):
    row = MODELS[kind].transform(df).head()
    assert MODELS[kind].predict(row.features) == row.prediction
    np.testing.assert_allclose(MODELS[kind].predictRaw(row.features), row.rawPrediction)
    np.testing.assert_allclose(MODELS[kind].predictProbability(row.features), row.probability)


def test_to_pyspark_when_params_are_set_then_they_come_along():
    ours = MODELS["binomial"].copy({MODELS["binomial"].threshold: 0.3})
    theirs = ours.toPyspark()
    assert (theirs.uid, theirs.getThreshold(), theirs.numFeatures) == (ours.uid, 0.3, DIM)


def test_transform_when_features_are_arrays_or_columns_then_same(spark):
    names = [f"x{i}" for i in range(DIM)]
    rows = [tuple(map(float, vector.toArray())) for (vector,) in ROWS]
    frame = spark.createDataFrame(rows, names).withColumn("array", F.array(*names))
    of_array = MODELS["linear"].copy().setFeaturesCol("array").transform(frame)
    of_columns = MODELS["linear"].copy().setFeaturesCols(names).transform(frame)
    expected = [MODELS["linear"].predict(vector) for (vector,) in ROWS]
    np.testing.assert_allclose(arrays(of_array)[:, 0], expected)
    np.testing.assert_allclose(arrays(of_columns)[:, 0], expected)


def test_transform_when_weights_are_broadcast_then_same(df, monkeypatch):
    monkeypatch.setattr("ps2.algorithms.linear.model.BROADCAST_FROM", 1)
    np.testing.assert_array_equal(
        arrays(MODELS["svc"].copy().transform(df))[:, -1], [MODELS["svc"].predict(vector) for (vector,) in ROWS]
    )


def test_transform_when_column_is_not_wanted_then_omitted(df):
    quiet = MODELS["binomial"].copy().setRawPredictionCol("").setProbabilityCol("")
    assert quiet.transform(df).columns == ["features", "prediction"]


def test_transform_when_column_exists_then_error_names_it(df):
    with pytest.raises(InputError, match="'prediction': it is there already"):
        MODELS["linear"].transform(df.withColumn("prediction", F.lit(1.0)))


WRONG = {
    "size": ("vector", "(1.0, 2.0)", "'features', row 0: expected size 5 as in training, got 2"),
    "null": ("vector", "null", "'features', row 0: expected a vector"),
    "nan": (
        "vector",
        "(1.0, 2.0, double('nan'), 4.0, 5.0)",
        "row 0: expected finite features that fit float64, got nan",
    ),
    "size of an array": ("array", "(1.0, 2.0)", "'features', row 0: expected size 5 as in training, got 2"),
    "null array": ("array", "null", "'features', row 0: expected a vector"),
}


@pytest.fixture
def wrong(spark, request):
    """A row whose features cannot be, and what is told of it."""
    kind, values, message = WRONG[request.param]
    frame = spark.range(1).select(
        F.expr(f"array{values}" if values != "null" else "cast(null as array<double>)").alias("x")
    )
    of_vectors = (
        array_to_vector("x") if values != "null" else F.when(F.lit(False), array_to_vector(F.array(F.lit(1.0))))
    )
    features = of_vectors if kind == "vector" else F.col("x")
    return frame.select(features.alias("features"), F.lit(1.0).alias("label")), message


def is_told(message, error):
    """Whether a message is where one looks: at the top, or as a cause (Spark 3.5, of expressions in UDFs)."""
    lines = str(error).splitlines()
    return any(message in line for line in [*lines[:3], *(line for line in lines if line.startswith("Caused by"))])


@pytest.mark.parametrize("wrong", WRONG, indirect=True)
def test_transform_when_row_is_invalid_then_spark_error_says_so(wrong):
    frame, message = wrong
    with pytest.raises(Exception, match=message) as raised:
        MODELS["binomial"].transform(frame).collect()
    assert is_told(message, raised.value)
    assert "Traceback" not in str(raised.value)


@pytest.mark.parametrize("wrong", ["nan"], indirect=True)
@pytest.mark.parametrize(
    "ask",
    [
        lambda frame: MODELS["binomial"].transform(frame).select("prediction").collect(),
        lambda frame: MODELS["linear"].evaluate(frame).r2,
    ],
)
def test_predictions_when_row_is_invalid_then_spark_says_so(wrong, ask):
    frame, message = wrong
    with pytest.raises(Exception, match=message) as raised:
        ask(frame)
    assert is_told(message, raised.value)


def test_transform_when_metadata_size_differs_then_early_error(spark):
    frame = VectorAssembler(inputCols=["a", "b"], outputCol="features").transform(spark.sql("select 1.0 a, 2.0 b"))
    with pytest.raises(InputError, match="column 'features': expected 5 features as in training, got 2"):
        MODELS["linear"].transform(frame)


def test_transform_when_libsvm_has_fewer_features_then_says_how(spark, tmp_path):
    (tmp_path / "rows.libsvm").write_text("1 1:1 4:1\n0 2:1\n")
    reader = spark.read.format("libsvm")
    with pytest.raises(InputError, match=r"got 4; .*option\(\"numFeatures\", 5\)"):
        MODELS["linear"].transform(reader.load(str(tmp_path)))
    assert MODELS["linear"].transform(reader.option("numFeatures", 5).load(str(tmp_path))).count() == 2


@pytest.mark.parametrize("use", [MODELS["linear"].transform, MODELS["linear"].evaluate, LinearRegression().fit])
def test_models_when_given_pandas_frame_then_say_how_to_convert(use):
    frame = pd.DataFrame({"label": [1.0]})
    with pytest.raises(InputError, match=r"expected a DataFrame of Spark, got pandas.DataFrame; spark.createDataFrame"):
        use(frame)


def test_transform_when_columns_are_too_few_then_early_error(spark):
    few = MODELS["linear"].copy().setFeaturesCols(["a", "b"])
    with pytest.raises(InputError, match="column 'a, b': expected 5 features as in training, got 2"):
        few.transform(spark.sql("select 1.0 a, 2.0 b"))


def test_evaluate_when_metrics_are_asked_then_match_pyspark(df):
    labelled = df.withColumn("label", F.monotonically_increasing_id() % 2)
    ours = MODELS["binomial"].evaluate(labelled)
    theirs = MODELS["binomial"].toPyspark().evaluate(labelled)
    for name in ("accuracy", "areaUnderROC", "weightedPrecision", "precisionByLabel", "labels"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name))
    np.testing.assert_allclose(ours.weightedFMeasure(), theirs.weightedFMeasure())
    assert ours.roc.collect() == theirs.roc.collect()


def test_evaluate_when_regression_then_metrics_match_pyspark(df):
    labelled = df.withColumn("label", F.rand(1))
    ours, theirs = MODELS["linear"].evaluate(labelled), MODELS["linear"].toPyspark().evaluate(labelled)
    for name in ("rootMeanSquaredError", "meanAbsoluteError", "r2", "explainedVariance"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name))


# -- models on the fleet ---------------------------------------------------------------------------------------------


def on_fleet(small):
    """The same model with its weights on the servers."""
    weights = small._weights
    vector = DCV.sparse(weights.problem.size, dtype="float64")
    vector.push(weights.weight.reshape(-1), np.arange(weights.problem.size))
    return type(small)(Weights(weights.problem, vector, weights.biases))


@pytest.mark.parametrize("kind", ["multinomial", "fm numbers"])
def test_fleet_model_when_it_predicts_then_results_are_the_same(kind, df):
    large = on_fleet(MODELS[kind])
    np.testing.assert_allclose(arrays(large.transform(df)), arrays(MODELS[kind].transform(df)))
    assert large.predict(ROWS[-1][0]) == MODELS[kind].predict(ROWS[-1][0])


def test_fleet_model_when_saved_and_loaded_then_same(df, tmp_path):
    large = on_fleet(MODELS["binomial"])
    large.save(str(tmp_path / "m"))
    loaded = LogisticRegressionModel.load(str(tmp_path / "m"))
    assert loaded.weightVector.isSparse
    np.testing.assert_allclose(arrays(loaded.transform(df)), arrays(large.transform(df)))


def test_fleet_model_when_asked_for_arrays_then_error_says_where():
    large = on_fleet(MODELS["binomial"])
    for ask in (lambda: large.coefficients, large.toPyspark):
        with pytest.raises(UsageError, match="weightVector is the vector on the servers"):
            ask()


def test_fleet_model_when_no_context_then_load_says_so(tmp_path, monkeypatch):
    on_fleet(MODELS["binomial"]).save(str(tmp_path / "m"))
    monkeypatch.setattr(PS2Context, "_active", None)
    with pytest.raises(StoppedError, match=r"belong on servers; start them with PS2Context.getOrCreate"):
        LogisticRegressionModel.load(str(tmp_path / "m"))


# -- files -----------------------------------------------------------------------------------------------------------


def test_load_when_format_version_differs_then_error_names_both(tmp_path):
    MODELS["linear"].save(str(tmp_path / "m"))
    (part,) = (tmp_path / "m" / "metadata").glob("part-*")
    content = json.loads(part.read_text())
    content["ps2"]["format"] = "ps2.model.v99"
    part.write_text(json.dumps(content))
    for checksum in (tmp_path / "m" / "metadata").glob(".*.crc"):
        checksum.unlink()
    with pytest.raises(UsageError, match=r"expected a model of format 'ps2.model.v1', got 'ps2.model.v99'"):
        LinearRegressionModel.load(str(tmp_path / "m"))


def test_load_when_array_has_changed_then_error_names_file(tmp_path):
    MODELS["linear"].save(str(tmp_path / "m"))
    np.save(tmp_path / "m" / "weight.npy", np.zeros((DIM, 1)))
    with pytest.raises(CheckpointCorruptError, match=r"weight.npy: its checksum is not"):
        LinearRegressionModel.load(str(tmp_path / "m"))


def test_a_saved_model_when_read_by_numpy_then_it_is_its_weights(tmp_path):
    MODELS["svc"].save(str(tmp_path / "m"))
    np.testing.assert_array_equal(np.load(tmp_path / "m" / "weight.npy")[:, 0], MODELS["svc"].coefficients)


def predictions(path, kind, x):
    result = (FactorizationMachine if kind.startswith("fm") else LinearModel).load(path)
    columns = [result.predict(x)[:, None]]
    if (probability := result.predictProbability(x)) is not None:
        columns.insert(0, probability)
    if result.classes is not None:
        columns.insert(0, result.margins(x) if result.classes > 2 else result.margins(x) * [-1, 1])
    return np.hstack(columns)


@pytest.mark.parametrize("kind", MODELS)
def test_saved_model_when_read_without_spark_then_as_transform(kind, df, tmp_path):
    ours = MODELS[kind].copy()
    if kind in ("binomial", "svc"):
        ours.setThreshold(0.7)
    elif ours.hasParam("thresholds"):
        ours.setThresholds([0.1, 0.9, 0.4][: ours.numClasses])
    ours.save(str(tmp_path / "m"))
    x = np.array([row.features.toArray() for row in df.collect()])
    for inputs in (x, csr_array(x)):
        result = predictions(str(tmp_path / "m"), kind, inputs)
        np.testing.assert_allclose(result, arrays(ours.transform(df)), rtol=1e-12)


@pytest.mark.parametrize("make", ["dense", "sparse"])
def test_fleet_model_when_read_without_spark_then_as_transform(make, df, tmp_path):
    small = MODELS["fm numbers"]._weights  # of which the last have no keys below
    vector = getattr(DCV, make)(small.problem.size, dtype="float64")
    vector.push(small.weight.reshape(-1)[:-3], np.arange(small.problem.size - 3))
    large, path = FMRegressionModel(Weights(small.problem, vector, small.biases)), str(tmp_path / "m")
    large.save(path)
    x = np.array([row.features.toArray() for row in df.collect()])
    np.testing.assert_allclose(predictions(path, "fm", x), arrays(large.transform(df)), rtol=1e-12)
    with pytest.raises(UsageError, match=r"FactorizationMachine.load\(path\) reads it"):
        LinearModel.load(path)


def test_write_when_the_format_is_pmml_then_pyspark_writes_it(tmp_path):
    linear, path = MODELS["linear"], tmp_path / "m"
    linear.save(str(path))
    linear.write().format("pmml").overwrite().save(str(path))
    (part,) = path.glob("part-*")
    assert f'intercept="{linear.intercept}"' in part.read_text()


def test_write_when_format_is_unknown_then_error_matches_pyspark(tmp_path):
    with pytest.raises(Exception, match="Could not load requested format other"):
        MODELS["linear"].write().format("other").save(str(tmp_path / "m"))


# -- fit ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def labelled(spark):
    rows = [(float(i % 2), Vectors.dense(i % 2 + 0.1 * i, -1.0)) for i in range(8)]
    return spark.createDataFrame(rows, ["label", "features"]).coalesce(2).cache()


def test_fit_when_threads_fit_at_once_then_run_in_sequence(labelled):
    models = []
    fits = [threading.Thread(target=lambda: models.append(LinearSVC(maxIter=2).fit(labelled))) for _ in range(2)]
    for fit in fits:
        fit.start()
    for fit in fits:
        fit.join()
    np.testing.assert_allclose(models[0].coefficients, models[1].coefficients)


def test_fit_when_another_job_has_slots_then_waits_for_them(labelled, busy):
    threading.Timer(1.0, busy).start()
    assert LogisticRegression(maxIter=2).fit(labelled).numClasses == 2


def test_fit_when_numworkers_exceeds_slots_then_error_names_both(labelled):
    with pytest.raises(SlotsError, match="numWorkers: 3 workers need a task slot each"):
        LogisticRegression(numWorkers=3).fit(labelled)


def test_fit_when_numservers_differs_from_context_then_error(labelled):
    with pytest.raises(ConfigError, match="a context with 2 local servers is running, not with 3 local servers"):
        LogisticRegression(numServers=3).fit(labelled)


def test_fit_when_features_cannot_be_then_the_error_counts_them(spark):
    rows = [(0.0, [1.0, 2.0]), (1.0, [float("nan"), 1.0]), (1.0, None), (0.0, [1.0, 2.0, 3.0])]
    frame = spark.createDataFrame(rows, "label double, features array<double>").coalesce(1)
    with pytest.raises(InputError, match=r"1 of 4 rows hold null.*1 of 4 rows hold NaN.*1 of 4 rows have another size"):
        LogisticRegression().fit(frame)


def test_fit_when_model_is_large_then_weights_stay_on_fleet(labelled, monkeypatch):
    monkeypatch.setattr("ps2.algorithms.linear.model.MAX_IN_DRIVER", 1)
    large = LogisticRegression(maxIter=3, regParam=0.1).fit(labelled)
    monkeypatch.undo()
    small = LogisticRegression(maxIter=3, regParam=0.1).fit(labelled)
    np.testing.assert_allclose(large.weightVector.pull(), small.coefficients)
    assert large.summary.accuracy == small.summary.accuracy


def test_model_when_large_and_dropped_then_servers_free_it(spark, labelled, monkeypatch, until):
    """When no plan of Spark predicts with it any more."""
    monkeypatch.setattr("ps2.algorithms.linear.model.MAX_IN_DRIVER", 1)
    large = LogisticRegression(maxIter=3, regParam=0.1).fit(labelled)
    matrix, frame = large.weightVector.matrix().number, large.transform(labelled).select("prediction")

    def exists():
        gc.collect()
        spark._jvm.java.lang.System.gc()
        DCV.dense(2).free()
        try:
            return bool(DCVMatrix.existing(matrix))
        except NotFoundError:
            return False

    del large
    assert exists()
    assert frame.count() == labelled.count()
    del frame
    until(lambda: not exists(), "the servers free the weights")


def test_fit_when_factors_exceed_servers_then_early_limit_error(labelled, ps):
    before = ps.memory()
    with pytest.raises(LimitError, match=r"^factorSize=2,147,483,647 and 2 features make [\d,]+ weights: .* are left"):
        FMClassifier(factorSize=2**31 - 1).fit(labelled)
    assert ps.memory() == before


@pytest.mark.parametrize("sparse_from", [1, 100], ids=["sparse", "dense"])
def test_fit_when_model_stays_on_fleet_then_takes_one_vector(labelled, statuses, monkeypatch, sparse_from):
    monkeypatch.setattr("ps2.algorithms.linear.parameters.SPARSE_FROM", sparse_from)
    monkeypatch.setattr("ps2.algorithms.linear.model.MAX_IN_DRIVER", 1)

    def held():
        return {matrix.matrix: matrix for status in statuses() for matrix in status.matrices}

    before = held()
    large = LogisticRegression(maxIter=3, regParam=0.1).fit(labelled)
    (new,) = [matrix for number, matrix in held().items() if number not in before]
    assert new.rows == 1
    assert new.matrix == large.weightVector._matrix
    assert large.weightVector.nnz() > 0


def test_fit_when_rows_are_of_one_class_then_matches_pyspark(labelled, caplog):
    frame = labelled.withColumn("label", F.lit(1.0))
    ours, theirs = (package.LogisticRegression().fit(frame) for package in (algorithms, classification))
    assert "all rows are of class" in caplog.text
    assert ours.coefficientMatrix.toArray().tolist() == theirs.coefficientMatrix.toArray().tolist()
    assert ours.interceptVector.toArray().tolist() == theirs.interceptVector.toArray().tolist()
    assert ours.transform(frame).select("prediction").distinct().collect() == [(1.0,)]
    assert ours.summary.objectiveHistory == theirs.summary.objectiveHistory


# pyspark leaves the threads of its validators to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed running multiprocessing pool:ResourceWarning")
def test_cross_validation_when_fold_has_one_class_then_goes_on(spark):
    rows = [(float(i == 0), [float(i), 1.0 + i % 3], i % 2) for i in range(12)]
    frame = spark.createDataFrame(rows, "label double, features array<double>, fold int")
    estimator, area = algorithms.LogisticRegression(maxIter=2), BinaryClassificationEvaluator()
    validator = CrossValidator(
        estimator=estimator, estimatorParamMaps=[{}], evaluator=area, numFolds=2, foldCol="fold", seed=1
    )
    assert len(validator.fit(frame).avgMetrics) == 1


def test_load_when_param_was_none_then_not_set(spark, tmp_path):
    LogisticRegression(weightCol=None, threshold=0.3).save(str(tmp_path / "lr"))
    loaded = LogisticRegression.load(str(tmp_path / "lr"))
    assert (loaded.isSet("weightCol"), loaded.getThreshold()) == (False, 0.3)


def test_bounds_when_estimator_and_model_are_loaded_then_same(labelled, tmp_path):
    upper, of_intercept = DenseMatrix(1, 2, [0.5, np.inf]), Vectors.dense(1.0)
    estimator = LogisticRegression(upperBoundsOnCoefficients=upper, lowerBoundsOnIntercepts=of_intercept, maxIter=3)
    for inputs, cls in ((estimator, LogisticRegression), (estimator.fit(labelled), LogisticRegressionModel)):
        inputs.save(f"{tmp_path}/{cls.__name__}")
        loaded = cls.load(f"{tmp_path}/{cls.__name__}")
        assert loaded.getUpperBoundsOnCoefficients() == upper
        assert loaded.getLowerBoundsOnIntercepts() == of_intercept
