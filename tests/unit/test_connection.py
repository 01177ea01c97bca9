"""Decisions about a connection from the byte counts of both ends."""

from __future__ import annotations

import socket
from contextlib import contextmanager, suppress

import pytest

from ps2.transport.connection import ByteCounts, ConnectionCounts, byte_counts, is_peer_buffer_full, is_stalled


def look(here, there):
    return ConnectionCounts(ByteCounts(*here), ByteCounts(*there))


BEFORE = look((100, 50, 0), (60, 80, 0))


@pytest.mark.parametrize(
    ("now", "nothing"),
    [
        (look((100, 50, 0), (60, 80, 0)), True),  # neither way: 20 bytes up and 10 down were on their way
        (look((100, 60, 0), (60, 80, 0)), True),  # not up
        (look((100, 50, 0), (60, 100, 0)), True),  # not down
        (look((100, 60, 0), (60, 81, 0)), False),  # both move
        (look((100, 60, 0), (60, 80, 7)), False),  # the server does not read on: it works
        (look((100, 60, 0), (60, 100, 0)), False),  # all has come: it works
        (look((900, 60, 0), (60, 100, 0)), False),  # what was written since may be on its way
    ],
)
def test_connection_when_looked_at_twice_then_lasting_ones_count(now, nothing):
    assert is_stalled(BEFORE, now) is nothing


@contextmanager
def pair():
    """Both ends of a TCP connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as server,
    ):
        yield client, server


def test_carried_when_both_ends_have_sent_then_they_count_alike(until):
    with pair() as (client, server):
        client.sendall(b"x" * 1000)
        server.sendall(b"y" * 10)
        server.recv(300, socket.MSG_WAITALL)
        until(lambda: byte_counts(client, is_client=True) == ByteCounts(1000, 10, 10), "the client's end")
        until(lambda: byte_counts(server, is_client=False) == ByteCounts(10, 1000, 700), "the server's end")


def test_carried_when_on_one_host_without_network_then_none():
    ends = socket.socketpair()
    assert byte_counts(ends[0], is_client=True) is None
    for end in ends:
        end.close()


def test_connection_when_peer_has_no_room_then_is_held_back(until):
    with pair() as (client, _):
        assert not is_peer_buffer_full(client)
        client.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                client.send(bytes(1 << 16))
        until(lambda: is_peer_buffer_full(client), "all that was sent is acknowledged")
