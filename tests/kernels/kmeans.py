"""k-means with its centres on the servers: the family that docs/kernels.md builds."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ps2.ops.kernels import Float64s, Int64s, kernel
from ps2.ops.operands import along
from ps2.ops.table import FLOATS, Array, Blocks, Of, Partition, Row, Slots, Values, op

Counts = Annotated[Row, Of("int32")]
Points = Annotated[Values, along("points", "features")]


@kernel
def _nearest(clusters: Array, points: Array, closeness: Float64s, nearest: Int64s) -> None:
    for i in range(points.shape[0]):
        for c in range(clusters.shape[0]):
            distance = 0.0
            for f in range(points.shape[1]):
                distance += (points[i, f] - clusters[c, f]) ** 2
            if -distance > closeness[i]:
                closeness[i], nearest[i] = -distance, c


@op(reduce="best", blocks="points", dtypes=FLOATS)
def assign(
    m: Blocks, partition: Partition, points: Points
) -> tuple[Annotated[Float64s, along("points")], Annotated[Int64s, along("points")]]:
    """Return minus the squared distance of each point to the nearest centre of this shard, and that cluster."""
    closeness, nearest = np.full(len(points), -np.inf), np.zeros(len(points), np.int64)
    _nearest(m, np.ascontiguousarray(points), closeness, nearest)
    return closeness, nearest + partition.begin


@op(writes=("m", "counts"), dtypes=FLOATS)
def gather_points(
    m: Blocks, counts: Counts, clusters: Slots, points: Annotated[Values, along("slots", "features")]
) -> None:
    """Add points to the sums of their clusters, and count them."""
    np.add.at(m[:, points.shape[1] :], clusters, points)
    np.add.at(counts, clusters, 1)


@op(writes=("m", "counts"), dtypes=FLOATS)
def move(m: Blocks, counts: Counts) -> None:
    """Put the centres where the means of their points are, if they have any; sums and counts are 0 again."""
    features = m.shape[1] // 2
    some = counts > 0
    m[some, :features] = m[some, features:] / counts[some, None]
    m[:, features:] = 0
    counts[:] = 0
