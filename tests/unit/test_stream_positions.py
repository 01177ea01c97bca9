"""Where a model and Spark's checkpoint are, and what makes them agree, in every order of the two commits."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from ps2.algorithms.training.streams.labelled_rows import LabelledReader
from ps2.algorithms.training.streams.learner import BatchProgress
from ps2.algorithms.training.streams.progressive import Progressive, auc_of_bins, tally_of
from ps2.algorithms.training.streams.spark_checkpoint import Rewind, file_offset, files_after, is_repeated, rewind_to
from ps2.algorithms.training.streams.start import seconds_of
from ps2.algorithms.training.streams.state import ValueCounts
from ps2.data.hashing import Field, FieldHasher
from ps2.errors import ConfigError, InputError, RecoveryError

HERE = "/checkpoints/clicks"


def next_batches(learned, offsets, commits):
    """What Spark runs first after the rewind, by its own rule: the newest batch without a commit, else the next one."""
    rewind = rewind_to(learned, offsets, commits, HERE)
    offsets, commits = set(offsets) - set(rewind.offsets), set(commits) - set(rewind.commits)
    newest = max(offsets, default=-1)
    return newest if newest not in commits and newest >= 0 else newest + 1


@pytest.mark.parametrize(
    ("lag_s", "text"),
    [(-3.0, "-3.0 s"), (9.25, "9.2 s"), (150.0, "2.5 minutes"), (7200.0, "2.0 hours"), (2297649.2, "26.6 days")],
)
def test_progress_when_rows_are_old_then_lag_is_in_large_units(lag_s, text):
    known = Progressive.of(np.zeros_like(tally_of(np.zeros(1), np.zeros(1, np.float32), np.ones(1, np.float32))))
    assert BatchProgress(0, 5, 0, known, known, 1.0, {}, lag_s).described()[-1] == f"lag {text}"


@pytest.mark.parametrize("committed", [-1, 0, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("learned", range(-1, 10))
def test_rewind_when_one_is_ahead_then_no_batch_is_lost(learned, committed):
    planned = committed + 1  # Spark plans a batch before it runs it
    offsets, commits = range(planned + 1), range(committed + 1)
    if learned > planned:
        with pytest.raises(RecoveryError, match="not the checkpoint that the model has learned from"):
            rewind_to(learned, offsets, commits, HERE)
        return
    batch = next_batches(learned, offsets, commits)
    assert batch in (learned, learned + 1)
    assert is_repeated(learned, batch) == (batch == learned)


def test_rewind_when_spark_has_removed_the_offsets_then_says_so():
    with pytest.raises(
        RecoveryError, match=r"up to batch 3, and Spark has removed the offsets of batch 3; .* batch 10"
    ):
        rewind_to(3, range(10, 20), range(10, 19), HERE)


def test_rewind_when_called_again_then_nothing_is_left_to_remove():
    first = rewind_to(5, range(9), range(8), HERE)
    assert first == Rewind((7, 8), (6, 7))
    assert rewind_to(5, range(7), range(6), HERE) == Rewind((), ())


def test_is_repeated_when_batches_are_missing_then_raises():
    with pytest.raises(RecoveryError, match="expected batch 4, got batch 6"):
        is_repeated(3, 6)


@pytest.mark.parametrize(("given", "seconds"), [("5 minutes", 300), ("1 hour", 3600), (2, 2), ("0.5 second", 0.5)])
def test_seconds_when_a_duration_is_given_then_its_length(given, seconds):
    assert seconds_of(given, "snapshotEvery") == seconds


@pytest.mark.parametrize("given", ["5", "minutes", "x minutes", 0, -1, True, None, "nan days", "3 fortnights"])
def test_seconds_when_it_is_no_duration_then_names_it(given):
    with pytest.raises(ConfigError, match="snapshotEvery: expected a duration"):
        seconds_of(given, "snapshotEvery")


def test_tally_when_rows_are_measured_then_all_pairs_and_sums():
    rng = np.random.default_rng(0)
    margins, labels = rng.normal(size=500), (rng.random(500) < 0.4).astype(np.float32)
    weights = rng.random(500).astype(np.float32)
    result = Progressive.of(tally_of(margins, labels, weights))
    better = (margins[labels == 1][:, None] > margins[labels == 0]) * np.outer(
        weights[labels == 1], weights[labels == 0]
    )
    pairs = np.outer(weights[labels == 1], weights[labels == 0]).sum()
    loss = np.logaddexp(0, margins) - labels * margins
    assert result.rows == 500
    assert result.auc == pytest.approx(better.sum() / pairs, abs=2e-3)
    assert result.logLoss == pytest.approx(np.average(loss, weights=weights))
    assert result.calibration == pytest.approx((weights / (1 + np.exp(-margins))).sum() / weights[labels == 1].sum())


def test_area_when_there_is_one_label_then_nan():
    assert np.isnan(auc_of_bins(np.zeros(3), np.ones(3)))


@pytest.mark.parametrize("margin", [np.nan, np.inf])
def test_tally_when_a_margin_is_not_finite_then_raises(margin):
    with pytest.raises(InputError, match=f"margins: expected finite numbers, got {margin}"):
        tally_of(np.array([0.0, margin]), np.ones(2, np.float32), np.empty(0, np.float32))


def test_tally_when_rows_are_many_then_sums_are_float64():
    """float32 would stand still at 2**24."""
    tally = tally_of(np.zeros(1000), np.ones(1000, np.float32), np.full(1000, 1e5, np.float32))
    before = np.zeros_like(tally)
    before[:2] = 2.0**40
    assert (before + tally)[:2].tolist() == [2.0**40 + 1000, 2.0**40 + 1e8]


READER = LabelledReader(FieldHasher((Field.categorical("id"), Field.numeric("x"))), "y", "w", "t")


def batch_of(**columns):
    inputs = {"id": [2**60 + 1, None], "x": [1.0, 2.0], "y": [0, 1], "w": [1.0, 2.0], "t": [5.0, 7.0]}
    return pa.record_batch({name: pa.array(values) for name, values in (inputs | columns).items()})


def test_read_when_all_rows_are_late_then_they_are_counted():
    result = READER.read(batch_of(), 0, min_time_s=10.0)
    assert (len(result.labels), len(result.rows), result.late, result.newest_s) == (0, 0, 2, 7.0)


def test_read_when_a_large_id_is_beside_a_null_then_exact():
    result = READER.read(batch_of(), 0).rows
    assert result.keys[0] == READER.hasher.key(READER.hasher.fields[0], str(2**60 + 1))
    assert np.diff(result.indptr).tolist() == [2, 1]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"w": [1.0, 1e300]}, r"column 'w', row 1: expected a weight that fits float32, got 1e\+300"),
        ({"y": [0.0, 1 + 1e-10]}, r"column 'y', row 1: expected a label 0 or 1, got 1\.0000000001"),
        ({"x": [1.0, 1e39]}, "column 'x', row 1: expected a finite number that fits float32"),
    ],
)
def test_read_when_a_number_is_too_large_then_names_row(columns, said):
    with pytest.raises(InputError, match=said):
        READER.read(batch_of(**columns), 0)


def test_held_columns_when_one_has_gone_then_names_it():
    held = ValueCounts().plus(0, 400, {"user": 400, "ad": 300}).plus(1, 600, {"user": 600, "ad": 600, "rare": 1})
    held.check(50, {"user": 1, "ad": 1, "rare": 0})
    held.check(3, {"user": 3, "ad": 0, "rare": 0})
    held.check(1, {"user": 0})
    with pytest.raises(InputError, match=r"'ad': it is null in all 50 rows, and had a value in 90.0% of the 1,000"):
        held.check(50, {"user": 50, "ad": 0, "rare": 0})
    with pytest.raises(InputError, match="column 'user'"):
        held.check(10, {"user": 0})


def test_held_columns_when_a_batch_comes_again_then_counted_once():
    once = ValueCounts().plus(3, 400, {"user": 400}).plus(4, 600, {"user": 500})
    assert (once.rows, once.counts, once.batch) == (1000, {"user": 900}, 4)
    assert once.plus(3, 400, {"user": 400}).plus(4, 600, {"user": 500}) == once


def test_files_when_batch_is_known_then_only_later_ones():
    settings = '{"batchWatermarkMs":0,"conf":{"spark.sql.shuffle.partitions":"200"}}'
    offsets = f'v1\n{settings}\n{{"clicks":{{"0":7}}}}\n{{"logOffset":1}}\n-'
    assert [file_offset(offsets, source) for source in range(4)] == [-1, 1, -1, -1]
    log = 'v1\n{"path":"file:///in/a%20b","timestamp":5,"batchId":1}\n{"path":"file:///in/c","timestamp":6,"batchId":2}'
    assert files_after(log, 1) == ["file:///in/c"]
    assert files_after('v1\n{"clicks":{"0":7}}\n5', -1) == []
