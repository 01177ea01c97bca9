"""Python workers that are killed (-9) in the middle of their tasks, on executors that live on."""

from __future__ import annotations

import pytest
from faults import counting, processes
from faults.processes import AtRandom

from ps2 import PS2Context

pytestmark = pytest.mark.nightly


def test_count_when_python_workers_are_killed_then_exact(cluster, job, counted):
    slowly = job(tasks=12, pause_s=0.1, disturbers=1)
    with PS2Context.getOrCreate(cluster, servers=2) as ps:
        ps.waitForSlots(2)

        def victims():
            return [one.pid for one in counting.running(slowly.folder)]

        with AtRandom(processes.kill, victims, times=3, seed=5, then=slowly.release) as workers:
            assert counted(cluster, slowly) == [slowly.total]
    killed = [one for one in counting.attempts(slowly.folder) if one.pid in workers.done and one.under_way]
    assert len(killed) >= 3
