"""The control plane as plain calls: what is asked of a server, or of the master, beside data requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message

from ps2.partition import MatrixSpec, Partition
from ps2.route import Route
from ps2.wire.convert import partition_from_pb, partition_to_pb, route_from_pb, spec_from_pb, spec_to_pb
from ps2.wire.messages import PROTOCOL_VERSION, MatrixStatus
from ps2.wire.pb import master_pb2, server_pb2
from ps2.wire.transport import Transport

SERVER_TIMEOUT_S = 60.0
# The master in turn asks every server.
MASTER_TIMEOUT_S = 120.0
# For calls that only show that somebody is there.
SIGN_OF_LIFE_TIMEOUT_S = 5.0

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class MatrixInfo:
    """What the master tells of a matrix; ``lost`` says why servers of it are gone."""

    id: int
    spec: MatrixSpec
    route: Route
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class OperationStatus:
    """What an operation has done on a server.

    Attributes:
        count: times that it ran, failures included.
        seconds: spent in it; waits for locks are not.
        keys: columns that requests named for it, one by one; operations on whole rows name none.
    """

    name: str
    count: int
    failures: int
    seconds: float
    keys: int


@dataclass(frozen=True)
class ServerStatus:
    """What a server tells of itself; sizes in bytes, counts since its start.

    Attributes:
        failed: requests that came to an error, save for key sets that were not remembered: those come again.
        outcomes: requests by "ok" or the class name of their error.
        in_progress: requests under way; ``waiting`` of them wait for the lock of a shard.
        lock_waits: locks that a request had to wait for, ``lock_wait_s`` in all.
        connections: open ones for data, without gRPC.
    """

    server_id: str
    version: str
    pid: int
    uptime_s: float
    memory_bytes: int
    memory_limit_bytes: int
    rss_bytes: int
    requests: int
    failed: int
    bytes_in: int
    bytes_out: int
    matrices: tuple[MatrixStatus, ...]
    outcomes: Mapping[str, int]
    in_progress: int
    waiting: int
    lock_waits: int
    lock_wait_s: float
    key_cache_hits: int
    key_cache_misses: int
    key_cache_bytes: int
    connections: int
    operations: tuple[OperationStatus, ...]


class ServerControl:
    """Control calls to servers, by address."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def hello(self, address: str) -> str:
        """Return the server's id; raises ProtocolError if it speaks another version."""
        request = server_pb2.HelloRequest(protocol=PROTOCOL_VERSION)
        return self._call(address, "Hello", request, server_pb2.HelloReply, SIGN_OF_LIFE_TIMEOUT_S).server_id

    def create_matrix(self, address: str, matrix: int, spec: MatrixSpec, partitions: Sequence[Partition]) -> None:
        request = server_pb2.CreateMatrixRequest(
            matrix=matrix, spec=spec_to_pb(spec), partitions=[partition_to_pb(p) for p in partitions]
        )
        self._call(address, "CreateMatrix", request, server_pb2.CreateMatrixReply)

    def update_rows(
        self, address: str, matrix: int, rows: int = 0, freed: Sequence[int] = (), reused: Sequence[int] = ()
    ) -> None:
        """Grow a matrix to ``rows`` rows (0: leave it), take rows out of use, put rows in use again as zeros."""
        request = server_pb2.UpdateRowsRequest(matrix=matrix, rows=rows, freed=freed, reused=reused)
        self._call(address, "UpdateRows", request, server_pb2.UpdateRowsReply)

    def free_matrix(self, address: str, matrix: int) -> None:
        request = server_pb2.FreeMatrixRequest(matrix=matrix)
        self._call(address, "FreeMatrix", request, server_pb2.FreeMatrixReply)

    def status(self, address: str) -> ServerStatus:
        reply = self._call(
            address, "Status", server_pb2.StatusRequest(), server_pb2.StatusReply, SIGN_OF_LIFE_TIMEOUT_S
        )
        return ServerStatus(
            server_id=reply.server_id,
            version=reply.version,
            pid=reply.pid,
            uptime_s=reply.uptime_s,
            memory_bytes=reply.memory_bytes,
            memory_limit_bytes=reply.memory_limit_bytes,
            rss_bytes=reply.rss_bytes,
            requests=reply.requests,
            failed=reply.failed,
            bytes_in=reply.bytes_in,
            bytes_out=reply.bytes_out,
            matrices=tuple(
                MatrixStatus(
                    matrix=m.matrix,
                    spec=spec_from_pb(m.spec),
                    rows=m.rows,
                    bytes=m.bytes,
                    active_keys=m.active_keys,
                    partitions=tuple(partition_from_pb(p) for p in m.partitions),
                )
                for m in reply.matrices
            ),
            outcomes=dict(reply.outcomes),
            in_progress=reply.in_progress,
            waiting=reply.waiting,
            lock_waits=reply.lock_waits,
            lock_wait_s=reply.lock_wait_s,
            key_cache_hits=reply.key_cache_hits,
            key_cache_misses=reply.key_cache_misses,
            key_cache_bytes=reply.key_cache_bytes,
            connections=reply.connections,
            operations=tuple(OperationStatus(o.name, o.count, o.failures, o.seconds, o.keys) for o in reply.operations),
        )

    def stop(self, address: str) -> None:
        """Tell the server to end after the requests under way."""
        self._call(address, "Stop", server_pb2.StopRequest(), server_pb2.StopReply, SIGN_OF_LIFE_TIMEOUT_S)

    def _call(
        self, address: str, method: str, request: Message, reply: type[M], timeout_s: float = SERVER_TIMEOUT_S
    ) -> M:
        return self._transport.call(address, f"Server/{method}", request, reply, timeout_s)


class MasterControl:
    """Control calls to one master."""

    def __init__(self, transport: Transport, address: str) -> None:
        self._transport = transport
        self._address = address

    def register(self, index: int, server_id: str, address: str) -> float:
        """Tell where a server listens; return the pause between its heartbeats, in seconds."""
        request = master_pb2.RegisterRequest(
            index=index, server_id=server_id, address=address, protocol=PROTOCOL_VERSION
        )
        return self._call("Register", request, master_pb2.RegisterReply, SIGN_OF_LIFE_TIMEOUT_S).heartbeat_interval_s

    def heartbeat(self, index: int, server_id: str) -> None:
        """Give a sign of life; raises NotFoundError if the master does not know this process."""
        request = master_pb2.HeartbeatRequest(index=index, server_id=server_id)
        self._call("Heartbeat", request, master_pb2.HeartbeatReply, SIGN_OF_LIFE_TIMEOUT_S)

    def new_matrix(self, spec: MatrixSpec) -> MatrixInfo:
        """Make a matrix; its row 0 is handed out."""
        return _info(self._call("NewMatrix", master_pb2.NewMatrixRequest(spec=spec_to_pb(spec)), master_pb2.Matrix))

    def matrix(self, matrix: int) -> MatrixInfo:
        return _info(self._call("GetMatrix", master_pb2.GetMatrixRequest(matrix=matrix), master_pb2.Matrix))

    def take_rows(self, matrix: int, count: int, reserved: bool) -> list[int]:
        """Get rows as zeros: ``count`` of them, or all that are reserved and not in use."""
        request = master_pb2.TakeRowsRequest(matrix=matrix, count=count, reserved=reserved)
        return list(self._call("TakeRows", request, master_pb2.TakeRowsReply).rows)

    def free_rows(self, matrix: int, rows: Sequence[int]) -> None:
        self._call("FreeRows", master_pb2.FreeRowsRequest(matrix=matrix, rows=rows), master_pb2.FreeRowsReply)

    def _call(self, method: str, request: Message, reply: type[M], timeout_s: float = MASTER_TIMEOUT_S) -> M:
        return self._transport.call(self._address, f"Master/{method}", request, reply, timeout_s)


def _info(message: master_pb2.Matrix) -> MatrixInfo:
    return MatrixInfo(message.id, spec_from_pb(message.spec), route_from_pb(message.route), tuple(message.lost))
