"""Conversion between PS2's errors and gRPC statuses."""

from __future__ import annotations

from typing import Any, Protocol

import grpc

from ps2 import errors
from ps2.errors import AuthError, DeadlineError, ProtocolError, PS2Error, UnavailableError
from ps2.protocol.error_details import from_detail, known_class, to_detail
from ps2.protocol.pb import server_pb2 as pb

DETAIL_KEY = "ps2-error-bin"
# Trailing metadata are sent in one HTTP/2 header block.
MAX_METADATA_BYTES = 64 * 1024

CODE_BY_ERROR: dict[type[PS2Error], grpc.StatusCode] = {
    errors.PS2Error: grpc.StatusCode.INTERNAL,
    errors.UsageError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ShapeError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.DTypeError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.OutOfRangeError: grpc.StatusCode.OUT_OF_RANGE,
    errors.NotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.NotColocatedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.StaleMarkError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.StoppedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.RunEndedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.LimitError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.AuthError: grpc.StatusCode.UNAUTHENTICATED,
    errors.ProtocolError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InputError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.DivergedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.SlotsError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.LaunchError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.TransientError: grpc.StatusCode.UNAVAILABLE,
    errors.UnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.UnreachableError: grpc.StatusCode.UNAVAILABLE,
    errors.LostError: grpc.StatusCode.UNAVAILABLE,
    errors.RecoveringError: grpc.StatusCode.UNAVAILABLE,
    errors.StaleRouteError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.KeyMissError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.BusyError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DeadlineError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.SpillError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.RecoveryError: grpc.StatusCode.DATA_LOSS,
    errors.CheckpointMissingError: grpc.StatusCode.NOT_FOUND,
    errors.CheckpointCorruptError: grpc.StatusCode.DATA_LOSS,
    errors.RolledBack: grpc.StatusCode.ABORTED,
    errors.OpError: grpc.StatusCode.ABORTED,
    errors.WorkerError: grpc.StatusCode.ABORTED,
}

# The errors for statuses that gRPC itself raises, without an answer of a PS2 server.
ERROR_BY_CODE: dict[grpc.StatusCode, type[PS2Error]] = {
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.CANCELLED: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
    grpc.StatusCode.UNAUTHENTICATED: AuthError,
    grpc.StatusCode.UNIMPLEMENTED: ProtocolError,
}


class RpcFailure(Protocol):
    """The methods of a failed ``grpc.Call`` that this module uses."""

    def code(self) -> grpc.StatusCode: ...
    def details(self) -> str | None: ...
    def trailing_metadata(self) -> Any: ...


def to_status(error: PS2Error) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Return the status code, the text and the trailing metadata of an error."""
    detail = to_detail(error)
    summary = detail.message.splitlines()[-1][:500] if detail.message else detail.type
    return CODE_BY_ERROR[known_class(error)], summary, ((DETAIL_KEY, detail.SerializeToString()),)


def from_rpc(failure: RpcFailure, address: str) -> PS2Error:
    """Return the error of a failed call to ``address``."""
    detail = error_detail(failure)
    return from_code(failure, address) if detail is None else from_detail(pb.ErrorDetail.FromString(detail))


def error_detail(failure: RpcFailure) -> bytes | None:
    """Return the encoded ErrorDetail of a failed call; None if it has none."""
    return dict(failure.trailing_metadata() or ()).get(DETAIL_KEY)


def from_code(failure: RpcFailure, address: str) -> PS2Error:
    """Return the error for the status code of a failed call; ignore the answer's error detail, which has no proof."""
    code = failure.code()
    return ERROR_BY_CODE.get(code, PS2Error)(f"{address}: {code.name.lower()}: {failure.details()}")
