"""Everything that can go wrong beside the servers themselves, in one job."""

from __future__ import annotations

import pytest
from faults import counting, processes
from faults.processes import AtRandom
from faults.rules import CutAfterApply, CutRequest, DelayReply, Drop, Duplicate, Rule, at_random, of_clients

from ps2 import PS2Context

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(400)]

FAULTS = (Drop(), CutAfterApply(), CutRequest(), DelayReply(0.3), Duplicate("same"), Duplicate("other", late_s=0.3))


@pytest.mark.parametrize("seed", [7, 8, 9])
def test_count_when_all_faults_strike_at_once_then_exact(seed, cluster, network, job, counted):
    much = job(tasks=16, throwing=0.1, attempts=6, seed=seed, slow=(11,), pause_s=0.05, disturbers=3)
    network.rules = [Rule(fault, at_random(0.02, seed + n), of_clients) for n, fault in enumerate(FAULTS)]
    happened = len(network.happened())
    with network.between(), PS2Context.getOrCreate(cluster, servers=2) as ps:
        ps.waitForSlots(2)

        def executors():
            return processes.executors() if len(counting.running(much.folder)) == 2 else []

        def workers():
            return [one.pid for one in counting.running(much.folder)]

        def servers():
            return processes.servers_of(ps)

        with (
            AtRandom(processes.kill, executors, pause_s=(1.0, 3.0), seed=seed, then=much.release),
            AtRandom(processes.kill, workers, pause_s=(0.5, 2.0), seed=seed, then=much.release),
            AtRandom(processes.pause_for(0.5), servers, times=3, seed=seed, then=much.release),
        ):
            values = counted(cluster, much)
        network.settle()
    assert values == [much.total]
    assert len(network.happened()) - happened >= 10
    assert any(one.thrown for one in counting.attempts(much.folder))
