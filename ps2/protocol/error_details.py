"""Errors in messages: the name of the class, and the text."""

from __future__ import annotations

import traceback

from ps2 import errors
from ps2.errors import PS2Error
from ps2.protocol.pb import server_pb2 as pb

# An error's text must fit into one HTTP/2 header block. The beginning of a longer text is cut off.
MAX_MESSAGE_BYTES = 12_000

BY_NAME: dict[str, type[PS2Error]] = {
    name: cls for name, cls in vars(errors).items() if isinstance(cls, type) and issubclass(cls, PS2Error)
}


def to_detail(error: PS2Error) -> pb.ErrorDetail:
    """Return the protobuf message of an error."""
    # Protobuf cannot send lone surrogates, which occur in file names that are not UTF-8.
    encoded = str(error).encode(errors="backslashreplace")
    if len(encoded) > MAX_MESSAGE_BYTES:
        encoded = b"..." + encoded[-MAX_MESSAGE_BYTES:]
    return pb.ErrorDetail(type=known_class(error).__name__, message=encoded.decode(errors="ignore"))


def from_detail(detail: pb.ErrorDetail) -> PS2Error:
    return BY_NAME.get(detail.type, PS2Error)(detail.message)


def known_class(error: PS2Error) -> type[PS2Error]:
    """Return the error's class, or its nearest base class in ps2.errors."""
    return next(cls for cls in type(error).__mro__ if BY_NAME.get(cls.__name__) is cls)


def internal_error(error: Exception) -> PS2Error:
    """Return the error that clients receive for a bug in the server."""
    return PS2Error(f"internal error in the server:\n{''.join(traceback.format_exception(error))}")
