"""Groups columns by partition, and caches the groups of repeated key sets under their digests."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ps2.array_types import Int64s
from ps2.config import WireConfig
from ps2.matrix.partition import MatrixSpec, check_columns, partition_of
from ps2.matrix.route import Route
from ps2.ops.distinct import group_by_partition, sort_keys
from ps2.ops.kernels import FEW
from ps2.ops.packing import is_ascending, narrowest
from ps2.ops.table import Array
from ps2.protocol.messages import Keys, Operation, Request, key_digest

# Keys per operation; together with their values, about one block. Managed keys take more time each: a server admits
# them, gives them slots, and makes others go.
GROUP_KEYS, GROUP_MANAGED_KEYS = 1 << 18, 1 << 16
# Bytes of column blocks per operation. At this size, the fixed cost of a request is negligible.
GROUP_BYTES = 16 << 20
# Smaller key sets are not cached.
MIN_NAMED_KEYS = 1024
# Block groups below this size send their keys: the values are far larger than the keys, and the server's compiled loop
# reads requests with keys.
NAMED_BLOCK_BYTES = WireConfig.block_bytes
# Key sets up to this size are resent in full: servers answer requests with keys faster than those with a digest.
MAX_SENT_BYTES = 20_000
# Memory limit of the cached splits in this process.
REMEMBERED_BYTES = 128 << 20
# Limit of key sets that were seen once; only their digests are kept.
SEEN_SETS = 4096
# Limit of (partition, key set) pairs that servers are believed to have cached.
KNOWN_SETS = 4096


@dataclass(frozen=True)
class Group:
    """Columns ``[begin, end)`` of a split: all columns of one partition, or some of them."""

    partition: int
    begin: int
    end: int
    digest: bytes | None = None


@dataclass(frozen=True)
class SplitKeys:
    """Columns grouped by partition: ascending and distinct within a group; for blocks, in the order given.

    Attributes:
        order: the original position of each column, duplicates adjacent and in the order given; None if the columns are
            in their original order.
        firsts: the index in ``order`` at which each distinct column begins; None if duplicates were kept or there are
            none.
    """

    columns: Int64s
    groups: tuple[Group, ...]
    order: Int64s | None = None
    firsts: Int64s | None = None

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (self.columns, self.order, self.firsts) if array is not None)

    def key_sets(self) -> Iterator[tuple[int, slice, Keys]]:
        """Yield (partition, slice of ``columns``, keys) of each group."""
        for group in self.groups:
            where = slice(group.begin, group.end)
            yield group.partition, where, Keys(group.end - group.begin, self.columns[where], group.digest)

    def spread(self, values: Array, out: Array | None = None) -> Array:
        """Return values of the columns, shape (..., m), in the caller's order; in ``out`` if given."""
        if self.order is None:
            return values
        if out is None:
            out = np.empty((*values.shape[:-1], self.order.size), values.dtype)
        out[..., self.order] = values if self.firsts is None else np.repeat(values, self._counts(), axis=-1)
        return out

    def summed(self, values: Array) -> Array:
        """Return the caller's values in the order of the columns, with values of equal columns added up."""
        if self.order is None:
            return values
        values = values[..., self.order]
        if self.firsts is None:
            return values
        wide = np.float64 if values.dtype.kind == "f" else values.dtype
        with np.errstate(over="ignore"):
            return np.add.reduceat(values, self.firsts, axis=-1, dtype=wide).astype(values.dtype)

    def last(self, values: Array) -> Array:
        """Return the caller's values in the order of the columns, with the last value of each column."""
        if self.order is None:
            return values
        if self.firsts is None:
            return values[..., self.order]
        return values[..., self.order[self.firsts + self._counts() - 1]]

    def _counts(self) -> Int64s:
        assert self.order is not None
        assert self.firsts is not None
        return np.diff(self.firsts, append=self.order.size)

    def named(self, min_keys: int) -> SplitKeys:
        """Return a copy that owns its columns. Groups of ``min_keys`` columns too big to resend get digests."""
        columns = self.columns.copy()
        groups = tuple(
            replace(group, digest=key_digest(some))
            if some.size >= min_keys and keys_bytes(some) > MAX_SENT_BYTES
            else group
            for group in self.groups
            for some in [columns[group.begin : group.end]]
        )
        return replace(self, columns=columns, groups=groups)


def keys_bytes(keys: Int64s) -> int:
    """Estimate the encoded size of keys in bytes. Among random keys, the largest gap is about eight times the mean."""
    if keys.size < 2 or keys[-1] < keys[0]:  # keys of blocks, in any order
        return keys.nbytes
    gap = int(keys[-1] - keys[0]) // keys.size
    return keys.size * narrowest(8 * gap).itemsize


def split_blocks(spec: MatrixSpec, route: Route, columns: Int64s) -> SplitKeys:
    """Group columns by partition for block operations. Columns keep the order given, with their duplicates.

    Sorting blocks takes as long as sending them, and servers accept them in any order.
    """
    check_columns(spec, columns)
    count = len(route.addresses)
    if count == 1:
        return SplitKeys(columns, _groups([0, columns.size], _blocks_in_group(spec)))
    if spec.kind == "sparse" and columns.size > FEW:
        columns, sorting, begins = group_by_partition(columns, np.asarray(route.bounds, np.int64))
        return SplitKeys(columns, _groups(begins.tolist(), _blocks_in_group(spec)), sorting)
    owners = partition_of(spec, route.bounds, columns)
    order: Int64s | None = None
    if (owners[1:] < owners[:-1]).any():
        order = np.argsort(owners.astype(np.uint16 if count <= 1 << 16 else np.int64), kind="stable")
        columns, owners = columns[order], owners[order]
    cuts = np.searchsorted(owners, np.arange(count + 1))
    return SplitKeys(columns, _groups(cuts, _blocks_in_group(spec)), order)


def _keys_in_group(spec: MatrixSpec) -> int:
    return GROUP_KEYS if spec.key_policy is None else GROUP_MANAGED_KEYS


def _blocks_in_group(spec: MatrixSpec) -> int:
    return min(_keys_in_group(spec), max(1, GROUP_BYTES // spec.block_bytes))


def split(spec: MatrixSpec, route: Route, columns: Int64s) -> SplitKeys:
    """Group columns, int64 in any order with duplicates, by partition."""
    check_columns(spec, columns)
    count = len(route.addresses)
    order: Int64s | None = None
    firsts: Int64s | None = None
    if not is_ascending(columns):
        columns, order = sort_keys(columns)
        is_first = np.ones(columns.size, np.bool_)
        np.not_equal(columns[1:], columns[:-1], out=is_first[1:])
        if not is_first.all():
            firsts = np.flatnonzero(is_first)
            columns = columns[firsts]
    if count == 1:
        cuts: Any = [0, columns.size]
    elif spec.kind == "dense":
        cuts = np.searchsorted(columns, np.asarray(route.bounds, dtype=np.int64))
    else:
        owners = partition_of(spec, route.bounds, columns).astype(np.uint16 if count <= 1 << 16 else np.int64)
        by_owner = np.argsort(owners, kind="stable")
        cuts = np.searchsorted(owners[by_owner], np.arange(count + 1))
        columns = columns[by_owner]
        order, firsts = _reordered(by_owner, order, firsts)
    return SplitKeys(columns, _groups(cuts, _keys_in_group(spec)), order, firsts)


def _groups(cuts: Sequence[int] | Int64s, size: int) -> tuple[Group, ...]:
    """Cut each partition's columns, whose bounds are ``cuts``, into groups of at most ``size``."""
    return tuple(
        Group(partition, begin, min(begin + size, int(end)))
        for partition, (start, end) in enumerate(pairwise(cuts))
        for begin in range(int(start), int(end), size)
    )


def _reordered(by_owner: Int64s, order: Int64s | None, firsts: Int64s | None) -> tuple[Int64s, Int64s | None]:
    """Return order and firsts of columns that were permuted once more, by ``by_owner``."""
    if order is None:
        return by_owner, None
    if firsts is None:
        return order[by_owner], None
    counts = np.diff(firsts, append=order.size)[by_owner]
    starts = np.cumsum(counts) - counts
    # The duplicates of each column stay adjacent: its first position, the next, and so on.
    within = np.arange(order.size) - np.repeat(starts, counts)
    return order[np.repeat(firsts[by_owner], counts) + within], starts


Cutter = Callable[[MatrixSpec, Route, Int64s], SplitKeys]


class SplitCache:
    """Caches the results of ``split`` and ``split_blocks`` for repeated columns. Thread-safe."""

    def __init__(self, limit_bytes: int = REMEMBERED_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._seen: OrderedDict[Any, None] = OrderedDict()
        self._splits: OrderedDict[Any, SplitKeys] = OrderedDict()
        self._bytes = 0

    def split(self, spec: MatrixSpec, route: Route, columns: Int64s) -> SplitKeys:
        return self._split(split, _keys_in_group(spec), MIN_NAMED_KEYS, spec, route, columns)

    def split_blocks(self, spec: MatrixSpec, route: Route, columns: Int64s) -> SplitKeys:
        min_keys = max(MIN_NAMED_KEYS, NAMED_BLOCK_BYTES // spec.block_bytes)
        return self._split(split_blocks, _blocks_in_group(spec), min_keys, spec, route, columns)

    def _split(
        self, cut: Cutter, size: int, min_keys: int, spec: MatrixSpec, route: Route, columns: Int64s
    ) -> SplitKeys:
        """Cut columns into groups of at most ``size``; groups of at least ``min_keys`` get a digest."""
        if columns.size < MIN_NAMED_KEYS:
            return cut(spec, route, columns)
        name = (cut, size, min_keys, key_digest(columns), spec.kind, spec.dim, route.bounds)
        with self._lock:
            cached = self._splits.get(name)
            if cached is not None:
                self._splits.move_to_end(name)
                return cached
            is_repeated = name in self._seen
            self._seen[name] = None
            self._seen.move_to_end(name)
            if len(self._seen) > SEEN_SETS:
                self._seen.popitem(last=False)
        parts = cut(spec, route, columns)
        if not is_repeated:
            return parts
        parts = parts.named(min_keys)
        with self._lock:
            if name not in self._splits and parts.nbytes <= self._limit_bytes:
                self._splits[name] = parts
                self._bytes += parts.nbytes
                while self._bytes > self._limit_bytes:
                    _, dropped = self._splits.popitem(last=False)
                    self._bytes -= dropped.nbytes
        return parts


# One cache per process is enough, because it memoizes pure functions.
SPLITS = SplitCache()


class ServerKeySets:
    """The key sets that servers are believed to have cached, by partition. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: OrderedDict[tuple[int, int, bytes], None] = OrderedDict()

    def shorten(self, request: Request) -> Request:
        """Return the request, with only the digest of each key set that the server is believed to have cached."""
        operations: list[Operation] = []
        for operation in request.operations:
            if operation.keys is not None and operation.keys.columns is not None and self._knows(operation):
                operation = replace(operation, keys=replace(operation.keys, columns=None))
            operations.append(operation)
        return replace(request, operations=tuple(operations))

    def add(self, request: Request) -> None:
        """Note that a server answered a request, and so has received its key sets."""
        with self._lock:
            for name in _named_sets(request):
                self._names[name] = None
                self._names.move_to_end(name)
                if len(self._names) > KNOWN_SETS:
                    self._names.popitem(last=False)

    def forget(self, request: Request) -> None:
        """Note that a server did not have a key set of the request."""
        with self._lock:
            for name in _named_sets(request):
                self._names.pop(name, None)

    def _knows(self, operation: Operation) -> bool:
        with self._lock:
            return (operation.matrix, operation.partition, _digest(operation)) in self._names


def _digest(operation: Operation) -> bytes | None:
    return None if operation.keys is None else operation.keys.digest


def _named_sets(request: Request) -> Iterator[tuple[int, int, bytes]]:
    for operation in request.operations:
        digest = _digest(operation)
        if digest is not None:
            yield operation.matrix, operation.partition, digest
