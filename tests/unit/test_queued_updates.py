"""In which order additions leave."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ps2.client import plans
from ps2.client.async_writer import QueuedUpdate, sendable
from ps2.client.plans import Target
from ps2.matrix.partition import MatrixSpec, partition_bounds
from ps2.matrix.route import Route
from ps2.protocol.messages import RequestId

DIM = 100


def target_of():
    spec = MatrixSpec(DIM, 1, "float64")
    return Target(1, spec, Route(0, partition_bounds(spec, 2), ("a", "b")), (0,))


def test_order_when_matrix_is_overwritten_then_that_leaves_alone():
    target, other = target_of(), replace(target_of(), matrix=2)
    created = [
        QueuedUpdate(plan, RequestId("run", number))
        for number, plan in enumerate(
            [
                plans.push(target, "push_add", np.ones(1), 0, 1),
                plans.push(target, "push_add", np.ones(1), 0, 1),
                plans.push(target, "push", np.ones(1), 0, 1),
                plans.push(target, "push_add", np.ones(1), 0, 1),
                plans.push(other, "push", np.ones(1), 0, 1),
            ]
        )
    ]
    left, waiting = [], created
    while waiting:
        chosen = sendable(waiting)
        left.append([entry.id.number for entry in chosen])
        waiting = [entry for entry in waiting if entry not in chosen]
    assert left == [[0, 1, 4], [2], [3]]
