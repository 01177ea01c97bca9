"""Errors to gRPC statuses and back: one table, read in both directions."""

from __future__ import annotations

import traceback
from typing import Any, Protocol

import grpc

from ps2 import errors
from ps2.errors import AuthError, DeadlineError, ProtocolError, PS2Error, UnavailableError
from ps2.wire.pb import server_pb2 as pb

DETAIL_KEY = "ps2-error-bin"
# Trailing metadata travel in one HTTP/2 header block; a traceback can be long, and its end says most.
MAX_MESSAGE_BYTES = 12_000
MAX_METADATA_BYTES = 64 * 1024

STATUS: dict[type[PS2Error], grpc.StatusCode] = {
    errors.PS2Error: grpc.StatusCode.INTERNAL,
    errors.UsageError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ShapeError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.DTypeError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.OutOfRangeError: grpc.StatusCode.OUT_OF_RANGE,
    errors.NotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.NotColocatedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.StoppedError: grpc.StatusCode.FAILED_PRECONDITION,
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
    errors.RecoveryError: grpc.StatusCode.DATA_LOSS,
    errors.CheckpointMissingError: grpc.StatusCode.NOT_FOUND,
    errors.CheckpointCorruptError: grpc.StatusCode.DATA_LOSS,
    errors.RolledBack: grpc.StatusCode.ABORTED,
    errors.OpError: grpc.StatusCode.ABORTED,
    errors.WorkerError: grpc.StatusCode.ABORTED,
}
BY_NAME = {cls.__name__: cls for cls in STATUS}

# What gRPC itself says, when no server of ours had a word in it.
BARE: dict[grpc.StatusCode, type[PS2Error]] = {
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.CANCELLED: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
    grpc.StatusCode.UNAUTHENTICATED: AuthError,
    grpc.StatusCode.UNIMPLEMENTED: ProtocolError,
}


class RpcFailure(Protocol):
    """The part of a failed ``grpc.Call`` that is read here."""

    def code(self) -> grpc.StatusCode: ...
    def details(self) -> str | None: ...
    def trailing_metadata(self) -> Any: ...


def to_detail(error: PS2Error) -> pb.ErrorDetail:
    """Return what travels of an error."""
    # Lone surrogates, as in names of files that are not UTF-8, cannot be sent.
    encoded = str(error).encode(errors="backslashreplace")
    if len(encoded) > MAX_MESSAGE_BYTES:
        encoded = b"..." + encoded[-MAX_MESSAGE_BYTES:]
    return pb.ErrorDetail(type=_known(error).__name__, message=encoded.decode(errors="ignore"))


def from_detail(detail: pb.ErrorDetail) -> PS2Error:
    return BY_NAME.get(detail.type, PS2Error)(detail.message)


def to_status(error: PS2Error) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Return the status code, its details and the trailing metadata that tell of an error."""
    detail = to_detail(error)
    summary = detail.message.splitlines()[-1][:500] if detail.message else detail.type
    return STATUS[_known(error)], summary, ((DETAIL_KEY, detail.SerializeToString()),)


def internal_error(error: Exception) -> PS2Error:
    """Return what a caller is told of a bug in a server."""
    return PS2Error(f"internal error in the server:\n{''.join(traceback.format_exception(error))}")


def from_rpc(failure: RpcFailure, address: str) -> PS2Error:
    """Return the error that a failed call to ``address`` stands for."""
    detail = detail_of(failure)
    return from_bare(failure, address) if detail is None else from_detail(pb.ErrorDetail.FromString(detail))


def detail_of(failure: RpcFailure) -> bytes | None:
    """Return the ErrorDetail that a failed call came with, as it travelled."""
    return dict(failure.trailing_metadata() or ()).get(DETAIL_KEY)


def from_bare(failure: RpcFailure, address: str) -> PS2Error:
    """Return the error that a failed call stands for when nothing that the other side says of it can be believed."""
    code = failure.code()
    return BARE.get(code, PS2Error)(f"{address}: {code.name.lower()}: {failure.details()}")


def _known(error: PS2Error) -> type[PS2Error]:
    """Return the error's class; one from outside ps2.errors travels as the one that it is a kind of."""
    return next(cls for cls in type(error).__mro__ if cls in STATUS)
