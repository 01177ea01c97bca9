"""An executor (a JVM of local-cluster mode) that is killed (-9) with the tasks that it runs; Spark starts another."""

from __future__ import annotations

import pytest
from faults import counting, processes
from faults.processes import AtRandom

from ps2 import PS2Context

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(240)]


def test_count_when_executor_is_killed_then_exact(cluster, job, counted):
    slowly = job(tasks=12, pause_s=0.1, disturbers=1)
    with PS2Context.getOrCreate(cluster, servers=2) as ps:
        ps.waitForSlots(2)

        def victims():
            return processes.executors() if len(counting.running(slowly.folder)) == 2 else []

        with AtRandom(processes.kill, victims, seed=6, then=slowly.release):
            assert counted(cluster, slowly) == [slowly.total]
    assert any(one.under_way for one in counting.attempts(slowly.folder))
