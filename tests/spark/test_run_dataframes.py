"""What workers of ``ps.run`` get of DataFrames and RDDs: every row once, whatever their plan and partitions."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.ml.linalg import Vectors
from pyspark.mllib.linalg import Vectors as OldVectors
from pyspark.mllib.regression import LabeledPoint
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType

from ps2.data.rows import Rows
from ps2.errors import ConfigError, InputError, UsageError
from ps2.run.job import WorkerJob, pickled
from ps2.run.spark.backend_lookup import backend_of

pytestmark = pytest.mark.usefixtures("by_value")

ROWS = 100


def ids(worker, batches):
    """What came to a worker: its rank, Spark's number of its rdd_partition, and the ids of its rows."""
    from pyspark import TaskContext

    return (
        worker.rank,
        TaskContext.get().partitionId(),
        [i for batch in batches for i in batch.column("id").to_pylist()],
    )


def records(worker, rows):
    return worker.rank, worker.rank, list(rows)


def read(worker, batches):
    rows = Rows.fromBatches(batches)
    return rows.x.toarray(), rows.y


def all_of(result):
    return sorted(i for _, _, actual in result for i in actual)


@pytest.fixture
def counted(spark):
    """``counted()``: 100 rows whose computation is counted, grouped by id; ``counted.times()``: how often it ran."""
    counter = spark.sparkContext.accumulator(0)

    def count(value):
        counter.add(1)
        return value

    computed = spark.range(0, ROWS, 1, 2).select(F.udf(count, IntegerType())("id").cast("long").alias("id"))
    return computed, lambda: counter.value


@pytest.fixture
def setting(spark):
    """``with setting(name, value):`` change a setting of the shared session."""

    @contextlib.contextmanager
    def change(name, value):
        before = spark.conf.get(name)
        spark.conf.set(name, value)
        try:
            yield
        finally:
            spark.conf.set(name, before)

    return change


@pytest.mark.parametrize(("partitions", "workers"), [(1, 2), (5, 2), (2, 1), (5, None)])
def test_run_when_partitions_differ_then_each_row_comes_once(ps, spark, partitions, workers):
    result = ps.run(spark.range(0, ROWS, 1, partitions), ids, workers=workers)
    assert all_of(result) == list(range(ROWS))
    assert len(result) == (workers or 2)


@pytest.mark.parametrize(("partitions", "workers"), [(5, 2), (2, 1)])
def test_run_when_rdd_partitions_differ_then_records_come_once(ps, sc, partitions, workers):
    result = ps.run(sc.parallelize(range(ROWS), partitions), records, workers=workers)
    assert all_of(result) == list(range(ROWS))
    assert len(result) == (workers or 2)


@pytest.mark.parametrize("partitions", [2, 5])
def test_run_when_it_gives_ranks_then_are_partition_numbers(ps, spark, partitions):
    result = ps.run(spark.range(0, ROWS, 1, partitions), ids, workers=2)
    assert [(rank, partition) for rank, partition, _ in result] == [(0, 0), (1, 1)]


@pytest.mark.parametrize("adaptive", ["true", "false"])
@pytest.mark.parametrize("workers", [1, 2])
def test_run_when_a_plan_has_shuffles_then_it_is_computed_once(ps, counted, setting, adaptive, workers):
    computed, times = counted
    with setting("spark.sql.adaptive.enabled", adaptive):
        result = ps.run(computed.groupBy("id").count(), ids, workers=workers)
    assert all_of(result) == list(range(ROWS))
    assert times() == ROWS


def test_run_when_frame_is_cached_then_is_not_recomputed(ps, counted):
    computed, times = counted
    cached = computed.cache()
    cached.count()
    result = ps.run(cached, ids, workers=2)
    cached.unpersist(blocking=True)
    assert (all_of(result), times()) == (list(range(ROWS)), ROWS)


def test_run_when_batches_are_small_then_every_row_comes_once(ps, spark, setting):
    with setting("spark.sql.execution.arrow.maxRecordsPerBatch", "7"):
        result = ps.run(spark.range(ROWS), ids, workers=2)
    assert all_of(result) == list(range(ROWS))


def test_run_when_frame_is_repartitioned_then_shares_are_equal(ps, spark):
    result = ps.run(spark.range(0, ROWS, 1, 1), ids, workers=2)
    assert [len(actual) for _, _, actual in result] == [50, 50]


def test_run_when_partition_has_few_records_then_all_get_some(ps, sc):
    # RDD.repartition would send these ten to one worker.
    result = ps.run(sc.parallelize(range(10), 1), records, workers=2)
    assert [len(actual) for _, _, actual in result] == [5, 5]


@pytest.mark.parametrize("kind", ["frame", "rdd"])
def test_run_when_a_task_is_retried_then_it_gets_the_same_rows(ps, spark, kind):
    frame = spark.range(0, ROWS, 1, 3)
    data, take = (frame, ids) if kind == "frame" else (frame.rdd.map(lambda row: row.id), records)

    def fail_once(worker, rows):
        from pyspark import TaskContext

        result = take(worker, rows)
        if worker.rank == 1 and TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("the first attempt")
        return result

    assert list(ps.run(data, fail_once, workers=2)) == list(ps.run(data, take, workers=2))


def test_run_when_records_are_arrays_then_all_of_each_arrives(ps, sc):
    created = [np.full(3, i) for i in range(23)]
    result = ps.run(sc.parallelize(created, 5), records, workers=2)
    came = Counter(tuple(array.tolist()) for _, _, actual in result for array in actual)
    assert came == Counter(tuple(array.tolist()) for array in created)


@pytest.mark.parametrize("partitions", [1, 2])
def test_run_when_a_frame_is_empty_then_the_error_names_the_rank(ps, spark, partitions):
    with pytest.raises(InputError, match=r"rank \d of \d has no rows"):
        ps.run(spark.range(0, 0, 1, partitions), ids, workers=2)


def test_run_when_frame_is_empty_then_error_names_rank(ps, spark):
    with pytest.raises(InputError, match=r"the data have no rows"):
        ps.run(spark.range(0).where("id > 5"), ids)


def test_run_when_a_frame_is_streaming_then_config_error(ps, spark):
    with pytest.raises(ConfigError, match="a streaming DataFrame has no end; call run in foreachBatch"):
        ps.run(spark.readStream.format("rate").load(), ids)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (None, "NoneType"),
        ((i for i in range(3)), "generator; make a list"),
        (np.arange(3), r"numpy\.ndarray; make a list"),
        (pa.table({"id": [1]}), r"pyarrow\.lib\.Table"),
    ],
)
def test_run_when_data_type_is_unsupported_then_config_error(ps, data, named):
    with pytest.raises(ConfigError, match=f"a list, a tuple, a range, or a pandas DataFrame; got {named}"):
        ps.run(data, ids)


@pytest.mark.parametrize(
    ("data", "workers", "shares"),
    [
        (["a", "b", "c"], None, [["a"], ["b", "c"]]),
        (("a",), None, [["a"]]),
        (range(5), 2, [[0, 1], [2, 3, 4]]),
    ],
)
def test_run_when_data_are_a_sequence_then_equal_parts(ps, data, workers, shares):
    assert [result for _, _, result in ps.run(data, records, workers=workers)] == shares


def test_run_when_data_are_a_pandas_frame_then_batches(ps, vectors):
    created, x = vectors
    frame = pd.DataFrame({"label": np.arange(40), "features": created}, index=np.zeros(40))
    parts = list(ps.run(frame, read, workers=2))
    np.testing.assert_array_equal(np.concatenate([part for part, _ in parts]), x)
    np.testing.assert_array_equal(np.concatenate([y for _, y in parts]), np.arange(40))


def test_run_when_list_is_retried_then_same_rows_as_before(ps, tmp_path):
    mark = tmp_path / "failed"

    def fail_once(worker, rows):
        result = list(rows)
        if worker.rank == 1 and not mark.exists():
            mark.touch()
            raise RuntimeError("the first attempt")
        return result

    assert list(ps.run([[0], [1], [2]], fail_once, workers=2)) == [[[0]], [[1], [2]]]


@pytest.mark.parametrize(
    ("data", "workers", "error", "said"),
    [
        ([], None, InputError, "the data, a list, are empty"),
        (pd.DataFrame({"a": []}), None, InputError, "the data, a DataFrame, are empty"),
        ([1], 2, UsageError, "run: 2 workers need a row each, but the data have 1 rows"),
        ([1, threading.Lock()], 1, UsageError, r"element 1 of the data, .*lock.*, cannot be pickled"),
        (pd.DataFrame({"a": ["x", {}]}), 1, InputError, "column 'a' of the pandas DataFrame: Expected bytes"),
    ],
)
def test_run_when_local_data_are_unusable_then_error_says(ps, data, workers, error, said):
    with pytest.raises(error, match=said):
        ps.run(data, records, workers=workers)


@pytest.fixture(scope="module")
def vectors():
    """Mixed sparse and dense vectors, and the matrix that they are."""
    x = np.random.default_rng(5).random((40, 6)) * (np.random.default_rng(6).random((40, 6)) < 0.4)
    created = [
        Vectors.dense(row) if i % 3 == 0 else Vectors.sparse(6, np.flatnonzero(row), row[row != 0])
        for i, row in enumerate(x)
    ]
    return created, x


def test_from_batches_when_vectors_are_mixed_then_builds_matrix(ps, spark, vectors):
    created, x = vectors
    frame = spark.createDataFrame([(float(i), vector) for i, vector in enumerate(created)], ["label", "features"])
    parts = ps.run(frame, read, workers=2)
    came = np.concatenate([part for part, _ in parts])[np.argsort(np.concatenate([y for _, y in parts]))]
    np.testing.assert_array_equal(came, x)


@pytest.mark.parametrize("kind", ["array<double>", "array<float>", "array<int>"])
def test_from_batches_when_features_are_arrays_then_matrix(ps, spark, kind):
    frame = spark.range(10).selectExpr("id as label", f"cast(array(id, id + 1, 2) as {kind}) as features")
    ((came, y),) = ps.run(frame, read, workers=1)
    np.testing.assert_array_equal(came, [[i, i + 1, 2] for i in y])


def test_from_batches_when_features_are_columns_then_matrix(ps, spark):
    frame = spark.range(10).selectExpr("id", "id % 2 = 0 as even", "cast(id as decimal(10, 2)) as money", "0.5 as w")

    def work(worker, batches):
        rows = Rows.fromBatches(batches, ["id", "money"], label="even", weight="w")
        return rows.x.toarray(), rows.y, rows.weights

    ((x, y, weights),) = ps.run(frame, work, workers=1)
    np.testing.assert_array_equal(x, [[i, i] for i in range(10)])
    np.testing.assert_array_equal(y, [1, 0] * 5)
    np.testing.assert_array_equal(weights, [0.5] * 10)


def test_from_batches_when_column_is_missing_then_lists_existing(ps, spark):
    with pytest.raises(InputError, match=r"^rank 0 in clock 0: there is no column 'features'; there are: id$"):
        ps.run(spark.range(10), read, workers=1)


@pytest.mark.parametrize("form", ["pairs", "points", "arrays"])
def test_from_records_when_rdd_holds_vectors_then_builds_matrix(ps, sc, vectors, form):
    created, x = vectors
    if form == "pairs":
        data = list(enumerate(created))
    elif form == "points":
        data = [LabeledPoint(i, OldVectors.fromML(vector)) for i, vector in enumerate(created)]
    else:
        data = list(enumerate(x))

    def work(worker, records):
        rows = Rows.fromRecords(records)
        return rows.x.toarray(), rows.y

    ((came, y),) = ps.run(sc.parallelize(data, 1), work, workers=1)
    np.testing.assert_array_equal(came, x)
    np.testing.assert_array_equal(y, np.arange(len(x)))


def test_run_when_names_have_dots_or_repeat_then_kept(spark, ps):
    frame = spark.range(0, 4, 1, 1).selectExpr("id as `a.b`", "id + 1 as `c``d`", "id + 2 as `c``d`")
    (result,) = ps.run(frame, lambda worker, batches: pa.Table.from_batches(batches).to_batches()[0])
    assert result.schema.names == ["a.b", "c`d", "c`d"]
    assert [column.to_pylist() for column in result.columns] == [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]


def test_cancel_when_no_task_has_been_started_then_nothing(spark):
    job = WorkerJob(backend_of(spark), spark.range(4), pickled(lambda worker, rows: None), 1, 2)
    job.cancel()
    assert job.join() is None
