"""How a server stands: each number once, with its name in Prometheus; messages, commands and scrapes derive from it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

from ps2 import errors
from ps2.matrix.partition import MatrixSpec, Partition
from ps2.protocol.pb import server_pb2
from ps2.rpc.convert import partition_from_pb, partition_to_pb, spec_from_pb, spec_to_pb

OK = "ok"


@dataclass(frozen=True)
class Metric:
    """What Prometheus calls a number: a counter's name without its "_total"."""

    name: str
    kind: Literal["counter", "gauge"]
    said: str


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """What one operation has done.

    Attributes:
        name: of the operation table, or "keys" or "map".
        count: times that it ran, failures included.
        failures: times that it raised.
        seconds: spent in it; waits for locks are not.
        keys: columns that requests named for it, one by one; operations on whole rows name none.
        buckets: how many of ``count`` took at most ``BUCKETS_S[i]`` and more than the one before; the last: longer.
            They do not travel.
    """

    name: str
    count: int
    failures: int
    seconds: float
    keys: int
    buckets: tuple[int, ...] = ()

    @property
    def told(self) -> dict[str, Any]:
        """All but the buckets."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "buckets"}


@dataclass(frozen=True, slots=True)
class MatrixStatus:
    """What a server holds of one matrix; ``bytes`` and ``active_keys`` count this server's share."""

    matrix: int
    spec: MatrixSpec
    rows: int
    bytes: int
    active_keys: int
    partitions: tuple[Partition, ...]


@dataclass(frozen=True)
class Counts:
    """What a server has counted since its start.

    Attributes:
        outcomes: requests answered, by "ok" or the class in ``ps2.errors`` that they came to.
        bytes_in: of the arrays of requests, as a server holds them: keys unpacked, floats at full length.
        bytes_out: of the arrays of replies, likewise.
        in_progress: requests under way.
        waiting: those of them that wait for the lock of a shard.
        lock_waits: locks that a request had to wait for.
        lock_wait_s: seconds spent so.
        mutations: requests that changed something.
        operations: by name.
    """

    outcomes: dict[str, int]
    in_progress: Annotated[int, Metric("ps2_requests_in_progress", "gauge", "Data requests under way")]
    waiting: Annotated[int, Metric("ps2_requests_waiting", "gauge", "Data requests that wait for the lock of a shard")]
    lock_waits: Annotated[int, Metric("ps2_lock_waits", "counter", "Locks of shards that a request had to wait for")]
    lock_wait_s: Annotated[
        float, Metric("ps2_lock_wait_seconds", "counter", "Time that requests waited for locks of shards")
    ]
    bytes_in: Annotated[int, Metric("ps2_received_bytes", "counter", "Arrays of requests, unpacked")]
    bytes_out: Annotated[int, Metric("ps2_sent_bytes", "counter", "Arrays of replies, before packing")]
    mutations: Annotated[int, Metric("ps2_mutations", "counter", "Data requests that changed something")]
    operations: tuple[OperationStatus, ...]

    @property
    def requests(self) -> int:
        return sum(self.outcomes.values())

    @property
    def failed(self) -> int:
        """Requests that came to an error; a key set that is not remembered is none, it only comes again."""
        return self.requests - self.outcomes.get(OK, 0) - self.outcomes.get(errors.KeyMissError.__name__, 0)


@dataclass(frozen=True)
class ServerStatus(Counts):
    """What a server tells of itself; sizes in bytes.

    Attributes:
        connections: open ones for data, without gRPC.
        backup: address of the server with copies of its shards; "" if there is none.
        copies_bytes: of shards that are copies of another server's.
        applied_scopes: tasks and sessions whose ids are remembered, over all shards.
        behind: its shards whose copies on the backup are not in step with them yet.
        container: that a cluster's manager runs it in, as it is called there, on ``node``; "" if it is in none.
    """

    server_id: str
    version: str
    pid: int
    uptime_s: float
    matrices: tuple[MatrixStatus, ...]
    memory_bytes: Annotated[int, Metric("ps2_memory_bytes", "gauge", "Memory taken by shards and requests under way")]
    memory_limit_bytes: Annotated[int, Metric("ps2_memory_limit_bytes", "gauge", "Most memory that may be taken")]
    rss_bytes: int
    key_cache_hits: Annotated[
        int, Metric("ps2_key_cache_hits", "counter", "Key sets named by their hash that were remembered")
    ]
    key_cache_misses: Annotated[
        int, Metric("ps2_key_cache_misses", "counter", "Key sets named by their hash that were not remembered")
    ]
    key_cache_bytes: Annotated[
        int, Metric("ps2_key_cache_bytes", "gauge", "Memory taken by key sets that are remembered")
    ]
    connections: Annotated[int, Metric("ps2_connections", "gauge", "Open data connections")]
    route_version: Annotated[int, Metric("ps2_route_version", "gauge", "Of the coordinator that this server follows")]
    backup: str
    copies_bytes: Annotated[int, Metric("ps2_copies_bytes", "gauge", "Memory taken by copies of other servers' shards")]
    behind: int
    applied_scopes: Annotated[
        int, Metric("ps2_applied_scopes", "gauge", "Tasks and sessions whose ids are remembered, over all shards")
    ]
    container: str
    node: str

    @property
    def rows(self) -> int:
        return sum(matrix.rows for matrix in self.matrices)

    @property
    def told(self) -> dict[str, Any]:
        """What programs are told."""
        names = (*ServerStatus.__annotations__, "rows", "requests", "failed", *Counts.__annotations__)
        return {
            **{name: getattr(self, name) for name in names},
            "uptime_s": round(self.uptime_s, 3),
            "matrices": len(self.matrices),
            "backup": self.backup or None,
            "container": self.container or None,
            "node": self.node or None,
            "operations": [done.told for done in self.operations],
        }


def metrics_of(status: ServerStatus) -> list[tuple[Metric, float]]:
    """Return each metric that is one number."""
    active = sum(matrix.active_keys for matrix in status.matrices)
    return [
        *((metric, getattr(status, name)) for name, metric in _metrics().items()),
        (Metric("ps2_matrices", "gauge", "Matrices that this server holds a part of"), len(status.matrices)),
        (Metric("ps2_active_keys", "gauge", "Keys of sparse matrices on this server"), active),
    ]


@cache
def _metrics() -> dict[str, Metric]:
    hints = get_type_hints(ServerStatus, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}


def status_to_pb(status: ServerStatus) -> server_pb2.StatusReply:
    numbers = {f.name: getattr(status, f.name) for f in fields(status)}
    numbers["operations"] = [server_pb2.OperationStatus(**done.told) for done in status.operations]
    numbers["matrices"] = [
        server_pb2.MatrixStatus(
            matrix=held.matrix,
            spec=spec_to_pb(held.spec),
            rows=held.rows,
            bytes=held.bytes,
            active_keys=held.active_keys,
            partitions=map(partition_to_pb, held.partitions),
        )
        for held in status.matrices
    ]
    return server_pb2.StatusReply(requests=status.requests, failed=status.failed, **numbers)


def status_from_pb(message: server_pb2.StatusReply) -> ServerStatus:
    numbers = {f.name: getattr(message, f.name) for f in fields(ServerStatus)}
    numbers["outcomes"] = dict(message.outcomes)
    numbers["operations"] = tuple(
        OperationStatus(done.name, done.count, done.failures, done.seconds, done.keys) for done in message.operations
    )
    numbers["matrices"] = tuple(
        MatrixStatus(
            held.matrix,
            spec_from_pb(held.spec),
            held.rows,
            held.bytes,
            held.active_keys,
            tuple(map(partition_from_pb, held.partitions)),
        )
        for held in message.matrices
    )
    return ServerStatus(**numbers)
