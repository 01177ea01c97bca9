"""A plain request written to a waiting connection, and its reply read into place: with nothing around it.

What goes as expected takes two calls to the system. Whatever else happens is told as a failure, and nothing has been
lost by it: the caller sends the request once more, as requests are sent (``exchange``), under the same id.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Sequence

from ps2.interrupts import POLL_S, check
from ps2.ops.packing import pack_keys
from ps2.protocol import binary
from ps2.protocol.arrays import NUMBER_OF
from ps2.protocol.binary import Shape
from ps2.protocol.framing import HEAD
from ps2.protocol.messages import Array, Operation, Request, RequestId, byte_view, nbytes
from ps2.transport.sockets import PlainSocket

_HANDLE = struct.Struct("<I")
_KEYS = struct.Struct("<Qq")
_NUMBERS = struct.Struct("<QQ")
_SIZE = struct.Struct("<Q")
SIZE_AT = 4
# Of fields in a form.
HANDLE_AT = HEAD.size + binary.REQUEST.size
NUMBER_AT = HEAD.size + binary.NUMBER_AT
STEPS_AT = HEAD.size + binary.STEPS_AT
KEY_COUNT_AT = HEAD.size + binary.KEY_COUNT_AT
TAIL_AT = HEAD.size + binary.TAIL_AT
ARRAY_COUNT_AT = binary.ARRAY.size - _SIZE.size
# The reply to one operation, which has at most one array.
_REPLY = struct.Struct("<IQBBxxIIxxxxBxHxxxxd")
REPLY_BYTES = HEAD.size + binary.REPLY.size + binary.RESULT.size
# Forms that a connection keeps.
MOST_FORMS = 1024
# Of a reply that was not expected, and is not looked at.
MAX_LEFT = 1 << 20


class PreparedHeader:
    """Head and header of requests of one shape on one connection, written once; ``fill`` writes what changes.

    Attributes:
        shape: what those requests have in common.
    """

    def __init__(self, shape: Shape, header: bytes, scalars: int) -> None:
        self.shape = shape
        self.data = bytearray(HEAD.pack(len(header), 0) + header)
        self._array_at = TAIL_AT + (1 + scalars) * _SIZE.size

    def fill(self, id: RequestId | None, values: Array | None, keys: Array | None) -> Sequence[Array]:
        """Write the id's numbers, and what follows the header; return the arrays that do."""
        data = self.data
        if id is not None:
            _NUMBERS.pack_into(data, NUMBER_AT, id.number, id.settled)
        arrays: tuple[Array, ...] = ()
        if values is not None:
            data[self._array_at] = NUMBER_OF[values.dtype]
            _SIZE.pack_into(data, self._array_at + ARRAY_COUNT_AT, values.size)
            arrays = (values,)
        if keys is not None:
            first, steps = pack_keys(keys)
            data[STEPS_AT] = NUMBER_OF[steps.dtype]
            _KEYS.pack_into(data, KEY_COUNT_AT, keys.size, first)
            arrays = (steps, *arrays)
        if arrays:
            _SIZE.pack_into(data, SIZE_AT, nbytes(arrays))
        return arrays

    def know(self, handle: int) -> None:
        """Write the handle by which the server knows requests of this shape from now on."""
        _HANDLE.pack_into(self.data, HANDLE_AT, handle)


def make_header(
    connection: PlainSocket, key: object, operation: Operation, id: RequestId | None, version: int
) -> PreparedHeader:
    """Return the form of such requests; it stays with the connection under that key.

    Args:
        operation: with an empty array of values if it has values, and with any one key if it has keys.
    """
    request = Request((operation,), id, version)
    header, _ = binary.request_parts(request, connection.handles)
    shape = binary.shape_of(request)
    assert shape is not None
    if len(connection.forms) >= MOST_FORMS:
        connection.forms.clear()
    form = connection.forms[key] = PreparedHeader(shape, header, len(operation.params))
    return form


def send(connection: PlainSocket, form: PreparedHeader, arrays: Sequence[Array], timeout_s: float) -> bool:
    """Send a request with its arrays; False if it does not go, and the connection is of no use any more."""
    try:
        sent = connection.sendmsg((form.data, *map(byte_view, arrays)), (), socket.MSG_DONTWAIT)
        if sent == len(form.data) + _SIZE.unpack_from(form.data, SIZE_AT)[0]:
            return True
        return _send_rest(connection, [memoryview(form.data), *map(byte_view, arrays)], sent, timeout_s)
    except OSError:
        return False


def receive(connection: PlainSocket, form: PreparedHeader, out: Array | None) -> bool | None:
    """Receive the reply to a request.

    Args:
        form: that was sent.
        out: C-contiguous, to read into; None if nothing comes.

    Returns:
        Whether it came as expected, and ``out`` holds what it brought; None if it did not, and the connection is of no
        use any more.
    """
    reply = bytearray(REPLY_BYTES if out is None else REPLY_BYTES + binary.ARRAY.size)
    expected = len(reply)
    try:
        try:
            got = connection.recv_into(reply) if out is None else connection.recvmsg_into((reply, byte_view(out)))[0]
        except BlockingIOError:
            if not _wait(connection):
                return None
            got = connection.recv_into(reply) if out is None else connection.recvmsg_into((reply, byte_view(out)))[0]
        if got < expected:
            if not _receive_rest(connection, memoryview(reply)[got : HEAD.size]):
                return None
            got = max(got, HEAD.size)
            end = min(expected, HEAD.size + sum(HEAD.unpack_from(reply)))
            if not _receive_rest(connection, memoryview(reply)[got:end]):
                return None
            if end < expected:
                return False
        length, size, kind, _, handle, _, flags, arrays, _ = _REPLY.unpack_from(reply)
        past = max(got - expected, 0)
        if (
            HEAD.size + length == expected
            and kind == binary.A_REPLY
            and not flags
            and _brings(reply, size, arrays, out)
        ):
            if past < size and (out is None or not _receive_rest(connection, byte_view(out)[past:])):
                return None
            if handle:
                binary.note(connection.handles, form.shape, handle)
                form.know(handle)
            return True
        # An error, mostly; the ordinary way gets it again, and tells it. It may be shorter than what was asked for.
        left = HEAD.size + length + size - max(got, expected)
        return False if 0 <= left <= MAX_LEFT and _receive_rest(connection, memoryview(bytearray(left))) else None
    except OSError:
        return None


def _brings(reply: bytearray, size: int, arrays: int, out: Array | None) -> bool:
    """Tell whether a reply's header is that of the array which is to be read into place."""
    if out is None:
        return size == arrays == 0
    if arrays != 1 or size != out.nbytes:
        return False
    return binary.ARRAY.unpack_from(reply, REPLY_BYTES) == (NUMBER_OF[out.dtype], 0, 0, out.size)


def _send_rest(connection: PlainSocket, views: Sequence[memoryview], sent: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLOUT)
    for view in views:
        left = view[sent:]
        sent = max(0, sent - len(view))
        while left:
            if not poll.poll(1000 * timeout_s):
                return False
            left = left[connection.send(left, socket.MSG_DONTWAIT) :]
    return True


def _receive_rest(connection: PlainSocket, view: memoryview) -> bool:
    while view:
        try:
            got = connection.recv_into(view, 0, socket.MSG_WAITALL)
        except BlockingIOError:
            if not _wait(connection):
                return False
            continue
        if not got:
            return False
        view = view[got:]
    return True


def _wait(connection: PlainSocket) -> bool:
    """Wait until something comes, longer than the socket does; handlers of signals run meanwhile."""
    deadline_s = time.monotonic() + connection.patience_s
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    while not poll.poll(1000 * POLL_S):
        check()
        if time.monotonic() > deadline_s:
            return False
    return True
