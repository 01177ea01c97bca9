"""The interface of the network, and control calls to servers as plain functions."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from ps2.errors import BusyError, LimitError
from ps2.matrix.partition import MatrixSpec, Partition
from ps2.protocol.messages import PROTOCOL_VERSION, Request, RequestId
from ps2.protocol.pb import server_pb2
from ps2.rpc.convert import (
    id_to_pb,
    load_matrix_to_pb,
    partition_to_pb,
    saved_shard_from_pb,
    spec_to_pb,
)
from ps2.rpc.server_status import ServerStatus, status_from_pb
from ps2.storage.manifest import LoadMatrix, SavedShard, SaveMatrix
from ps2.transport.connection import ByteCounts
from ps2.transport.exchange import Outcome

M = TypeVar("M", bound=Message)


class Network(Protocol):
    """Carries requests and control calls to servers. It does not retry, and does not interpret the requests."""

    def exchange(self, requests: Mapping[str, Sequence[Request]]) -> dict[str, list[Outcome]]:
        """Send requests to servers by address, and wait for the outcome of each.

        The servers run in parallel. Each server runs its requests in order and continues after a failed request.
        """
        ...

    def call(self, address: str, method: str, message: Message, reply: type[M], timeout_s: float) -> M:
        """Call a gRPC method (``Service/Method``) of the control plane; return its reply."""
        ...

    def close(self) -> None:
        """Close every connection; calls in flight fail."""
        ...


# The default timeout of control calls.
SERVER_TIMEOUT_S = 60.0
# The timeout of calls that transfer a large model, such as checkpoints.
LONG_TIMEOUT_S = 3600.0
# The timeout of calls that mainly check whether the server is alive.
SIGN_OF_LIFE_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class ServerInfo:
    """A server's answer to ``hello``.

    Attributes:
        route_version: the route version of the server's last ``activate``; 0 if there was none.
        coordinator: the coordinator of the last ``activate``.
        silent_s: seconds since the coordinator's last sign of life.
        catalog: the encoded catalog of matrices, which the coordinator stored on the server for its successor.
        now_s: the time of the reply, in seconds of the server's monotonic clock.
        operations: by name, the digest of each operation that users' modules declare.
        leaving: True if the server was told to end, and waits until the coordinator allows it.
        data_port: the port for data connections; 0 if there is none.
        data_socket: the name of the Unix socket for data connections; "" if there is none.
        byte_counts: the byte counts of the data connection that the request named; None if the connection has ended.
    """

    server_id: str
    route_version: int
    coordinator: str
    silent_s: float
    catalog: bytes
    now_s: float
    operations: Mapping[str, str]
    leaving: bool
    data_port: int = 0
    data_socket: str = ""
    byte_counts: ByteCounts | None = None


@dataclass(frozen=True)
class Activation:
    """A server's new state in its fleet.

    Attributes:
        lease_s: the server refuses requests this many seconds after the last answer to a heartbeat; 0: no limit.
        loaded: True: the server replaces all its shards by the shards that ``load`` has read.
        backup: the address of the server that stores copies of the shards; "": no server does.
        seed: True if the backup has no copies yet: the server sends them while requests continue.
        catalog: the encoded catalog to store for a later coordinator; empty: the server keeps the stored catalog.
        leave: True: the server no longer obeys its coordinator.
        afresh: True: the server drops its shards and its coordinator, and refuses requests until the next activation.
    """

    coordinator: str
    lease_s: float = 0.0
    loaded: bool = False
    backup: str = ""
    seed: bool = False
    catalog: bytes = b""
    leave: bool = False
    afresh: bool = False


@dataclass(frozen=True)
class CopyReport:
    """The result of a checkpoint's copies in memory: pause of the shards, size, and number of applied mutations."""

    pause_s: float
    nbytes: int
    mutations: int


class ServerControl:
    """Control calls to servers, by address.

    Attributes:
        route_version: sent with the calls; the coordinator increases it.
        namespace: the namespace of the servers that the calls are about; "": all namespaces for ``status``, "default"
            for other calls.
    """

    def __init__(self, transport: Network, namespace: str = "") -> None:
        self._transport = transport
        self.namespace = namespace
        self.route_version = 0
        self._row_changes = itertools.count(1)

    def hello(
        self,
        address: str,
        coordinator: str = "",
        timeout_s: float = SIGN_OF_LIFE_TIMEOUT_S,
        answered_s: float = 0.0,
        released: bool = False,
        connection: bytes = b"",
    ) -> ServerInfo:
        """Ask a server for its identity and state; raises ProtocolError if it speaks another version.

        The call counts as a sign of life of ``coordinator``. ``answered_s``: ``now_s`` of the server's last answer to
        the coordinator, when the lease began. ``released``: the server may end now without loss of data.
        ``connection``: the name of a data connection to the server, for ``ServerInfo.byte_counts``.
        """
        request = server_pb2.HelloRequest(
            protocol=PROTOCOL_VERSION,
            coordinator=coordinator,
            answered_s=answered_s,
            released=released,
            connection=connection,
            namespace=self.namespace,
        )
        reply = self._call(address, "Hello", request, server_pb2.HelloReply, timeout_s)
        return ServerInfo(
            reply.server_id,
            reply.route_version,
            reply.coordinator,
            reply.heard_s,
            reply.catalog,
            reply.now_s,
            dict(reply.operations),
            reply.leaving,
            reply.data_port,
            reply.data_socket,
            ByteCounts(reply.carried.sent, reply.carried.received, reply.carried.unread)
            if reply.HasField("carried")
            else None,
        )

    def create_matrix(
        self, address: str, matrix: int, spec: MatrixSpec, partitions: Sequence[Partition], copies: bool = False
    ) -> None:
        """Allocate shards of zeros; with ``copies``, as copies of another server's shards."""
        request = server_pb2.CreateMatrixRequest(
            matrix=matrix,
            spec=spec_to_pb(spec),
            partitions=[partition_to_pb(p) for p in partitions],
            route_version=self.route_version,
            copies=copies,
            namespace=self.namespace,
        )
        self._call(address, "CreateMatrix", request, server_pb2.CreateMatrixReply)

    def update_rows(
        self,
        address: str,
        matrix: int,
        rows: int = 0,
        freed: Sequence[int] = (),
        reused: Sequence[int] = (),
        timeout_s: float = SERVER_TIMEOUT_S,
    ) -> None:
        """Grow a matrix to ``rows`` rows (0: keep), take rows out of use, or put rows in use again as zeros.

        A server ignores duplicates, and calls that arrive after a later call.
        """
        request = server_pb2.UpdateRowsRequest(
            matrix=matrix,
            rows=rows,
            freed=freed,
            reused=reused,
            route_version=self.route_version,
            number=next(self._row_changes),
            namespace=self.namespace,
        )
        self._call(address, "UpdateRows", request, server_pb2.UpdateRowsReply, timeout_s)

    def free_matrix(self, address: str, matrix: int, timeout_s: float = SERVER_TIMEOUT_S) -> None:
        request = server_pb2.FreeMatrixRequest(
            matrix=matrix, route_version=self.route_version, namespace=self.namespace
        )
        self._call(address, "FreeMatrix", request, server_pb2.FreeMatrixReply, timeout_s)

    def activate(self, address: str, activation: Activation) -> None:
        """Give a server its new state in the fleet, at ``self.route_version``."""
        request = server_pb2.ActivateRequest(
            route_version=self.route_version, namespace=self.namespace, **asdict(activation)
        )
        self._call(address, "Activate", request, server_pb2.ActivateReply)

    def end_stages(self, address: str, series: str, below: int, live: Sequence[int]) -> None:
        """Tell a server which stages are over: the stages of ``series`` below number ``below``, except ``live``."""
        request = server_pb2.EndStagesRequest(
            series=series, below=below, live=live, route_version=self.route_version, namespace=self.namespace
        )
        self._call(address, "EndStages", request, server_pb2.EndStagesReply, SIGN_OF_LIFE_TIMEOUT_S)

    def freeze(self, address: str, checkpoint: str, timeout_s: float) -> None:
        """Pause all shards of a server until ``copy`` has copied them, at most for ``timeout_s``."""
        request = server_pb2.FreezeRequest(
            checkpoint=checkpoint, timeout_s=timeout_s, route_version=self.route_version, namespace=self.namespace
        )
        self._call(address, "Freeze", request, server_pb2.FreezeReply)

    def copy(self, address: str, checkpoint: str, rows: Mapping[int, Sequence[int]], last: bool = False) -> CopyReport:
        """Copy the shards that ``freeze`` has paused into memory, and resume them.

        ``rows``: by matrix, the ids of the rows to copy, ascending. ``last``: refuse clients' requests after the copy,
        until ``discard``.
        """
        matrices = [server_pb2.RowsInUse(matrix=matrix, rows=row_ids) for matrix, row_ids in rows.items()]
        request = server_pb2.CopyRequest(checkpoint=checkpoint, matrices=matrices, last=last, namespace=self.namespace)
        reply = self._call(address, "Copy", request, server_pb2.CopyReply, LONG_TIMEOUT_S)
        return CopyReport(reply.pause_s, reply.bytes, reply.mutations)

    def write(self, address: str, checkpoint: str, url: str) -> list[SavedShard]:
        """Write the copies that ``copy`` made into a folder, and free their memory."""
        request = server_pb2.WriteRequest(checkpoint=checkpoint, url=url, namespace=self.namespace)
        reply = self._call(address, "Write", request, server_pb2.WriteReply, LONG_TIMEOUT_S)
        return [saved_shard_from_pb(shard) for shard in reply.shards]

    def discard(self, address: str, checkpoint: str) -> None:
        """Abort a checkpoint and resume paused shards. ``checkpoint`` "": any, also after ``copy(last=True)``."""
        request = server_pb2.DiscardRequest(checkpoint=checkpoint, namespace=self.namespace)
        self._call(address, "Discard", request, server_pb2.DiscardReply)

    def load(self, address: str, url: str, matrices: Sequence[LoadMatrix], ids: bool) -> int:
        """Let a server read shards from files; return their size in bytes. ``activate(loaded=True)`` makes them active.

        ``ids``: also read the ids of applied mutations.
        """
        request = server_pb2.LoadRequest(
            url=url,
            matrices=map(load_matrix_to_pb, matrices),
            ids=ids,
            route_version=self.route_version,
            namespace=self.namespace,
        )
        return self._call(address, "Load", request, server_pb2.LoadReply, LONG_TIMEOUT_S).bytes

    def save(self, address: str, order: SaveMatrix) -> list[SavedShard]:
        """Let a server write rows of its shards of a matrix into files."""
        request = server_pb2.SaveRequest(route_version=self.route_version, **asdict(order))
        reply = self._call(address, "Save", request, server_pb2.SaveReply, LONG_TIMEOUT_S)
        return [saved_shard_from_pb(shard) for shard in reply.shards]

    def fill(self, address: str, url: str, matrix: LoadMatrix, id: RequestId) -> None:
        """Let a server read its shards of a matrix that no client uses yet, as one mutation."""
        request = server_pb2.FillRequest(
            url=url, matrix=load_matrix_to_pb(matrix), id=id_to_pb(id), route_version=self.route_version
        )
        self._call(address, "Fill", request, server_pb2.FillReply, LONG_TIMEOUT_S)

    def send(self, address: str, to: str, shards: Sequence[tuple[int, int]], copies: bool) -> int:
        """Let a server send shards (matrix, partition) to server ``to``, which has allocated them; return the size."""
        request = server_pb2.SendRequest(
            to=to,
            shards=[server_pb2.ShardName(matrix=matrix, partition=partition) for matrix, partition in shards],
            copies=copies,
            route_version=self.route_version,
            namespace=self.namespace,
        )
        return self._call(address, "Send", request, server_pb2.SendReply, LONG_TIMEOUT_S).bytes

    def status(self, address: str) -> ServerStatus:
        request = server_pb2.StatusRequest(namespace=self.namespace)
        reply = self._call(address, "Status", request, server_pb2.StatusReply, SIGN_OF_LIFE_TIMEOUT_S)
        return status_from_pb(reply)

    def stop(self, address: str) -> None:
        """Tell a server to end after the requests in flight."""
        self._call(address, "Stop", server_pb2.StopRequest(), server_pb2.StopReply, SIGN_OF_LIFE_TIMEOUT_S)

    def _call(
        self, address: str, method: str, request: Message, reply: type[M], timeout_s: float = SERVER_TIMEOUT_S
    ) -> M:
        try:
            return self._transport.call(address, f"Server/{method}", request, reply, timeout_s)
        except (LimitError, BusyError) as error:
            raise type(error)(f"{address}: {error}") from None
