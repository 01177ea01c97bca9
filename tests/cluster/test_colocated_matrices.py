"""Operations on matrices with equal partitions, on real servers: integers and floats, one row and eight."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from ps2 import DCV, PS2Context
from ps2.errors import NotColocatedError
from ps2.ops.all import TABLE

pytestmark = pytest.mark.usefixtures("leaves_nothing")

MODULE = "tests.kernels.kmeans"
CLUSTERS, FEATURES = 23, 4


@pytest.fixture(autouse=True)
def forgotten():
    """Forget the operations that the test has loaded."""
    before = dict(TABLE)
    yield
    TABLE.clear()
    TABLE.update(before)
    sys.modules.pop(MODULE, None)


@pytest.mark.parametrize("servers", [1, 3])
def test_operations_when_floats_and_counts_meet_then_numpy(servers):
    chance = np.random.default_rng(0)
    with PS2Context.getOrCreate(servers=servers, ops=[MODULE]):
        model = DCV.dense(CLUSTERS, 2 * FEATURES, layout="column").matrix()
        counts, centres = DCV.dense(CLUSTERS, 1, dtype="int32"), np.zeros((CLUSTERS, FEATURES), np.float32)
        for _ in range(3):
            nearest = chance.integers(0, CLUSTERS, 40)
            points = chance.integers(-9, 9, (40, FEATURES)).astype(np.float32)
            model.apply("gather_points", counts=counts, clusters=nearest, points=points)
            assert np.array_equal(counts.pull(), np.bincount(nearest, minlength=CLUSTERS))
            model.apply("move", counts=counts)
            for cluster in np.unique(nearest):
                centres[cluster] = points[nearest == cluster].mean(axis=0)
        np.testing.assert_allclose(model.pull(columns=np.arange(CLUSTERS))[:, :FEATURES], centres, rtol=1e-6)
        assert not counts.pull().any()
        weights, one = DCV.dense(CLUSTERS, 8), DCV.dense(CLUSTERS, 1)
        assert weights.fill(2).zip(one.fill(3)).apply("axpy", alpha=1).sum() == 5 * CLUSTERS
        with pytest.raises(NotColocatedError, match="their columns are partitioned differently"):
            model.apply(
                "move", counts=DCV.dense(CLUSTERS, 1, dtype="int32", align=CLUSTERS // 2, partitionsPerServer=2)
            )


def test_operations_when_server_dies_then_count_once_in_both(until):
    with PS2Context.getOrCreate(servers=2, replicas=1, ops=[MODULE]) as ps:
        model = DCV.dense(CLUSTERS, 2 * FEATURES, layout="column").matrix()
        counts = DCV.dense(CLUSTERS, 1, dtype="int32")
        clusters, points = np.arange(CLUSTERS), np.ones((CLUSTERS, FEATURES))
        for turn in range(40):
            if turn in (10, 25):
                until(
                    lambda: not any(ps._coordinator.fleet.control.status(at).behind for at in ps.servers),
                    "copies are in step",
                )
                ps._coordinator.fleet.launcher._children[turn % 2].kill()
            model.apply("gather_points", counts=counts, clusters=clusters, points=points)
        assert [recovery.source for recovery in ps.recoveries] == ["replica", "replica"]
        assert counts.pull().tolist() == [40] * CLUSTERS
        assert model.pull(columns=clusters)[:, FEATURES:].tolist() == [[40] * FEATURES] * CLUSTERS


def test_rollback_when_two_matrices_then_both_are_of_one_moment(tmp_path):
    with PS2Context.getOrCreate(servers=2, ops=[MODULE], checkpointDir=str(tmp_path / "kept")) as ps:
        first = DCV.dense(CLUSTERS, 2 * FEATURES, layout="column", name="model")
        model, counts = first.matrix(), DCV.dense(CLUSTERS, 1, dtype="int32", name="counts")
        clusters, points = np.arange(CLUSTERS), np.ones((CLUSTERS, FEATURES))
        model.apply("gather_points", counts=counts, clusters=clusters, points=points)
        ps.checkpoint()
        model.apply("gather_points", counts=counts, clusters=clusters, points=points)
    with PS2Context.getOrCreate(servers=3, ops=[MODULE], restore=str(tmp_path / "kept")) as ps:
        model, counts = ps.vector("model").matrix(), ps.vector("counts")
        assert counts.pull().tolist() == [1] * CLUSTERS
        model.apply("gather_points", counts=counts, clusters=clusters, points=points)
        assert counts.pull().tolist() == [2] * CLUSTERS
        assert model.pull(columns=clusters)[:, FEATURES:].tolist() == [[2] * FEATURES] * CLUSTERS
