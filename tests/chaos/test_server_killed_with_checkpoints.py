"""A server that is killed (-9) where there are checkpoints and no copies: exactly what came after them is lost."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from faults import processes

from ps2 import DCV, PS2Conf, PS2Context
from ps2.errors import RolledBack

DIM = 1000
HALF = DIM // 2
STEPS = 12

pytestmark = pytest.mark.usefixtures("leaves_nothing")


def test_adds_when_server_dies_then_loses_those_after_checkpoint(tmp_path, until):
    with PS2Context.getOrCreate(servers=2, checkpointDir=str(tmp_path), conf=PS2Conf(heartbeatS=0.2)) as ps:
        total = DCV.dense(DIM, dtype="int64")
        total.add(np.full(DIM, 3))
        ps.checkpoint()
        for _ in range(5):
            total.add(np.full(DIM, 10))
        victim = processes.servers_of(ps)[0]
        messages = ps._coordinator.fleet.master.registry
        until(
            lambda: sum(messages._membership.members[i].mutations for i in (0, 1)) >= 12, "heartbeats tell of all adds"
        )
        waiting = threading.Thread(target=lambda: total.add(np.full(DIM, 100)))
        processes.kill(victim)
        waiting.start()  # a client that finds nobody, and goes on when the server is back
        waiting.join()
        assert np.unique(total.pull()[:HALF]).tolist() == [103]
        assert np.unique(total.pull()[HALF:]).tolist() == [153]
        (recovery,) = ps.recoveries
        assert (recovery.servers, recovery.source, recovery.mutationsLost) == ((0,), "checkpoint", 5)


def trained(ps, total, kill_at=()):
    """Run steps that each multiply and add, rolling back when told so; return the steps rolled back to."""
    back = []
    kill_at = list(kill_at)
    while ps.nextStep < STEPS:
        try:
            with ps.step() as step:
                total.mul(3)
                if kill_at and step == kill_at[0]:
                    kill_at.pop(0)
                    processes.kill(processes.servers_of(ps)[step % 2])
                total.add(np.arange(DIM) + step)
        except RolledBack as error:
            back.append((error.step, ps.nextStep))
    return back


def test_loop_when_all_roll_back_then_result_is_unaffected(tmp_path):
    expected = np.zeros(DIM, np.int64)
    for step in range(STEPS):
        expected = 3 * expected + np.arange(DIM) + step
    with PS2Context.getOrCreate(servers=2, checkpointDir=str(tmp_path), checkpointEverySteps=3) as ps:
        total = DCV.dense(DIM, dtype="int64")
        ps.checkpoint(step=0)
        assert trained(ps, total, kill_at=(4, 8)) == [(3, 3), (6, 6)]
        assert np.array_equal(total.pull(), expected)
        assert [recovery.rolledBack for recovery in ps.recoveries] == [True, True]
