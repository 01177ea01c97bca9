"""What travels together: one request a server, or several of about a block, numbered alike in every attempt."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps2.client import pairs
from ps2.client import requests as client_requests
from ps2.client.declared import declared
from ps2.client.plans import Plan, Target
from ps2.client.requests import cut, group
from ps2.config import WireConfig
from ps2.matrix.partition import MatrixSpec
from ps2.matrix.route import Route
from ps2.protocol.binary import MAX_HEADER_BYTES, request_parts
from ps2.protocol.messages import Keys, Operation, RequestId

BOUNDS = (0, 10, 20, 30, 40)
ROUTES = {1: Route(1, BOUNDS, ("a", "a", "b", "b"))}
ID = RequestId("me", 7, settled=5)


@pytest.fixture
def light(monkeypatch):
    """Headers that count for nothing, so that sizes are those of the arrays."""
    monkeypatch.setattr(client_requests, "HEADER_BYTES", 0)


def a_plan(*operations):
    return Plan(1, ROUTES[1], operations, lambda results: results, mutates=True)


def a_push(partition, size):
    return Operation("push", 1, partition, (0,), {"start": 0}, (np.zeros(size, np.uint8),))


def a_pull(partition, size):
    return Operation("pull", 1, partition, (0,), reply_bytes=size)


def requests(plans, block, id=ID, routes=ROUTES):
    return group(cut(plans, routes, block, id), routes)


def test_requests_when_small_then_one_a_server(light):
    result = requests([a_plan(*(a_push(p, 10) for p in range(4))), a_plan(a_pull(0, 5))], 100)
    assert [[len(pieces) for pieces, _ in mine] for mine in result.values()] == [[3], [2]]
    assert [request.id for mine in result.values() for _, request in mine] == [ID, ID]


def test_requests_when_large_then_each_partition_gets_its_block(light):
    result = requests([a_plan(*(a_push(p, 40) for p in range(4) for _ in range(5)))], 100)
    for mine in result.values():
        assert [[piece.operation.partition for piece in pieces] for pieces, _ in mine] == [
            [mine[0][0][0].operation.partition] * 2,
            [mine[1][0][0].operation.partition] * 2,
            [mine[2][0][0].operation.partition] * 2,
            [mine[3][0][0].operation.partition] * 2,
            [mine[4][0][0].operation.partition],
            [mine[5][0][0].operation.partition],
        ]


def test_requests_when_partition_has_several_then_ids_are_parts(light):
    result = requests([a_plan(*(a_push(0, 40) for _ in range(5)))], 100)
    ids = [request.id for _, request in result["a"]]
    assert [(id.scope, id.number, id.part, id.parts, id.settled) for id in ids] == [
        ("me", 7, p, 3, 5) for p in range(3)
    ]


def test_requests_when_some_only_read_then_they_are_not_parts(light):
    result = requests([a_plan(a_push(0, 90), a_pull(0, 90), a_push(0, 90))], 100)
    assert [request.id.parts for _, request in result["a"]] == [2, 2, 2]


def test_requests_when_nothing_changes_then_they_have_no_id():
    result = requests([a_plan(*(a_pull(0, 60) for _ in range(3)))], 100, id=None)
    assert [request.id for _, request in result["a"]] == [None] * 3


def test_requests_when_partition_moves_then_parts_keep_numbers(light):
    pieces = cut([a_plan(*(a_push(p, 40) for p in (0, 2) for _ in range(5)))], ROUTES, 100, ID)
    moved = {1: Route(2, BOUNDS, ("b",) * 4)}
    result = group(pieces, moved)
    numbers = [(piece.operation.partition, request.id.part) for mine, request in result["b"] for piece in mine]
    assert sorted(set(numbers)) == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (2, 2)]


def test_requests_when_operation_reuses_keys_then_stay_together():
    scatter = Operation("scatter_add", 1, 0, (0,), keys=Keys(90, np.arange(90)))
    gather = Operation("gather", 1, 0, (0,), keys=Keys(90))
    result = requests([a_plan(*(scatter, gather) * 3)], 500)
    assert [[piece.operation.name for piece in pieces] for pieces, _ in result["a"]] == [["scatter_add", "gather"]] * 3


def a_gather(partition, columns):
    return Operation("gather", 1, partition, (0,), keys=Keys(len(columns), np.array(columns)))


def test_requests_when_next_call_has_same_keys_then_send_once():
    calls = [a_plan(a_gather(0, [1, 2]), a_gather(2, [21])), a_plan(a_gather(0, [1, 2]), a_gather(2, [22]))]
    result = requests([*calls, a_plan(a_gather(0, [1, 2]))], 4 << 20)
    keys = {address: [p.operation.keys.columns for p in mine[0][0]] for address, mine in result.items()}
    assert [columns is not None for columns in keys["a"]] == [True, False, False]
    assert [columns.tolist() for columns in keys["b"]] == [[21], [22]]


def test_requests_when_call_is_between_same_keys_then_resend():
    result = requests([a_plan(a_gather(0, [1])), a_plan(a_pull(0, 5)), a_plan(a_gather(0, [1]))], 4 << 20)
    first, _, last = (piece.operation.keys for piece in result["a"][0][0])
    assert first.columns.tolist() == last.columns.tolist() == [1]


def test_requests_when_keys_exceed_block_then_each_sends_them(light):
    result = requests([a_plan(*(a_gather(0, [1, 2]) for _ in range(4)))], 32)
    keys = [[piece.operation.keys.columns is not None for piece in pieces] for pieces, _ in result["a"]]
    assert keys == [[True, False], [True, False]]


def test_requests_when_operations_are_many_then_bound_headers():
    result = requests([a_plan(*(a_pull(0, 0) for _ in range(20_000)))], 4 << 20)
    assert all(len(request_parts(request)[0]) < MAX_HEADER_BYTES for _, request in result["a"])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 120)), max_size=20), st.integers(1, 200))
def test_requests_when_made_then_operations_travel_once_in_order(sizes, block):
    operations = [a_push(partition, size) for partition, size in sizes]
    result = requests([a_plan(*operations)], block)
    sent = [piece for mine in result.values() for pieces, _ in mine for piece in pieces]
    assert sorted(piece.position for piece in sent) == list(range(len(operations)))
    for partition in range(4):
        positions = [piece.position for piece in sent if piece.operation.partition == partition]
        assert positions == sorted(positions)


def test_pair_update_when_pairs_are_at_limit_then_request_fits():
    limit_bytes = WireConfig().request_limit_bytes

    def size(count):
        rows, target = np.zeros(count, np.int64), Target(1, MatrixSpec(2, 2), Route(0, (0, 2), ("a",)))
        given = {"rows_a": rows, "rows_b": rows, "coefficients": np.zeros(count)}
        return sum(operation.nbytes for operation in declared(target, "rows_pair_update", given).operations)

    assert size(pairs.MAX_ON_SERVERS) <= limit_bytes < size(pairs.MAX_ON_SERVERS + 1)
