"""One body of tests over our estimators and pyspark.ml's: params, files, and what pyspark.ml builds of estimators."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.ml import Pipeline, PipelineModel, classification, regression
from pyspark.ml.classification import OneVsRest, OneVsRestModel
from pyspark.ml.evaluation import BinaryClassificationEvaluator, RegressionEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.linalg import Vectors
from pyspark.ml.param import TypeConverters
from pyspark.ml.tuning import (
    CrossValidator,
    CrossValidatorModel,
    ParamGridBuilder,
    TrainValidationSplit,
    TrainValidationSplitModel,
)

from ps2 import algorithms
from ps2.errors import UsageError

# pyspark leaves the threads of its validators to the garbage collector.
IGNORED = "ignore:unclosed running multiprocessing pool:ResourceWarning"
pytestmark = [pytest.mark.usefixtures("ps"), pytest.mark.filterwarnings(IGNORED)]

SEED = 7
ROWS = [(0.0, -1.0, 0.2), (0.0, -2.0, 0.1), (1.0, 1.0, -0.3), (1.0, 2.0, 0.4), (0.0, -0.5, 0.3), (1.0, 0.7, -0.2)]


@dataclass(frozen=True)
class Pair:
    """Our class and pyspark.ml's, with params of a short fit that are the same for both."""

    name: str
    theirs: Any
    params: dict[str, Any]
    evaluator: Any = BinaryClassificationEvaluator

    @property
    def model(self) -> str:
        return self.name.replace("Classifier", "Classification").replace("Regressor", "Regression") + "Model"

    def of(self, side: str, name: str) -> Any:
        return getattr(algorithms if side == "ours" else self.theirs, name)

    def cls(self, side: str) -> Any:
        return self.of(side, self.name)

    def make(self, side: str) -> Any:
        return self.cls(side)(**self.params)


PAIRS = [
    Pair("LogisticRegression", classification, {"maxIter": 3, "regParam": 0.1}),
    Pair("LinearSVC", classification, {"maxIter": 2, "regParam": 0.1}),
    Pair("LinearRegression", regression, {"maxIter": 3, "regParam": 0.1}, RegressionEvaluator),
    Pair("FMClassifier", classification, {"maxIter": 2, "factorSize": 2, "stepSize": 0.1, "seed": SEED}),
    Pair(
        "FMRegressor", regression, {"maxIter": 2, "factorSize": 2, "stepSize": 0.1, "seed": SEED}, RegressionEvaluator
    ),
    Pair("GBTClassifier", classification, {"maxIter": 2, "maxDepth": 2, "seed": SEED}),
    Pair("GBTRegressor", regression, {"maxIter": 2, "maxDepth": 2, "seed": SEED}, RegressionEvaluator),
]
SIDES = ["ours", "pyspark"]
every = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
both = pytest.mark.parametrize("side", SIDES)
nightly = pytest.mark.nightly
# What takes Spark jobs: by default of our linear models; pyspark.ml's side shows that the body holds there.
LINEAR, OTHERS = PAIRS[:3], PAIRS[3:]
every_linear = pytest.mark.parametrize(
    "pair", [*LINEAR, *(pytest.param(pair, marks=nightly) for pair in OTHERS)], ids=lambda pair: pair.name
)
both_nightly = pytest.mark.parametrize("side", ["ours", pytest.param("pyspark", marks=nightly)])
OF_JOBS = [*((pair, "ours") for pair in OTHERS), (PAIRS[0], "pyspark"), (PAIRS[-1], "pyspark")]
of_jobs = pytest.mark.parametrize(
    ("pair", "side"),
    [*((pair, "ours") for pair in LINEAR), *(pytest.param(*job, marks=nightly) for job in OF_JOBS)],
    ids=lambda part: getattr(part, "name", part),
)


@pytest.fixture(scope="module")
def df(spark):
    """Rows of label and two columns of numbers, and both of these as features."""
    frame = spark.createDataFrame(ROWS, "label double, a double, b double").coalesce(1)
    return VectorAssembler(inputCols=["a", "b"], outputCol="features").transform(frame).cache()


@pytest.fixture(scope="module")
def fitted(df):
    """``fitted(pair, side)``: a model, fitted once in this module."""
    models = {}

    def fit(pair, side):
        if (pair.name, side) not in models:
            models[pair.name, side] = pair.make(side).fit(df)
        return models[pair.name, side]

    return fit


def values(instance):
    """Params that are set and defaults, by name."""
    return {param.name: value for param, value in instance.extractParamMap().items()}


def predictions(model, df):
    return [row.prediction for row in model.transform(df).collect()]


# -- params --------------------------------------------------------------------------------------------------------


@every
def test_params_when_pyspark_has_one_then_default_is_the_same(pair):
    ours, theirs = pair.cls("ours")(), pair.cls("pyspark")()
    other = ["seed", "solver"]  # pyspark's seed is another one in each process; ours have solvers of their own
    shared = {name: value for name, value in values(theirs).items() if name not in other}
    assert {name: values(ours).get(name) for name in shared} == shared
    assert {param.name for param in theirs.params} <= {param.name for param in ours.params}


@every
def test_params_when_pyspark_has_one_then_its_type_is_the_same(pair):
    ours, theirs = pair.cls("ours")(), pair.cls("pyspark")()
    kinds = {p.name: (ours.getParam(p.name).typeConverter, p.typeConverter) for p in theirs.params}
    differing = {name: kind for name, kind in kinds.items() if kind[0] is not kind[1]}
    # Names may be written in any case.
    assert {name: kind(name.upper()) for name, (kind, _) in differing.items()} == {n: n.upper() for n in differing}
    assert {theirs for _, theirs in differing.values()} <= {TypeConverters.toString}


@every
@both
def test_params_when_explained_then_each_has_its_default(pair, side):
    estimator = pair.make(side)
    messages = estimator.explainParams()
    assert all(f"{param.name}: {param.doc}" in messages for param in estimator.params)
    default = 20 if pair.name[:3] == "GBT" else 100
    assert f"maxIter: {estimator.maxIter.doc} (default: {default}, current: " in messages


@every
@both
def test_params_when_copied_with_others_then_original_stays(pair, side):
    estimator = pair.make(side)
    copied = estimator.copy({estimator.maxIter: 9})
    assert (copied.getMaxIter(), estimator.getMaxIter()) == (9, pair.params["maxIter"])
    assert copied.uid == estimator.uid


@every
@both
def test_params_when_the_name_is_unknown_then_it_is_a_type_error(pair, side):
    with pytest.raises(TypeError):
        pair.make(side).setParams(nonsense=1)
    with pytest.raises(TypeError):
        pair.cls(side)(nonsense=1)


@every
@both
def test_params_when_given_by_position_then_it_is_a_type_error(pair, side):
    with pytest.raises(TypeError):
        pair.cls(side)("features")


@every
@both
def test_params_when_type_is_wrong_then_type_error_names_it(pair, side):
    with pytest.raises(TypeError, match="maxIter"):
        pair.cls(side)(maxIter="many")


@every
def test_members_when_pyspark_has_one_then_ours_has_it(pair):
    for name in (pair.name, pair.model):
        ours, theirs = pair.of("ours", name), pair.of("pyspark", name)
        assert {member for member in dir(theirs) if member[0] != "_"} <= set(dir(ours))


# -- fit and transform -----------------------------------------------------------------------------------------------


@every_linear
def test_fit_when_done_then_model_has_estimator_params_and_uid(pair, fitted):
    ours = fitted(pair, "ours")
    assert {name: values(ours)[name] for name in pair.params} == pair.params
    assert ours.uid.startswith(pair.name)
    assert (ours.numFeatures, ours.hasSummary) == (2, True)


@every_linear
def test_a_model_when_shown_then_it_is_as_pysparks(pair, fitted):
    shown = [str(fitted(pair, side)).replace(fitted(pair, side).uid, "...") for side in SIDES]
    assert shown[0] == shown[1]


@every_linear
def test_transform_when_done_then_the_schema_is_pysparks(pair, fitted, df):
    schemas = [fitted(pair, side).transform(df).schema for side in SIDES]
    assert schemas[0] == schemas[1]
    assert [f.metadata for f in schemas[0]] == [f.metadata for f in schemas[1]]


@of_jobs
def test_transform_when_param_map_renames_column_then_uses_name(pair, side, fitted, df):
    model = fitted(pair, side)
    assert "other" in model.transform(df, {model.predictionCol: "other"}).columns


@of_jobs
def test_fit_when_a_param_map_is_given_then_it_counts(pair, side, df):
    estimator = pair.make(side)
    assert estimator.fit(df, {estimator.maxIter: 1}).getMaxIter() == 1


# -- files -----------------------------------------------------------------------------------------------------------


def test_estimator_when_its_own_params_are_saved_then_loads_them(spark, tmp_path):
    params = {"solver": "ftsgd", "momentum": 0.3, "localSearch": "always", "localSteps": 7}
    algorithms.LogisticRegression(**params).save(str(tmp_path / "e"))
    loaded = algorithms.LogisticRegression.load(str(tmp_path / "e"))
    assert {name: loaded.getOrDefault(name) for name in params} == params
    assert loaded.getAdaptiveMomentum() is True


@of_jobs
def test_an_estimator_when_loaded_then_it_is_the_same(pair, side, tmp_path):
    estimator = pair.make(side)
    estimator.save(str(tmp_path / "e"))
    loaded = pair.cls(side).load(str(tmp_path / "e"))
    assert (loaded.uid, values(loaded)) == (estimator.uid, values(estimator))


@of_jobs
def test_a_model_when_loaded_then_it_predicts_the_same(pair, side, fitted, df, tmp_path):
    model, path = fitted(pair, side), str(tmp_path / "m")
    model.save(path)
    model.write().overwrite().save(path)
    loaded = pair.of(side, pair.model).load(path)
    assert (loaded.uid, values(loaded)) == (model.uid, values(model))
    assert predictions(loaded, df) == predictions(model, df)
    assert not getattr(loaded, "hasSummary", False)


@both_nightly
def test_save_when_there_is_something_then_it_is_an_error(side, fitted, tmp_path):
    model = fitted(PAIRS[0], side)
    model.save(str(tmp_path / "m"))
    with pytest.raises(Exception, match="overwrite"):
        model.save(str(tmp_path / "m"))


@pytest.mark.parametrize("path", ["", "a\0b", "foo://x/y"])
def test_path_when_it_is_none_then_ours_is_a_usage_error(path, fitted):
    model = fitted(PAIRS[0], "ours")
    for use in (model.save, type(model).load):
        with pytest.raises(UsageError, match="path: expected a path or a URL"):
            use(path)


@both_nightly
@pytest.mark.parametrize("saved", ["estimator", "model"])
def test_load_when_folder_is_of_another_class_then_error(side, saved, fitted, tmp_path):
    logistic, svc = PAIRS[0], PAIRS[1]
    path = str(tmp_path / "m")
    (logistic.make(side) if saved == "estimator" else fitted(logistic, side)).save(path)
    with pytest.raises(Exception, match=r"(?i)expected.*LinearSVCModel.*LogisticRegression"):
        svc.of(side, svc.model).load(path)


@pytest.mark.parametrize("name", ["LinearSVC", "LogisticRegressionModel"])
def test_load_when_other_estimator_was_saved_then_names_both(name, tmp_path):
    PAIRS[0].make("ours").save(str(tmp_path / "e"))
    with pytest.raises(UsageError, match=rf"expected a .*{name}, got a .*LogisticRegression$"):
        getattr(algorithms, name).load(str(tmp_path / "e"))


@both_nightly
def test_load_when_there_is_no_folder_then_it_is_an_error(side, tmp_path):
    with pytest.raises(Exception, match=r"none|not exist"):
        PAIRS[0].cls(side).load(str(tmp_path / "none"))


# -- what pyspark.ml builds of them ----------------------------------------------------------------------------------


@both_nightly
def test_pipeline_when_saved_and_loaded_then_predicts_the_same(side, df, tmp_path):
    stages = [VectorAssembler(inputCols=["a", "b"], outputCol="x"), PAIRS[0].make(side).setFeaturesCol("x")]
    nested = Pipeline(stages=[Pipeline(stages=stages)])
    nested.save(str(tmp_path / "p"))
    model = Pipeline.load(str(tmp_path / "p")).fit(df)
    model.save(str(tmp_path / "m"))
    assert predictions(PipelineModel.load(str(tmp_path / "m")), df) == predictions(model, df)


@pytest.fixture
def collected():
    """Collect the threads that pyspark leaves while their warning is ignored."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def many(df):
    """Rows enough for folds that have both classes."""
    return df.union(df).union(df).coalesce(1).cache()


@pytest.mark.usefixtures("collected")
@both_nightly
def test_cross_validation_when_saved_and_loaded_then_same(side, many, tmp_path):
    estimator = PAIRS[0].make(side)
    validator = CrossValidator(
        estimator=Pipeline(stages=[estimator]),
        estimatorParamMaps=ParamGridBuilder().addGrid(estimator.regParam, [0.01, 10.0]).build(),
        evaluator=BinaryClassificationEvaluator(),
        numFolds=2,
        parallelism=2,
        seed=SEED,
    )
    validator.save(str(tmp_path / "c"))
    loaded = CrossValidator.load(str(tmp_path / "c"))
    assert [sorted(m.values()) for m in loaded.getEstimatorParamMaps()] == [[0.01], [10.0]]
    model = validator.fit(many)
    model.save(str(tmp_path / "m"))
    loaded_model = CrossValidatorModel.load(str(tmp_path / "m"))
    assert loaded_model.avgMetrics == model.avgMetrics
    assert predictions(loaded_model, many) == predictions(model, many)


@pytest.mark.nightly
@pytest.mark.usefixtures("collected")
@both_nightly
def test_train_validation_split_when_saved_and_loaded_then_same(side, many, tmp_path):
    estimator = PAIRS[2].make(side)
    split = TrainValidationSplit(
        estimator=estimator,
        estimatorParamMaps=ParamGridBuilder().addGrid(estimator.regParam, [0.01, 10.0]).build(),
        evaluator=RegressionEvaluator(),
        seed=SEED,
    )
    model = split.fit(many)
    model.save(str(tmp_path / "m"))
    loaded = TrainValidationSplitModel.load(str(tmp_path / "m"))
    assert loaded.bestModel.getRegParam() == model.bestModel.getRegParam() == 0.01
    assert predictions(loaded, many) == predictions(model, many)


@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize(
    ("pair", "side"),
    [
        (PAIRS[0], "ours"),
        *(
            pytest.param(*job, marks=nightly)
            for job in [(PAIRS[1], "ours"), (PAIRS[0], "pyspark"), (PAIRS[1], "pyspark")]
        ),
    ],
    ids=lambda part: getattr(part, "name", part),
)
def test_one_vs_rest_when_saved_and_loaded_then_same(pair, side, spark, tmp_path):
    rows = [(float(k), Vectors.dense(x, y)) for k, x, y in [(0, 0, 3), (1, 3, 0), (2, -3, -3)] * 2]
    three = spark.createDataFrame(rows, ["label", "features"]).coalesce(1)
    rest = OneVsRest(classifier=pair.make(side), parallelism=2)
    rest.save(str(tmp_path / "o"))
    model = OneVsRest.load(str(tmp_path / "o")).fit(three)
    model.save(str(tmp_path / "m"))
    assert predictions(OneVsRestModel.load(str(tmp_path / "m")), three) == [0.0, 1.0, 2.0] * 2
