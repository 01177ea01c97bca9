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

# Keys per operation; with their values, they take about one block. A managed key takes the server more time, because it
# admits keys, gives them slots, and evicts other keys.
GROUP_KEYS, GROUP_MANAGED_KEYS = 1 << 18, 1 << 16
# Bytes of column blocks per operation. At this size, the fixed cost of a request is negligible.
GROUP_BYTES = 16 << 20
# Smaller key sets are not cached and get no digest.
MIN_DIGEST_KEYS = 1024
# Groups of column blocks with fewer bytes are sent with their keys: the values are far larger than the keys, and the
# server's compiled loop answers only requests with keys.
MIN_DIGEST_BLOCK_BYTES = WireConfig.block_bytes
# Key sets up to this encoded size get no digest: servers answer requests with keys faster than requests with a digest.
MAX_INLINE_BYTES = 20_000
# Memory limit of the cached splits in this process.
CACHE_BYTES = 128 << 20
# Limit of the digests of earlier key sets. The second occurrence of a digest puts the key set into the cache.
MAX_SEEN_SETS = 4096
# Limit of the (matrix, partition, digest) that this process records as cached by a server.
MAX_KNOWN_SETS = 4096


@dataclass(frozen=True)
class Group:
    """Columns ``[begin, end)`` of a split, all in one partition. A large partition has several groups."""

    partition: int
    begin: int
    end: int
    digest: bytes | None = None  # the hash under which servers cache the columns; None: they are always sent


@dataclass(frozen=True)
class SplitKeys:
    """Columns grouped by partition: ascending and distinct within a group; for blocks, in the caller's order.

    Attributes:
        order: the caller's position of each column, with duplicates adjacent and in the caller's order; None if the
            columns are in the caller's order.
        starts: the index in ``order`` at which each distinct column begins; None if duplicates were kept, or the caller
            had none.
    """

    columns: Int64s
    groups: tuple[Group, ...]
    order: Int64s | None = None
    starts: Int64s | None = None

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (self.columns, self.order, self.starts) if array is not None)

    def key_sets(self) -> Iterator[tuple[int, slice, Keys]]:
        """Yield (partition, slice of ``columns``, keys) of each group."""
        for group in self.groups:
            window = slice(group.begin, group.end)
            yield group.partition, window, Keys(group.end - group.begin, self.columns[window], group.digest)

    def to_caller_order(self, values: Array, out: Array | None = None) -> Array:
        """Return the values of the caller's columns, in the caller's order. ``out``: an array for the result."""
        if self.order is None:
            return values
        if out is None:
            out = np.empty((*values.shape[:-1], self.order.size), values.dtype)
        out[..., self.order] = values if self.starts is None else np.repeat(values, self._counts(), axis=-1)
        return out

    def sum_duplicates(self, values: Array) -> Array:
        """Return the caller's values in the order of ``columns``; values of duplicates are added up."""
        if self.order is None:
            return values
        values = values[..., self.order]
        if self.starts is None:
            return values
        sum_dtype = np.float64 if values.dtype.kind == "f" else values.dtype
        with np.errstate(over="ignore"):
            return np.add.reduceat(values, self.starts, axis=-1, dtype=sum_dtype).astype(values.dtype)

    def last_duplicates(self, values: Array) -> Array:
        """Return the caller's values in the order of ``columns``; of duplicates, the last value."""
        if self.order is None:
            return values
        if self.starts is None:
            return values[..., self.order]
        return values[..., self.order[self.starts + self._counts() - 1]]

    def _counts(self) -> Int64s:
        """Return how often each distinct column occurs."""
        assert self.order is not None
        assert self.starts is not None
        return np.diff(self.starts, append=self.order.size)

    def with_digests(self, min_keys: int) -> SplitKeys:
        """Return a copy that owns its columns, with a digest for each large group of at least ``min_keys`` columns."""
        columns = self.columns.copy()
        groups = []
        for group in self.groups:
            keys = columns[group.begin : group.end]
            is_large = keys.size >= min_keys and keys_bytes(keys) > MAX_INLINE_BYTES
            groups.append(replace(group, digest=key_digest(keys)) if is_large else group)
        return replace(self, columns=columns, groups=tuple(groups))


def keys_bytes(keys: Int64s) -> int:
    """Estimate the encoded size of keys in bytes. Among random keys, the largest gap is about 8 times the mean gap."""
    if keys.size < 2 or keys[-1] < keys[0]:  # keys of blocks can be in any order
        return keys.nbytes
    gap = int(keys[-1] - keys[0]) // keys.size
    return keys.size * narrowest(8 * gap).itemsize


def split_blocks(spec: MatrixSpec, route: Route, columns: Int64s) -> SplitKeys:
    """Group columns by partition for block operations. Within a group, they keep the caller's order and duplicates.

    Servers accept blocks in any order, and sorting blocks would take as long as sending them.
    """
    check_columns(spec, columns)
    count = len(route.addresses)
    order: Int64s | None = None
    if count == 1:
        return SplitKeys(columns, _groups([0, columns.size], _blocks_in_group(spec)))
    if spec.kind == "sparse" and columns.size > FEW:
        columns, order, begins = group_by_partition(columns, np.asarray(route.bounds, np.int64))
        return SplitKeys(columns, _groups(begins.tolist(), _blocks_in_group(spec)), order)
    owners = partition_of(spec, route.bounds, columns)
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
    starts: Int64s | None = None
    if not is_ascending(columns):
        columns, order = sort_keys(columns)
        is_first = np.ones(columns.size, np.bool_)
        np.not_equal(columns[1:], columns[:-1], out=is_first[1:])
        if not is_first.all():
            starts = np.flatnonzero(is_first)
            columns = columns[starts]
    if count == 1:
        cuts: Any = [0, columns.size]
    elif spec.kind == "dense":
        cuts = np.searchsorted(columns, np.asarray(route.bounds, dtype=np.int64))
    else:
        owners = partition_of(spec, route.bounds, columns).astype(np.uint16 if count <= 1 << 16 else np.int64)
        by_owner = np.argsort(owners, kind="stable")
        cuts = np.searchsorted(owners[by_owner], np.arange(count + 1))
        columns = columns[by_owner]
        order, starts = _permute(by_owner, order, starts)
    return SplitKeys(columns, _groups(cuts, _keys_in_group(spec)), order, starts)


def _groups(cuts: Sequence[int] | Int64s, max_columns: int) -> tuple[Group, ...]:
    """Cut columns into groups of at most ``max_columns``. Partition i has columns ``[cuts[i], cuts[i + 1])``."""
    return tuple(
        Group(partition, begin, min(begin + max_columns, int(end)))
        for partition, (start, end) in enumerate(pairwise(cuts))
        for begin in range(int(start), int(end), max_columns)
    )


def _permute(by_owner: Int64s, order: Int64s | None, starts: Int64s | None) -> tuple[Int64s, Int64s | None]:
    """Return ``order`` and ``starts`` of a split after its columns are permuted by ``by_owner``."""
    if order is None:
        return by_owner, None
    if starts is None:
        return order[by_owner], None
    counts = np.diff(starts, append=order.size)[by_owner]
    new_starts = np.cumsum(counts) - counts
    # The duplicates of each column stay adjacent and in order.
    offsets = np.arange(order.size) - np.repeat(new_starts, counts)
    return order[np.repeat(starts[by_owner], counts) + offsets], new_starts


Splitter = Callable[[MatrixSpec, Route, Int64s], SplitKeys]


class SplitCache:
    """Caches the results of ``split`` and ``split_blocks`` for repeated columns. Thread-safe."""

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._seen: OrderedDict[Any, None] = OrderedDict()
        self._splits: OrderedDict[Any, SplitKeys] = OrderedDict()
        self._bytes = 0

    def split(self, spec: MatrixSpec, route: Route, columns: Int64s) -> SplitKeys:
        return self._split(split, _keys_in_group(spec), MIN_DIGEST_KEYS, spec, route, columns)

    def split_blocks(self, spec: MatrixSpec, route: Route, columns: Int64s) -> SplitKeys:
        min_keys = max(MIN_DIGEST_KEYS, MIN_DIGEST_BLOCK_BYTES // spec.block_bytes)
        return self._split(split_blocks, _blocks_in_group(spec), min_keys, spec, route, columns)

    def _split(
        self, splitter: Splitter, max_keys: int, min_keys: int, spec: MatrixSpec, route: Route, columns: Int64s
    ) -> SplitKeys:
        """Cut columns into groups of at most ``max_keys``; large groups of at least ``min_keys`` get a digest."""
        if columns.size < MIN_DIGEST_KEYS:
            return splitter(spec, route, columns)
        key = (splitter, max_keys, min_keys, key_digest(columns), spec.kind, spec.dim, route.bounds)
        with self._lock:
            cached = self._splits.get(key)
            if cached is not None:
                self._splits.move_to_end(key)
                return cached
            is_repeated = key in self._seen
            self._seen[key] = None
            self._seen.move_to_end(key)
            if len(self._seen) > MAX_SEEN_SETS:
                self._seen.popitem(last=False)
        result = splitter(spec, route, columns)
        if not is_repeated:
            return result
        result = result.with_digests(min_keys)
        with self._lock:
            if key not in self._splits and result.nbytes <= self._limit_bytes:
                self._splits[key] = result
                self._bytes += result.nbytes
                while self._bytes > self._limit_bytes:
                    _, dropped = self._splits.popitem(last=False)
                    self._bytes -= dropped.nbytes
        return result


# One cache per process is enough, because it memoizes pure functions.
SPLITS = SplitCache()


class ServerKeySets:
    """The key sets that each partition's server has probably cached. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[int, int, bytes], None] = OrderedDict()

    def shorten(self, request: Request) -> Request:
        """Return the request without the key sets that the server has probably cached, except for their digests."""
        operations: list[Operation] = []
        for operation in request.operations:
            if operation.keys is not None and operation.keys.columns is not None and self._knows(operation):
                operation = replace(operation, keys=replace(operation.keys, columns=None))
            operations.append(operation)
        return replace(request, operations=tuple(operations))

    def add(self, request: Request) -> None:
        """Record that a server has received the key sets of a request."""
        with self._lock:
            for key_set in _key_sets(request):
                self._known[key_set] = None
                self._known.move_to_end(key_set)
                if len(self._known) > MAX_KNOWN_SETS:
                    self._known.popitem(last=False)

    def forget(self, request: Request) -> None:
        """Record that a server did not have a key set of a request."""
        with self._lock:
            for key_set in _key_sets(request):
                self._known.pop(key_set, None)

    def _knows(self, operation: Operation) -> bool:
        with self._lock:
            return operation.keys is not None and (
                (operation.matrix, operation.partition, operation.keys.digest) in self._known
            )


def _key_sets(request: Request) -> Iterator[tuple[int, int, bytes]]:
    for operation in request.operations:
        if operation.keys is not None and operation.keys.digest is not None:
            yield operation.matrix, operation.partition, operation.keys.digest
