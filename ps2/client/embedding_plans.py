"""Plans of an embedding table's requests: pulls of weights, optimizer steps, and lists and counts of keys. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np

from ps2.array_types import Int64s
from ps2.client.arguments import as_wire_values
from ps2.client.embedding_settings import TableSettings
from ps2.client.keysets import GROUP_KEYS, MIN_DIGEST_KEYS, SplitKeys, split_blocks
from ps2.client.plans import Plan, Target
from ps2.errors import OutOfRangeError, UsageError
from ps2.ops.distinct import number_distinct, sum_rows, take_rows
from ps2.ops.packing import is_ascending
from ps2.ops.table import Array
from ps2.protocol.messages import Operation, Result, key_digest


@dataclass(frozen=True)
class TableKeys:
    """The distinct keys of one call as columns of the table's matrix; with ``hashBits``, these are hashes of the keys.

    Attributes:
        split: the columns, grouped by partition.
        inverse: int64 of shape (n,): the index in ``split.columns`` of each of the caller's n keys; None if key i has
            index i.
    """

    target: Target
    split: SplitKeys
    inverse: Int64s | None

    @staticmethod
    def of(target: Target, settings: TableSettings, keys: Int64s, are_distinct: bool = False) -> TableKeys:
        """Group valid keys, int64 of shape (n,), by partition.

        ``are_distinct``: the caller promises that no key occurs twice. The check is faster if the keys ascend.
        """
        columns, inverse = settings.columns(keys), None
        if settings.hash_bits is not None or not (are_distinct and is_ascending(columns)):
            distinct, inverse = number_distinct(columns)
            if are_distinct and settings.hash_bits is None:
                if distinct.size < columns.size:
                    keys, counts = np.unique(columns, return_counts=True)
                    raise UsageError(
                        f"keys: expected distinct keys, got {keys[np.argmax(counts)]} {counts.max()} times; "
                        "pull and push take any keys"
                    )
                inverse = None
            else:
                columns = distinct
        split = split_blocks(replace(target.spec, rows=settings.k), target.route, columns)
        # Each large group gets a digest: the push after a pull sends it instead of the keys.
        groups = tuple(
            group
            if group.end - group.begin < MIN_DIGEST_KEYS
            else replace(group, digest=key_digest(split.columns[group.begin : group.end]))
            for group in split.groups
        )
        if split.order is not None:
            sent_positions = np.empty_like(split.order)
            sent_positions[split.order] = np.arange(split.order.size)
            inverse = sent_positions if inverse is None else sent_positions[inverse]
        return TableKeys(target, replace(split, groups=groups), inverse)

    def pull(self, k: int) -> Plan[Array]:
        """Plan to read the k weights of the caller's keys: float32 of shape (n, k)."""
        received = np.empty((self.split.columns.size, k), np.float32)
        operations = tuple(
            Operation(
                "embedding_pull",
                self.target.matrix,
                partition,
                params={"k": k},
                keys=keys,
                reply_bytes=received[window].nbytes,
                into=received[window],
            )
            for partition, window, keys in self.split.key_sets()
        )

        def merge(_: object) -> Array:
            return received if self.inverse is None else take_rows(received, self.inverse)

        return Plan(self.target.matrix, self.target.route, operations, merge, mutates=False)

    def step(self, settings: TableSettings, gradients: Array) -> Plan[None]:
        """Plan an optimizer step at each distinct key, with the sum of its gradients (float32 of shape (n, k))."""
        target, optimizer, wire = self.target, settings.optimizer, settings.wire
        if self.inverse is not None:
            gradients = sum_rows(gradients, self.inverse, self.split.columns.size)
        limit = optimizer.max_gradient
        if not np.isfinite(gradients).all() or (limit is not None and np.abs(gradients).max(initial=0) > limit):
            _raise_out_of_range(gradients, self.split.columns, limit)
        as_wire_values(gradients, replace(target.spec, wire=wire), gradients.shape, "gradients")
        operations = tuple(
            Operation(
                optimizer.operation,
                target.matrix,
                partition,
                params=optimizer.scalars,
                arrays=(gradients[window],),
                keys=keys,
                wire=wire,
            )
            for partition, window, keys in self.split.key_sets()
        )
        return Plan(target.matrix, target.route, operations, lambda _: None, mutates=True)


def _raise_out_of_range(gradients: Array, keys: Int64s, limit: float | None) -> NoReturn:
    """Raise OutOfRangeError, with the key, for the first gradient that is not finite or exceeds ``limit``."""
    fits = np.isfinite(gradients) & (np.abs(gradients) <= (np.inf if limit is None else limit))
    row, weight = np.argwhere(~fits)[0]
    expected = "finite numbers" if limit is None else f"at most {limit:g}, as the optimizer sums squares"
    raise OutOfRangeError(
        f"gradients: expected {expected}, got {gradients[row, weight]} for key {keys[row]}, weight {weight}"
    )


def keys(target: Target, counts: Sequence[int]) -> Plan[Int64s]:
    """Plan to read active keys: int64, ascending. ``counts``: how many to read of each partition."""
    windows = [
        (p.index, start, min(start + GROUP_KEYS, count))
        for p, count in zip(target.partitions, counts, strict=True)
        for start in range(0, count, GROUP_KEYS)
    ]
    operations = tuple(
        Operation("keys", target.matrix, index, (), {"start": start, "stop": stop}, reply_bytes=8 * (stop - start))
        for index, start, stop in windows
    )

    def merge(results: list[Result]) -> Int64s:
        return np.sort(np.concatenate([np.empty(0, np.int64), *(result.arrays[0] for result in results)]))

    return Plan(target.matrix, target.route, operations, merge, mutates=False)


def count(target: Target) -> Plan[int]:
    """Plan to count the keys that have a block of memory."""
    operations = tuple(Operation("embedding_count", target.matrix, p.index) for p in target.partitions)

    def merge(results: list[Result]) -> int:
        return int(sum(result.scalar or 0 for result in results))

    return Plan(target.matrix, target.route, operations, merge, mutates=False)
