"""Blocks that are read while they are sent equal those of a reply that is built as a whole."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.client import blocks, plans
from ps2.client.requests import cut, group
from ps2.config import WireConfig
from ps2.errors import NotFoundError
from ps2.matrix.partition import MatrixSpec
from ps2.ops.packing import MIN_NARROWED_BYTES
from ps2.protocol.binary import reply_parts
from ps2.protocol.framing import reply_views
from ps2.server import request_runner
from tests.fakes import FleetInProcess, session_over

DIM, K = 60, 3
PIECE = 8  # blocks


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Replies of a few blocks come by pieces."""
    monkeypatch.setattr(request_runner, "MIN_STREAMED_BYTES", 0)
    monkeypatch.setattr(request_runner, "PIECE_BYTES", PIECE * K * 8)


@pytest.fixture(params=[1, 3])
def over(request):
    return session_over(FleetInProcess(request.param))


def make(over, kind="dense", dtype="float64", **fields):
    info = over.new_matrix(MatrixSpec(DIM, K, dtype=dtype, kind=kind, layout="column", **fields))
    over.take_rows(info.id, K - 1)
    return plans.Target(info.id, info.spec, info.route, (1,))


def filled(over, low=-99, high=99, **fields):
    """Return a matrix of which every other column was written, and what it holds."""
    target, model = make(over, **fields), np.zeros((DIM, K), fields.get("dtype", "float64"))
    model[::2] = np.random.default_rng(0).integers(low, high, (DIM // 2, K))
    over.dispatch.run([blocks.push(target, range(0, DIM, 2), model[::2])])
    return target, model


def replies(over, plan):
    """Return what servers answer to each request of a plan, with the request."""
    pieces = cut([plan], {plan.matrix: plan.route}, WireConfig.block_bytes)
    for address, mine in group(pieces, {plan.matrix: plan.route}, over.routes.version).items():
        for _, request in mine:
            yield request, over.network.engines[address].execute(request)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("dtype", ["float64", "int64"])
@pytest.mark.parametrize("count", [1, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE + 3])
def test_pull_when_blocks_come_by_pieces_then_those_asked_for(over, kind, dtype, count):
    target, model = filled(over, -(1 << 40), 1 << 40, kind=kind, dtype=dtype)
    columns = np.random.default_rng(count).integers(0, DIM, count)
    plan = blocks.pull(target, columns)
    assert all(reply.results[0].streamed is not None for _, reply in replies(over, plan))
    assert np.array_equal(over.dispatch.run([plan])[0], model[columns])


def test_reply_when_blocks_come_in_pieces_then_length_matches(over):
    target, _ = filled(over)
    for request, reply in replies(over, blocks.pull(target, range(DIM))):
        sent = [b"".join(map(bytes, views)) for views in reply_views(reply_parts(reply, request))]
        assert len(sent) > 2
        assert sum(map(len, sent[1:])) == reply.results[0].nbytes


def test_reply_when_block_changes_before_piece_then_sends_new():
    over = session_over(FleetInProcess(1))
    target, model = filled(over)
    ((_, reply),) = replies(over, blocks.pull(target, range(DIM)))
    pieces = reply.results[0].streamed.pieces()
    result = [next(pieces).copy()]
    over.dispatch.run([blocks.push(target, [DIM - 1], np.ones((1, K)))])
    result += [piece.copy() for piece in pieces]
    model[DIM - 1] = 1
    assert np.array_equal(np.concatenate(result), model)


@pytest.mark.parametrize("fields", [{"dtype": "int64"}, {"dtype": "float32", "wire": "float16"}])
def test_reply_when_values_are_narrowed_then_is_not_streamed(over, fields, monkeypatch):
    monkeypatch.setattr(request_runner, "PIECE_BYTES", 2 * MIN_NARROWED_BYTES)
    target, _ = filled(over, **fields)
    many = np.arange(DIM).repeat(20)
    assert all(reply.results[0].streamed is None for _, reply in replies(over, blocks.pull(target, many)))


def test_reply_when_operations_are_two_then_is_not_streamed(over):
    """What comes after a read in one request must not be seen by it."""
    target, model = filled(over)
    first, _, second = over.dispatch.run(
        [blocks.pull(target, range(DIM)), blocks.fill(target, None, 7), blocks.pull(target, range(DIM))]
    )
    assert np.array_equal(first, model)
    assert (second == 7).all()


def test_pull_when_the_matrix_was_freed_then_not_found(over):
    target, _ = filled(over)
    shards = [shard for engine in over.network.engines.values() for shard in engine.shards().values()]
    for shard in shards:
        shard.free()
    with pytest.raises(NotFoundError, match="the matrix was freed"):
        over.dispatch.run([blocks.pull(target, range(DIM))])
