"""MatrixFactorization as an estimator: ids, warm starts, held-out rows, files, Spark's cache, and wrong tables."""

from __future__ import annotations

import doctest
import gc
import math
import re

import numpy as np
import pytest
from factors_training import COLUMNS, PLAN, frame_of, ratings
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.recommendation import ALS, ALSModel
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder

from ps2.algorithms import MatrixFactorization, MatrixFactorizationModel, MatrixFactors
from ps2.algorithms.factors.dealing import Assignment, deal_ratings
from ps2.algorithms.factors.estimator import train
from ps2.algorithms.factors.ratings import survey_ratings
from ps2.errors import ConfigError, InputError, SlotsError, UsageError
from tests.plans import changed

# Tasks reach it, so all of them run in the same Python workers. pyspark leaves the threads of its validators to the
# garbage collector.
IGNORED = "ignore:unclosed running multiprocessing pool:ResourceWarning"
pytestmark = [pytest.mark.usefixtures("ps"), pytest.mark.filterwarnings(IGNORED)]

USERS, ITEMS, RANK = 60, 40, 3
SMALL = {"rank": RANK, "maxIter": 40, "regParam": 0.01, "stepSize": 0.3, "seed": 1, "numWorkers": 2}


@pytest.fixture(scope="module")
def cells():
    """Ratings of planted rank, the mean included: two thirds of all pairs."""
    rng = np.random.default_rng(1)
    ratings = rng.normal(size=(USERS, RANK - 1)) @ rng.normal(size=(RANK - 1, ITEMS)) + 3
    users, items = np.nonzero(rng.random((USERS, ITEMS)) < 2 / 3)
    return [(int(u), int(i), float(ratings[u, i])) for u, i in zip(users, items, strict=True)]


@pytest.fixture(scope="module")
def df(spark, cells):
    return spark.createDataFrame(cells, "user int, item int, rating double").repartition(3).cache()


@pytest.fixture(scope="module")
def model(df):
    return MatrixFactorization(**SMALL).fit(df)


def rmse(model, frame):
    return RegressionEvaluator(labelCol="rating").evaluate(model.transform(frame))


def test_fit_when_ratings_have_low_rank_then_finds_it(model, df, cells):
    mean = np.std([rating for *_, rating in cells])
    assert rmse(model, df) < mean / 4
    assert (model.rank, len(model.factors.users), len(model.factors.items)) == (RANK, USERS, ITEMS)
    assert isinstance(model, ALSModel)


def test_fit_when_it_ends_then_its_summary_tells_how(model):
    history = model.summary.history
    assert (history.steps, len(model.summary.objectiveHistory)) == (40, 40)
    assert history.objective[-1] < history.objective[0]
    assert all(math.isfinite(value) for values in history.metrics.values() for value in values)
    assert "<table>" in model.summary._repr_html_()
    assert str(model.summary.placement).startswith("servers, 2 workers of 1 thread: numWorkers is 2")


def test_fit_when_ratings_repeat_then_each_counts_as_in_als(spark):
    rows = [(0, 0, 1.0), (0, 0, 3.0), (1, 0, 2.0), (1, 1, 2.0), (0, 1, 2.0)]
    twice = spark.createDataFrame(rows, "user int, item int, rating double")
    ours = MatrixFactorization(rank=1, maxIter=100, regParam=0.01, seed=1, solver="ccd", numWorkers=1).fit(twice)
    theirs = ALS(rank=1, maxIter=5, regParam=0.01, seed=1).fit(twice)
    pairs = twice.select("user", "item").distinct()
    result = [{(row[0], row[1]): row[2] for row in each.transform(pairs).collect()} for each in (ours, theirs)]
    for pair, rating in result[1].items():
        assert result[0][pair] == pytest.approx(rating, abs=0.02)


def test_fit_when_ids_are_strings_then_they_are_the_models(df):
    named = df.selectExpr("concat('u', char(0), lpad(user, 3, '0')) as user", "concat('ï', item) as item", "rating")
    result = MatrixFactorization(**SMALL).setMaxIter(1).fit(named)
    assert result.factors.users[:2] == ["u\x00000", "u\x00001"]
    assert result.recommendForAllUsers(2).dtypes[0] == ("user", "string")


def test_fit_when_ids_are_wide_then_they_are_exact(spark, cells):
    wide = spark.createDataFrame([(2**62 + u, i - 2**62, r) for u, i, r in cells], "user long, item long, rating float")
    result = MatrixFactorization(**SMALL).setMaxIter(1).fit(wide)
    assert result.factors.users[-1] == 2**62 + USERS - 1
    assert result.transform(wide).where("isnan(prediction)").count() == 0
    with pytest.raises(UsageError, match="toPyspark: expected users' ids that are integers of 32 bits"):
        result.toPyspark()


def test_fit_when_rows_are_held_out_then_validated_on_them(df, cells):
    marked = df.selectExpr("*", "(user + 3 * item) % 7 = 0 as held")
    result = MatrixFactorization(**SMALL, validationIndicatorCol="held", patience=2, validationTol=0.5).fit(marked)
    assert result.summary.history.steps < 40
    assert len(result.summary.validationHistory) == result.summary.history.steps
    assert "held-out" in result.summary.reason


def test_fit_when_it_goes_on_from_a_model_then_ids_are_united(df, model, spark):
    more = df.where("user < 10").union(spark.createDataFrame([(999, 0, 3.0), (999, 777, 2.0)], df.schema))
    grown = MatrixFactorization(**SMALL).setMaxIter(1).setInitialModel(model).fit(more)
    assert (len(grown.factors.users), len(grown.factors.items)) == (USERS + 1, ITEMS + 1)
    assert np.isfinite(grown.predict([999, 59], [777, 0])).all()


def test_fit_when_initial_model_does_not_fit_then_error(df, model):
    with pytest.raises(ConfigError, match="rank: expected 3, as the initial model has, got 4"):
        MatrixFactorization(**{**SMALL, "rank": 4}).setInitialModel(model).fit(df)
    with pytest.raises(ConfigError, match="biases: expected False, as the initial model has, got True"):
        MatrixFactorization(**SMALL, biases=True).setInitialModel(model).fit(df)
    with pytest.raises(ConfigError, match="initialModel: expected a MatrixFactorizationModel, got str"):
        MatrixFactorization().setInitialModel("model")
    named = df.selectExpr("string(user) as user", "item", "rating")
    with pytest.raises(InputError, match="users: the ids are strings, and those of the initial model are integers"):
        MatrixFactorization(**SMALL).setInitialModel(model).fit(named)


def test_estimator_when_saved_and_loaded_then_params_match(spark, model, tmp_path):
    MatrixFactorization(rank=7, budgetS="auto", solver="sgd", ratingCol="").save(str(tmp_path / "estimator"))
    result = MatrixFactorization.load(str(tmp_path / "estimator"))
    assert (result.getRank(), result.getBudgetS(), result.getSolver(), result.getRatingCol()) == (7, "auto", "sgd", "")
    with pytest.raises(UsageError, match="initialModel: a file of the estimator would lack it"):
        MatrixFactorization().setInitialModel(model).save(str(tmp_path / "other"))


def test_fit_when_in_a_pipeline_or_validator_then_works(df, tmp_path):
    estimator = MatrixFactorization(**{**SMALL, "maxIter": 3, "coldStartStrategy": "drop"})
    Pipeline(stages=[estimator]).fit(df).save(str(tmp_path / "pipeline"))
    loaded = PipelineModel.load(str(tmp_path / "pipeline")).stages[0]
    assert isinstance(loaded, MatrixFactorizationModel)
    assert loaded.getColdStartStrategy() == "drop"
    grid = ParamGridBuilder().addGrid(estimator.regParam, [0.01, 1.0]).build()
    result = CrossValidator(
        estimator=estimator,
        estimatorParamMaps=grid,
        evaluator=RegressionEvaluator(labelCol="rating"),
        numFolds=2,
        seed=1,
    ).fit(df)
    assert result.avgMetrics[0] < result.avgMetrics[1]
    assert result.bestModel.rank == RANK
    # A validator leaves the threads of its pool to the garbage collector.
    gc.collect()


# Columns of one row, and what the error says.
WRONG = {
    "null user": ("cast(null as int) user, 2 item, 1.0 rating", "column 'user': expected user ids, got 1 null"),
    "fraction": ("1.5D user, 2 item, 1.0 rating", "column 'user': expected user ids, integers"),
    "beyond 2^63": ("9223372036854775808BD user, 2 item, 1.0 rating", "column 'user': expected user ids, integers"),
    "no rating": ("1 user, 2 item", "rating"),
    "words": ("1 user, 2 item, 'good' rating", "column 'rating': expected numbers as ratings, got string"),
}


@pytest.mark.parametrize("name", WRONG)
def test_fit_when_a_column_is_wrong_then_error_names_it(spark, name):
    columns, message = WRONG[name]
    with pytest.raises(InputError, match=message):
        MatrixFactorization(**SMALL).fit(spark.sql(f"select {columns}"))


def test_fit_when_there_is_nothing_to_train_on_then_error(spark, df):
    with pytest.raises(InputError, match="expected ratings, got an empty DataFrame"):
        MatrixFactorization(**SMALL).fit(df.where("false"))
    with pytest.raises(InputError, match="all of them are held out"):
        MatrixFactorization(**SMALL, validationIndicatorCol="h").fit(df.selectExpr("*", "true as h"))
    with pytest.raises(InputError, match="expected a DataFrame of Spark"):
        MatrixFactorization().fit([(1, 2, 3.0)])


# Outputs of pyspark.ml's examples that do not depend on the solver.
PLAIN = re.compile(r"\d+|0\.1|'\w+'|True")


def test_examples_of_als_when_run_with_ours_then_calls_work(spark, tmp_path):
    names = {
        "spark": spark,
        "temp_path": str(tmp_path),
        "ALS": MatrixFactorization,
        "ALSModel": MatrixFactorizationModel,
    }
    compared = 0
    for example in doctest.DocTestParser().get_examples(ALS.__doc__):
        try:
            code = compile(example.source, "<example>", "eval")
        except SyntaxError:
            exec(example.source, names)
            continue
        result = eval(code, names)
        if PLAIN.fullmatch(example.want.strip()):
            assert repr(result) == example.want.strip(), example.source
            compared += 1
    assert compared >= 10


def test_fit_when_workers_exceed_slots_then_error_has_both(df):
    with pytest.raises(SlotsError, match=r"numWorkers: 3 workers need a task slot each, and Spark .* has 2"):
        MatrixFactorization(**{**SMALL, "numWorkers": 3}).fit(df)


def test_model_when_it_is_copied_then_factors_are_shared(model):
    other = model.copy({model.predictionCol: "p"})
    assert (other.getPredictionCol(), other.uid, model.getPredictionCol()) == ("p", model.uid, "prediction")
    assert other.factors is model.factors
    assert isinstance(model.factors, MatrixFactors)


def cached(spark):
    """Numbers of the RDDs in Spark's cache; Spark itself drops those that nobody refers to any more."""
    return set(spark.sparkContext._jsc.getPersistentRDDs().keySet())


def test_cache_when_training_is_over_then_holds_no_ratings(ps, spark, until):
    frame = frame_of(spark, ratings(seed=9))  # Spark's cache takes the same steps on equal rows for one
    frame.count()
    before = cached(spark)
    survey = survey_ratings(frame, COLUMNS, PLAN.settings)
    assert len(cached(spark) - before) == 1
    train(
        ps,
        deal_ratings(frame, survey, Assignment.from_counts(survey.user_counts, survey.item_counts, 2, 1, 36), PLAN),
        survey,
        changed(PLAN, maxIter=1),
    )
    until(lambda: cached(spark) <= before, "the ratings of the survey are gone")
    with pytest.raises(InputError, match="negative"):
        survey_ratings(frame, COLUMNS, changed(PLAN, nonnegative=True).settings)
    until(lambda: cached(spark) <= before, "the ratings of a survey that failed are gone")
