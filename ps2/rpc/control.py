"""The control plane as plain calls: what is asked of a server beside data requests."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from google.protobuf.message import Message

from ps2.errors import BusyError, LimitError
from ps2.matrix.partition import MatrixSpec, Partition
from ps2.protocol.messages import PROTOCOL_VERSION, RequestId
from ps2.protocol.pb import server_pb2
from ps2.rpc.convert import (
    id_to_pb,
    load_matrix_to_pb,
    partition_to_pb,
    saved_shard_from_pb,
    spec_to_pb,
)
from ps2.rpc.server_status import ServerStatus, status_from_pb
from ps2.rpc.transport import Transport
from ps2.storage.manifest import LoadMatrix, SavedShard, SaveMatrix

SERVER_TIMEOUT_S = 60.0
# A checkpoint of a large model.
LONG_TIMEOUT_S = 3600.0
# For calls that only show that somebody is there.
SIGN_OF_LIFE_TIMEOUT_S = 5.0

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Meeting:
    """What a server says when it is met.

    Attributes:
        route_version: of its last ``activate``; 0: none.
        coordinator: that sent it, and gave its last sign of life ``heard_s`` seconds ago.
        catalog: what that coordinator left for a later one.
        now_s: when it answered, by its own clock.
        leaving: whether it was told to end, and waits until it is released.
        operations: digests of those that users' modules have brought.
    """

    server_id: str
    route_version: int
    coordinator: str
    heard_s: float
    catalog: bytes
    now_s: float
    operations: Mapping[str, str]
    leaving: bool


@dataclass(frozen=True)
class Activation:
    """What a server is to know of its fleet from now on.

    Attributes:
        coordinator: whom it follows.
        lease_s: it takes no requests after so long without an answer to a heartbeat; 0: no such limit.
        loaded: it is to put what ``load`` has read in the place of all shards that it has.
        backup: address of the server that holds copies of its shards; "": there is none.
        seed: that server has nothing of them yet: send them, while requests go on.
        catalog: to keep for a later coordinator; empty: keep what there is.
        leave: it is to follow nobody any more.
        afresh: it is to forget its shards and whom it follows, as if it had just started.
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
class Copied:
    """What a checkpoint's copies in memory took; ``mutations`` is how many requests had changed something by then."""

    pause_s: float
    nbytes: int
    mutations: int


class ServerControl:
    """Control calls to servers, by address.

    Attributes:
        route_version: that the calls carry; the coordinator raises it.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.route_version = 0
        self._row_changes = itertools.count(1)

    def hello(
        self,
        address: str,
        coordinator: str = "",
        timeout_s: float = SIGN_OF_LIFE_TIMEOUT_S,
        answered_s: float = 0.0,
        released: bool = False,
    ) -> Meeting:
        """Meet a server; raises ProtocolError if it speaks another version.

        Args:
            coordinator: who asks, if it is one: a sign of life of it.
            answered_s: ``now_s`` of what it has answered to this coordinator before: its lease runs from there.
            released: nothing is lost if it ends now.
        """
        request = server_pb2.HelloRequest(
            protocol=PROTOCOL_VERSION, coordinator=coordinator, answered_s=answered_s, released=released
        )
        reply = self._call(address, "Hello", request, server_pb2.HelloReply, timeout_s)
        return Meeting(
            reply.server_id,
            reply.route_version,
            reply.coordinator,
            reply.heard_s,
            reply.catalog,
            reply.now_s,
            dict(reply.operations),
            reply.leaving,
        )

    def create_matrix(
        self, address: str, matrix: int, spec: MatrixSpec, partitions: Sequence[Partition], copies: bool = False
    ) -> None:
        """Allocate shards as zeros.

        Args:
            copies: they are to be copies of shards that another server holds.
        """
        request = server_pb2.CreateMatrixRequest(
            matrix=matrix,
            spec=spec_to_pb(spec),
            partitions=[partition_to_pb(p) for p in partitions],
            route_version=self.route_version,
            copies=copies,
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
        """Grow a matrix to ``rows`` rows (0: leave it), take rows out of use, put rows in use again as zeros.

        A server does this once, and not when it comes after a later call.
        """
        request = server_pb2.UpdateRowsRequest(
            matrix=matrix,
            rows=rows,
            freed=freed,
            reused=reused,
            route_version=self.route_version,
            number=next(self._row_changes),
        )
        self._call(address, "UpdateRows", request, server_pb2.UpdateRowsReply, timeout_s)

    def free_matrix(self, address: str, matrix: int, timeout_s: float = SERVER_TIMEOUT_S) -> None:
        request = server_pb2.FreeMatrixRequest(matrix=matrix, route_version=self.route_version)
        self._call(address, "FreeMatrix", request, server_pb2.FreeMatrixReply, timeout_s)

    def activate(self, address: str, order: Activation) -> None:
        """Let a server take part in the fleet as it is from now on, at ``self.route_version``."""
        request = server_pb2.ActivateRequest(route_version=self.route_version, **asdict(order))
        self._call(address, "Activate", request, server_pb2.ActivateReply)

    def end_stages(self, address: str, series: str, below: int, live: Sequence[int]) -> None:
        """Let a server forget the ids of stages below a number, save the live ones, and refuse what comes of them."""
        request = server_pb2.EndStagesRequest(series=series, below=below, live=live, route_version=self.route_version)
        self._call(address, "EndStages", request, server_pb2.EndStagesReply, SIGN_OF_LIFE_TIMEOUT_S)

    def freeze(self, address: str, checkpoint: str, timeout_s: float) -> None:
        """Hold all shards of a server, until ``copy`` has copied them, or for so long."""
        request = server_pb2.FreezeRequest(checkpoint=checkpoint, timeout_s=timeout_s, route_version=self.route_version)
        self._call(address, "Freeze", request, server_pb2.FreezeReply)

    def copy(self, address: str, checkpoint: str, rows: Mapping[int, Sequence[int]], last: bool = False) -> Copied:
        """Copy of what ``freeze`` holds the rows in use, ascending, of each matrix; and let it go.

        Args:
            last: clients' requests are refused from then on, until ``discard``.
        """
        matrices = [server_pb2.RowsInUse(matrix=matrix, rows=mine) for matrix, mine in rows.items()]
        request = server_pb2.CopyRequest(checkpoint=checkpoint, matrices=matrices, last=last)
        reply = self._call(address, "Copy", request, server_pb2.CopyReply, LONG_TIMEOUT_S)
        return Copied(reply.pause_s, reply.bytes, reply.mutations)

    def write(self, address: str, checkpoint: str, url: str) -> list[SavedShard]:
        """Write what ``copy`` has copied into a folder, and forget it."""
        request = server_pb2.WriteRequest(checkpoint=checkpoint, url=url)
        reply = self._call(address, "Write", request, server_pb2.WriteReply, LONG_TIMEOUT_S)
        return [saved_shard_from_pb(shard) for shard in reply.shards]

    def discard(self, address: str, checkpoint: str) -> None:
        """Forget a checkpoint that is under way; what is frozen goes on. "": whichever it is, be it the last one."""
        self._call(address, "Discard", server_pb2.DiscardRequest(checkpoint=checkpoint), server_pb2.DiscardReply)

    def load(self, address: str, url: str, matrices: Sequence[LoadMatrix], ids: bool) -> int:
        """Let a server read shards beside those that it has; return their bytes. ``activate(loaded=True)`` takes them.

        Args:
            ids: with the ids that had been applied.
        """
        request = server_pb2.LoadRequest(
            url=url, matrices=map(load_matrix_to_pb, matrices), ids=ids, route_version=self.route_version
        )
        return self._call(address, "Load", request, server_pb2.LoadReply, LONG_TIMEOUT_S).bytes

    def save(self, address: str, order: SaveMatrix) -> list[SavedShard]:
        """Let a server write rows of its shards of a matrix into files."""
        request = server_pb2.SaveRequest(route_version=self.route_version, **asdict(order))
        reply = self._call(address, "Save", request, server_pb2.SaveReply, LONG_TIMEOUT_S)
        return [saved_shard_from_pb(shard) for shard in reply.shards]

    def fill(self, address: str, url: str, matrix: LoadMatrix, id: RequestId) -> None:
        """Let a server read its shards of a matrix that nobody uses yet, as one mutation."""
        request = server_pb2.FillRequest(
            url=url, matrix=load_matrix_to_pb(matrix), id=id_to_pb(id), route_version=self.route_version
        )
        self._call(address, "Fill", request, server_pb2.FillReply, LONG_TIMEOUT_S)

    def send(self, address: str, to: str, shards: Sequence[tuple[int, int]], copies: bool) -> int:
        """Let a server send shards (matrix, partition) to another that has them allocated; return their bytes."""
        request = server_pb2.SendRequest(
            to=to,
            shards=[server_pb2.ShardName(matrix=matrix, partition=partition) for matrix, partition in shards],
            copies=copies,
            route_version=self.route_version,
        )
        return self._call(address, "Send", request, server_pb2.SendReply, LONG_TIMEOUT_S).bytes

    def status(self, address: str) -> ServerStatus:
        reply = self._call(
            address, "Status", server_pb2.StatusRequest(), server_pb2.StatusReply, SIGN_OF_LIFE_TIMEOUT_S
        )
        return status_from_pb(reply)

    def stop(self, address: str) -> None:
        """Tell the server to end after the requests under way."""
        self._call(address, "Stop", server_pb2.StopRequest(), server_pb2.StopReply, SIGN_OF_LIFE_TIMEOUT_S)

    def _call(
        self, address: str, method: str, request: Message, reply: type[M], timeout_s: float = SERVER_TIMEOUT_S
    ) -> M:
        try:
            return self._transport.call(address, f"Server/{method}", request, reply, timeout_s)
        except (LimitError, BusyError) as error:
            raise type(error)(f"{address}: {error}") from None
