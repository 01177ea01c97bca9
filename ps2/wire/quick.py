"""A short request written to a waiting connection, and its reply read into place: with nothing around it.

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
from ps2.wire import short
from ps2.wire.framing import HEAD
from ps2.wire.messages import Array, Operation, Request, RequestId, byte_view, nbytes
from ps2.wire.sockets import PlainSocket

_SIZE = struct.Struct("<Q")
_KEYS = struct.Struct("<QQQ")
_NUMBERS = struct.Struct("<QQ")
SIZE_AT = 4
DTYPE_AT = HEAD.size + short.DTYPE_AT
DELTA_AT = HEAD.size + short.DELTA_AT
COUNT_AT = HEAD.size + 8 * short.COUNT_AT
NUMBER_AT = HEAD.size + 8 * short.NUMBER_AT
REPLY_BYTES = HEAD.size + short.REPLY.size
_HEADER = struct.Struct("<IQBBBxIQ")
# Forms that a connection keeps.
MOST_FORMS = 1024
# Of a reply that was not expected, and is not looked at.
MAX_LEFT = 1 << 20

Form = bytearray


def make_form(connection: PlainSocket, key: object, operation: Operation, id: RequestId | None, version: int) -> Form:
    """Return how such a request is written, for ``fill``; it stays with the connection under that key.

    Args:
        operation: without arrays, and with any one key if it has keys.
    """
    parts = short.request_parts(Request((operation,), id, version), connection.handles)
    assert parts is not None
    header, _ = parts
    if len(connection.forms) >= MOST_FORMS:
        connection.forms.clear()
    form = connection.forms[key] = Form(HEAD.pack(len(header), 0) + header)
    return form


def fill(form: Form, id: RequestId | None, values: Array | None, keys: Array | None) -> Sequence[Array]:
    """Say in a form what follows it; return that."""
    if id is not None:
        _NUMBERS.pack_into(form, NUMBER_AT, id.number, id.settled)
    arrays: tuple[Array, ...] = ()
    if values is not None:
        form[DTYPE_AT] = short.VALUE_OF[values.dtype]
        arrays = (values,)
    count = 0 if values is None else values.size
    if keys is not None:
        first, deltas = pack_keys(keys)
        form[DELTA_AT] = short.DELTA_OF[deltas.dtype]
        _KEYS.pack_into(form, COUNT_AT, count, keys.size, first)
        arrays = (deltas, *arrays)
    elif values is not None:
        _SIZE.pack_into(form, COUNT_AT, count)
    if arrays:
        _SIZE.pack_into(form, SIZE_AT, nbytes(arrays))
    return arrays


def send(connection: PlainSocket, form: Form, arrays: Sequence[Array], timeout_s: float) -> bool:
    """Send a request with its arrays; False if it does not go, and the connection is of no use any more."""
    try:
        sent = connection.sendmsg((form, *map(byte_view, arrays)), (), socket.MSG_DONTWAIT)
        if sent == len(form) + _SIZE.unpack_from(form, SIZE_AT)[0]:
            return True
        return _send_rest(connection, [memoryview(form), *map(byte_view, arrays)], sent, timeout_s)
    except OSError:
        return False


def receive(connection: PlainSocket, place: short.Place, out: Array | None) -> bool | None:
    """Receive the reply to a request.

    Args:
        place: what the request is about.
        out: C-contiguous, to read into; None if nothing comes.

    Returns:
        Whether it came as expected, and ``out`` holds what it brought; None if it did not, and the connection is of no
        use any more.
    """
    reply = bytearray(REPLY_BYTES)
    try:
        try:
            got = connection.recv_into(reply) if out is None else connection.recvmsg_into((reply, byte_view(out)))[0]
        except BlockingIOError:
            if not _wait(connection):
                return None
            got = connection.recv_into(reply) if out is None else connection.recvmsg_into((reply, byte_view(out)))[0]
        if got < REPLY_BYTES:
            if not _receive_rest(connection, memoryview(reply)[got : HEAD.size]):
                return None
            got = max(got, HEAD.size)
            end = min(REPLY_BYTES, HEAD.size + sum(HEAD.unpack_from(reply)))
            if not _receive_rest(connection, memoryview(reply)[got:end]):
                return None
            if end < REPLY_BYTES:
                return False
        length, size, mark, _, dtype, handle, count = _HEADER.unpack(reply)
        expected = (0, 0, 0) if out is None else (out.nbytes, short.VALUE_OF[out.dtype], out.size)
        past = max(got - REPLY_BYTES, 0)
        if length == short.REPLY.size and mark == short.MARK and (size, dtype, count) == expected:
            if past < size and (out is None or not _receive_rest(connection, byte_view(out)[past:])):
                return None
            if handle:
                short.note(connection.handles, place, handle)
                connection.forms.clear()  # they are made anew with it
            return True
        # An error, mostly; the ordinary way gets it again, and tells it. It may be shorter than what was asked for.
        left = HEAD.size + length + size - max(got, REPLY_BYTES)
        return False if 0 <= left <= MAX_LEFT and _receive_rest(connection, memoryview(bytearray(left))) else None
    except OSError:
        return None


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
