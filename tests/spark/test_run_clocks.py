"""What workers that stay find on the servers when one straggles: the guarantees of BSP, SSP and ASP."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

from ps2 import DCV

WORKERS = 2
CLOCKS = 30
WAIT_S = 60.0


@pytest.fixture
def rows(sc):
    return sc.parallelize(range(WORKERS), WORKERS)


def delay(worker, longest_s):
    """Take a random time, equal in each run of these tests; now and then, one worker is ten times slower."""
    random = worker.rng(7)
    straggles = worker.rank == (worker.clock // 5) % WORKERS and random.random() < 0.5
    time.sleep(random.random() * longest_s * (10 if straggles else 1))


def observe(ps, rows, staleness, wait):
    """Run workers that count their clocks, each in its own column; return what they read in each clock.

    Returns:
        By rank: (clocks begun, clocks ended), read in its clocks; int64, shape (CLOCKS, 2, WORKERS).
    """
    begun = DCV.dense(WORKERS, 2, dtype="int64").fill(0)
    ended = begun.derive().fill(0)

    def work(worker, _):
        mine = np.array([worker.rank])
        seen = []
        for _ in worker.clocks(CLOCKS):
            begun.add(np.ones(1, np.int64), mine)
            delay(worker, 0.002)
            seen.append([begun.pull(), ended.pull()])
            delay(worker, 0.002)
            ended.add(np.ones(1, np.int64), mine, wait=wait)
        return np.array(seen)

    return list(ps.run(rows, work, WORKERS, staleness, timeoutS=WAIT_S))


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_workers_when_one_straggles_then_at_most_s_clocks_apart(ps, by_value, rows, staleness):
    for rank, seen in enumerate(observe(ps, rows, staleness, wait=True)):
        clock = np.arange(CLOCKS)[:, None]
        others = np.arange(WORKERS) != rank
        # Who is in clock u has begun u + 1 and ended u.
        assert (seen[:, 0, others] <= clock + staleness + 1).all()
        assert (seen[:, 1, others] >= clock - staleness).all()


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_read_when_one_straggles_then_has_updates_to_t_minus_s(ps, by_value, rows, staleness, wait):
    for rank, seen in enumerate(observe(ps, rows, staleness, wait)):
        clock = np.arange(CLOCKS)
        for other in range(WORKERS):
            ended = seen[:, 1, other]
            assert (ended == clock if other == rank else ended >= clock - staleness).all()


def test_bsp_when_one_straggles_then_matches_single_process(ps, by_value, rows):
    dim, rate = 16, np.float32(0.1)
    weight = DCV.dense(dim, 1 + WORKERS).fill(0.5)
    gradients = [weight.derive().fill(0.0) for _ in range(WORKERS)]

    def gradient(rank, w):
        x = np.random.default_rng(rank).standard_normal((8, dim)).astype(np.float32)
        return x.T @ np.tanh(x @ w - np.float32(rank)) / np.float32(8)

    def work(worker, _):
        for _ in worker.clocks(CLOCKS):
            w = weight.pull()
            delay(worker, 0.002)
            gradients[worker.rank].push(gradient(worker.rank, w))

    def fold(_):
        w = weight.pull()
        for part in gradients:
            w -= rate * part.pull()
        weight.push(w)

    ps.run(rows, work, WORKERS, 0, onClock=fold, timeoutS=WAIT_S)

    expected = np.full(dim, 0.5, np.float32)
    for _ in range(CLOCKS):
        parts = [gradient(rank, expected) for rank in range(WORKERS)]
        for part in parts:
            expected -= rate * part
    np.testing.assert_array_equal(weight.pull(), expected)


def test_asp_when_one_stalls_in_first_clock_then_other_finishes(ps, by_value, rows):
    finished = DCV.dense(WORKERS, 1, dtype="int64").fill(0)

    def work(worker, _):
        mine = np.array([worker.rank])
        for clock in worker.clocks(CLOCKS):
            give_up_s = time.monotonic() + WAIT_S
            while worker.rank == 0 and clock == 0 and finished.pull()[1] < CLOCKS:
                assert time.monotonic() < give_up_s
            seen = finished.pull()  # before this clock's own: the other's last one lets the first go
            finished.add(np.ones(1, np.int64), mine)
        return seen.tolist()

    first, other = ps.run(rows, work, WORKERS, staleness=None, timeoutS=2 * WAIT_S)
    assert (first, other) == ([CLOCKS - 1, CLOCKS], [0, CLOCKS - 1])


def test_calls_when_asp_clocks_end_together_then_all_are_made(ps, by_value, rows):
    called = []

    def work(worker, _):
        for _ in worker.clocks(CLOCKS):
            pass

    ps.run(rows, work, WORKERS, staleness=None, onClock=called.append, timeoutS=WAIT_S)
    assert called == list(range(CLOCKS))


def test_attempt_when_it_dies_in_second_loop_then_counts_once(ps, by_value, rows):
    counts = DCV.dense(2 * WORKERS, 1, dtype="int64").fill(0)

    def work(worker, _):
        from pyspark import TaskContext

        one, mine = np.ones(1, np.int64), np.array([worker.rank])
        for _ in worker.clocks(3):
            counts.add(one, mine)
        worker.barrier()
        counts.add(one, mine + WORKERS)
        created = worker.once(lambda: worker.rank)
        for clock in worker.clocks(6):
            counts.add(one, mine)
            if clock == 4 and worker.rank == 1 and TaskContext.get().attemptNumber() == 0:
                os._exit(1)
        return created

    first, other = ps.run(rows, work, WORKERS, timeoutS=WAIT_S)
    assert first == other
    assert counts.pull().tolist() == [6] * WORKERS + [1] * WORKERS


def test_barrier_when_other_waits_before_clock_then_names_it(ps, by_value, rows):
    from ps2.errors import WorkerError

    def work(worker, _):
        for _ in worker.clocks(2):
            if worker.rank == 0:
                worker.barrier()

    with pytest.raises(WorkerError, match="rank 0 waits at a barrier in clock 0; rank 1 waits before clock 1"):
        ps.run(rows, work, WORKERS, timeoutS=WAIT_S)
