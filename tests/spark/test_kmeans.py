"""A family of operations that is not PS2's: k-means, as docs/kernels.md has it."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest

from ps2 import DCV, PS2Context

CLUSTERS, FEATURES, CLOCKS = 5, 4, 6
KERNELS, GUIDE = Path(__file__).parents[1] / "kernels/kmeans.py", Path(__file__).parents[2] / "docs/kernels.md"


@pytest.fixture(scope="module")
def points():
    """Whole numbers, so that sums are exact in any order."""
    chance = np.random.default_rng(3)
    middles = chance.integers(-100, 100, (CLUSTERS, FEATURES))
    return (middles[chance.integers(CLUSTERS, size=600)] + chance.integers(-9, 9, (600, FEATURES))).astype(np.float32)


@pytest.fixture(scope="module")
def centres(points):
    """What NumPy comes to (Lloyd's algorithm)."""
    result = points[:CLUSTERS]
    for _ in range(CLOCKS):
        nearest = ((points[:, None] - result) ** 2).sum(axis=2, dtype=np.float64).argmin(axis=1)
        some = [points[nearest == c] for c in range(CLUSTERS)]
        result = np.array([part.mean(axis=0) if len(part) else old for part, old in zip(some, result, strict=True)])
    return result


def fit(ps, points, start, clocks, each=lambda clock: None):
    """Return the centres after so many clocks, from ``start`` of shape (clusters, features) on."""
    # A column is a cluster: its centre, the sum of its points, and the number of its points.
    clusters, features = np.arange(len(start)), start.shape[1]
    model = DCV.dense(len(start), 2 * features, layout="column").matrix()
    model.push(columns=clusters, values=np.hstack((start, np.zeros_like(start))))
    counts = DCV.dense(len(start), 1, dtype="int32")

    def work(worker, rows):
        mine = np.array(list(rows), np.float32)
        for _ in worker.clocks(clocks):
            _, nearest = model.apply("assign", points=mine)
            model.apply("gather_points", counts=counts, clusters=nearest, points=mine)

    def on_clock(clock):
        each(clock)
        model.apply("move", counts=counts)

    ps.run(points, work, workers=2, onClock=on_clock)
    return model.pull(columns=clusters)[:, :features]


def test_kmeans_when_run_on_servers_then_matches_numpy(spark, points, centres):
    with PS2Context.getOrCreate(spark, servers=2, ops=["tests.kernels.kmeans"]) as ps:
        result = fit(ps, spark.sparkContext.parallelize(points.tolist(), 2), points[:CLUSTERS], CLOCKS)
    np.testing.assert_allclose(result, centres, rtol=1e-6)


def test_kmeans_when_a_server_is_killed_then_finds_the_same(spark, points, centres, until):
    with PS2Context.getOrCreate(spark, servers=2, replicas=1, ops=["tests.kernels.kmeans"]) as ps:

        def kill(clock):
            if clock == 2:
                until(
                    lambda: not any(ps._coordinator.fleet.control.status(at).behind for at in ps.servers),
                    "copies are in step",
                )
                ps._coordinator.fleet.launcher._children[1].kill()

        result = fit(ps, spark.sparkContext.parallelize(points.tolist(), 2), points[:CLUSTERS], CLOCKS, kill)
        assert [recovery.source for recovery in ps.recoveries] == ["replica"]
    np.testing.assert_allclose(result, centres, rtol=1e-6)


def test_the_guide_when_it_shows_kmeans_then_it_is_what_runs():
    guide = GUIDE.read_text()
    assert KERNELS.read_text() in guide
    assert inspect.getsource(fit) in guide
