"""``worker.rotate``: a worker has its block alone, sees all that was done to it before, and each turn counts once."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

from ps2 import DCV
from ps2.errors import WorkerError
from ps2.run.rotation import IDLE, schedule

pytestmark = pytest.mark.usefixtures("by_value")
WORKERS, BLOCKS, ROTATIONS, WIDTH, K, SEED = 2, 5, 3, 30, 3, 11


@pytest.fixture
def rows(sc):
    return sc.parallelize(range(WORKERS), WORKERS)


def turns(slices):
    """What each worker has, of shape (clocks, WORKERS)."""
    return np.concatenate([schedule(SEED, rotation, WORKERS, BLOCKS, slices) for rotation in range(ROTATIONS)])


def counting(table, expected, dies=None):
    """A worker that adds 1 to its block in each turn; returns, for each, what it found: as expected, or not.

    Args:
        expected: how often a block has been had before a clock, by clock and block.
        dies: (rank, clock) in which the first attempt ends, its addition sent.
    """

    def work(worker, rows):
        from pyspark import TaskContext

        list(rows)  # so that Spark can use the process again

        def columns(block):
            return np.arange(block * WIDTH, (block + 1) * WIDTH)

        def fetch(block):
            return worker.prefetch(table, columns=columns(block))

        attempt = TaskContext.get().attemptNumber()
        slices = 2 if worker._loop.ref.staleness else 1
        result, pause = [], np.random.default_rng(worker.rank)
        for turn in worker.rotate(BLOCKS, ROTATIONS, slices, fetch=fetch):
            before = turn.pull()
            time.sleep(0.01 * pause.random())  # so that workers drift apart
            table.add(columns=columns(turn.block), values=np.ones((WIDTH, K), np.int32), wait=False)
            if dies == (worker.rank, worker.clock) and attempt == 0:
                table.pull(columns=columns(turn.block))
                worker._loop.session.dispatch.flush()
                os._exit(1)
            after = table.pull(columns=columns(turn.block))
            result.append((worker.clock, turn.block, *np.unique(before - expected[worker.clock, turn.block])))
            result.append((worker.clock, turn.block, *np.unique(after - expected[worker.clock, turn.block])))
        return result

    return work


def had_before(turns):
    """How often each block has been had before a clock, of shape (clocks, BLOCKS)."""
    had = np.stack([(turns == block).sum(axis=1) for block in range(BLOCKS)], axis=1)
    return had.cumsum(axis=0) - had


@pytest.mark.parametrize(("slices", "staleness"), [(1, 0), (2, 1)])
def test_rotate_when_each_owner_adds_1_then_blocks_are_exclusive(ps, rows, slices, staleness):
    table = DCV.dense(BLOCKS * WIDTH, K, dtype="int32", layout="column").matrix()
    plan = turns(slices)
    result = ps.run(rows, counting(table, had_before(plan)), WORKERS, staleness=staleness, seed=SEED)
    for rank, actual in enumerate(result):
        mine = [(clock, block) for clock, block in enumerate(plan[:, rank]) if block != IDLE]
        assert actual == [(*position, count) for position in mine for count in (0, 1)]
        assert result.timeline[rank].block.tolist() == plan[:, rank].tolist()
    assert np.unique(table.pull(columns=np.arange(BLOCKS * WIDTH))).tolist() == [ROTATIONS * WORKERS]


def test_rotate_when_worker_dies_in_turn_then_turns_count_once(ps, rows):
    table = DCV.dense(BLOCKS * WIDTH, K, dtype="int32", layout="column").matrix()
    plan = turns(2)
    dies = 1, 8
    assert plan[8, 1] != IDLE
    results = ps.run(rows, counting(table, had_before(plan), dies), WORKERS, staleness=1, seed=SEED)
    again = [position for position in results[1] if position[0] <= 8]
    assert again, "the next attempt went on with the turn"
    assert {clock for clock, *_ in again} <= {7, 8}, "what was applied before is not done again"
    assert {counts[0] for _, _, *counts in again} <= {0, 1}, "nobody else was there"
    later = [position for result in results for position in result if position[0] > 8]
    assert {tuple(counts) for _, _, *counts in later} == {(0,), (1,)}
    assert np.unique(table.pull(columns=np.arange(BLOCKS * WIDTH))).tolist() == [ROTATIONS * WORKERS]


@pytest.mark.parametrize(("slices", "staleness"), [(1, 0), (2, 1), (2, 0)])
def test_rotate_when_seed_is_fixed_then_matches_serial_bitwise(ps, rows, slices, staleness):
    table = DCV.dense(BLOCKS * WIDTH, K, dtype="float64", layout="column").matrix()

    def change(block, rng):
        """What a turn adds: it depends on the order of turns."""
        return (0.7 * block + rng.normal(size=block.shape) * (1 + block**2)) / (1 + block**2)

    def work(worker, rows):
        list(rows)  # so that Spark can use the process again

        def columns(block):
            return np.arange(block, BLOCKS * WIDTH, BLOCKS)

        def fetch(block):
            return worker.prefetch(table, columns=columns(block))

        for turn in worker.rotate(BLOCKS, ROTATIONS, slices, fetch=fetch):
            table.add(columns=columns(turn.block), values=change(turn.pull(), worker.rng()), wait=False)

    ps.run(rows, work, WORKERS, staleness=staleness, seed=SEED)

    serial = np.zeros((BLOCKS * WIDTH, K))
    for clock, blocks in enumerate(turns(slices)):
        for rank, block in enumerate(blocks):
            if block != IDLE:
                rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(SEED, spawn_key=(rank, clock))))
                serial[block::BLOCKS] += change(serial[block::BLOCKS], rng)
    np.testing.assert_array_equal(table.pull(columns=np.arange(BLOCKS * WIDTH)), serial)


def test_rotate_when_turn_computes_then_next_block_is_read_ahead(ps, rows):
    """Nobody ends its turn before that: so it is told within the turn that the others' last one is applied."""
    table = DCV.dense(BLOCKS * WIDTH, K, dtype="int32", layout="column").matrix()

    def work(worker, rows):
        list(rows)  # so that Spark can use the process again
        asked, early = [], []

        def fetch(block):
            asked.append(worker.prefetch(table, columns=np.arange(block, BLOCKS * WIDTH, BLOCKS)))
            return asked[-1]

        for turn in worker.rotate(2 * WORKERS, ROTATIONS, fetch=fetch):
            columns = np.arange(turn.block, BLOCKS * WIDTH, BLOCKS)
            table.add(columns=columns, values=np.ones((len(columns), K), np.int32), wait=False)
            give_up_s = time.monotonic() + 20
            while not asked[-1].is_started and time.monotonic() < give_up_s:
                time.sleep(0.001)
            early.append(asked[-1].is_started)
        return early

    assert list(ps.run(rows, work, WORKERS, staleness=1, seed=SEED)) == [[True] * 2 * WORKERS * ROTATIONS] * WORKERS


def test_rotate_when_it_follows_another_then_sees_its_changes(ps, rows):
    total = DCV.dense(8, dtype="int64")

    def work(worker, rows):
        list(rows)  # so that Spark can use the process again
        total.add(np.ones(8, np.int64))
        result = []
        for rotations in (2, 1):
            for turn in worker.rotate(8, rotations, fetch=lambda block: worker.prefetch(total, [block])):
                if turn.rotation == 0:
                    result.append((turn.number, int(turn.pull()[0])))
                total.add([1], [turn.block], wait=False)
        return result

    for result in ps.run(rows, work, WORKERS, staleness=1, seed=SEED):
        assert {count for number, count in result[:8] if number < 2} == {2}
        assert {count for number, count in result[8:] if number < 2} == {6}
    assert total.pull().tolist() == [2 + 6] * 8


def test_rotate_when_workers_differ_in_blocks_then_names_both(ps, rows):
    def work(worker, rows):
        list(rows)  # so that Spark can use the process again
        list(worker.rotate(4 + worker.rank))

    with pytest.raises(
        WorkerError, match=r"the arguments of another worker.*\([45], 1, 2, inf\), got \([45], 1, 2, inf"
    ):
        ps.run(rows, work, WORKERS, staleness=1)
