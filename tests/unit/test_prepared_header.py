"""A request and its reply with nothing around them: what is expected is read into place, all else is a failure."""

from __future__ import annotations

import socket
import threading
import time

import numpy as np
import pytest

from ps2.errors import NotFoundError
from ps2.protocol.binary import error_parts, reply_parts, shape_of
from ps2.protocol.framing import HEAD, read, read_request, written_by_pieces
from ps2.protocol.messages import Keys, Operation, Reply, Request, RequestId, Result
from ps2.transport import prepared_header
from ps2.transport.sockets import PlainSocket

PULL = Request((Operation("pull", 1, 0, (0,)),))
SHAPE = shape_of(PULL)
VALUES = np.arange(5, dtype=np.float32)


@pytest.fixture
def ends():
    """The client's end, as a connection has it, and the server's."""
    ours, theirs = socket.socketpair()
    client = PlainSocket.__new__(PlainSocket)
    socket.socket.__init__(client, fileno=ours.detach())
    client.handles, client.forms = {}, {}
    client.settimeout(0.5)
    with client, theirs:
        yield client, theirs


def bytes_of(parts):
    return b"".join(bytes(view) for views in written_by_pieces(parts) for view in views)


def reply(*arrays, handle=0):
    return bytes_of(reply_parts(Reply((Result(arrays=arrays),)), PULL, handle))


def receive(client, out):
    return prepared_header.receive(
        client, prepared_header.make_header(client, "pull", PULL.operations[0], None, 0), out
    )


ERROR = bytes_of(error_parts(NotFoundError("row 0 was freed")))


@pytest.mark.parametrize("step", [1, 7, 28, 1000])
def test_reply_when_it_comes_in_pieces_then_it_is_read_into_place(ends, step):
    client, server = ends
    data, out = reply(VALUES), np.zeros(5, np.float32)

    def send():
        for at in range(0, len(data), step):
            server.sendall(data[at : at + step])
            time.sleep(0.001)

    thread = threading.Thread(target=send)
    thread.start()
    assert receive(client, out) is True
    thread.join()
    assert out.tolist() == VALUES.tolist()


def test_reply_when_there_is_no_array_then_that_is_all(ends):
    client, server = ends
    server.sendall(reply() + reply(handle=7))
    assert receive(client, None) is True
    assert client.handles == {}
    form = prepared_header.make_header(client, "pull", PULL.operations[0], None, 0)
    assert prepared_header.receive(client, form, None) is True
    assert client.handles == {SHAPE: 7}
    assert form.data == prepared_header.make_header(client, "pull", PULL.operations[0], None, 0).data


@pytest.mark.parametrize(
    "data",
    [
        ERROR,
        bytes_of(error_parts(NotFoundError("x" * 5000))),
        HEAD.pack(2, 0) + b"ab",
        HEAD.pack(0, 0),
        reply(VALUES[:3]),
        reply(np.arange(9, dtype=np.float32)),
        reply(VALUES.astype(np.float64)),
        reply(),
        bytes_of(reply_parts(Reply((Result(1.5),)), PULL)),
        bytes_of(reply_parts(Reply((Result(), Result())), Request(PULL.operations * 2))),
        reply(VALUES.reshape(5, 1)),
        reply(VALUES, VALUES),
    ],
    ids=[
        *(
            "error",
            "long error",
            "tiny",
            "nothing",
            "shorter",
            "longer",
            "wider",
            "no array",
            "a number",
            "two results",
        ),
        *("two dimensions", "two arrays"),
    ],
)
@pytest.mark.parametrize("wanted", [VALUES.size, None])
def test_reply_when_it_is_another_then_all_of_it_is_read_and_the_connection_goes_on(ends, data, wanted):
    client, server = ends
    out = None if wanted is None else np.zeros(wanted, np.float32)
    if out is None and data == reply():
        return  # as expected
    server.sendall(data)
    assert receive(client, out) is False
    server.sendall(reply(VALUES))
    out = np.zeros(5, np.float32)
    assert receive(client, out) is True
    assert out.tolist() == VALUES.tolist()


@pytest.mark.parametrize(
    "data", [b"", ERROR[:5], ERROR[:-1], reply(VALUES)[:20], reply(VALUES)[:50], reply(VALUES)[:-1]]
)
@pytest.mark.parametrize("closes", [True, False])
def test_reply_when_it_does_not_come_or_ends_within_then_the_connection_is_of_no_use(ends, data, closes):
    client, server = ends
    client.settimeout(0.05)
    server.sendall(data)
    if closes:
        server.close()
    assert receive(client, np.zeros(5, np.float32)) is None


def test_reply_when_it_declares_more_than_anybody_reads_then_the_connection_is_of_no_use(ends):
    client, server = ends
    server.sendall(HEAD.pack(40, 1 << 40) + bytes(40))
    assert receive(client, np.zeros(5, np.float32)) is None


def asked(client, values, keys=None, id=None):
    kind = "push_add" if keys is None else "scatter_add"
    keyed = None if keys is None else Keys(1, np.zeros(1, np.int64))
    operation = Operation(kind, 1, 0, (0,), {}, (values[:0],), keyed)
    key = (kind, id and id.scope)
    form = client.forms.get(key) or prepared_header.make_header(client, key, operation, id, 3)
    return form, form.fill(id, values, keys)


def test_request_when_its_form_is_filled_in_again_then_it_says_what_is_new(ends):
    client, server = ends
    for number in range(3):
        id, keys = RequestId("s", number, settled=number), np.arange(number, 2 * number + 2)
        values = np.full(keys.size, number, np.float32 if number else np.float64)
        form, arrays = asked(client, values, keys, id)
        assert prepared_header.send(client, form, arrays, 1)
        request = read(read_request(1 << 20, lambda draft: None), [memoryview(server.recv(1 << 16))])
        (operation,) = request.operations
        assert (request.id, request.id.settled, request.route_version) == (id, number, 3)
        assert operation.keys.columns.tolist() == keys.tolist()
        assert (operation.arrays[0].tolist(), operation.arrays[0].dtype) == (values.tolist(), values.dtype)
    assert len(client.forms) == 1


def test_request_when_it_is_large_then_it_is_sent_as_the_other_side_reads(ends):
    client, server = ends
    values, came = np.arange(1_000_000, dtype=np.float32), bytearray()
    form, arrays = asked(client, values, id=RequestId("s", 0))

    def receive():
        while len(came) < values.nbytes + len(form.data):
            came.extend(server.recv(100_000))

    thread = threading.Thread(target=receive)
    thread.start()
    assert prepared_header.send(client, form, arrays, 5)
    thread.join()
    request = read(read_request(1 << 23, lambda draft: None), [memoryview(came)])
    assert np.array_equal(request.operations[0].arrays[0], values)


def test_request_when_nobody_reads_then_it_is_given_up(ends):
    client, server = ends
    form, arrays = asked(client, np.zeros(4_000_000, np.float32), id=RequestId("s", 0))
    assert prepared_header.send(client, form, arrays, 0.05) is False
    server.close()
    assert prepared_header.send(client, form, arrays, 0.05) is False
