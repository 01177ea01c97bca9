"""Generated click logs: the same for the same seed, with probabilities that labels keep to."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.generated_clicks import IDS, ClickLog


@pytest.fixture(scope="module")
def clicks():
    return ClickLog(ids=20_000, seed=3)


@pytest.fixture(scope="module")
def first(clicks):
    return pa.Table.from_batches(clicks.day(0, 100_000))


def ids_of(table):
    return {(name, text) for name in IDS for text in table[name].unique().to_pylist()}


def test_labels_when_drawn_then_are_as_frequent_as_probable(first):
    probability, label = first["probability"].to_numpy(), first["label"].to_numpy()
    for low, high in ((0, 0.1), (0.1, 0.3), (0.3, 1)):
        chosen = (low <= probability) & (probability < high)
        error = (probability[chosen] * (1 - probability[chosen])).mean() ** 0.5 / chosen.sum() ** 0.5
        assert abs(label[chosen].mean() - probability[chosen].mean()) < 4 * error


def test_ids_when_many_rows_then_are_as_many_as_asked(clicks, first):
    # A fiftieth of them is replaced in a day.
    assert 0.8 * clicks.ids < len(ids_of(first)) < 1.05 * clicks.ids


def test_ids_when_days_pass_then_some_are_new(clicks, first):
    later = pa.Table.from_batches(clicks.day(5, 100_000))
    gone = len(ids_of(first) - ids_of(later)) / len(ids_of(first))
    assert 0.06 < gone < 0.11


def test_probabilities_when_days_pass_then_change(clicks):
    still = ClickLog(ids=clicks.ids, period=np.inf, turnover=0, seed=clicks.seed)
    one, other = (next(log.day(3, 1000))["probability"].to_numpy() for log in (clicks, still))
    assert 0.3 < np.corrcoef(one, other)[0, 1] < 0.99


def test_written_rows_when_in_files_then_are_the_days(clicks, tmp_path):
    paths = clicks.write(tmp_path, 2, 150_000, files=2)
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [
        f"day=2/part-00{part}.parquet" for part in (0, 1)
    ]
    written = pa.concat_tables([pq.ParquetFile(path).read() for path in paths])
    assert written.equals(pa.Table.from_batches(clicks.day(2, 150_000)))
    assert sorted(path.name for path in (tmp_path / "day=2").iterdir()) == [path.name for path in paths]


def test_log_when_ids_too_few_then_names_the_least():
    with pytest.raises(ValueError, match=r"ids: expected 104 or more, got 100"):
        ClickLog(ids=100)
