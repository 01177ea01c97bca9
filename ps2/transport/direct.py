"""The client's fast path: sends one request on an idle connection, and reads its reply into the caller's memory.

This common case takes two system calls. Each connection caches the headers of single-operation requests, because only
ids, sizes, keys and scalars change from one request to the next.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

from ps2.errors import ProtocolError, PS2Error
from ps2.interrupts import POLL_S, check
from ps2.ops.packing import MIN_NARROWED_BYTES
from ps2.protocol import binary
from ps2.protocol.arrays import DTYPE_NUMBERS, plain_spec, to_send
from ps2.protocol.framing import HEAD, read_reply
from ps2.protocol.messages import (
    NO_RESULT,
    PLAIN_FLOATS,
    Array,
    Operation,
    Reply,
    Request,
    RequestId,
    Result,
    byte_view,
    nbytes,
)
from ps2.transport.sockets import PlainSocket

_HANDLE = struct.Struct("<I")
_ID_NUMBERS = struct.Struct("<QQ")
_SIZE = struct.Struct("<Q")
SIZE_OFFSET = 4
# Byte offsets of fields in a prepared header.
HANDLE_OFFSET = HEAD.size + binary.REQUEST.size
NUMBER_OFFSET = HEAD.size + binary.NUMBER_OFFSET
KEYS_OFFSET = HEAD.size + binary.STEPS_OFFSET
TAIL_OFFSET = HEAD.size + binary.TAIL_OFFSET
# The reply to one operation, up to its array records: header length, size of the arrays, message kind, flags, handle,
# number of results, whether there is a scalar, number of arrays, scalar.
_REPLY = struct.Struct("<IQBBxxIIxxxxBxHxxxxd")
REPLY_BYTES = HEAD.size + binary.REPLY.size + binary.RESULT.size
# Size of the first read if the size of the reply is not known.
SCRATCH_BYTES = 1024
# Maximum number of cached headers per connection.
MAX_HEADERS = 1024
NO_RESULTS = Reply((NO_RESULT,))


class PreparedHeader:
    """The head and header of requests of one shape, encoded once; ``fill`` writes the fields that change.

    Attributes:
        shape: the shape for which a server can assign a handle; None if such requests have no handles.
    """

    def __init__(self, request: Request, handles: binary.Handles) -> None:
        operation = request.operations[0]
        header, arrays = binary.request_parts(request, handles)
        signature = binary.call_signature(operation.name, operation.params)
        self.shape = binary.request_shape(request)
        self.data = bytearray(HEAD.pack(len(header), nbytes(arrays)) + header)
        self._values = signature.values
        self._values_offset = (
            TAIL_OFFSET + (len(operation.rows) + 1) // 2 * _SIZE.size + len(operation.others) * _SIZE.size
        )
        self._arrays_offset = self._values_offset + self._values.size

    def fill(self, operation: Operation, id: RequestId | None) -> list[Array]:
        """Write the id's numbers, scalars, keys and sizes; return the arrays to send after the header.

        Raises struct.error if a scalar has another type than in the first request.
        """
        data, arrays = self.data, []
        if id is not None:
            _ID_NUMBERS.pack_into(data, NUMBER_OFFSET, id.number, id.settled)
        if operation.params:
            self._values.pack_into(data, self._values_offset, *operation.params.values())
        if operation.keys is not None:
            record, steps = binary.keys_record(operation.keys)
            data[KEYS_OFFSET:TAIL_OFFSET] = record
            if steps is not None:
                arrays.append(steps)
        offset, size = self._arrays_offset, 0
        for array in operation.arrays:
            if array.ndim == 1 and array.dtype in PLAIN_FLOATS and array.flags.c_contiguous and operation.wire is None:
                binary.ARRAY.pack_into(data, offset, DTYPE_NUMBERS[array.dtype], 0, 0, array.size)
                offset += binary.ARRAY.size
            else:
                array, spec = to_send(array, operation.wire)
                record = binary.array_record(spec)
                data[offset : offset + len(record)] = record
                offset += len(record)
            arrays.append(array)
        for array in arrays:
            size += array.nbytes
        _SIZE.pack_into(data, SIZE_OFFSET, size)
        return arrays

    def set_handle(self, handle: int) -> None:
        """Write the handle that the server assigned to requests of this shape."""
        _HANDLE.pack_into(self.data, HANDLE_OFFSET, handle)


def prepare(
    connection: PlainSocket, request: Request, limit_bytes: int
) -> tuple[PreparedHeader | None, list[Any], int]:
    """Return the cached header of a request (None if there is none), the buffers to send, and their size in bytes."""
    operation, id = request.operations[0], request.id
    if len(request.operations) == 1 and not request.forwarded and (id is None or id.parts == 1):
        key = (
            *(operation.name, request.route_version, operation.matrix, operation.partition, operation.rows),
            *(operation.others, operation.wire, operation.keys is None, None if id is None else id.scope),
            *(
                *operation.params,
                *[array.ndim for array in operation.arrays],
            ),  # parameter names in order, dimensions of arrays
        )
        header = connection.headers.get(key)
        if header is None:
            if len(connection.headers) >= MAX_HEADERS:
                connection.headers.clear()
            header = connection.headers[key] = PreparedHeader(request, connection.handles)
        try:
            arrays = header.fill(operation, id)
        except struct.error:  # a scalar has another type than before, or its value does not fit
            del connection.headers[key]
        else:
            (size,) = _SIZE.unpack_from(header.data, SIZE_OFFSET)
            if size > limit_bytes:
                binary.check_sendable((b"", arrays), limit_bytes)
            return header, [header.data, *arrays], len(header.data) + size
    encoded, arrays = binary.request_parts(request, connection.handles)
    binary.check_sendable((encoded, arrays), limit_bytes)
    size = nbytes(arrays)
    return None, [HEAD.pack(len(encoded), size) + encoded, *arrays], HEAD.size + len(encoded) + size


def send(connection: PlainSocket, parts: Sequence[Any], size: int, timeout_s: float) -> None:
    """Send a header and its arrays: ``size`` bytes in all. After an OSError the connection is unusable."""
    sent = connection.sendmsg(parts, (), socket.MSG_DONTWAIT)
    if sent < size:
        _send_remaining(connection, [parts[0], *map(byte_view, parts[1:])], sent, timeout_s)


def receive(connection: PlainSocket, request: Request, header: PreparedHeader | None) -> Reply | PS2Error | None:
    """Return the reply or the server's error; None if nothing arrives within the connection's ``max_silence_s``.

    After an OSError or a ProtocolError the connection is unusable.
    """
    into = request.operations[0].into if header is not None else None
    if into is None or not into.flags.c_contiguous or not _arrives_unconverted(into, request.operations[0]):
        into, record, reply = None, b"", bytearray(SCRATCH_BYTES)
        buffers: list[Any] = [reply]
    else:
        if into.ndim == 1:
            record = binary.ARRAY.pack(DTYPE_NUMBERS[into.dtype], 0, 0, into.size)
        else:
            record = binary.array_record(plain_spec(into))
        reply = bytearray(REPLY_BYTES + len(record))
        buffers = [reply, into]
    while True:
        try:
            received_bytes = connection.recvmsg_into(buffers)[0]
            break
        except BlockingIOError:
            if not _wait(connection):
                return None
    expected_bytes = REPLY_BYTES + len(record)
    if header is not None and received_bytes >= expected_bytes:
        length, size, kind, flags, handle, count, has_scalar_flag, arrays, scalar = _REPLY.unpack_from(reply)
        if (
            HEAD.size + length == expected_bytes
            and (kind, flags, count) == (binary.REPLY_KIND, 0, 1)
            and (arrays, size) == ((0, 0) if into is None else (1, into.nbytes))
            and reply[REPLY_BYTES:expected_bytes] == record
        ):
            if into is not None and received_bytes < expected_bytes + size:
                _receive_all(connection, byte_view(into)[received_bytes - expected_bytes :])
            if handle and header.shape is not None:
                binary.remember_handle(connection.handles, header.shape, handle)
                header.set_handle(handle)
            if into is None and not has_scalar_flag:
                return NO_RESULTS
            return Reply((Result(scalar if has_scalar_flag else None, () if into is None else (into,)),))
    received_parts = [bytes(reply[:received_bytes])]
    if into is not None and received_bytes > len(reply):
        received_parts.append(bytes(byte_view(into)[: received_bytes - len(reply)]))
    outcome = _receive_any(connection, request, received_parts)
    if header is not None and header.shape is not None and (new_handle := connection.handles.get(header.shape)):
        header.set_handle(new_handle)
    return outcome


def _arrives_unconverted(into: Array, operation: Operation) -> bool:
    """Return True if the message is sure to contain an array in the same form as memory: neither packed nor cast."""
    return operation.wire is None and (into.dtype.kind == "f" or into.nbytes < MIN_NARROWED_BYTES) and into.size > 0


def _receive_any(connection: PlainSocket, request: Request, received_parts: Sequence[bytes]) -> Reply | PS2Error:
    """Receive a reply of any form. ``received_parts`` holds the parts that have already arrived."""
    reader = read_reply(request, connection.handles)
    part = memoryview(b"")
    try:
        view = next(reader)
        for received_part in received_parts:
            part = memoryview(received_part)
            while part:
                size = min(len(part), len(view))
                view[:size] = part[:size]
                view, part = view[size:], part[size:]
                if not view:
                    view = next(reader)
        while True:
            _receive_all(connection, view)
            view = next(reader)
    except StopIteration as done:
        outcome: Reply | PS2Error = done.value
        if part:
            raise ProtocolError("the server sent more than one reply") from None
        return outcome


def _send_remaining(connection: PlainSocket, views: Sequence[Any], sent: int, timeout_s: float) -> None:
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLOUT)
    for view in views:
        unsent = memoryview(view)[sent:]
        sent = max(0, sent - len(view))
        while unsent:
            if not poll.poll(1000 * timeout_s):
                raise TimeoutError("the server does not accept more data")
            unsent = unsent[connection.send(unsent, socket.MSG_DONTWAIT) :]


def _receive_all(connection: PlainSocket, view: memoryview) -> None:
    while view:
        try:
            received_bytes = connection.recv_into(view, 0, socket.MSG_WAITALL)
        except BlockingIOError:
            if not _wait(connection):
                raise TimeoutError("the rest of the reply does not arrive") from None
            continue
        if not received_bytes:
            raise ConnectionResetError(0, "the server closed the connection")
        view = view[received_bytes:]


def _wait(connection: PlainSocket) -> bool:
    """Wait up to ``max_silence_s`` for input and let signal handlers run; return False if there is no input."""
    deadline_s = time.monotonic() + connection.max_silence_s
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    while not poll.poll(1000 * POLL_S):
        check()
        if time.monotonic() > deadline_s:
            return False
    return True
