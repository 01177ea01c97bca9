"""Deep models on real Spark: fits, predictions, files, exports, and streams."""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from ps2 import DCV
from ps2.algorithms import (
    DIN,
    DeepFM,
    DeepFMModel,
    DINModel,
    MatrixFactorizationModel,
    OnlineFM,
    TwoTower,
    WideAndDeep,
)
from ps2.errors import ConfigError, InputError
from ps2.serving import Scorer

pytestmark = pytest.mark.parametrize("ps", [2], indirect=True, scope="module")

ROWS, USERS, ADS = 3000, 40, 25
COLUMNS = {"categoricalCols": ["user", "ad"], "numericCols": ["x"]}
SIZES = {"factorSize": 4, "hiddenLayers": [16, 8], "batchSize": 200, "stepSize": 0.01, "numWorkers": 2}


def rows_of(seed: int) -> pa.Table:
    """Return clicks that depend on a user, an ad, and on their combination."""
    rng = np.random.default_rng(seed)
    user, ad, x = rng.integers(0, USERS, ROWS), rng.integers(0, ADS, ROWS), rng.normal(size=ROWS)
    margins = np.sin(user) + np.cos(ad) + 2.0 * ((user + ad) % 3 == 0) - 1.0 + x
    labels = (rng.random(ROWS) < 1 / (1 + np.exp(-margins))).astype(float)
    return pa.table({"user": [f"u{n}" for n in user], "ad": ad, "x": x, "label": labels})


@pytest.fixture(scope="module")
def rows(spark, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("clicks") / "rows.parquet")
    pq.write_table(rows_of(0), path)
    return spark.read.parquet(path)


@pytest.fixture(scope="module")
def model(ps, rows):
    return DeepFM(**COLUMNS, **SIZES, maxIter=4, dropoutRate=0.1).fit(rows)


def probabilities(model, frame):
    return np.array([row[0][1] for row in model.transform(frame).select("probability").collect()])


def auc(labels, scores):
    ranks = np.argsort(np.argsort(scores)) + 1
    good = np.asarray(labels) > 0
    return (ranks[good].sum() - good.sum() * (good.sum() + 1) / 2) / (good.sum() * (~good).sum())


def test_deepfm_when_fit_then_ranks_clicks(ps, rows, model):
    """It finds users, ads and their combination: without the last, the true margins' AUC would be about .7."""
    labels = [row[0] for row in rows.select("label").collect()]
    assert auc(labels, probabilities(model, rows)) > 0.77
    history = model.summary.objectiveHistory
    assert len(history) == 4
    assert history == sorted(history, reverse=True)


def test_deepfm_when_saved_then_loads_with_optimizers(ps, rows, model, tmp_path):
    """A loaded model predicts the same, and learns on with the optimizers' state."""
    model.save(str(tmp_path / "model"))
    loaded = DeepFMModel.load(str(tmp_path / "model"))
    np.testing.assert_array_equal(probabilities(loaded, rows), probabilities(model, rows))
    for mine, other in zip(loaded.fitted.layers.state(), model.fitted.layers.state(), strict=True):
        np.testing.assert_array_equal(mine, other)
    DeepFM(**COLUMNS, **SIZES).partialFit(rows, loaded)
    assert loaded.summary.objectiveHistory[0] < model.summary.objectiveHistory[-1]
    loaded.free()


def test_deepfm_when_exported_then_scorer_agrees(ps, rows, model, tmp_path):
    """A scorer without the fleet gives what the model gives on it, of rows by name."""
    model.export(str(tmp_path / "export"))
    some = rows.limit(20)
    inputs = [row.asDict() for row in some.select("user", "ad", "x").collect()]
    with Scorer(str(tmp_path / "export")) as scorer:
        np.testing.assert_allclose(scorer.score(inputs), probabilities(model, some), rtol=1e-5)


def test_wide_and_deep_when_stale_then_crosses_are_wide(ps, rows):
    """Workers that take steps of their own learn, too; a cross has a linear weight, and is no input of the layers."""
    model = WideAndDeep(**COLUMNS, **SIZES, crosses=["user:ad"], staleness=1, maxIter=3).fit(rows)
    history = model.summary.objectiveHistory
    assert history[-1] < history[0]
    assert (model.fitted.architecture.deep, model.fitted.architecture.fields) == (3, 4)
    model.free()


@pytest.fixture(scope="module")
def towers(ps, rows):
    sizes = {**SIZES, "factorSize": 8}
    model = TwoTower(categoricalCols=["ad", "user"], userCols=["user"], **sizes).fit(rows.where("label = 1"))
    yield model
    model.free()


def test_two_tower_when_fit_then_scores_are_inner_products(ps, rows, towers):
    """A pair's score is the inner product of its user's and its item's vector, each made of its own columns."""
    model = towers
    some = rows.limit(30)
    users = np.array([row[0] for row in model.userVectors(some.select("user")).select("vector").collect()])
    items = np.array([row[0] for row in model.itemVectors(some.select("ad")).select("vector").collect()])
    scores = [row[0] for row in model.transform(some).select("prediction").collect()]
    np.testing.assert_allclose((users * items).sum(axis=1), scores, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose((users**2).sum(axis=1), 1.0, rtol=1e-5)
    assert model.summary.objectiveHistory[-1] < model.summary.objectiveHistory[0]


def test_two_tower_when_seen_is_excluded_then_others_come(ps, rows, towers, tmp_path):
    """Lists in Spark and of an export's scorer are the same, and without the pairs of the rows."""
    users, ads = rows.select("user").distinct(), rows.select("ad").distinct()
    seen = rows.select("user", "ad").limit(500)
    pairs = {(row["user"], row["ad"]) for row in seen.collect()}
    vectors = towers.userVectors(users), towers.itemVectors(ads)
    pairs_model = MatrixFactorizationModel.fromVectors(*vectors, itemCol="ad")
    lists = pairs_model.recommendForAllUsers(ADS, exclude=seen).collect()
    towers.export(str(tmp_path), items=ads, itemCol="ad")
    with Scorer(str(tmp_path)) as scorer:
        names = [row["user"] for row in lists]
        excluded = [[ad for user, ad in pairs if user == name] for name in names]
        served = scorer.recommend([{"user": name} for name in names], ADS, excluded)
    assert len(lists) == USERS
    assert served.known.all()
    for row, scores in zip(lists, served.scores, strict=True):
        assert {item["ad"] for item in row.recommendations} == set(range(ADS)) - {a for u, a in pairs if u == row.user}
        np.testing.assert_allclose([item["rating"] for item in row.recommendations], scores, atol=1e-5)


def test_two_tower_when_ids_are_wrong_then_error_says_so(ps, rows, towers, tmp_path):
    with pytest.raises(InputError, match="expected distinct names, got duplicates"):
        towers.export(str(tmp_path), items=rows.select("ad"), itemCol="ad")
    with pytest.raises(InputError, match="'ad': expected ids, got an empty DataFrame"):
        towers.export(str(tmp_path), items=rows.where("ad < 0"), itemCol="ad")
    with pytest.raises(InputError, match="'x': expected arrays of numbers, all of one length, got double"):
        MatrixFactorizationModel.fromVectors(rows, rows, itemCol="ad", vectorCol="x")


def test_din_when_clicks_follow_histories_then_ranks_them(ps, spark, tmp_path):
    """A click depends only on whether the item's group is in the history; a scorer and a loaded model agree."""
    rng = np.random.default_rng(0)
    item, clicked = rng.integers(0, 30, ROWS), rng.integers(0, 30, (ROWS, 4))
    liked = (clicked % 5 == item[:, None] % 5).any(axis=1)
    labels = (rng.random(ROWS) < np.where(liked, 0.9, 0.1)).astype(float)
    pq.write_table(pa.table({"item": item, "clicked": list(clicked), "label": labels}), tmp_path / "rows.parquet")
    frame = spark.read.parquet(str(tmp_path / "rows.parquet"))
    columns = {"categoricalCols": ["item"], "historyCols": {"clicked": "item"}}
    model = DIN(**columns, **{**SIZES, "factorSize": 8}, initStd=0.1, maxIter=20).fit(frame)
    assert auc(labels, probabilities(model, frame)) > 0.85
    assert model.table.keysCount() == 30
    model.save(str(tmp_path / "model"))
    loaded = DINModel.load(str(tmp_path / "model"))
    np.testing.assert_array_equal(probabilities(loaded, frame), probabilities(model, frame))
    model.export(str(tmp_path / "export"))
    some = frame.limit(20)
    with Scorer(str(tmp_path / "export")) as scorer:
        scores = scorer.score([row.asDict() for row in some.select("item", "clicked").collect()])
    np.testing.assert_allclose(scores, probabilities(model, some), rtol=1e-5)
    loaded.free()
    model.free()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "historyCols: expected a column of arrays and its candidate"),
        ({"historyCols": {"x": "item"}}, r"expected a candidate of categoricalCols \(user, ad\), got 'item'"),
        ({"historyCols": ["user:ad"]}, "expected different fields, got categorical 'user' twice"),
    ],
)
def test_din_when_history_is_wrong_then_named(ps, rows, params, message):
    with pytest.raises(ConfigError, match=message):
        DIN(categoricalCols=["user", "ad"], **params).fit(rows)


def test_fit_stream_when_model_was_loaded_then_it_goes_on(ps, spark, rows, model, tmp_path):
    """A loaded model has a name on the fleet, by which a later query finds it; each batch is learned once."""
    model.save(str(tmp_path / "model"))
    loaded, estimator, seen = DeepFMModel.load(str(tmp_path / "model")), DeepFM(**COLUMNS, **SIZES), []
    (tmp_path / "in").mkdir()
    for number in range(2):
        pq.write_table(rows_of(number), tmp_path / "in" / f"{number}.parquet")
        stream = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "in"))
        training = estimator.fitStream(
            *(stream, str(tmp_path / "checkpoint")),
            model=None if number else loaded,
            trigger={"availableNow": True},
            onProgress=seen.append,
        )
        training.awaitTermination()
    assert (training.model.name, training.lastProgress.total.rows) == (loaded.name, 2 * ROWS)
    assert [progress.rows for progress in seen] == [ROWS, ROWS]
    assert max(progress.validation.logLoss for progress in seen) < np.log(2)
    training.model.free()


def test_fit_when_partitions_are_empty_then_all_workers_learn(ps, rows):
    """Rows are dealt out: a partition of two has them all, and there are two workers."""
    lopsided = rows.repartition(2, F.col("label") * 0)
    assert sorted(map(len, lopsided.rdd.glom().collect())) == [0, rows.count()]
    model = DeepFM(**COLUMNS, **SIZES, maxIter=1).fit(lopsided)
    assert len(model.summary.objectiveHistory) == 1
    DeepFM(**COLUMNS, **SIZES).partialFit(lopsided.limit(1), model)
    model.free()


def test_partial_fit_when_rows_have_times_then_keys_expire(ps, rows, tmp_path):
    """Their newest time counts, and files keep the clock."""
    estimator = DeepFM(**COLUMNS, **SIZES, maxIter=1, timeCol="time", expireAfterS=3600)
    model = estimator.fit(rows.withColumn("time", F.timestamp_seconds(F.lit(1_700_000_000.5))))
    assert model.table.keyStatus().nowS == 1_700_000_000.5
    model.save(str(tmp_path / "model"))
    model.free()
    loaded = DeepFMModel.load(str(tmp_path / "model"))
    later = rows.where("ad < 5").withColumn("time", F.expr("timestamp_ntz'2023-11-16 00:00:00.25'"))
    estimator.partialFit(later, loaded)
    assert loaded.table.keyStatus().nowS == 1_700_092_800.25
    assert loaded.table.keysCount() == USERS + 5 + 1
    with pytest.raises(
        ConfigError, match="timeCol: expected a column, as the model's keys expire by the times of rows"
    ):
        DeepFM(**COLUMNS, **SIZES).partialFit(later, loaded)
    with pytest.raises(InputError, match="column 'time': expected finite times, got null in"):
        estimator.partialFit(later.withColumn("time", F.lit(None).cast("double")), loaded)
    loaded.free()


@pytest.mark.parametrize(
    ("param", "message"),
    [
        ({"optimizer": "sgd"}, r"model: optimizer: expected ftrl\+adagrad, as the model has, got sgd"),
        ({"admitAfter": 3}, "admitAfter: expected 1, as the model's table has, got 3"),
        ({"maxKeys": 99}, "maxKeys: expected None, as the model's table has"),
        ({"lateAfterS": 9}, "lateAfterS: expected timeCol, the column of"),
    ],
)
def test_partial_fit_when_its_table_differs_then_is_refused(ps, rows, model, param, message):
    with pytest.raises(ConfigError, match=message):
        DeepFM(**COLUMNS, **SIZES, **param).partialFit(rows, model)


def test_partial_fit_when_columns_differ_then_error_says_so(ps, rows, model):
    with pytest.raises(ConfigError, match="model: fields: expected 3, as the model has, got 2"):
        DeepFM(categoricalCols=["user", "ad"], **SIZES).partialFit(rows, model)


def test_fit_when_a_label_is_2_then_error_counts_rows(ps, rows):
    wrong = rows.selectExpr("user", "ad", "x", "case when x > 1 then 2.0 else label end as label")
    with pytest.raises(InputError, match=r"column 'label': expected labels 0 or 1, got 2.0 in \d+ rows"):
        DeepFM(**COLUMNS).fit(wrong)


def test_fit_when_a_number_is_unfit_then_one_line_names_it(ps, rows, matrices):
    wrong = rows.selectExpr("user", "ad", "case when user = 'u3' then double('nan') else x end as x", "label")
    before = matrices()
    with pytest.raises(
        InputError, match=r"^rank \d in clock 0: column 'x', row \d+: expected a finite number.*, got nan"
    ) as caught:
        DeepFM(**COLUMNS, **SIZES).fit(wrong)
    assert "\n" not in str(caught.value)
    assert matrices() <= before


@pytest.mark.parametrize("estimator", [DeepFM, OnlineFM])
def test_fit_when_the_label_is_a_key_column_then_refuses(ps, rows, estimator):
    clicks = rows.selectExpr("user", "int(label) as label")
    with pytest.raises(
        ConfigError, match=r"labelCol: expected a column that is not an input of .*, got the input 'label'"
    ):
        estimator(categoricalCols=["user", "label"]).fit(clicks)


def test_fit_when_weights_are_a_key_column_then_takes_both(ps, rows):
    weighted = rows.selectExpr("user", "ad", "label").limit(200)
    model = DeepFM(categoricalCols=["user", "ad"], weightCol="ad", **SIZES, maxIter=1).fit(weighted)
    assert np.isfinite(model.summary.objectiveHistory).all()
    model.free()


def test_fit_when_keys_expire_then_the_model_still_predicts(ps, rows, until):
    """Keys that go after the fit read as their initial values, which depend on the key alone."""
    some = rows.limit(100)
    model = DeepFM(**COLUMNS, **SIZES, maxIter=1, expireAfterS=0.5).fit(some)
    until(lambda: model.table.keysCount() == 0, "the keys expire")
    assert np.isfinite(probabilities(model, some)).all()
    model.free()


def test_two_tower_when_a_cross_has_both_then_error_names_it(ps, rows):
    with pytest.raises(ConfigError, match="userCols: field 'user x ad' has columns of both towers"):
        TwoTower(categoricalCols=["user", "ad"], crosses=["user:ad"], userCols=["user"]).fit(rows)


@pytest.mark.parametrize("estimator", [DeepFM, OnlineFM])
def test_fit_when_rows_are_held_out_then_best_pass_stays(ps, rows, estimator):
    """It stops early, and predicts the held-out rows with the loss of the best pass."""
    held = rows.withColumn("held", F.col("ad") % 5 == 0)
    settings = {"numWorkers": 1, "patience": 2, "maxIter": 40, "validationIndicatorCol": "held", "factorSize": 8}
    more = {"hiddenLayers": [32], "stepSize": 0.02} if estimator is DeepFM else {"initStd": 0.3}
    model = estimator(**COLUMNS, batchSize=100, **settings, **more).fit(held)
    losses = (
        model.summary.validationHistory
        if estimator is DeepFM
        else [progress.heldOut.logLoss for progress in model.progress]
    )
    assert np.argmin(losses) == len(losses) - 3 < 37
    tested = held.where("held")
    labels = np.array([row[0] for row in tested.select("label").collect()])
    p = probabilities(model, tested)
    assert -np.mean(np.log(np.where(labels > 0, p, 1 - p))) == pytest.approx(min(losses), rel=1e-4)
    model.free()


@pytest.mark.parametrize("estimator", [DeepFM, OnlineFM])
def test_fit_when_held_out_column_is_faulty_then_named(ps, rows, estimator):
    columns = {**COLUMNS, "validationIndicatorCol": "held"}
    for values, message in ((F.lit(None).cast("boolean"), "null"), (F.col("x"), "booleans"), (F.lit(True), "rows to")):
        with pytest.raises(InputError, match=message):
            estimator(**columns).fit(rows.withColumn("held", values))


def names_after_gc(ps, spark):
    """Return the names of models after garbage collection in Python and Java, and a call that allocates."""
    gc.collect()
    spark._jvm.java.lang.System.gc()
    DCV.dense(2).free()
    return {vector.name.split("/")[0] for vector in ps.vectors()}


@pytest.mark.parametrize(
    "estimator",
    [DeepFM(**COLUMNS, **SIZES, maxIter=1), OnlineFM(**COLUMNS, factorSize=2, maxIter=1)],
    ids=lambda estimator: type(estimator).__name__,
)
def test_model_when_dropped_then_frames_of_it_still_predict(ps, spark, rows, estimator, until):
    """Servers free it when no DataFrame is left that its ``transform`` or a copy's has made."""
    trained = estimator.partialFit(rows, estimator.fit(rows))
    name, expected = trained.name, probabilities(trained, rows)
    frame = trained.copy().transform(rows).where("x < 9")
    del trained
    assert name in names_after_gc(ps, spark)
    predicted = np.array([row[0][1] for row in frame.select("probability").collect()])
    np.testing.assert_array_equal(predicted, expected)
    del frame
    until(lambda: name not in names_after_gc(ps, spark), "the servers free the model")


def test_model_when_loaded_and_pickled_then_stays_until_free(ps, spark, model, tmp_path):
    model.save(str(tmp_path / "model"))
    loaded = DeepFMModel.load(str(tmp_path / "model"))
    name = loaded.name
    del loaded
    assert name not in names_after_gc(ps, spark)
    loaded = DeepFMModel.load(str(tmp_path / "model"))
    name, copy = loaded.name, pickle.loads(pickle.dumps(loaded))
    del loaded
    assert name in names_after_gc(ps, spark)
    copy.free()
    assert name not in names_after_gc(ps, spark)
