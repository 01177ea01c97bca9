"""Rows in files on Spark's local disks train the same model, and the summary says where they are."""

from __future__ import annotations

import logging
import os

import numpy as np
import pytest
from training import make

from ps2.algorithms.classification import LogisticRegression
from ps2.data import spilling

WAYS = {
    "dense": {"maxIter": 6, "weightCol": "weight", "via": "servers"},
    "local": {"maxIter": 6, "via": "local"},
    "sparse": {"maxIter": 6, "solver": "minibatch", "miniBatchFraction": 0.4, "lazy": True, "numWorkers": 2},
    "ftsgd": {"maxIter": 2, "solver": "ftsgd", "miniBatchFraction": 0.5, "numWorkers": 2},
}


@pytest.fixture(scope="module")
def frames(spark):
    rows, sparse = make(n=200, dim=6, cuts=(90,)), make(n=200, dim=40, cuts=(110,), zeros=0.9)
    return {"dense": rows.frame(spark), "sparse": sparse.sparse_frame(spark, stride=7)}


@pytest.mark.parametrize("way", WAYS)
def test_fit_when_rows_are_in_files_then_same_weights(ps, frames, caplog, way):
    frame = frames["sparse" if way == "sparse" else "dense"]
    with caplog.at_level(logging.WARNING, "ps2"):
        found = LogisticRegression(spill="always", **WAYS[way]).fit(frame)
    expected = LogisticRegression(spill="never", **WAYS[way]).fit(frame)
    assert np.array_equal(found.coefficients.toArray(), expected.coefficients.toArray())
    assert found.intercept == expected.intercept
    spilled = found.summary.spilled
    assert len(spilled) == (1 if way == "local" else 2)
    assert all(one.bytes > 0 and os.path.isdir(one.folder) for one in spilled)
    said = f"{len(spilled)} workers keep rows in files, {sum(one.bytes for one in spilled):,} bytes in all"
    assert [record for record in caplog.messages if said in record]
    assert expected.summary.spilled == ()


def test_fit_when_rows_fit_memory_then_none_in_files(ps, frames):
    assert LogisticRegression(maxIter=1, via="servers").fit(frames["dense"]).summary.spilled == ()
    assert spilling.SHARE * spilling.memory_left().of_worker(2) > 1 << 20
