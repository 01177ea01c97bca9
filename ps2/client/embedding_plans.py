"""Plans for embedding tables: pulls of weights, and steps by gradients. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ps2.client.embedding_settings import TableSettings
from ps2.client.keysets import GROUP_KEYS, split_blocks
from ps2.client.plans import Plan, Target
from ps2.matrix.partition import Int64Array
from ps2.ops.table import Array
from ps2.protocol.messages import Operation, Result


def pull(target: Target, settings: TableSettings, columns: Int64Array) -> Plan[Array]:
    """Plan to read the weights of distinct columns: float32 of shape (n, k), in the order given."""
    k = settings.k
    parts = split_blocks(replace(target.spec, rows=k), target.route, columns)
    received = np.empty((columns.size, k), np.float32)
    operations = tuple(
        Operation(
            "embedding_pull",
            target.matrix,
            partition,
            params={"k": k},
            keys=keys,
            reply_bytes=received[where].nbytes,
            into=received[where],
        )
        for partition, where, keys in parts.key_sets()
    )

    def merge(_: object) -> Array:
        if parts.order is None:
            return received
        answer = np.empty_like(received)
        answer[parts.order] = received
        return answer

    return Plan(target.matrix, target.route, operations, merge, mutates=False)


def step(target: Target, settings: TableSettings, columns: Int64Array, gradients: Array) -> Plan[None]:
    """Plan the optimizer's step by the gradients of distinct columns: float32 of shape (n, k)."""
    optimizer = settings.optimizer
    parts = split_blocks(replace(target.spec, rows=settings.k), target.route, columns)
    if parts.order is not None:
        gradients = gradients.take(parts.order, axis=0)
    operations = tuple(
        Operation(
            optimizer.operation,
            target.matrix,
            partition,
            params=optimizer.scalars,
            arrays=(gradients[where],),
            keys=keys,
            wire=settings.wire,
        )
        for partition, where, keys in parts.key_sets()
    )
    return Plan(target.matrix, target.route, operations, lambda _: None, mutates=True)


def count(target: Target) -> Plan[int]:
    """Plan to count the keys that have a block."""
    operations = tuple(Operation("embedding_count", target.matrix, p.index) for p in target.partitions)
    return Plan(
        target.matrix,
        target.route,
        operations,
        lambda results: int(sum(result.scalar or 0 for result in results)),
        mutates=False,
    )


def keys(target: Target, counts: Sequence[int]) -> Plan[Int64Array]:
    """Plan to read the first ``counts`` active keys of each partition: sorted."""
    windows = [
        (p.index, start, min(start + GROUP_KEYS, count))
        for p, count in zip(target.partitions, counts, strict=True)
        for start in range(0, count, GROUP_KEYS)
    ]
    operations = tuple(
        Operation("keys", target.matrix, index, (), {"start": start, "stop": stop}, reply_bytes=8 * (stop - start))
        for index, start, stop in windows
    )

    def merge(results: list[Result]) -> Int64Array:
        return np.sort(np.concatenate([np.empty(0, np.int64), *(result.arrays[0] for result in results)]))

    return Plan(target.matrix, target.route, operations, merge, mutates=False)
