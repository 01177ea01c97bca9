"""Additions that wait until they leave. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ps2.client.plans import Plan
from ps2.protocol.messages import RequestId

_OVERWRITING = ("push", "rows_push", "columns_push")


@dataclass(frozen=True, eq=False, slots=True)
class QueuedUpdate:
    """A mutation that waits.

    Attributes:
        clock: that it was made in.
        held_bytes: what it takes here.
    """

    plan: Plan[Any]
    id: RequestId
    clock: int = 0
    held_bytes: int = 0


def in_turn(waiting: Sequence[QueuedUpdate]) -> list[QueuedUpdate]:
    """Return what may leave now: what overwrites a matrix leaves after all that was made before it there, and alone."""
    found: list[QueuedUpdate] = []
    overwritten: dict[int, bool] = {}
    for update in waiting:
        matrices = update.plan.matrices
        overwrites = any(operation.name in _OVERWRITING for operation in update.plan.operations)
        if not any(matrix in overwritten and (overwrites or overwritten[matrix]) for matrix in matrices):
            found.append(update)
        overwritten.update({matrix: overwrites or overwritten.get(matrix, False) for matrix in matrices})
    return found


def held_bytes(plan: Plan[Any]) -> int:
    """Return what a plan's arrays take while it waits."""
    return sum(operation.nbytes for operation in plan.operations)
