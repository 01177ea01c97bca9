"""The status of a server. Each value is declared once, for messages, commands and Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

from ps2 import errors
from ps2.config import DEFAULT_NAMESPACE
from ps2.matrix.partition import MatrixSpec, Partition
from ps2.protocol.pb import server_pb2
from ps2.rpc.convert import partition_from_pb, partition_to_pb, spec_from_pb, spec_to_pb

OK = "ok"


@dataclass(frozen=True)
class Metric:
    """A Prometheus metric. prometheus_client appends "_total" to the name of a counter."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """Statistics of one operation.

    Attributes:
        seconds: time spent in the operation, without waits for locks.
        keys: number of columns or keys in requests; requests for whole rows count none.
        buckets: the histogram of durations: entry i counts the runs that took more than ``BUCKETS_S[i - 1]`` and at
            most ``BUCKETS_S[i]`` (server/metrics.py); the last entry counts longer runs. Status messages omit it.
    """

    name: str
    count: int
    failures: int
    seconds: float
    keys: int
    buckets: tuple[int, ...] = ()

    @property
    def as_data(self) -> dict[str, Any]:
        """All fields except the buckets."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "buckets"}


@dataclass(frozen=True, slots=True)
class MatrixStatus:
    """The shards of one matrix on this server; sizes and counts are those of the shards.

    Attributes:
        slots: number of keys for which a sparse matrix has memory.
        waiting_keys: number of managed keys that were touched too rarely to have a slot.
        admitted_keys: number of times that a managed key got its slot.
        expired_keys: number of times that a managed key was removed because of its age.
        evicted_keys: number of times that a managed key was removed because of a limit or by a call.
        coordinator: the coordinator of the namespace; "" if there is none.
        names: the row of each named vector, as the coordinator of an attached fleet has published them.
    """

    matrix: int
    spec: MatrixSpec
    rows: int
    bytes: int
    active_keys: int
    partitions: tuple[Partition, ...]
    slots: int = 0
    waiting_keys: int = 0
    admitted_keys: int = 0
    expired_keys: int = 0
    evicted_keys: int = 0
    namespace: str = DEFAULT_NAMESPACE
    coordinator: str = ""
    names: Mapping[str, int] = field(default_factory=dict)

    @property
    def key_counts(self) -> dict[str, int]:
        """The counts of keys, by field name."""
        return {name: getattr(self, name) for name in KEY_COUNTS}


# The fields of MatrixStatus that count keys.
KEY_COUNTS = ("active_keys", "slots", "waiting_keys", "admitted_keys", "expired_keys", "evicted_keys")


@dataclass(frozen=True)
class Counts:
    """A server's counts since its start.

    Attributes:
        outcomes: number of answered requests by outcome: "ok" or the name of an error class in ``ps2.errors``.
        bytes_in: size of the requests' arrays in memory, after keys and narrowed floats were unpacked.
        bytes_out: size of the replies' arrays in memory, before packing.
        lock_wait_s: seconds that requests waited for locks.
    """

    outcomes: dict[str, int]
    in_progress: Annotated[int, Metric("ps2_requests_in_progress", "gauge", "Data requests in progress")]
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
        """Requests that failed, not counting KeyMissError: clients resend such requests with their keys."""
        return self.requests - self.outcomes.get(OK, 0) - self.outcomes.get(errors.KeyMissError.__name__, 0)


@dataclass(frozen=True)
class ServerStatus(Counts):
    """A server's report about itself; sizes in bytes.

    Attributes:
        connections: number of open data connections, without gRPC connections.
        backup: the address of the server that has copies of this server's shards; "" if there is none.
        copies_bytes: size of the copies of other servers' shards.
        behind: number of shards whose copies on the backup are not up to date.
        applied_scopes: number of tasks and sessions whose ids of applied requests are stored, over all shards.
        container: the cluster manager's name of the server's container; "" if there is none.
    """

    server_id: str
    version: str
    pid: int
    uptime_s: float
    matrices: tuple[MatrixStatus, ...]
    memory_bytes: Annotated[int, Metric("ps2_memory_bytes", "gauge", "Memory of shards and of requests in progress")]
    memory_limit_bytes: Annotated[int, Metric("ps2_memory_limit_bytes", "gauge", "Maximum of ps2_memory_bytes")]
    rss_bytes: int
    key_cache_hits: Annotated[
        int, Metric("ps2_key_cache_hits", "counter", "Key sets that were sent as a hash and found in the cache")
    ]
    key_cache_misses: Annotated[
        int, Metric("ps2_key_cache_misses", "counter", "Key sets that were sent as a hash and not found in the cache")
    ]
    key_cache_bytes: Annotated[int, Metric("ps2_key_cache_bytes", "gauge", "Memory of the key sets in the cache")]
    connections: Annotated[int, Metric("ps2_connections", "gauge", "Open data connections")]
    route_version: Annotated[int, Metric("ps2_route_version", "gauge", "Route version of the server's coordinator")]
    backup: str
    copies_bytes: Annotated[int, Metric("ps2_copies_bytes", "gauge", "Memory of the copies of other servers' shards")]
    behind: int
    applied_scopes: Annotated[
        int, Metric("ps2_applied_scopes", "gauge", "Tasks and sessions whose request ids are stored, over all shards")
    ]
    container: str
    node: str

    @property
    def rows(self) -> int:
        return sum(matrix.rows for matrix in self.matrices)

    @property
    def as_data(self) -> dict[str, Any]:
        """The status as JSON data for programs."""
        names = (*ServerStatus.__annotations__, "rows", "requests", "failed", *Counts.__annotations__)
        return {
            **{name: getattr(self, name) for name in names},
            "uptime_s": round(self.uptime_s, 3),
            "matrices": len(self.matrices),
            "backup": self.backup or None,
            "container": self.container or None,
            "node": self.node or None,
            "operations": [operation.as_data for operation in self.operations],
        }


def metrics(status: ServerStatus) -> list[tuple[Metric, float]]:
    """Return all metrics that have one value per server, with their values."""
    sums = {name: sum(getattr(matrix, name) for matrix in status.matrices) for name in KEY_COUNTS}
    return [
        *((metric, getattr(status, name)) for name, metric in _metric_by_field().items()),
        (Metric("ps2_matrices", "gauge", "Matrices that have shards on this server"), len(status.matrices)),
        (Metric("ps2_active_keys", "gauge", "Keys of sparse matrices on this server"), sums["active_keys"]),
        (Metric("ps2_key_slots", "gauge", "Keys of sparse matrices that memory is allocated for"), sums["slots"]),
        (Metric("ps2_waiting_keys", "gauge", "Managed keys touched too rarely to have a slot"), sums["waiting_keys"]),
        (Metric("ps2_admitted_keys", "counter", "Managed keys that got a slot"), sums["admitted_keys"]),
        (Metric("ps2_expired_keys", "counter", "Managed keys removed because of their age"), sums["expired_keys"]),
        (Metric("ps2_evicted_keys", "counter", "Managed keys removed by a limit or a call"), sums["evicted_keys"]),
    ]


@cache
def _metric_by_field() -> dict[str, Metric]:
    hints = get_type_hints(ServerStatus, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}


def status_to_pb(status: ServerStatus) -> server_pb2.StatusReply:
    values = {f.name: getattr(status, f.name) for f in fields(status)}
    values["operations"] = [server_pb2.OperationStatus(**operation.as_data) for operation in status.operations]
    values["matrices"] = [
        server_pb2.MatrixStatus(
            matrix=matrix.matrix,
            spec=spec_to_pb(matrix.spec),
            rows=matrix.rows,
            bytes=matrix.bytes,
            partitions=map(partition_to_pb, matrix.partitions),
            namespace=matrix.namespace,
            coordinator=matrix.coordinator,
            names=matrix.names,
            **matrix.key_counts,
        )
        for matrix in status.matrices
    ]
    return server_pb2.StatusReply(requests=status.requests, failed=status.failed, **values)


def status_from_pb(message: server_pb2.StatusReply) -> ServerStatus:
    values = {f.name: getattr(message, f.name) for f in fields(ServerStatus)}
    values["outcomes"] = dict(message.outcomes)
    values["operations"] = tuple(
        OperationStatus(operation.name, operation.count, operation.failures, operation.seconds, operation.keys)
        for operation in message.operations
    )
    values["matrices"] = tuple(
        MatrixStatus(
            matrix.matrix,
            spec_from_pb(matrix.spec),
            matrix.rows,
            matrix.bytes,
            partitions=tuple(map(partition_from_pb, matrix.partitions)),
            namespace=matrix.namespace,
            coordinator=matrix.coordinator,
            names=dict(matrix.names),
            **{name: getattr(matrix, name) for name in KEY_COUNTS},
        )
        for matrix in message.matrices
    )
    return ServerStatus(**values)
