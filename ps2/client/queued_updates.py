"""Queued mutations, and which of them may be sent now. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ps2.client.plans import Plan
from ps2.protocol.messages import RequestId

_OVERWRITING = ("push", "rows_push", "columns_push")


@dataclass(frozen=True, eq=False, slots=True)
class QueuedUpdate:
    """A mutation in the queue.

    Attributes:
        clock: the worker's clock when the mutation was queued.
        held_bytes: size of the mutation's arrays in this process.
    """

    plan: Plan[Any]
    id: RequestId
    clock: int = 0
    held_bytes: int = 0


def sendable(waiting: Sequence[QueuedUpdate]) -> list[QueuedUpdate]:
    """Return the mutations that may be sent now.

    A mutation that overwrites values of a matrix is sent after all earlier mutations of this matrix, and before all
    later ones.
    """
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
    """Return the size of a plan's arrays."""
    return sum(operation.nbytes for operation in plan.operations)
