"""Plans for user functions (``mapPartitions``)."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np

from ps2.client.plans import Plan, Target
from ps2.client.results import PartitionResults
from ps2.errors import UsageError
from ps2.protocol.messages import Operation, Result


def map_partitions(
    target: Target, fn: Callable[..., Any], with_index: bool, read_only: bool = False
) -> Plan[PartitionResults]:
    """Plan to call a user's function on every partition."""
    if not callable(fn):
        raise UsageError(f"mapPartitions: expected a function, got {fn!r}")
    try:
        code = np.frombuffer(cloudpickle.dumps(fn), np.uint8)
    except Exception as error:  # a closure may hold anything, and pickling may fail with any exception
        raise UsageError(f"mapPartitions: {fn!r} cannot be pickled: {error}") from error
    operations = tuple(
        Operation(
            "look" if read_only else "map",
            target.matrix,
            p.index,
            target.rows,
            {"with_index": int(with_index)},
            (code,),
            others=target.other_matrices,
        )
        for p in target.partitions
    )

    def merge(results: list[Result]) -> PartitionResults:
        return PartitionResults([pickle.loads(result.arrays[0].tobytes()) for result in results])

    return Plan(target.matrix, target.route, operations, merge, mutates=not read_only, batchable=False)
