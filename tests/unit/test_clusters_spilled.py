"""K-means of rows in files has the result of rows in memory, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from ps2.algorithms.clusters import worker
from ps2.algorithms.clusters.plan import KMeansPlan
from ps2.algorithms.clusters.program import train
from ps2.algorithms.clusters.settings import KMeansSettings
from ps2.algorithms.training.faults import ColumnNames
from ps2.data.spilling import Spill
from tests.in_process import ArrayTable, training_context


def points(density=1.0, n=300, dim=9):
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(6, dim)) * 3)[rng.integers(6, size=n)] + rng.normal(size=(n, dim)) + 1
    return x if density == 1.0 else sp.csr_array(x * (rng.random((n, dim)) < density))


def fit(x, mode, weights=None, workers=2, **settings):
    """Return the centres, the sizes and the costs of a training."""
    settings = KMeansSettings(**{"k": 6, "seed": 3, "maxIter": 4, "tol": 0.0, **settings}, spill=mode)
    plan = KMeansPlan(settings=settings, dim=x.shape[1], clusters=settings.k)
    weighted = {} if weights is None else {"w": weights}
    columns = ColumnNames(label=None, weight=None if weights is None else "w")
    with training_context(2) as ps:
        result = train(ps, ArrayTable.of(x, None, workers, columns, **weighted), plan)
    assert len(result.history.spilled) == (workers if mode == "always" else 0)
    return result.centres.tolist(), result.sizes.tolist(), result.history.objective


@pytest.fixture(autouse=True)
def tiny_blocks(monkeypatch):
    monkeypatch.setattr(KMeansPlan, "spilling", property(lambda plan: Spill(plan.settings.spill, 1 << 30, 512)))


@pytest.mark.parametrize("density", [1.0, 0.6, 0.1])
@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
@pytest.mark.parametrize("mode", ["k-means||", "random"])
def test_fit_when_rows_are_in_files_then_same_clusters(density, distance, mode):
    x = points(density)
    x = x if density > 0.5 else x[np.diff(x.indptr) > 0]
    settings = {"distanceMeasure": distance, "initMode": mode}
    assert fit(x, "always", **settings) == fit(x, "never", **settings)


def test_fit_when_rows_in_files_have_weights_then_same():
    weights = np.random.default_rng(1).random(300)
    assert fit(points(), "always", weights) == fit(points(), "never", weights)


def test_fit_when_rows_repeat_across_blocks_then_same():
    x = points()[np.arange(300) % 4]
    assert fit(x, "always") == fit(x, "never")


def test_fit_when_candidates_come_in_parts_then_same(monkeypatch):
    expected = fit(points(), "never")
    monkeypatch.setattr(worker, "CANDIDATE_BYTES", 300)
    assert fit(points(), "always") == expected


def test_fit_when_a_file_has_no_rows_then_same():
    x = points(n=40)
    assert fit(x[:1], "always", k=1) == fit(x[:1], "never", k=1)
