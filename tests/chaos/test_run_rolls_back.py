"""A server is killed (-9) in the middle of a run: with a checkpoint all roll back to it, and the clocks with them."""

from __future__ import annotations

import random
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from faults import processes

from ps2 import DCV, PS2Conf, PS2Context
from ps2.coordinator.steps import Steps

CLOCKS = 10
CLOCK_S = 0.02
DIM = 1000
ONES = np.ones(DIM, np.int64)

pytestmark = pytest.mark.usefixtures("leaves_nothing")


def counting(total, folder, read=True, wait=True, pause=None):
    """A worker that adds 1 to every column in each clock, and tells the clocks that it was in."""

    def work(worker, rows):
        clocks = []
        for clock in worker.clocks(CLOCKS):
            clocks.append(clock)
            Path(folder, f"{worker.rank}-{clock}").touch()
            if pause is not None:
                pause(worker)
            if read:
                total.pull()
            total.add(ONES, wait=wait)
        return clocks

    return work


class KillOnce:
    """Kills a server when a clock is over, once; notes the clocks that it was called for."""

    def __init__(self, ps, clock, before=lambda clock: None):
        self.ps, self.clock, self.calls, self.before = ps, clock, [], before

    def __call__(self, clock):
        self.before(clock)
        self.calls.append(clock)
        if clock == self.clock and self.calls.count(clock) == 1:
            processes.kill(processes.servers_of(self.ps)[clock % 2])


@pytest.mark.parametrize(
    ("staleness", "wait"),
    [
        (0, True),
        pytest.param(0, False, marks=pytest.mark.nightly),
        pytest.param(2, True, marks=pytest.mark.nightly),
        (2, False),
    ],
)
def test_run_when_server_dies_then_clocks_since_save_are_redone(staleness, wait, spark, tmp_path):
    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=str(tmp_path), checkpointEverySteps=3) as ps:
        total, calls = DCV.dense(DIM, dtype="int64"), DCV.dense(DIM, dtype="int64")
        kills = KillOnce(ps, 4, lambda clock: calls.add(ONES))
        rows = spark.sparkContext.parallelize(range(2), 2)
        clocks = ps.run(rows, counting(total, tmp_path, wait=wait), workers=2, staleness=staleness, onClock=kills)
        assert np.unique(total.pull()).tolist() == [2 * CLOCKS]
        assert np.unique(calls.pull()).tolist() == [CLOCKS]
        assert [recovery.rolledBack for recovery in ps.recoveries] == [True]
        assert kills.calls == [0, 1, 2, 3, 4, *range(3, CLOCKS)]
        for mine in clocks:
            assert any(later < sooner for sooner, later in pairwise(mine))
            assert set(mine) == set(range(CLOCKS))
        assert ps.nextStep == CLOCKS
        total.add(ONES)  # the driver is not told of what the run has dealt with
        with ps.step():
            pass


@pytest.mark.nightly
def test_run_when_server_dies_before_checkpoint_then_restarts(spark, tmp_path):
    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=str(tmp_path)) as ps:
        total = DCV.dense(DIM, dtype="int64")
        total.add(100 * ONES)
        rows = spark.sparkContext.parallelize(range(2), 2)
        kills = KillOnce(ps, 2)
        ps.run(rows, counting(total, tmp_path), workers=2, onClock=kills)
        assert np.unique(total.pull()).tolist() == [100 + 2 * CLOCKS]
        assert kills.calls == [0, 1, 2, *range(CLOCKS)]


@pytest.mark.nightly
@pytest.mark.parametrize("settings", [{"replicas": 1}, {"conf": PS2Conf(recover="shard")}], ids=["replicas", "shard"])
def test_run_when_killed_server_returns_then_workers_continue(settings, spark, tmp_path, monkeypatch):
    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=str(tmp_path), **settings) as ps:
        total = DCV.dense(DIM, dtype="int64")
        kills = KillOnce(ps, 4)

        def end_clock(steps, run, clock, original=Steps.end_clock):
            original(steps, run, clock)
            kills(clock)

        monkeypatch.setattr(Steps, "end_clock", end_clock)
        rows = spark.sparkContext.parallelize(range(2), 2)
        saves = lambda clock: ps.checkpoint() if clock == 4 else None  # noqa: E731
        clocks = list(ps.run(rows, counting(total, tmp_path), workers=2, onClock=saves))
        # All waited for the checkpoint, so that nothing came after it.
        assert np.unique(total.pull()).tolist() == [2 * CLOCKS]
        assert clocks == [list(range(CLOCKS))] * 2
        assert [recovery.rolledBack for recovery in ps.recoveries] == [False]


def test_run_when_restored_midway_then_continues_with_next_clock(spark, tmp_path):
    rows = spark.sparkContext.parallelize(range(2), 2)
    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=str(tmp_path), checkpointEverySteps=4) as ps:
        total = DCV.dense(DIM, dtype="int64", name="total")

        def on_clock(clock):
            if clock == 6:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            ps.run(rows, counting(total, tmp_path), workers=2, onClock=on_clock)
    with PS2Context.getOrCreate(spark, servers=3, restore=str(tmp_path)) as ps:
        assert ps.nextStep == 4
        total = ps.vector("total")
        clocks = list(ps.run(rows, counting(total, tmp_path), workers=2, firstClock=ps.nextStep))
        assert clocks == [list(range(4, CLOCKS))] * 2
        assert np.unique(total.pull()).tolist() == [2 * CLOCKS]
        assert ps.nextStep == CLOCKS


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::ps2.errors.CheckpointWarning")
@pytest.mark.parametrize("staleness", [0, 2])
@pytest.mark.parametrize("seed", range(4))
def test_run_when_servers_die_at_random_then_exact(seed, staleness, spark, tmp_path):
    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=str(tmp_path), checkpointEverySteps=5) as ps:
        total, calls = DCV.dense(DIM, dtype="int64"), DCV.dense(DIM, dtype="int64")
        chance, kills = random.Random(seed), []
        kill_at = [chance.randrange(clock, clock + 2 * CLOCKS) for clock in (0, 3 * CLOCKS, 6 * CLOCKS)]

        def on_clock(clock):
            calls.add(ONES)
            if kill_at and clock >= kill_at[0]:
                kill_at.pop(0)
                server = chance.choice(processes.servers_of(ps))
                kills.append(threading.Timer(chance.uniform(0, 3 * CLOCK_S), processes.kill, [server]))
                kills[-1].start()
            if clock >= 9 * CLOCKS:  # on a machine that had no time for it
                kills[-1].join()

        def work(worker, rows):
            for clock in worker.clocks(CLOCKS * 10):
                total.add(ONES, wait=clock % 2 == 0)
                time.sleep(CLOCK_S)
                total.add(2 * ONES)

        rows = spark.sparkContext.parallelize(range(2), 2)
        ps.run(rows, work, workers=2, staleness=staleness, onClock=on_clock)
        assert [recovery.rolledBack for recovery in ps.recoveries] == [True] * 3
        assert np.unique(total.pull()).tolist() == [3 * 2 * CLOCKS * 10]
        assert np.unique(calls.pull()).tolist() == [CLOCKS * 10]
