"""Every order of the fleet's snapshot and Spark's commit, on real files of both families of streams."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ps2.algorithms import DeepFM, OnlineLogisticRegression
from ps2.errors import InputError, RecoveryError

pytestmark = pytest.mark.parametrize("ps", [2], indirect=True, scope="module")

COLUMNS = {"labelCol": "click", "categoricalCols": ["user", "ad"]}
SCHEMA = "click double, user bigint, ad bigint"
ROWS = 100


def write(folder, *numbers, names=("user", "ad")):
    folder.mkdir(exist_ok=True)
    for number in numbers:
        rng = np.random.default_rng(number)
        columns = {name: rng.integers(0, 20, ROWS) for name in names}
        pq.write_table(pa.table({"click": rng.integers(0, 2, ROWS) * 1.0, **columns}), folder / f".{number}")
        (folder / f".{number}").rename(folder / f"{number:04}.parquet")


@pytest.mark.parametrize(
    "estimator",
    [
        OnlineLogisticRegression(**COLUMNS),
        pytest.param(DeepFM(**COLUMNS, factorSize=2, hiddenLayers=[4]), marks=pytest.mark.nightly),
    ],
    ids=["online", "deep"],
)
def test_stream_when_one_commit_is_missing_then_rows_count_once(ps, spark, tmp_path, estimator):
    """The snapshot without Spark's commit; Spark's commits without a snapshot, between batches and after the last."""
    location, rolled_back = tmp_path / "checkpoint", []

    def learned(*numbers, **options):
        write(tmp_path / "in", *numbers)
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
        training = estimator.fitStream(stream, str(location), trigger={"availableNow": True}, **options)
        assert training.awaitTermination()
        return training.learned, int(training._learner.position.tally[0]), training.restarts

    def roll_back_at(*rows):
        def act(progress):
            if progress.total.rows in rows and progress.total.rows not in rolled_back:
                rolled_back.append(progress.total.rows)
                ps.rollBack()

        return act

    assert learned(0, 1) == (1, 2 * ROWS, 0)
    for name in ("1", ".1.crc"):
        (location / "commits" / name).unlink()
    assert learned(2) == (2, 3 * ROWS, 0)
    # Batch 3 is not committed when the fleet rolls back. Batches may be larger after that; the last one of the query
    # has the last rows.
    assert learned(3, 4, 5, onProgress=roll_back_at(4 * ROWS, 6 * ROWS))[1:] == (6 * ROWS, 2)
    assert rolled_back == [4 * ROWS, 6 * ROWS]


def test_stream_when_a_column_goes_across_restart_then_named(ps, spark, tmp_path):
    """A later driver compares its first batch with those that an earlier driver learned."""

    def learn():
        stream = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in"))
        training = OnlineLogisticRegression(**COLUMNS).fitStream(
            stream, str(tmp_path / "checkpoint"), trigger={"availableNow": True}
        )
        training.awaitTermination()

    write(tmp_path / "in", 0)
    learn()
    write(tmp_path / "in", 1, names=["user"])
    with pytest.raises(InputError, match="batch 1: column 'ad': it is null in all 100 rows, and had"):
        learn()


def test_stream_when_files_to_repeat_are_gone_then_is_refused(ps, spark, tmp_path):
    """Spark leaves out files that it has listed and cannot find, without a word."""
    folder = tmp_path / "clicks of today"
    write(folder, 0, 1)

    def act(progress):
        if progress.batch == 1:
            (folder / "0001.parquet").unlink()
            ps.rollBack()

    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder))
    training = OnlineLogisticRegression(**COLUMNS).fitStream(
        stream, str(tmp_path / "checkpoint"), trigger={"availableNow": True}, onProgress=act
    )
    with pytest.raises(
        RecoveryError, match=r"files of later batches are gone.*: 1, such as file:.*today/0001\.parquet"
    ):
        training.awaitTermination()
