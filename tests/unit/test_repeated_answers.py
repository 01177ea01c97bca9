"""A mutation that is sent again gets the answer of its first attempt."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from ps2.errors import OpError
from ps2.matrix.partition import MatrixSpec, Partition
from ps2.ops.all import TABLE
from ps2.ops.table import Array, Row, Values, op
from ps2.protocol.messages import Operation, Request, RequestId
from ps2.server import reply_cache
from ps2.server.copies import forwarded_operations, operation_change, reply_change, transfer_operations
from ps2.server.engine import Engine
from ps2.server.reply_cache import CachedReply
from ps2.server.shard_snapshot import ids_json

M = 1
SPEC = MatrixSpec(8, 1, dtype="int64")
PARTITIONS = [Partition(0, 0, 4), Partition(1, 4, 8)]


@pytest.fixture(autouse=True)
def fetch_add():
    """An operation that adds to a row, and returns what it was."""
    before = dict(TABLE)

    @op(writes=("u",))
    def fetch_add(u: Row, values: Values) -> Array:
        """Add values; return what was there before."""
        old = u.copy()
        u += values
        return old

    yield
    TABLE.clear()
    TABLE.update(before)


def an_engine(copies=False):
    engine = Engine(1 << 30, allow_udf=False)
    engine.create_matrix(M, SPEC, PARTITIONS, copies)
    return engine


def added(partition=0, value=1):
    return Operation("fetch_add", M, partition, (0,), arrays=(np.full(4, value),))


def run(engine, *operations, id):
    return [result.arrays[0].tolist() for result in engine.execute(Request(operations, id)).results]


def number(value, **fields):
    return RequestId("scope", value, **fields)


def test_answer_when_request_repeats_then_is_first_one():
    engine = an_engine()
    assert run(engine, added(), id=number(0)) == [[0] * 4]
    assert run(engine, added(), id=number(1)) == [[1] * 4]
    assert run(engine, added(), id=number(0)) == [[0] * 4]
    assert engine.shards()[M, 0].row(0).tolist() == [2] * 4


def test_answers_when_partitions_share_id_then_each_has_its_own():
    engine = an_engine()
    run(engine, added(1, 7), id=number(0))
    for partition in (0, 1):
        run(engine, added(partition), id=number(1, part=0, parts=2))
    assert [run(engine, added(p), id=number(1, part=0, parts=2)) for p in (0, 1)] == [[[0] * 4], [[7] * 4]]


def test_answer_when_no_longer_kept_then_error_says_applied(monkeypatch):
    monkeypatch.setattr(reply_cache, "LIMIT_BYTES", 1000)
    engine = an_engine()
    run(engine, added(), id=number(0))
    with pytest.raises(OpError, match="operation 'fetch_add' was applied by an earlier attempt, and its result is no"):
        run(engine, added(), id=number(0))
    assert engine.shards()[M, 0].row(0).tolist() == [1] * 4


def test_answers_when_ids_settle_or_stage_ends_then_dropped():
    engine = an_engine()
    for value in range(5):
        run(engine, added(), id=number(value, settled=value, series="s", stage=1))
    assert [kept.id.number for kept in engine.replies.shard_replies((M, 0))] == [4]
    engine.end_stages("s", 2, [])
    assert engine.replies.shard_replies((M, 0)) == []


def as_a_copy(engine, *requests):
    """Return another server's engine that has got what was forwarded to it, with its copies as its own shards."""
    backup = an_engine(copies=True)
    for shard in backup.shards().values():
        shard.incomplete = False
    for request in requests:
        backup.execute(replace(request, forwarded=True))
    for shard in backup.shards().values():
        shard.copy = False
    return backup


def test_answer_when_server_is_lost_then_copy_gives_first_one():
    engine = an_engine()
    shard, requests = engine.shards()[M, 0], []
    for value in range(2):
        (result,) = engine.execute(Request((added(),), number(value))).results
        changes = [operation_change(added(), (shard,), None), reply_change(added(), (shard,), 0, result)]
        requests.append(Request(tuple(forwarded_operations(changes)), number(value)))
    backup = as_a_copy(engine, *requests)
    assert [run(backup, added(), id=number(value)) for value in range(2)] == [[[0] * 4], [[1] * 4]]
    assert backup.shards()[M, 0].row(0).tolist() == [2] * 4


def test_answer_when_shard_is_sent_whole_then_goes_with_it():
    engine = an_engine()
    run(engine, added(), id=number(3))
    filling = tuple(transfer_operations((M, 0), engine.shards()[M, 0], engine.replies))
    backup = as_a_copy(engine, Request(filling, RequestId("ps2 filling", 1), route_version=0))
    assert run(backup, added(), id=number(3)) == [[0] * 4]


def test_answer_when_shard_is_from_checkpoint_then_comes_with_it():
    engine = an_engine()
    run(engine, added(value=5), id=number(0))
    shard = engine.shards()[M, 0]
    saved = json.loads(ids_json(shard, engine.replies.shard_replies((M, 0))))
    engine.replies.replace([])
    shard.restored_replies = [CachedReply.from_json(kept, (M, 0)) for kept in saved["kept"]]
    restored = Engine(1 << 30, allow_udf=False)
    restored.replace_shards({(M, 0): shard})
    assert run(restored, added(value=5), id=number(0)) == [[0] * 4]
