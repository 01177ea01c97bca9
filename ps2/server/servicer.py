"""The gRPC service of a server: each method decodes a request, calls one plain method, and encodes the reply."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, fields

import psutil

from ps2.config import CONTAINER_VARIABLE, NODE_VARIABLE, WireConfig
from ps2.errors import ProtocolError, UsageError
from ps2.ops.modules import digests
from ps2.protocol.drafts import RequestDraft
from ps2.protocol.messages import PROTOCOL_VERSION
from ps2.protocol.pb import server_pb2 as pb
from ps2.rpc.control import Network
from ps2.rpc.convert import (
    id_from_pb,
    load_matrix_from_pb,
    partition_from_pb,
    saved_shard_to_pb,
    spec_from_pb,
)
from ps2.rpc.execute import reply_to, request_from
from ps2.rpc.server_status import Counts, ServerStatus, status_to_pb
from ps2.server.engine import Engine
from ps2.server.fence import now_s
from ps2.server.loading import CheckpointLoader
from ps2.server.replication import Replication
from ps2.server.snapshots import Snapshots, save
from ps2.storage.manifest import SaveMatrix
from ps2.transport.data_server import DataServer
from ps2.version import __version__

log = logging.getLogger(__name__)


def _no_network() -> Network:
    raise UsageError("this server cannot connect to other servers")


class ServerServicer:
    """Implements ``service Server`` of ``proto/ps2/v1/server.proto``."""

    def __init__(
        self,
        engine: Engine,
        server_id: str,
        wire: WireConfig,
        stop: Callable[[], None],
        data: DataServer | None = None,
        connect: Callable[[], Network] = _no_network,
    ) -> None:
        """Serve ``engine``; ``stop`` ends the process; ``connect`` returns a network for calls to other servers."""
        self._engine = engine
        self._server_id = server_id
        self._wire = wire
        self._stop = stop
        self._started_s = time.monotonic()
        self._data = data
        self._catalog = b""
        self._operations = digests()
        self._snapshots = Snapshots(engine)
        self._loader = CheckpointLoader(engine)
        self._replication = Replication(engine, connect, wire.request_limit_bytes)

    def close(self) -> None:
        """Abort a checkpoint in progress, and stop replication."""
        self._snapshots.close()
        self._replication.close()

    def Hello(self, request: pb.HelloRequest) -> pb.HelloReply:
        if request.protocol != PROTOCOL_VERSION:
            raise ProtocolError(
                f"this server speaks protocol {PROTOCOL_VERSION} (ps2 {__version__}), the peer {request.protocol}"
            )
        fence = self._engine.fence
        if request.coordinator and request.coordinator == fence.coordinator:
            fence.record_call()
            fence.renew_lease(request.answered_s)
            if request.released:
                fence.released.set()
        counts = self._data.byte_counts(request.connection) if self._data is not None and request.connection else None
        return pb.HelloReply(
            carried=None if counts is None else pb.Carried(**asdict(counts)),
            protocol=PROTOCOL_VERSION,
            route_version=fence.route_version,
            coordinator=fence.coordinator,
            heard_s=fence.silent_s,
            catalog=self._catalog,
            server_id=self._server_id,
            version=__version__,
            data_port=self._data.port if self._data is not None else 0,
            data_socket=self._data.unix_name if self._data is not None else "",
            now_s=now_s(),
            operations=self._operations,
            leaving=fence.leaving,
        )

    def Execute(self, frame: bytes) -> bytes:
        reserved = 0

        def reserve(draft: RequestDraft) -> None:
            nonlocal reserved
            # A copy: gRPC keeps the request's message until the call ends, and the reply is copied into a message.
            reserved = self._engine.reserve(draft, copies=1)

        try:
            request = request_from(frame, self._wire.request_limit_bytes, reserve)
            return reply_to(self._engine.execute(request), request)
        finally:
            self._engine.release(reserved)

    def CreateMatrix(self, request: pb.CreateMatrixRequest) -> pb.CreateMatrixReply:
        self._engine.fence.check(request.route_version)
        partitions = [partition_from_pb(p) for p in request.partitions]
        self._engine.create_matrix(request.matrix, spec_from_pb(request.spec), partitions, request.copies)
        return pb.CreateMatrixReply()

    def UpdateRows(self, request: pb.UpdateRowsRequest) -> pb.UpdateRowsReply:
        self._engine.fence.check(request.route_version)
        order = (request.route_version, request.number) if request.number else None
        self._engine.update_rows(request.matrix, request.rows, request.freed, request.reused, order)
        return pb.UpdateRowsReply()

    def FreeMatrix(self, request: pb.FreeMatrixRequest) -> pb.FreeMatrixReply:
        self._engine.fence.check(request.route_version)
        self._engine.free_matrix(request.matrix)
        return pb.FreeMatrixReply()

    def Activate(self, request: pb.ActivateRequest) -> pb.ActivateReply:
        self._engine.fence.activate(request.route_version, request.coordinator, request.lease_s)
        if request.afresh:
            self._replication.follow("", seed=False)
            self._engine.replace_shards({})
            self._engine.fence.reset()
            return pb.ActivateReply()
        if request.loaded:
            self._loader.activate()
        self._replication.follow(request.backup, request.seed)
        self._catalog = request.catalog or self._catalog
        if request.leave:
            self._catalog = b""
            self._engine.fence.leave()
        return pb.ActivateReply()

    def EndStages(self, request: pb.EndStagesRequest) -> pb.EndStagesReply:
        self._engine.fence.check(request.route_version)
        self._engine.end_stages(request.series, request.below, request.live)
        return pb.EndStagesReply()

    def Freeze(self, request: pb.FreezeRequest) -> pb.FreezeReply:
        self._engine.fence.check(request.route_version)
        self._snapshots.freeze(request.checkpoint, request.timeout_s)
        return pb.FreezeReply()

    def Copy(self, request: pb.CopyRequest) -> pb.CopyReply:
        rows = {matrix.matrix: tuple(matrix.rows) for matrix in request.matrices}
        report = self._snapshots.copy(request.checkpoint, rows, request.last)
        return pb.CopyReply(pause_s=report.pause_s, bytes=report.nbytes, mutations=report.mutations)

    def Write(self, request: pb.WriteRequest) -> pb.WriteReply:
        shards = self._snapshots.write(request.checkpoint, request.url)
        return pb.WriteReply(shards=map(saved_shard_to_pb, shards))

    def Discard(self, request: pb.DiscardRequest) -> pb.DiscardReply:
        self._snapshots.discard(request.checkpoint)
        if not request.checkpoint:
            self._engine.fence.handed_over = False
        return pb.DiscardReply()

    def Load(self, request: pb.LoadRequest) -> pb.LoadReply:
        self._engine.fence.check(request.route_version)
        matrices = [load_matrix_from_pb(matrix) for matrix in request.matrices]
        return pb.LoadReply(bytes=self._loader.load(request.url, matrices, request.ids))

    def Save(self, request: pb.SaveRequest) -> pb.SaveReply:
        order = SaveMatrix(request.matrix, tuple(request.rows), tuple(request.partitions), request.url, request.stem)
        shards = save(self._engine, order, request.route_version)
        return pb.SaveReply(shards=map(saved_shard_to_pb, shards))

    def Fill(self, request: pb.FillRequest) -> pb.FillReply:
        matrix = load_matrix_from_pb(request.matrix)
        self._loader.fill(request.url, matrix, id_from_pb(request.id), request.route_version)
        return pb.FillReply()

    def Send(self, request: pb.SendRequest) -> pb.SendReply:
        self._engine.fence.check(request.route_version)
        shard_ids = [(shard.matrix, shard.partition) for shard in request.shards]
        return pb.SendReply(bytes=self._replication.send(request.to, shard_ids, request.copies))

    def Status(self, request: pb.StatusRequest) -> pb.StatusReply:
        return status_to_pb(self.status())

    def status(self, max_matrices: int | None = None) -> ServerStatus:
        """Return the status of this server with at most ``max_matrices`` matrices, by size; None: with all."""
        data, replication = self._data, self._replication
        return server_status(
            self._engine,
            server_id=self._server_id,
            uptime_s=time.monotonic() - self._started_s,
            connections=data.connections if data is not None else 0,
            backup=replication.backup,
            num_out_of_sync=replication.out_of_sync,
            max_matrices=max_matrices,
        )

    def Stop(self, request: pb.StopRequest) -> pb.StopReply:
        self._stop()
        return pb.StopReply()


def server_status(  # noqa: PLR0913 - parts of one server
    engine: Engine,
    *,
    server_id: str,
    uptime_s: float,
    connections: int,
    backup: str,
    num_out_of_sync: int,
    max_matrices: int | None = None,
) -> ServerStatus:
    """Return the status of a server with at most ``max_matrices`` matrices, by size; None: with all."""
    counts, shards = engine.meter.read(), list(engine.shards().values())
    return ServerStatus(
        **{f.name: getattr(counts, f.name) for f in fields(Counts)},
        server_id=server_id,
        version=__version__,
        pid=os.getpid(),
        uptime_s=uptime_s,
        matrices=tuple(engine.matrices(max_matrices)),
        # Without the fast paths' buffers, whose size depends on the connections, not on the model.
        memory_bytes=engine.memory.used_bytes - engine.fast_paths.nbytes,
        memory_limit_bytes=engine.memory.limit_bytes,
        rss_bytes=psutil.Process().memory_info().rss,
        key_cache_hits=engine.keys.hits,
        key_cache_misses=engine.keys.misses,
        key_cache_bytes=engine.keys.nbytes,
        connections=connections,
        route_version=engine.fence.route_version,
        backup=backup,
        copies_bytes=sum(shard.nbytes for shard in shards if shard.copy),
        behind=num_out_of_sync,
        applied_scopes=sum(len(shard.applied) for shard in shards),
        container=os.environ.get(CONTAINER_VARIABLE, ""),
        node=os.environ.get(NODE_VARIABLE, ""),
    )
