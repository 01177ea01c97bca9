"""Workers that compute while their additions and reads travel: each addition counts once, no read is too old."""

from __future__ import annotations

import itertools
import os
import threading

import cloudpickle
import numpy as np
import pytest

from ps2 import DCV
from ps2.errors import WorkerError

pytestmark = pytest.mark.usefixtures("by_value")
DIM = 40_000
CLOCKS = 6


@pytest.fixture
def rows(sc):
    return sc.parallelize(range(2), 2)


@pytest.mark.parametrize(
    "staleness",
    [0, 2, None],
)
def test_adds_when_task_dies_midway_then_each_counts_once(ps, rows, staleness):
    total = DCV.dense(DIM, dtype="int64")
    keys = np.random.default_rng(0).permutation(DIM)

    def work(worker, rows):
        from pyspark import TaskContext

        for t in worker.clocks(CLOCKS):
            total.add(np.ones(DIM, np.int64), keys, wait=False)
            total.sub(np.full(DIM, 3), wait=False)
            if t == 3 and worker.rank == 0 and TaskContext.get().attemptNumber() == 0:
                os._exit(1)

    ps.run(rows, work, workers=2, staleness=staleness)
    assert set(total.pull().tolist()) == {-2 * 2 * CLOCKS}


@pytest.mark.parametrize(("staleness", "kind"), [(0, "sparse"), (1, "dense"), (None, "dense")])
def test_pull_when_own_adds_are_queued_then_includes_them(ps, rows, staleness, kind):
    total = DCV.dense(DIM) if kind == "dense" else DCV.sparse(2**50)

    def work(worker, rows):
        mine, result = np.arange(worker.rank, DIM, 2), []
        for t in worker.clocks(3):
            for part in range(3):
                total.add(np.ones(mine.size), mine, wait=False)
                result.append((3 * t + part + 1, *np.unique(total.pull(mine))))
        return result

    results = ps.run(rows, work, workers=2, staleness=staleness)
    assert list(results) == [[(n, n) for n in range(1, 10)]] * 2


@pytest.mark.parametrize("staleness", [0, 2])
def test_prefetch_when_driver_updates_weights_then_is_fresh(ps, rows, staleness):
    """``onClock`` makes weight t + 1 of clock t: a view in clock t is of clock t - staleness at the oldest."""
    weight = DCV.dense(1)  # on one server: a view is of one moment

    def work(worker, rows):
        result, ahead = [], worker.prefetch(weight, ahead=0)
        for t in worker.clocks(CLOCKS):
            result.append(bool(t - staleness <= ahead.result()[0] <= weight.pull()[0]))
            ahead = worker.prefetch(weight)
        return result

    results = ps.run(rows, work, workers=2, staleness=staleness, onClock=lambda t: weight.fill(t + 1))
    assert list(results) == [[True] * CLOCKS] * 2


def test_prefetch_when_this_worker_adds_then_includes_them(ps, rows):
    total = DCV.dense(DIM)

    def work(worker, rows):
        mine = np.arange(worker.rank, DIM, 2)
        result, ahead = [], worker.prefetch(total, mine)
        for _ in worker.clocks(CLOCKS):
            result += np.unique(ahead.result()).tolist()
            total.add(np.ones(mine.size), mine, wait=False)
            ahead = worker.prefetch(total, mine)
            total.add(np.ones(mine.size), mine, wait=False)
        return result

    results = ps.run(rows, work, workers=2, staleness=2)
    assert list(results) == [[2.0 * t for t in range(CLOCKS)]] * 2


def test_prefetch_when_matrix_columns_then_includes_own_adds(ps, rows):
    m = DCV.dense(DIM, 3, dtype="int64", layout="column").matrix()

    def work(worker, rows):
        mine = np.arange(worker.rank, DIM, 200)[::-1]
        result, ahead = [], worker.prefetch(m, columns=mine)
        for _ in worker.clocks(CLOCKS):
            block = ahead.result()
            result.append(
                (block.shape == (mine.size, 3), np.array_equal(block, m.pull(columns=mine)), int(block.sum()))
            )
            for wait in (False, True):
                m.add(columns=mine, values=np.tile([1, 2, 3], (mine.size, 1)), wait=wait)
                ahead = worker.prefetch(m, columns=mine)
        return result

    results = ps.run(rows, work, workers=2, staleness=2)
    each = 2 * 6 * DIM // 200
    assert list(results) == [[(True, True, t * each) for t in range(CLOCKS)]] * 2


def test_prefetch_when_some_rows_and_columns_then_matches_pull(ps, rows):
    m = DCV.dense(50, 4).matrix()
    m.push([0, 1, 2, 3], np.arange(200).reshape(4, 50))

    def work(worker, rows):
        ahead = worker.prefetch(m, [3, 1], columns=[7, 0, 49])
        return [ahead.result().tolist() for _ in worker.clocks(1)]

    assert list(ps.run(rows, work, workers=2)) == [[[[157, 150, 199], [57, 50, 99]]]] * 2


def test_budget_when_one_worker_is_slow_then_it_does_less(ps, rows):
    total = DCV.dense(2, dtype="int64")

    def work(worker, rows):
        finished = []
        for _ in worker.clocks(4, budgetS=0.1):
            finished.append(0)
            for _ in worker.within(itertools.count()):
                if worker.rank == 0:
                    threading.Event().wait(0.06)
                finished[-1] += 1
            total.add([finished[-1]], [worker.rank])
        return finished

    slow, fast = ps.run(rows, work, workers=2)
    assert (len(slow), len(fast)) == (4, 4)
    assert all(1 <= count <= 2 for count in slow)
    assert sum(fast) > sum(slow)
    assert total.pull().tolist() == [sum(slow), sum(fast)]


def test_add_when_it_fails_then_run_fails_with_its_cause(ps, rows):
    total = DCV.dense(10)
    stale = cloudpickle.loads(cloudpickle.dumps(total))
    total.free()

    def work(worker, rows):
        for _ in worker.clocks(100):
            stale.add(np.ones(10), wait=False)

    with pytest.raises(WorkerError, match="NotFoundError"):
        ps.run(rows, work, workers=2, staleness=2)


def test_threads_when_run_has_ended_then_are_gone(ps, rows):
    total = DCV.dense(DIM)

    def work(worker, rows):
        for _ in worker.clocks(2):
            total.add(np.ones(DIM), wait=False)
            worker.prefetch(total)

    def threads(rows):
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("ps2")]

    ps.run(rows, work, workers=2, staleness=None)
    assert rows.mapPartitions(threads).collect() == []
