"""Calls of servers and clients to the master, as plain functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message

from ps2.matrix.partition import MatrixSpec
from ps2.matrix.route import Route
from ps2.protocol.messages import PROTOCOL_VERSION, RequestId
from ps2.protocol.pb import master_pb2
from ps2.rpc.control import SIGN_OF_LIFE_TIMEOUT_S, Network
from ps2.rpc.convert import id_to_pb, route_from_pb, spec_from_pb, spec_to_pb
from ps2.rpc.server_status import ServerStatus, status_to_pb

# Longer than a server's timeout, because the master may call all servers one after another.
MASTER_TIMEOUT_S = 120.0

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class MatrixInfo:
    """The master's description of a matrix.

    Attributes:
        lost: a reason for each server of the matrix that is permanently lost.
        recovering: a reason for each server of the matrix that is being replaced.
        epoch: the number of the fleet's rollbacks to a checkpoint.
        step: the training step in the checkpoint of the last rollback; None if that checkpoint names no step.
    """

    id: int
    spec: MatrixSpec
    route: Route
    lost: tuple[str, ...] = ()
    recovering: tuple[str, ...] = ()
    epoch: int = 0
    step: int | None = None


class MasterControl:
    """Control calls to one master."""

    def __init__(self, transport: Network, address: str) -> None:
        self._transport = transport
        self._address = address

    def register(self, index: int, server_id: str, address: str) -> float:
        """Report a server's address; return the interval of its heartbeats in seconds."""
        request = master_pb2.RegisterRequest(
            index=index, server_id=server_id, address=address, protocol=PROTOCOL_VERSION
        )
        return self._call("Register", request, master_pb2.RegisterReply, SIGN_OF_LIFE_TIMEOUT_S).heartbeat_interval_s

    def heartbeat(self, index: int, server_id: str, mutations: int, status: ServerStatus | None = None) -> bool:
        """Send a heartbeat; raises NotFoundError if the master does not know this process.

        Returns True if somebody watches the fleet: then the next heartbeats must contain the server's ``status``.
        """
        message = None if status is None else status_to_pb(status)
        request = master_pb2.HeartbeatRequest(index=index, server_id=server_id, mutations=mutations, status=message)
        return self._call("Heartbeat", request, master_pb2.HeartbeatReply, SIGN_OF_LIFE_TIMEOUT_S).watched

    def new_matrix(self, spec: MatrixSpec, id: RequestId, holder: str, name: str = "") -> MatrixInfo:
        """Create a matrix and allocate its row 0 for a holder, optionally under a name."""
        request = master_pb2.NewMatrixRequest(spec=spec_to_pb(spec), id=id_to_pb(id), holder=holder, name=name)
        return _matrix_info(self._call("NewMatrix", request, master_pb2.Matrix))

    def find_or_create(self, spec: MatrixSpec, id: RequestId, holder: str, name: str) -> tuple[int, MatrixInfo]:
        """Return row and matrix of a named vector; if there is none, create a matrix and give its row 0 the name."""
        request = master_pb2.NewMatrixRequest(
            spec=spec_to_pb(spec), id=id_to_pb(id), holder=holder, name=name, reuse=True
        )
        reply = self._call("NewMatrix", request, master_pb2.Matrix)
        return reply.row, _matrix_info(reply)

    def matrix(self, matrix: int) -> MatrixInfo:
        return _matrix_info(self._call("GetMatrix", master_pb2.GetMatrixRequest(matrix=matrix), master_pb2.Matrix))

    def find_vector(self, name: str) -> tuple[int, int]:
        """Return matrix and row of a named vector."""
        reply = self._call("FindVector", master_pb2.FindVectorRequest(name=name), master_pb2.FindVectorReply)
        return reply.matrix, reply.row

    def take_rows(self, matrix: int, id: RequestId, holder: str, count: int = 0, name: str = "") -> list[int]:
        """Get rows of zeros for a holder: ``count`` rows; 0: all reserved rows that are not in use."""
        request = master_pb2.TakeRowsRequest(
            matrix=matrix, count=count, reserved=not count, id=id_to_pb(id), holder=holder, name=name
        )
        return list(self._call("TakeRows", request, master_pb2.TakeRowsReply).rows)

    def free_rows(self, matrix: int, rows: Sequence[int], id: RequestId) -> None:
        """Free rows. With a task's id, the master frees the rows when the task's stage is over."""
        request = master_pb2.FreeRowsRequest(matrix=matrix, rows=rows, id=id_to_pb(id))
        self._call("FreeRows", request, master_pb2.FreeRowsReply)

    def drop_rows(self, matrix: int, rows: Sequence[int], holder: str, id: RequestId | None) -> None:
        """Report that a holder's handles to rows are gone. The master frees the rows if there is no other holder.

        ``id`` None: the holder, for example a task's attempt, will never get the same rows again.
        """
        id_message = None if id is None else id_to_pb(id)
        request = master_pb2.FreeRowsRequest(matrix=matrix, rows=rows, id=id_message, holder=holder)
        self._call("FreeRows", request, master_pb2.FreeRowsReply)

    def _call(self, method: str, request: Message, reply: type[M], timeout_s: float = MASTER_TIMEOUT_S) -> M:
        return self._transport.call(self._address, f"Master/{method}", request, reply, timeout_s)


def _matrix_info(message: master_pb2.Matrix) -> MatrixInfo:
    return MatrixInfo(
        message.id,
        spec_from_pb(message.spec),
        route_from_pb(message.route),
        tuple(message.lost),
        tuple(message.recovering),
        message.epoch,
        message.step if message.HasField("step") else None,
    )
