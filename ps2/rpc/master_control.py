"""What servers and clients ask of the master, as plain calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message

from ps2.matrix.partition import MatrixSpec
from ps2.matrix.route import Route
from ps2.protocol.messages import PROTOCOL_VERSION, RequestId
from ps2.protocol.pb import master_pb2
from ps2.rpc.control import SIGN_OF_LIFE_TIMEOUT_S
from ps2.rpc.convert import id_to_pb, route_from_pb, spec_from_pb, spec_to_pb
from ps2.rpc.transport import Transport

# The master in turn asks every server.
MASTER_TIMEOUT_S = 120.0

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class MatrixInfo:
    """What the master tells of a matrix.

    Attributes:
        lost: why servers of it are gone for good.
        recovering: why servers of it are being replaced.
        epoch: grows when the whole fleet goes back to a checkpoint; ``step`` is that checkpoint's, if it had one.
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

    def __init__(self, transport: Transport, address: str) -> None:
        self._transport = transport
        self._address = address

    def register(self, index: int, server_id: str, address: str) -> float:
        """Tell where a server listens; return the pause between its heartbeats, in seconds."""
        request = master_pb2.RegisterRequest(
            index=index, server_id=server_id, address=address, protocol=PROTOCOL_VERSION
        )
        return self._call("Register", request, master_pb2.RegisterReply, SIGN_OF_LIFE_TIMEOUT_S).heartbeat_interval_s

    def heartbeat(self, index: int, server_id: str, mutations: int) -> None:
        """Give a sign of life; raises NotFoundError if the master does not know this process.

        Args:
            mutations: how many requests have changed something on this server.
        """
        request = master_pb2.HeartbeatRequest(index=index, server_id=server_id, mutations=mutations)
        self._call("Heartbeat", request, master_pb2.HeartbeatReply, SIGN_OF_LIFE_TIMEOUT_S)

    def new_matrix(self, spec: MatrixSpec, id: RequestId, holder: str, name: str = "") -> MatrixInfo:
        """Make a matrix; its row 0 is handed out to a holder, under a name if one is given."""
        request = master_pb2.NewMatrixRequest(spec=spec_to_pb(spec), id=id_to_pb(id), holder=holder, name=name)
        return _info(self._call("NewMatrix", request, master_pb2.Matrix))

    def matrix(self, matrix: int) -> MatrixInfo:
        return _info(self._call("GetMatrix", master_pb2.GetMatrixRequest(matrix=matrix), master_pb2.Matrix))

    def take_rows(self, matrix: int, id: RequestId, holder: str, count: int = 0, name: str = "") -> list[int]:
        """Get rows as zeros, for a holder: ``count`` of them, or for 0 all that are reserved and not in use."""
        request = master_pb2.TakeRowsRequest(
            matrix=matrix, count=count, reserved=not count, id=id_to_pb(id), holder=holder, name=name
        )
        return list(self._call("TakeRows", request, master_pb2.TakeRowsReply).rows)

    def free_rows(self, matrix: int, rows: Sequence[int], id: RequestId) -> None:
        """Give rows back; with the id of a task, when its stage is over."""
        request = master_pb2.FreeRowsRequest(matrix=matrix, rows=rows, id=id_to_pb(id))
        self._call("FreeRows", request, master_pb2.FreeRowsReply)

    def drop_rows(self, matrix: int, rows: Sequence[int], holder: str, id: RequestId | None) -> None:
        """Tell that a holder's handles to rows are gone; they are given back if nobody else holds any.

        Args:
            id: None if the holder is never handed the same rows again: an attempt of a task.
        """
        named = None if id is None else id_to_pb(id)
        request = master_pb2.FreeRowsRequest(matrix=matrix, rows=rows, id=named, holder=holder)
        self._call("FreeRows", request, master_pb2.FreeRowsReply)

    def _call(self, method: str, request: Message, reply: type[M], timeout_s: float = MASTER_TIMEOUT_S) -> M:
        return self._transport.call(self._address, f"Master/{method}", request, reply, timeout_s)


def _info(message: master_pb2.Matrix) -> MatrixInfo:
    return MatrixInfo(
        message.id,
        spec_from_pb(message.spec),
        route_from_pb(message.route),
        tuple(message.lost),
        tuple(message.recovering),
        message.epoch,
        message.step if message.HasField("step") else None,
    )
