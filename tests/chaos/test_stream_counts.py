"""A stream whose driver, servers, workers and query are killed or stopped at random moments: each row counts once."""

from __future__ import annotations

import numpy as np
import pytest
from faults import stream_app
from faults.streams import ROWS, STOPPED_S, VICTIMS, check_counts, learned


def check_sums(found, folder):
    """With weights of 0 each probability is 1/2, and FTRL's sums z and n are multiples of 1/4, exact in any order."""
    rows = stream_app.table_of(folder / "in")
    keys = rows["keys"].combine_chunks().flatten().to_numpy()
    gradients = np.repeat(0.5 - rows["label"].to_numpy(), stream_app.FIELDS)
    expected = np.zeros((len(found["keys"]), 3), np.float32)
    positions = np.searchsorted(found["keys"], keys)
    np.add.at(expected, (positions, 1), gradients**2)
    np.add.at(expected, (positions, 2), gradients)
    assert np.array_equal(found["state"], expected)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_stream_when_all_is_killed_then_each_row_counts_once(tmp_path):
    """Two servers and two workers, whose pushes come in any order: counts and FTRL's sums are exact."""
    stream_app.write_rows(tmp_path / "in", 60, ROWS)
    result, killed = learned(tmp_path, "sums", (2, 2, 3, 0), VICTIMS * 5, seed=1)
    assert len(killed) == 20
    check_counts(result, 60)
    check_sums(result, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("victim", list(STOPPED_S))
def test_stream_when_one_is_stopped_then_each_row_counts_once(tmp_path, victim):
    stream_app.write_rows(tmp_path / "in", 40, ROWS)
    result, stopped = learned(tmp_path, "sums", (2, 2, 3, 0), [victim] * 2, seed=3)
    assert stopped == [victim] * 2
    check_counts(result, 40)
    check_sums(result, tmp_path)


@pytest.mark.nightly
def test_stream_when_copies_take_over_then_nothing_is_undone(tmp_path):
    stream_app.write_rows(tmp_path / "in", 40, ROWS)
    result, killed = learned(tmp_path, "sums", (2, 2, 40, 1), ["server"] * 2, seed=4)
    assert killed == ["server"] * 2
    check_counts(result, 40)
    check_sums(result, tmp_path)
    message = (tmp_path / "out-0.txt").read_text().splitlines()
    assert any(line.startswith("done 0 ") for line in message), message[-5:]
