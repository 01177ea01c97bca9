"""Online models on real Spark: batches, streams, and where they go on."""

from __future__ import annotations

import io
import os
import re
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from ps2.algorithms import DeepFM, OnlineFM, OnlineFMModel, OnlineLogisticRegression, OnlineLogisticRegressionModel
from ps2.algorithms.training.streams.learner import BatchLearner
from ps2.errors import InputError, UsageError, WorkerError
from ps2.serving import Scorer

pytestmark = pytest.mark.parametrize("ps", [2], indirect=True, scope="module")

FIELDS, IDS = 6, 50
SCHEMA = "label double, keys array<bigint>"


def rows_of(count, seed):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, IDS, (count, FIELDS)) + np.arange(FIELDS) * 10**12
    effect = np.random.default_rng(9).normal(size=FIELDS * IDS)
    margins = effect[(ids % 10**12) + np.arange(FIELDS) * IDS].sum(axis=1)
    labels = (rng.random(count) < 1 / (1 + np.exp(-margins))).astype(float)
    return pa.table({"label": labels, "keys": pa.array(list(ids))})


def write(folder, *counts, first=0):
    folder.mkdir(exist_ok=True)
    for number, count in enumerate(counts, first):
        pq.write_table(rows_of(count, number), folder / f".{number}")
        (folder / f".{number}").rename(folder / f"{number:04}.parquet")


@pytest.fixture
def stream(spark, tmp_path):
    """``stream()``: the files of a folder, one in each batch."""
    return lambda: spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))


@pytest.fixture(scope="module")
def rows(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    write(folder, 4000)
    return spark.read.schema(SCHEMA).parquet(str(folder))


@pytest.mark.parametrize(
    "estimator",
    [
        OnlineLogisticRegression(maxIter=2, timeCol="time", lateAfterS=1),
        OnlineLogisticRegression(maxIter=2, optimizer="adam", batchSize=200),
        OnlineFM(maxIter=2, optimizer="adagrad", factorSize=2),
    ],
)
def test_fit_when_rows_are_learned_twice_then_they_are_known(ps, rows, estimator):
    model = estimator.fit(rows.withColumn("time", F.monotonically_increasing_id()))
    first, second = model.progress
    assert first.rows == second.rows == 4000
    assert second.validation.logLoss < first.validation.logLoss
    assert model.numKeys == FIELDS * IDS + 1
    right = model.transform(rows).where("label = prediction").count()
    assert right / 4000 > 0.75


class Terminal(io.StringIO):
    """Takes what a terminal would show."""

    def isatty(self):
        return True


def test_fit_when_partitions_are_many_then_tasks_fill_slots_once(ps, spark, rows):
    """A Python task takes Spark some hundredths of a second, however few its rows."""
    sc = spark.sparkContext
    sc.setJobGroup("many partitions", "")
    try:
        created = OnlineLogisticRegression().fit(rows.repartition(40))
    finally:
        sc.setLocalProperty("spark.jobGroup.id", None)
    tracker = sc.statusTracker()
    jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup("many partitions"))
    stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
    assert max(stage.numTasks for stage in stages) == sc.defaultParallelism
    assert created.progress[-1].rows == 4000
    created.free()


def test_training_when_on_terminal_then_line_shows_rows_and_loss(ps, rows, stream, tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(sys, "stderr", Terminal())
    OnlineLogisticRegression(maxIter=2).fit(rows)
    assert "OnlineLogisticRegression" in sys.stderr.getvalue()
    assert re.search(r"pass 2/2, log loss 0\.\d+, 0\.\d+ AUC, \S+ m?s a pass, \S+ rows/s", sys.stderr.getvalue())
    write(tmp_path / "in", 300, 400)
    training = OnlineLogisticRegression().fitStream(stream(), str(tmp_path / "c"), trigger={"availableNow": True})
    assert training.awaitTermination()
    assert re.search(r"batch 1, 400 rows, AUC 0\.\d+, log loss", sys.stderr.getvalue())


def test_fit_when_there_are_no_rows_then_nothing_stays(ps, rows, matrices):
    before = matrices()
    with pytest.raises(InputError, match="expected rows to learn from, got an empty DataFrame"):
        OnlineLogisticRegression().fit(rows.limit(0))
    assert matrices() <= before


def test_fit_stream_when_it_starts_again_then_rows_count_once(ps, stream, tmp_path):
    write(tmp_path / "in", 300, 400)
    estimator, location = OnlineLogisticRegression(), str(tmp_path / "checkpoint")
    training = estimator.fitStream(stream(), location, trigger={"availableNow": True})
    assert training.awaitTermination()
    assert (training.learned, training.lastProgress.total.rows) == (1, 700)
    write(tmp_path / "in", 500, first=2)
    again = estimator.fitStream(stream(), location, trigger={"availableNow": True})
    assert again.awaitTermination()
    assert (again.learned, again.lastProgress.rows, again.lastProgress.total.rows) == (2, 500, 1200)
    assert again.model.name == training.model.name


def test_fit_stream_when_a_label_is_wrong_then_names_the_batch(ps, stream, tmp_path):
    ps.run(range(2), lambda worker, _: None, 1)  # this thread has an epoch of its own from now on
    write(tmp_path / "in", 100, 100)
    bad = rows_of(10, 5).set_column(0, "label", pa.array([2.0] * 10))
    pq.write_table(bad, tmp_path / "in" / "bad.parquet")
    training = OnlineLogisticRegression().fitStream(stream(), str(tmp_path / "c"), trigger={"availableNow": True})
    with pytest.raises(InputError, match=r"batch 2: column 'label', row 0: expected a label 0 or 1, got 2"):
        training.awaitTermination()
    # A snapshot was made before the first batch only: the model is whole, and has learned nothing.
    assert training.learned == -1
    assert training.model.numKeys == 0


def test_fit_stream_when_a_udf_fails_then_ends_at_once(ps, stream, tmp_path):
    write(tmp_path / "in", 100)
    fails = F.udf(lambda label: 1 / 0, "double")
    training = OnlineLogisticRegression().fitStream(stream().withColumn("label", fails("label")), str(tmp_path / "a"))
    with pytest.raises(WorkerError, match=r"^batch 0: a task raised ZeroDivisionError: division by zero$"):
        training.awaitTermination()
    assert (training.restarts, training.learned) == (0, -1)


def test_fit_stream_when_on_progress_fails_then_ends(ps, stream, tmp_path):
    write(tmp_path / "in", 100, 100)
    training = OnlineLogisticRegression().fitStream(stream(), str(tmp_path / "a"), onProgress=lambda: None)
    with pytest.raises(TypeError, match="positional argument"):
        training.awaitTermination()
    assert (training.restarts, training.learned) == (0, 0)


def test_fit_stream_when_model_was_loaded_then_it_goes_on(ps, rows, stream, tmp_path):
    """A loaded model has a name on the fleet, by which a later query finds it."""
    write(tmp_path / "in", 100)
    estimator, location = OnlineLogisticRegression(), str(tmp_path / "checkpoint")
    estimator.fit(rows).write().save(str(tmp_path / "model"))
    loaded = OnlineLogisticRegressionModel.load(str(tmp_path / "model"))
    estimator.fitStream(stream(), location, model=loaded, trigger={"availableNow": True}).awaitTermination()
    write(tmp_path / "in", 200, first=1)
    again = estimator.fitStream(stream(), location, trigger={"availableNow": True})
    assert again.awaitTermination()
    assert (again.model.name, again.lastProgress.total.rows) == (loaded.name, 300)


def test_fit_stream_when_a_model_learns_already_then_is_refused(ps, rows, stream, tmp_path):
    write(tmp_path / "in", 100)
    estimator = OnlineLogisticRegression()
    training = estimator.fitStream(stream(), str(tmp_path / "a"))
    with pytest.raises(UsageError, match=f"model {training.model.name} learns from a stream already"):
        estimator.fitStream(stream(), str(tmp_path / "b"), model=training.model)
    with pytest.raises(UsageError, match=f"model {training.model.name} learns from a stream already"):
        estimator.partialFit(rows, training.model)
    training.stop(60)


def test_fit_stream_when_location_is_of_another_then_is_refused(ps, spark, stream, tmp_path, rows):
    write(tmp_path / "in", 100)
    estimator, location = OnlineLogisticRegression(), str(tmp_path / "a")
    training = estimator.fitStream(stream(), location, trigger={"availableNow": True})
    training.awaitTermination()
    other = estimator.partialFit(rows)
    with pytest.raises(UsageError, match=f"belongs to model {training.model.name}, got model {other.name}"):
        estimator.fitStream(stream(), location, model=other)
    with pytest.raises(UsageError, match=r"alpha: expected 0.2, as when the stream began, got 0.3"):
        OnlineLogisticRegression(alpha=0.3).fitStream(stream(), location)
    query = stream().writeStream.format("noop").option("checkpointLocation", str(tmp_path / "b")).start()
    query.processAllAvailable()
    query.stop()
    with pytest.raises(UsageError, match="it is of a query that fitStream has not started"):
        estimator.fitStream(stream(), str(tmp_path / "b"))


def test_model_when_saved_then_it_predicts_and_learns_on(ps, rows, tmp_path):
    estimator = OnlineFM(factorSize=2, seed=3)
    model = estimator.fit(rows)
    model.write().save(str(tmp_path / "model"))
    loaded = OnlineFMModel.load(str(tmp_path / "model"))
    keys = np.arange(IDS)
    assert np.array_equal(loaded.weights(keys), model.weights(keys))
    more = [estimator.partialFit(rows, one).progress[0].validation.logLoss for one in (model, loaded)]
    assert more[0] == pytest.approx(more[1], rel=0.01)
    assert loaded.transform(rows).select("prediction").distinct().count() == 2


def test_export_when_scored_elsewhere_then_same_probabilities(ps, spark, tmp_path):
    rows = spark.createDataFrame(
        [(float(at % 3 == 0), f"user{at % 7}", at % 5, None if at % 4 == 0 else at / 9) for at in range(600)],
        "click double, user string, ad int, price double",
    )
    estimator = OnlineLogisticRegression(labelCol="click", categoricalCols=["user", "ad"], numericCols=["price"])
    estimator.setCrosses(["user:ad"])
    model = estimator.fit(rows)
    model.export(str(tmp_path / "export"))
    some = rows.limit(20).collect()
    scorer = Scorer(str(tmp_path / "export"), refreshS=60)
    result = scorer.score([row.asDict() for row in some])
    expected = [row["probability"][1] for row in model.transform(rows.limit(20)).collect()]
    np.testing.assert_allclose(result, expected, rtol=1e-5)

    def scores(batches):
        for batch in batches:
            yield pa.RecordBatch.from_arrays([pa.array(scorer.score(batch))], ["score"])

    in_tasks = [row.score for row in rows.limit(20).mapInArrow(scores, "score double").collect()]
    np.testing.assert_array_equal(in_tasks, result)


@pytest.mark.parametrize(
    "estimator", [OnlineLogisticRegression(), DeepFM(factorSize=2, hiddenLayers=[4])], ids=["online", "deep"]
)
def test_fit_stream_when_rows_are_late_then_they_are_left_out(ps, spark, tmp_path, estimator):
    (tmp_path / "in").mkdir()
    for number, seconds in enumerate([[100.0] * 30, [99.0] * 20 + [10.0] * 5, [200.0] * 10]):
        table = rows_of(len(seconds), number).append_column("time", pa.array(seconds))
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet")
        os.utime(tmp_path / "in" / f"{number}.parquet", (1000 + number, 1000 + number))
    reader = spark.readStream.schema(f"{SCHEMA}, time double").option("maxFilesPerTrigger", 1)
    training = (
        estimator.setTimeCol("time")
        .setLateAfterS(20)
        .setExpireAfterS(50)
        .fitStream(reader.parquet(str(tmp_path / "in")), str(tmp_path / "c"), trigger={"availableNow": True})
    )
    training.awaitTermination()
    assert [progress.late for progress in training.recentProgress] == [0, 5, 0]
    assert training.lastProgress.total.rows == 60
    # What was touched at 100 has expired at 200.
    assert 1 < training.model.table.keysCount() <= 10 * FIELDS + 1


def test_fit_stream_when_spark_s_query_is_stopped_then_it_ends(ps, stream, tmp_path):
    write(tmp_path / "in", 100)
    training = OnlineLogisticRegression().fitStream(stream(), str(tmp_path / "a"))
    training.processAllAvailable()
    training.query.stop()
    assert training.awaitTermination()
    assert (training.learned, training.restarts) == (0, 0)


def test_fit_stream_when_query_stops_in_a_batch_then_goes_on(ps, stream, tmp_path, monkeypatch):
    """Though it takes long until the failure of the batch is known."""

    def slow(batches):
        time.sleep(1.0)
        yield from batches

    def learn(self, *arguments):
        begun.set()
        try:
            return learn_batch(self, *arguments)
        finally:
            time.sleep(1.0)

    begun, learn_batch = threading.Event(), BatchLearner.learn
    write(tmp_path / "in", 100)
    rows = stream().mapInArrow(slow, SCHEMA)
    with monkeypatch.context() as patch:
        patch.setattr(BatchLearner, "learn", learn)
        training = OnlineLogisticRegression().fitStream(rows, str(tmp_path / "a"))
        assert begun.wait(60)
        time.sleep(0.5)
        training.query.stop()
        assert training.awaitTermination(60)
    assert training.learned == -1
    again = OnlineLogisticRegression().fitStream(rows, str(tmp_path / "a"), trigger={"availableNow": True})
    assert again.awaitTermination(60)
    assert again.lastProgress.total.rows == 100


def test_fit_stream_when_the_fleet_rolls_back_then_so_does_spark(ps, stream, tmp_path):
    write(tmp_path / "in", 100, 200)
    training = OnlineLogisticRegression().fitStream(stream(), str(tmp_path / "a"))
    training.processAllAvailable()
    ps.rollBack()  # to the state before the first batch
    write(tmp_path / "in", 300, first=2)
    deadline_s = time.monotonic() + 60
    while training.lastProgress.total.rows < 600 and time.monotonic() < deadline_s:
        training.processAllAvailable()
    assert training.restarts == 1
    assert training.lastProgress.total.rows == 600
    training.stop(60)
