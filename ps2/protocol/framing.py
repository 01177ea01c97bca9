"""Framing of messages on a data connection, without I/O.

A reader is a generator that yields memory views and returns a message. Its caller, such as a thread of a server or a
client that polls many connections, fills each view with received bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from ps2.errors import LimitError, ProtocolError, PS2Error
from ps2.protocol.arrays import allocate
from ps2.protocol.binary import (
    MAX_HEADER_BYTES,
    Handles,
    Parts,
    ReplyParts,
    open_reply,
    open_request,
    remember_handle,
    request_shape,
)
from ps2.protocol.drafts import RequestDraft, check_size
from ps2.protocol.messages import Array, Reply, Request, StreamedArray, byte_view, nbytes
from ps2.protocol.pb import server_pb2 as pb

MAGIC = b"PS2D"
GREETING = struct.Struct("<4sI")
HEAD = struct.Struct("<IQ")  # before each message: the bytes of its header, and of its arrays
MAX_GREETING_BYTES = 4096
# The limit of the answer to a greeting, which may contain the text of an error.
MAX_ANSWER_BYTES = 1 << 16

T = TypeVar("T")
M = TypeVar("M", bound=Message)
Reading = Generator[memoryview, None, T]


def message_views(parts: Parts) -> list[memoryview]:
    """Return the memory to send for a message: the head and the header, then the arrays, without copies."""
    header, arrays = parts
    views = [memoryview(HEAD.pack(len(header), nbytes(arrays)) + header)]
    return views + [byte_view(array) for array in arrays if array.size]


def reply_views(parts: ReplyParts) -> Iterator[list[memoryview]]:
    """Yield the memory to send for a reply. A piece of a streamed array is computed after the previous one is sent."""
    header, arrays = parts
    views = [memoryview(HEAD.pack(len(header), nbytes(arrays)) + header)]
    for array in arrays:
        if isinstance(array, StreamedArray):
            yield views
            for piece in array.pieces():
                yield [byte_view(piece)]
            views = []
        elif array.size:
            views.append(byte_view(array))
    yield views


def read_reply(request: Request, handles: Handles | None = None) -> Reading[Reply | PS2Error]:
    """Read the reply to a request, or the error that the server returned."""
    header, size = yield from _read_header()
    draft = open_reply(header, request, size)
    if handles is not None and draft.handle and (shape := request_shape(request)) is not None:
        remember_handle(handles, shape, draft.handle)
    yield from _fill(draft.arrays)
    return draft.build()


def read_request(limit_bytes: int, reserve: Callable[[RequestDraft], None]) -> Reading[Request | PS2Error]:
    """Read a request; return its error if it is invalid. A raised error means that the connection is unusable.

    ``limit_bytes``: the maximum size of the request's arrays. ``reserve`` receives the draft before memory is allocated
    for the arrays, and raises an error if there is not enough memory.
    """
    header, size = yield from _read_header()
    if size > limit_bytes:
        raise LimitError(
            f"request: expected arrays of at most {limit_bytes:,} bytes, got {size:,}: send several requests"
        )
    try:
        draft = open_request(header, limit_bytes)
        check_size(draft.nbytes, size)
        reserve(draft)
    except PS2Error as error:
        yield from _skip(size)
        return error
    arrays = [allocate(spec.dtype, spec.size) for spec in draft.specs]
    yield from _fill(arrays)
    try:
        return draft.build(arrays)
    except PS2Error as error:
        return error


def read(reader: Reading[T], parts: Iterable[memoryview]) -> T:
    """Read a message whose bytes are in consecutive parts."""
    try:
        view = next(reader)
        for part in parts:
            while len(part):
                size = min(len(part), len(view))
                view[:size] = part[:size]
                view, part = view[size:], part[size:]
                if not len(view):
                    view = next(reader)
    except StopIteration as stop:
        message: T = stop.value
        return message
    raise ProtocolError("expected a complete message, got only a part of it")


def greeting_bytes(message: Message) -> bytes:
    """Return the bytes of a handshake message: a Greeting or a GreetingProof."""
    encoded = message.SerializeToString()
    return GREETING.pack(MAGIC, len(encoded)) + encoded


def read_greeting(cls: type[M]) -> Reading[M]:
    """Read the bytes that ``greeting_bytes`` returned."""
    magic, size = GREETING.unpack((yield from _read(GREETING.size)))
    if magic != MAGIC or size > MAX_GREETING_BYTES:
        raise ProtocolError("expected a greeting of PS2's data protocol, got something else")
    try:
        return cls.FromString((yield from _read(size)))
    except DecodeError as error:
        raise ProtocolError(f"a greeting cannot be decoded: {error}") from error


def read_answer() -> Reading[pb.ReplyHeader]:
    """Read a server's answer in the handshake."""
    length, size = HEAD.unpack((yield from _read(HEAD.size)))
    if length > MAX_ANSWER_BYTES or size:
        raise ProtocolError("expected a header without data in answer to a greeting")
    header = yield from _read(length)
    try:
        return pb.ReplyHeader.FromString(header)
    except DecodeError as error:
        raise ProtocolError(f"the answer to a greeting cannot be decoded: {error}") from error


def _read_header() -> Reading[tuple[bytes, int]]:
    length, size = HEAD.unpack((yield from _read(HEAD.size)))
    if length > MAX_HEADER_BYTES:
        raise ProtocolError(f"header: expected at most {MAX_HEADER_BYTES:,} bytes, got {length:,}")
    return (yield from _read(length)), size


def _read(size: int) -> Reading[bytes]:
    buffer = bytearray(size)
    if size:
        yield memoryview(buffer)
    return bytes(buffer)


def _fill(arrays: list[Array]) -> Reading[None]:
    for array in arrays:
        if array.size:
            yield byte_view(array)


def _skip(size: int) -> Reading[None]:
    scratch = memoryview(bytearray(min(size, 1 << 16)))  # read in pieces of 64 KiB, and overwrite them
    while size:
        step = min(size, len(scratch))
        yield scratch[:step]
        size -= step
