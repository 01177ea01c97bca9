"""The gRPC service of a server: each method decodes a request, calls one plain method, and encodes the reply."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from heapq import nlargest

import psutil

from ps2.config import CONTAINER_VARIABLE, NODE_VARIABLE, WireConfig
from ps2.errors import ProtocolError
from ps2.ops.modules import digests
from ps2.protocol.drafts import RequestDraft
from ps2.protocol.messages import PROTOCOL_VERSION
from ps2.protocol.pb import server_pb2 as pb
from ps2.rpc.convert import (
    id_from_pb,
    load_matrix_from_pb,
    partition_from_pb,
    saved_shard_to_pb,
    spec_from_pb,
)
from ps2.rpc.execute import reply_to, request_from
from ps2.rpc.server_status import Counts, ServerStatus, status_to_pb
from ps2.server.engine import Engine, SharedParts
from ps2.server.fence import Fence, now_s
from ps2.server.namespaces import Namespaces
from ps2.server.snapshots import save
from ps2.storage.manifest import SaveMatrix
from ps2.transport.data_server import DataServer
from ps2.version import __version__

log = logging.getLogger(__name__)


class ServerServicer:
    """Implements ``service Server`` of ``proto/ps2/v1/server.proto``."""

    def __init__(
        self,
        namespaces: Namespaces,
        server_id: str,
        wire: WireConfig,
        stop: Callable[[], None],
        data: DataServer | None = None,
    ) -> None:
        """Serve ``namespaces``; ``stop`` ends the process."""
        self._namespaces = namespaces
        self._server_id = server_id
        self._wire = wire
        self._stop = stop
        self._started_s = time.monotonic()
        self._data = data
        self._operations = digests()

    def close(self) -> None:
        """Abort checkpoints in progress, and stop replication."""
        self._namespaces.close()

    def Hello(self, request: pb.HelloRequest) -> pb.HelloReply:
        if request.protocol != PROTOCOL_VERSION:
            raise ProtocolError(
                f"this server speaks protocol {PROTOCOL_VERSION} (ps2 {__version__}), the peer {request.protocol}"
            )
        namespace = self._namespaces.find(request.namespace)
        # A namespace that this server does not have looks like one without a coordinator.
        fence = Fence() if namespace is None else namespace.engine.fence
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
            catalog=b"" if namespace is None else namespace.engine.catalog,
            server_id=self._server_id,
            version=__version__,
            data_port=self._data.port if self._data is not None else 0,
            data_socket=self._data.unix_name if self._data is not None else "",
            now_s=now_s(),
            operations=self._operations,
            leaving=self._namespaces.leaving,
        )

    def Execute(self, frame: bytes) -> bytes:
        reserved = 0

        def reserve(draft: RequestDraft) -> None:
            nonlocal reserved
            # A copy: gRPC keeps the request's message until the call ends, and the reply is copied into a message.
            reserved = self._namespaces.reserve(draft, copies=1)

        try:
            request = request_from(frame, self._wire.request_limit_bytes, reserve)
            return reply_to(self._namespaces.execute(request), request)
        finally:
            self._namespaces.release(reserved)

    def CreateMatrix(self, request: pb.CreateMatrixRequest) -> pb.CreateMatrixReply:
        namespace = self._namespaces.open(request.namespace)
        namespace.engine.fence.check(request.route_version)
        self._namespaces.check_ids(namespace, [request.matrix])
        partitions = [partition_from_pb(p) for p in request.partitions]
        namespace.engine.create_matrix(request.matrix, spec_from_pb(request.spec), partitions, request.copies)
        self._namespaces.update_prefixes(namespace)
        return pb.CreateMatrixReply()

    def UpdateRows(self, request: pb.UpdateRowsRequest) -> pb.UpdateRowsReply:
        engine = self._namespaces.get(request.namespace).engine
        engine.fence.check(request.route_version)
        order = (request.route_version, request.number) if request.number else None
        engine.update_rows(request.matrix, request.rows, request.freed, request.reused, order)
        return pb.UpdateRowsReply()

    def FreeMatrix(self, request: pb.FreeMatrixRequest) -> pb.FreeMatrixReply:
        engine = self._namespaces.get(request.namespace).engine
        engine.fence.check(request.route_version)
        engine.free_matrix(request.matrix)
        return pb.FreeMatrixReply()

    def Activate(self, request: pb.ActivateRequest) -> pb.ActivateReply:
        self._namespaces.remove_abandoned()
        namespace = self._namespaces.open(request.namespace)
        engine, replication = namespace.engine, namespace.replication
        engine.fence.activate(request.route_version, request.coordinator, request.lease_s)
        if request.afresh:
            replication.follow("", seed=False)
            engine.replace_shards({})
            engine.fence.reset()
            return pb.ActivateReply()
        if request.loaded:
            namespace.loader.activate()
            self._namespaces.update_prefixes(namespace)
        replication.follow(request.backup, request.seed)
        engine.catalog = request.catalog or engine.catalog
        if request.leave:
            engine.catalog = b""
            engine.fence.leave()
        return pb.ActivateReply()

    def EndStages(self, request: pb.EndStagesRequest) -> pb.EndStagesReply:
        engine = self._namespaces.open(request.namespace).engine
        engine.fence.check(request.route_version)
        engine.end_stages(request.series, request.below, request.live)
        return pb.EndStagesReply()

    def Freeze(self, request: pb.FreezeRequest) -> pb.FreezeReply:
        namespace = self._namespaces.get(request.namespace)
        namespace.engine.fence.check(request.route_version)
        namespace.snapshots.freeze(request.checkpoint, request.timeout_s)
        return pb.FreezeReply()

    def Copy(self, request: pb.CopyRequest) -> pb.CopyReply:
        rows = {matrix.matrix: tuple(matrix.rows) for matrix in request.matrices}
        report = self._namespaces.get(request.namespace).snapshots.copy(request.checkpoint, rows, request.last)
        return pb.CopyReply(pause_s=report.pause_s, bytes=report.nbytes, mutations=report.mutations)

    def Write(self, request: pb.WriteRequest) -> pb.WriteReply:
        shards = self._namespaces.get(request.namespace).snapshots.write(request.checkpoint, request.url)
        return pb.WriteReply(shards=map(saved_shard_to_pb, shards))

    def Discard(self, request: pb.DiscardRequest) -> pb.DiscardReply:
        namespace = self._namespaces.get(request.namespace)
        namespace.snapshots.discard(request.checkpoint)
        if not request.checkpoint:
            namespace.engine.fence.handed_over = False
        return pb.DiscardReply()

    def Load(self, request: pb.LoadRequest) -> pb.LoadReply:
        namespace = self._namespaces.open(request.namespace)
        namespace.engine.fence.check(request.route_version)
        matrices = [load_matrix_from_pb(matrix) for matrix in request.matrices]
        self._namespaces.check_ids(namespace, [matrix.matrix for matrix in matrices])
        return pb.LoadReply(bytes=namespace.loader.load(request.url, matrices, request.ids))

    def Save(self, request: pb.SaveRequest) -> pb.SaveReply:
        order = SaveMatrix(request.matrix, tuple(request.rows), tuple(request.partitions), request.url, request.stem)
        shards = save(self._namespaces.with_matrix(order.matrix).engine, order, request.route_version)
        return pb.SaveReply(shards=map(saved_shard_to_pb, shards))

    def Fill(self, request: pb.FillRequest) -> pb.FillReply:
        matrix = load_matrix_from_pb(request.matrix)
        loader = self._namespaces.with_matrix(matrix.matrix).loader
        loader.fill(request.url, matrix, id_from_pb(request.id), request.route_version)
        return pb.FillReply()

    def Send(self, request: pb.SendRequest) -> pb.SendReply:
        namespace = self._namespaces.get(request.namespace)
        namespace.engine.fence.check(request.route_version)
        shard_ids = [(shard.matrix, shard.partition) for shard in request.shards]
        return pb.SendReply(bytes=namespace.replication.send(request.to, shard_ids, request.copies))

    def Status(self, request: pb.StatusRequest) -> pb.StatusReply:
        return status_to_pb(self.status(namespace=request.namespace))

    def status(self, max_matrices: int | None = None, namespace: str = "") -> ServerStatus:
        """Return the status of this server, with the matrices and copies of one namespace ("": of all).

        ``max_matrices``: maximum number of matrices, by size; None: all.
        """
        data = self._data
        shown = [part for part in self._namespaces.all() if namespace in ("", part.name)]
        return server_status(
            self._namespaces.default.engine.shared,
            [part.engine for part in shown],
            server_id=self._server_id,
            uptime_s=time.monotonic() - self._started_s,
            connections=data.connections if data is not None else 0,
            backup=", ".join(sorted({part.replication.backup for part in shown} - {""})),
            num_out_of_sync=sum(part.replication.out_of_sync for part in shown),
            max_matrices=max_matrices,
        )

    def Stop(self, request: pb.StopRequest) -> pb.StopReply:
        self._stop()
        return pb.StopReply()


def server_status(  # noqa: PLR0913 - parts of one server
    shared: SharedParts,
    engines: Sequence[Engine],
    *,
    server_id: str,
    uptime_s: float,
    connections: int,
    backup: str,
    num_out_of_sync: int,
    max_matrices: int | None = None,
) -> ServerStatus:
    """Return the status of a server with the shards of ``engines``, at most ``max_matrices`` of them, by size."""
    counts = shared.meter.read()
    shards = [shard for engine in engines for shard in engine.shards().values()]
    matrices = [matrix for engine in engines for matrix in engine.matrices(max_matrices)]
    if max_matrices is not None and len(matrices) > max_matrices:
        matrices = nlargest(max_matrices, matrices, key=lambda matrix: matrix.bytes)
    return ServerStatus(
        **{f.name: getattr(counts, f.name) for f in fields(Counts)},
        server_id=server_id,
        version=__version__,
        pid=os.getpid(),
        uptime_s=uptime_s,
        matrices=tuple(sorted(matrices, key=lambda matrix: matrix.matrix)),
        # Without the fast paths' buffers, whose size depends on the connections, not on the model.
        memory_bytes=shared.memory.used_bytes - shared.fast_paths.nbytes,
        memory_limit_bytes=shared.memory.limit_bytes,
        rss_bytes=psutil.Process().memory_info().rss,
        key_cache_hits=shared.keys.hits,
        key_cache_misses=shared.keys.misses,
        key_cache_bytes=shared.keys.nbytes,
        connections=connections,
        route_version=max((engine.fence.route_version for engine in engines), default=0),
        backup=backup,
        copies_bytes=sum(shard.nbytes for shard in shards if shard.copy),
        behind=num_out_of_sync,
        applied_scopes=sum(len(shard.applied) for shard in shards),
        container=os.environ.get(CONTAINER_VARIABLE, ""),
        node=os.environ.get(NODE_VARIABLE, ""),
    )
