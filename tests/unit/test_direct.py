"""A request sent directly and its reply: what is expected is read into place, all else is read as any reply is."""

from __future__ import annotations

import socket
import threading
import time

import numpy as np
import pytest

from ps2.errors import NotFoundError, ProtocolError
from ps2.protocol.binary import error_parts, reply_parts, request_shape
from ps2.protocol.framing import HEAD, read, read_request, reply_views
from ps2.protocol.messages import Keys, Operation, Reply, Request, RequestId, Result
from ps2.transport import direct
from ps2.transport.sockets import PlainSocket

VALUES = np.arange(5, dtype=np.float32)


@pytest.fixture
def ends():
    """The client's end, as a connection has it, and the server's."""
    ours, theirs = socket.socketpair()
    client = PlainSocket.__new__(PlainSocket)
    socket.socket.__init__(client, fileno=ours.detach())
    client.handles, client.headers, client.max_silence_s = {}, {}, 0.0
    client.settimeout(0.5)
    with client, theirs:
        yield client, theirs


def pulling(out=None):
    return Request((Operation("pull", 1, 0, (0,), into=out),))


def prepare(client, request):
    return direct.prepare(client, request, 1 << 30)


def send(client, request):
    direct.send(client, *prepare(client, request)[1:], 1)


def bytes_of(parts):
    return b"".join(bytes(view) for views in reply_views(parts) for view in views)


def reply(*arrays, handle=0, scalar=None):
    return bytes_of(reply_parts(Reply((Result(scalar, arrays),)), pulling(), handle))


def receive(client, out):
    request = pulling(out)
    return direct.receive(client, request, prepare(client, request)[0])


ERROR = bytes_of(error_parts(NotFoundError("row 0 was freed")))


@pytest.mark.parametrize("step", [1, 7, 28, 1000])
def test_reply_when_in_pieces_then_is_read_into_place(ends, step):
    client, server = ends
    data, out = reply(VALUES), np.zeros(5, np.float32)

    def send():
        for at in range(0, len(data), step):
            server.sendall(data[at : at + step])
            time.sleep(0.001)

    thread = threading.Thread(target=send)
    thread.start()
    assert receive(client, out).results[0].arrays[0] is out
    thread.join()
    assert out.tolist() == VALUES.tolist()


@pytest.mark.parametrize("shape", [(6,), (2, 3), (0,)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
@pytest.mark.parametrize("scale", [1, 1000])
def test_reply_when_it_has_an_array_then_read_into_place(ends, shape, dtype, scale):
    client, server = ends
    shape = (shape[0] * scale, *shape[1:])  # large integers travel in fewer bytes
    values = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
    threading.Thread(target=server.sendall, args=(reply(values, scalar=2.0),)).start()
    out = np.ones_like(values)
    result = receive(client, out).results[0]
    assert (result.scalar, result.arrays[0] is out) == (2.0, True)
    assert np.array_equal(out, values)


def test_reply_when_it_has_a_handle_then_requests_carry_it(ends):
    client, server = ends
    server.sendall(reply())
    assert receive(client, None) == direct.NO_RESULTS
    assert client.handles == {}
    server.sendall(reply(handle=7))
    header, *_ = prepare(client, pulling())
    assert direct.receive(client, pulling(), header) == direct.NO_RESULTS
    assert client.handles == {request_shape(pulling()): 7}
    assert header.data == direct.PreparedHeader(pulling(), client.handles).data


@pytest.mark.parametrize("text", ["row 0 was freed", "x" * 5000])
@pytest.mark.parametrize("out", [np.zeros(5, np.float32), None])
def test_reply_when_an_error_then_the_connection_stays_usable(ends, text, out):
    client, server = ends
    server.sendall(bytes_of(error_parts(NotFoundError(text))))
    error = receive(client, out)
    assert (type(error), str(error)) == (NotFoundError, text)
    expected = np.zeros(5, np.float32)
    server.sendall(reply(VALUES))
    receive(client, expected)
    assert expected.tolist() == VALUES.tolist()


def test_reply_when_its_form_is_unknown_then_still_read(ends):
    client, server = ends
    for sent in (reply(scalar=1.5), reply(VALUES, VALUES), reply(np.arange(50_000.0))):
        thread = threading.Thread(target=server.sendall, args=(sent,))
        thread.start()
        (result,) = receive(client, None).results
        thread.join()
        assert bytes_of(reply_parts(Reply((result,)), pulling())) == sent


@pytest.mark.parametrize(
    "data",
    [
        HEAD.pack(2, 0) + b"ab",
        HEAD.pack(0, 0),
        reply(VALUES[:3]),
        reply(np.arange(9, dtype=np.float32)),
        reply(VALUES.astype(np.float64)),
        reply(),
        bytes_of(reply_parts(Reply((Result(), Result())), Request(pulling().operations * 2))),
    ],
    ids=["tiny", "nothing", "shorter", "longer", "wider", "no array", "two results"],
)
def test_reply_when_of_another_request_then_connection_dropped(ends, data):
    client, server = ends
    server.sendall(data)
    with pytest.raises(ProtocolError):
        receive(client, np.zeros(5, np.float32))


@pytest.mark.parametrize("data", [ERROR[:5], ERROR[:-1], reply(VALUES)[:20], reply(VALUES)[:50], reply(VALUES)[:-1]])
@pytest.mark.parametrize("closes", [True, False])
def test_reply_when_truncated_then_connection_dropped(ends, data, closes):
    client, server = ends
    client.settimeout(None)
    client.setblocking(False)
    server.sendall(data)
    if closes:
        server.close()
    with pytest.raises(OSError, match=r"closed|does not arrive"):
        receive(client, np.zeros(5, np.float32))


def test_reply_when_nothing_comes_then_the_server_takes_its_time(ends):
    client, server = ends
    client.setblocking(False)
    assert receive(client, np.zeros(5, np.float32)) is None
    server.close()
    with pytest.raises(ConnectionResetError):
        receive(client, np.zeros(5, np.float32))


def test_reply_when_it_declares_too_much_then_protocol_error(ends):
    client, server = ends
    server.sendall(HEAD.pack(40, 1 << 40) + bytes(40))
    with pytest.raises(ProtocolError):
        receive(client, np.zeros(5, np.float32))


def adding(values, keys=None, id=None, **params):
    name = "push_add" if keys is None else "scatter_add"
    keyed = None if keys is None else Keys(keys.size, keys)
    return Request((Operation(name, 1, 0, (0,), params, (values,), keyed),), id, 3)


def arrived(data):
    return read(read_request(1 << 23, lambda draft: None), [memoryview(data)])


def test_request_when_header_is_reused_then_new_fields_are_set(ends):
    client, server = ends
    for number in range(3):
        id, keys = RequestId("s", number, settled=number), np.arange(number, 2 * number + 2)
        values = np.full(keys.size, number, np.float32 if number else np.float64)
        sent = adding(values, keys, id, alpha=number / 2, k=number)
        send(client, sent)
        request = arrived(server.recv(1 << 16))
        (operation,) = request.operations
        assert (request.id, request.id.settled, request.route_version) == (id, number, 3)
        assert operation.params == {"alpha": number / 2, "k": number}
        assert operation.keys.columns.tolist() == keys.tolist()
        assert (operation.arrays[0].tolist(), operation.arrays[0].dtype) == (values.tolist(), values.dtype)
    assert len(client.headers) == 1


def test_request_when_keys_are_known_by_hash_then_none_follow(ends):
    client, server = ends
    columns = np.arange(9)
    for keys in (Keys(9, columns, b"d" * 16), Keys(9, None, b"d" * 16), Keys(9, columns)):
        sent = Request((Operation("gather", 1, 0, (0,), keys=keys),))
        send(client, sent)
        (operation,) = arrived(server.recv(1 << 16)).operations
        assert (operation.keys.count, operation.keys.digest) == (9, keys.digest)
        assert (operation.keys.columns is None) == (keys.columns is None)


def test_request_when_arrays_have_shapes_then_each_is_written(ends):
    client, server = ends
    for shape in ((2, 3), (3, 5), (4, 1)):
        blocks = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
        keys = Keys(shape[0], np.arange(shape[0])[::-1].copy(), b"d" * 16)
        sent = Request((Operation("columns_add", 1, 0, (), {}, (blocks, np.ones(2)), keys, others=(5, 6)),), None, 3)
        send(client, sent)
        (operation,) = arrived(server.recv(1 << 16)).operations
        assert np.array_equal(operation.arrays[0], blocks)
        assert operation.arrays[1].tolist() == [1, 1]
        assert (operation.keys.columns.tolist(), operation.keys.digest) == (keys.columns.tolist(), b"d" * 16)
        assert operation.others == (5, 6)
    assert len(client.headers) == 1


@pytest.mark.parametrize(("first", "then"), [(1, 0.5), (0.5, 1)])
def test_request_when_a_scalar_has_another_type_then_kept(ends, first, then):
    client, server = ends
    for value in (first, then):
        sent = Request((Operation("fill", 1, 0, (0,), {"value": value}),))
        send(client, sent)
        (operation,) = arrived(server.recv(1 << 16)).operations
        assert operation.params == {"value": value}


def test_request_when_large_then_is_sent_as_peer_reads(ends):
    client, server = ends
    values, came = np.arange(1_000_000, dtype=np.float32), bytearray()
    _, parts, size = prepare(client, adding(values, id=RequestId("s", 0)))

    def receive():
        while len(came) < values.nbytes + len(parts[0]):
            came.extend(server.recv(100_000))

    thread = threading.Thread(target=receive)
    thread.start()
    direct.send(client, parts, size, 5)
    thread.join()
    assert np.array_equal(arrived(came).operations[0].arrays[0], values)


def test_request_when_nobody_reads_then_it_is_given_up(ends):
    client, server = ends
    _, parts, size = prepare(client, adding(np.zeros(4_000_000, np.float32), id=RequestId("s", 0)))
    with pytest.raises(TimeoutError):
        direct.send(client, parts, size, 0.05)
    server.close()
    with pytest.raises(OSError, match="pipe"):
        direct.send(client, parts, size, 0.05)
