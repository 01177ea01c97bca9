"""A stream whose driver, server, worker or query is killed: the model is equal to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from faults import stream_app
from faults.streams import ROWS, VICTIMS, check_counts, learned

# How often each is killed. A driver's next one starts Java and Spark anew.
KILLS = {**dict.fromkeys(VICTIMS, 2), "driver": 1}


@pytest.fixture(scope="module", params=["linear", "deep"])
def undisturbed(tmp_path_factory, request):
    """The name of a model, and what it learns if nothing is killed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    stream_app.write_rows(folder / "in", 10, ROWS)
    return request.param, learned(folder, request.param, (1, 1, 1, 0), [])[0]


@pytest.mark.nightly
@pytest.mark.parametrize("victim", VICTIMS)
def test_stream_when_one_is_killed_then_weights_are_equal(tmp_path, undisturbed, victim):
    """One server, one worker, a snapshot after each batch: the same steps in the same order, so the same bits."""
    model, expected = undisturbed
    stream_app.write_rows(tmp_path / "in", 10, ROWS)
    result, killed = learned(tmp_path, model, (1, 1, 1, 0), [victim] * KILLS[victim], seed=2)
    assert killed == [victim] * KILLS[victim]
    check_counts(result, 10)
    assert np.array_equal(result["state"], expected["state"])
