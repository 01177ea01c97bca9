"""The fleet rolls back to a checkpoint when some workers have returned: they do again what is lost."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

from ps2 import DCV, PS2Context
from ps2.run.rotation import schedule

WORKERS, CLOCKS = 2, 6
WAIT_S = 60.0


@pytest.fixture(scope="module")
def ps(spark, tmp_path_factory):
    with PS2Context.getOrCreate(
        spark,
        servers=2,
        checkpointDir=str(tmp_path_factory.mktemp("checkpoints")),
        checkpointEverySteps=4,
    ) as context:
        yield context


@pytest.fixture
def gate(tmp_path):
    """A file that lets a worker go on when it is there."""
    return tmp_path / "gate"


@pytest.fixture
def kill_when(ps, until, gate):
    """``kill_when(condition)``: kill a server when that is true of the run, then open the gate."""
    killers = []

    def kill(condition):
        until(
            lambda: ps._coordinator.active_runs.newest is not None and condition(ps._coordinator.active_runs.newest),
            "the moment has come",
            WAIT_S,
        )
        before = len(ps.recoveries)
        ps._coordinator.fleet.launcher._children[0].kill()
        until(lambda: len(ps.recoveries) > before, "the server is back", WAIT_S)
        gate.touch()

    def start(condition):
        killers.append(threading.Thread(target=kill, args=(condition,)))
        killers[-1].start()

    yield start
    for killer in killers:
        killer.join()


def wait_for(path):
    give_up_s = time.monotonic() + WAIT_S
    while not os.path.exists(path):
        assert time.monotonic() < give_up_s
        time.sleep(0.05)


def test_rollback_when_in_rotation_then_each_turn_counts_once(ps, by_value, sc, gate, kill_when):
    blocks, rotations, path = 4, 3, str(gate)
    table = DCV.dense(blocks, 1, dtype="int64").fill(0)
    plan = np.concatenate([schedule(0, rotation, WORKERS, blocks) for rotation in range(rotations)])
    expected = [[int((plan[:clock] == block).sum()) for block in had] for clock, had in enumerate(plan)]

    def work(worker, _):
        result = {}
        for turn in worker.rotate(blocks, rotations, fetch=lambda block: worker.prefetch(table, [block])):
            result[worker.clock] = int(turn.pull()[0])
            table.add([1], [turn.block], wait=False)
            if worker.clock == 6:
                wait_for(path)
        return [result[clock] for clock in range(len(result))]

    kill_when(lambda run: min(run.applied()) >= 6)
    results = ps.run(sc.parallelize(range(WORKERS), WORKERS), work, WORKERS, staleness=1, timeoutS=WAIT_S)
    too_many = np.transpose(results.results) - expected
    # The checkpoint is made while workers are in clock 4: what a turn had added by then it finds when it is done again.
    assert set(too_many[4]) <= {0, 1}
    assert not np.delete(too_many, 4, axis=0).any()
    assert table.pull().tolist() == [rotations * WORKERS] * blocks


def test_rollback_when_one_has_returned_then_all_is_redone_once(ps, by_value, sc, gate, kill_when):
    counts = DCV.dense(WORKERS, 1, dtype="int64").fill(0)
    called, path = [], str(gate)

    def work(worker, _):
        for _ in worker.clocks(CLOCKS):
            counts.add(np.ones(1, np.int64), np.array([worker.rank]))
        if worker.rank == 1:
            wait_for(path)
        return worker.rank

    kill_when(lambda run: 0 in run.results)
    results = ps.run(sc.parallelize(range(WORKERS), WORKERS), work, WORKERS, onClock=called.append, timeoutS=WAIT_S)
    assert list(results) == [0, 1]
    assert called == [0, 1, 2, 3, 4, 5, 4, 5]
    assert counts.pull().tolist() == [CLOCKS] * WORKERS


def test_rollback_when_loop_is_earlier_then_clocks_rerun_it(ps, by_value, sc, gate, kill_when):
    counts = DCV.dense(2 * WORKERS, 1, dtype="int64").fill(0)
    path = str(gate)

    def work(worker, _):
        one, mine = np.ones(1, np.int64), np.array([worker.rank])
        for _ in worker.clocks(5):
            counts.add(one, mine)
        for clock in worker.clocks(CLOCKS + 2):
            counts.add(one, mine + WORKERS)
            if clock == CLOCKS and worker.rank == 1:
                wait_for(path)

    kill_when(lambda run: run.clocks.waiting.get(0) == CLOCKS + 1)
    ps.run(sc.parallelize(range(WORKERS), WORKERS), work, WORKERS, timeoutS=WAIT_S)
    assert counts.pull().tolist() == [5] * WORKERS + [CLOCKS - 3] * WORKERS


def test_rollback_when_results_are_read_then_they_are_read_again(ps, by_value, sc):
    counts, read = DCV.dense(WORKERS, 1, dtype="int64").fill(0), []

    def work(worker, held):
        for _ in worker.clocks(3):
            counts.add(np.ones(1, np.int64), np.array([worker.rank]))
        for _ in worker.clocks(CLOCKS):
            counts.add(np.ones(1, np.int64), np.array([worker.rank]))
        return held

    def take():
        if not read:
            read.append("nothing")
            ps._coordinator.fleet.launcher._children[0].kill()
        read.append(counts.pull().tolist())

    rows, attempts = sc.parallelize(range(WORKERS), WORKERS), sc.accumulator(0)

    def gather(worker, rows):
        attempts.add(1)
        return list(rows)

    results = ps.run(rows, work, WORKERS, read=gather, onEnd=take, timeoutS=WAIT_S)
    assert read[-1] == counts.pull().tolist() == [CLOCKS] * WORKERS
    assert list(results) == [[0], [1]]
    assert ps.recoveries[-1].rolledBack
    assert attempts.value == WORKERS  # Spark was not told of anything
