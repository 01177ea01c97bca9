"""Requests and replies by every way that they can take: what arrives, in which order, and what is refused."""

from __future__ import annotations

import socket
import threading

import numpy as np
import pytest

from ps2.errors import KeyMissError, LimitError, NotFoundError, OutOfRangeError, PS2Error, UnavailableError
from ps2.protocol.messages import Keys, key_digest
from tests.contract.servers import (
    BLOCK,
    CARRIERS,
    DIM,
    SOCKETS,
    an_engine,
    changing,
    connected,
    count,
    nothing_under_way,
    op,
    outcomes,
    reading,
    row,
    send,
    serving,
)
from tests.ports import free_port

on_sockets = pytest.mark.parametrize("carrier", SOCKETS)
COLUMNS = np.arange(0, 9000, 3)
# 1 kB on the way, 8 kB as the columns that they are.
DENSE_KEYS = reading(op("gather", 0, keys=Keys(1001, np.arange(1001))))


def filled(value):
    """A request that writes a block, and one that reads it."""
    return changing(op("fill", 0, value=float(value))), reading(op("gather", 0, arrays=[np.array([5])]))


# -- requests --------------------------------------------------------------------------------------------------------


@on_sockets
def test_carrier_when_it_is_chosen_then_it_is_what_is_used(transport, address, carrier):
    count(transport, address)
    peers = transport._pool._peers if hasattr(transport, "_pool") else {}
    used = {connection.family for peer in peers.values() for connection in peer.idle}
    assert used == {"tcp": {socket.AF_INET}, "unix": {socket.AF_UNIX}}.get(carrier, set())


def test_arrays_when_large_then_return_equal_and_in_place(transport, address):
    values, out = np.random.default_rng(0).standard_normal(DIM), np.empty(DIM)
    starts = range(0, DIM, BLOCK)
    pushed = outcomes(
        transport,
        address,
        *(changing(op("push", 0, arrays=[values[start : start + BLOCK]], start=start)) for start in starts),
    )
    pulled = outcomes(
        transport,
        address,
        *(reading(op("pull", 0, start=s, stop=s + BLOCK, into=out[s : s + BLOCK])) for s in starts),
    )
    assert [reply.replayed for reply in pushed] == [False, False]
    assert all(np.shares_memory(reply.results[0].arrays[0], out) for reply in pulled)
    assert np.array_equal(out, values)


def test_operations_when_in_one_request_then_results_keep_order(transport, address):
    gather = op("gather", 0, arrays=[np.array([5, 5])])
    reply = send(transport, address, changing(op("fill", 0, value=2.0), op("sum", 0), gather, op("max", 0)))
    assert [result.scalar for result in reply.results] == [None, 2.0 * DIM, None, 2.0]
    assert reply.results[2].arrays[0].tolist() == [2, 2]


def test_request_when_id_repeats_then_reply_says_replayed(transport, address):
    request = changing(op("fill", 0, value=1.0))
    assert [reply.replayed for reply in outcomes(transport, address, request, request)] == [False, True]


def test_request_when_it_has_no_operations_then_no_results(transport, address):
    assert send(transport, address, reading()).results == ()


def test_requests_when_pipelined_then_run_in_order(transport, address):
    pairs = [filled(k) for k in range(100)]
    replies = outcomes(transport, address, *(request for pair in pairs for request in pair))
    assert [reply.results[0].arrays[0].tolist() for reply in replies[1::2]] == [[k] for k in range(100)]


def test_requests_when_early_one_fails_then_later_ones_answered(transport, address):
    write, read = filled(7)
    got = outcomes(transport, address, reading(op("sum", 9)), write, reading(op("no_such", 0)), read)
    assert [type(outcome) for outcome in got[::2]] == [OutOfRangeError, NotFoundError]
    assert got[3].results[0].arrays[0].tolist() == [7]


def test_requests_when_both_directions_are_large_then_no_hang(transport, address):
    """More than all buffers hold, both ways: a client that writes all before it reads would hang."""
    values = np.ones(BLOCK)
    both = changing(op("push", 1, arrays=[values], start=0), op("pull", 1, start=0, stop=BLOCK))
    replies = outcomes(transport, address, *[both] * 8)
    assert [reply.results[1].arrays[0].sum() for reply in replies] == [BLOCK] * 8


@on_sockets
def test_servers_when_one_is_unreachable_then_others_answer(transport, address, engine):
    nobody = f"127.0.0.1:{free_port()}"
    with serving(an_engine()) as other:
        got = transport.exchange({where: [reading(op("count", 0))] * 2 for where in (address, nobody, other.address)})
    assert [type(outcome) for outcome in got[nobody]] == [UnavailableError] * 2
    assert [reply.results[0].scalar for reply in got[address] + got[other.address]] == [DIM] * 4


def test_threads_when_sharing_transport_then_get_own_replies(transport, address):
    wrong = []

    def ask(number):
        columns = np.arange(number, number + 20)
        for _ in range(10):
            reply = send(transport, address, reading(op("gather", 0, arrays=[columns])))
            if reply.results[0].arrays[0].tolist() != columns.tolist():
                wrong.append(number)

    send(transport, address, changing(op("push", 0, arrays=[np.arange(100.0)], start=0)))
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# -- keys, and floats of 16 bits -------------------------------------------------------------------------------------


def gathered(keys):
    return reading(op("gather", 0, matrix=2, keys=keys))


def test_keys_when_told_once_then_their_hash_alone_is_enough(transport, address, carrier):
    columns = COLUMNS * (1 + CARRIERS.index(carrier))  # none that another test has told
    keys = Keys(columns.size, columns, key_digest(columns))
    scatter = op("scatter", 0, matrix=2, keys=keys, arrays=[np.ones(columns.size)])
    send(transport, address, changing(scatter))
    reply = send(transport, address, gathered(Keys(columns.size, None, keys.digest)))
    assert reply.results[0].arrays[0].tolist() == [1] * columns.size


def test_keys_when_not_remembered_then_key_miss_error(transport, address, engine):
    before = row(engine, 1)
    scatter = op("scatter_add", 0, matrix=2, keys=Keys(3, None, b"never told of it"), arrays=[np.ones(3)])
    with pytest.raises(KeyMissError, match="these 3 keys are not in"):
        send(transport, address, changing(op("fill", 1, value=9.0), scatter))
    assert np.array_equal(row(engine, 1), before)


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_floats_when_they_travel_as_16_bits_then_both_ways(transport, address, wire):
    values, out = np.arange(100.0), np.empty(100)
    push, pull = op("push", 0, arrays=[values], start=0, wire=wire), op("pull", 0, start=0, stop=100, into=out)
    send(transport, address, changing(push))
    send(transport, address, reading(op("pull", 0, start=0, stop=100, wire=wire, into=out)))
    assert out.tolist() == values.tolist()
    send(transport, address, reading(pull))
    assert out.tolist() == values.tolist()


# -- requests that are not sent --------------------------------------------------------------------------------------


def unsendable():
    return changing(op("push", 0, arrays=[np.full(9, 1e6)], start=0, wire="float16"))


@pytest.mark.parametrize("where", [0, 1, 3])
def test_request_when_float_does_not_fit_then_out_of_range_error(transport, address, where):
    write, read = filled(3)
    requests = [write, read, read]
    requests.insert(where, unsendable())
    got = outcomes(transport, address, *requests)
    assert isinstance(got.pop(where), OutOfRangeError)
    assert [reply.results[0].arrays[0].tolist() for reply in got[1:]] == [[3], [3]]


@pytest.mark.parametrize("requests", [1, 3])
def test_request_when_none_can_be_sent_then_each_has_its_error(transport, address, requests):
    got = outcomes(transport, address, *(unsendable() for _ in range(requests)))
    assert [type(outcome) for outcome in got] == [OutOfRangeError] * requests
    assert count(transport, address) == DIM


@on_sockets
def test_request_when_over_limit_then_limit_error_in_its_place(address, carrier):
    write, read = filled(4)
    with connected(carrier, request_limit_bytes=1000) as transport:
        got = outcomes(transport, address, write, changing(op("push", 0, arrays=[np.zeros(126)], start=0)), read)
    assert isinstance(got[1], LimitError)
    assert "at most 1,000 bytes, got 1,008" in str(got[1])
    assert got[2].results[0].arrays[0].tolist() == [4]


# -- memory ----------------------------------------------------------------------------------------------------------


def test_memory_when_requests_succeed_or_fail_then_all_released(transport, address, engine, until):
    values = np.zeros(1000)
    failing = [
        reading(op("push", 0, arrays=[values], start=0)),
        changing(op("push", 0, arrays=[values], start=DIM - 5)),
        changing(op("push", 9, arrays=[values], start=0)),
        changing(op("push", 0, arrays=[values], start=0, partition=7)),
        changing(op("push", 0, arrays=[values.astype(np.int64)], start=0)),
        changing(op("scatter_add", 0, arrays=[values], keys=Keys(1000, None, bytes(16)))),
        changing(op("map", 0, arrays=[np.frombuffer(b"no pickle", np.uint8)], with_index=0)),
    ]
    got = outcomes(transport, address, *failing, changing(op("push", 0, arrays=[values], start=0)))
    assert [isinstance(outcome, PS2Error) for outcome in got] == [True] * len(failing) + [False]
    until(lambda: nothing_under_way(engine), "memory given back")


def test_memory_when_exhausted_then_limit_error_and_server_lives(transport, address, engine, until):
    until(lambda: nothing_under_way(engine) and not engine.fast_paths.nbytes, "memory given back")
    engine.keys.free_memory(engine.keys.nbytes)  # they would make room
    limit, engine.memory.limit_bytes = engine.memory.limit_bytes, engine.memory.used_bytes + 1000
    try:
        got = outcomes(
            transport,
            address,
            changing(op("push", 0, arrays=[np.zeros(126)], start=0)),
            changing(op("push", 0, arrays=[np.zeros(60)], start=0)),  # Execute holds it twice
            DENSE_KEYS,
        )
    finally:
        engine.memory.limit_bytes = limit
    assert [isinstance(outcome, LimitError) for outcome in got] == [True, False, True]
    until(lambda: nothing_under_way(engine), "memory given back")
