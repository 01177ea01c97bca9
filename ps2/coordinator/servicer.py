"""The master's gRPC service. Each method decodes a request, calls one method of the master, and encodes the reply."""

from __future__ import annotations

from ps2.certificates import Tls
from ps2.config import WireConfig
from ps2.coordinator.catalog import Caller, Entry
from ps2.coordinator.master import Master
from ps2.errors import ProtocolError
from ps2.matrix.route import Route
from ps2.protocol.messages import PROTOCOL_VERSION, RequestId
from ps2.protocol.pb import master_pb2 as pb
from ps2.rpc.convert import id_from_pb, route_to_pb, spec_from_pb, spec_to_pb
from ps2.rpc.server_status import status_from_pb
from ps2.rpc.serving import RpcServer

# Threads that serve requests of all clients, and heartbeats.
THREADS = 16


class MasterServicer:
    """Implements ``service Master`` of ``proto/ps2/v1/master.proto``."""

    def __init__(self, master: Master) -> None:
        self._master = master

    def Register(self, request: pb.RegisterRequest) -> pb.RegisterReply:
        if request.protocol != PROTOCOL_VERSION:
            raise ProtocolError(f"this master speaks protocol {PROTOCOL_VERSION}, the server {request.protocol}")
        self._master.registry.register(request.index, request.server_id, request.address)
        return pb.RegisterReply(heartbeat_interval_s=self._master.config.heartbeat_s)

    def Heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:
        self._master.registry.heartbeat(request.index, request.server_id, request.mutations)
        if request.HasField("status"):
            self._master.reports.add(request.index, status_from_pb(request.status))
        return pb.HeartbeatReply(watched=self._master.reports.are_requested)

    def NewMatrix(self, request: pb.NewMatrixRequest) -> pb.Matrix:
        spec, name, caller = spec_from_pb(request.spec), request.name, _caller(request)
        if request.reuse:
            entry, row = self._master.find_or_create(spec, name, caller)
        else:
            entry, row = self._master.new_matrix(spec, name, caller), 0
        reply = _matrix_to_pb(entry, *self._master.route_and_epoch(entry))
        reply.row = row
        return reply

    def GetMatrix(self, request: pb.GetMatrixRequest) -> pb.Matrix:
        matrix = self._master.matrix(request.matrix)
        reply = _matrix_to_pb(matrix.entry, *self._master.route_and_epoch(matrix.entry))
        reply.lost.extend(matrix.lost)
        reply.recovering.extend(matrix.recovering)
        if matrix.step is not None:
            reply.step = matrix.step
        return reply

    def FindVector(self, request: pb.FindVectorRequest) -> pb.FindVectorReply:
        matrix, row = self._master.find(request.name)
        return pb.FindVectorReply(matrix=matrix, row=row)

    def TakeRows(self, request: pb.TakeRowsRequest) -> pb.TakeRowsReply:
        count = 0 if request.reserved else request.count
        if not request.reserved and not count:
            return pb.TakeRowsReply()
        return pb.TakeRowsReply(rows=self._master.take_rows(request.matrix, count, request.name, _caller(request)))

    def FreeRows(self, request: pb.FreeRowsRequest) -> pb.FreeRowsReply:
        if request.holder:
            self._master.drop_rows(request.matrix, request.rows, request.holder, _id(request))
        else:
            self._master.free_rows(request.matrix, request.rows, _id(request))
        return pb.FreeRowsReply()


def listen(master: Master, bind: str, token: str | None, tls: Tls | None = None) -> RpcServer:
    """Start the master's gRPC server."""
    service = pb.DESCRIPTOR.services_by_name["Master"]
    return RpcServer(service, MasterServicer(master), bind, token, THREADS, WireConfig(tls=tls))


def _id(request: pb.NewMatrixRequest | pb.TakeRowsRequest | pb.FreeRowsRequest) -> RequestId | None:
    return id_from_pb(request.id) if request.HasField("id") else None


def _caller(request: pb.NewMatrixRequest | pb.TakeRowsRequest) -> Caller | None:
    id = _id(request)
    return None if id is None else Caller(id, request.holder or id.scope)


def _matrix_to_pb(entry: Entry, route: Route, epoch: int) -> pb.Matrix:
    return pb.Matrix(id=entry.id, spec=spec_to_pb(entry.spec), route=route_to_pb(route), epoch=epoch)
