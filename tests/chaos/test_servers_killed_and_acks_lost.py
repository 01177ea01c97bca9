"""Servers that are killed, acknowledgements that are lost, tasks that throw, are slow and run twice, all in one job."""

from __future__ import annotations

import itertools
from itertools import islice

import pytest
from faults import counting
from faults.replaced import killed_twice
from faults.rules import CutAfterApply, Rule, at_random

from ps2 import PS2Context

RECOVERY_S = 60
MUCH = {"tasks": 24, "adds": 8, "pause_s": 0.1, "throwing": 0.1, "attempts": 6, "slow": (13,), "disturbers": 1}


def throws(seed):
    """Whether a first attempt does, by this seed."""
    much = counting.Job("", **MUCH, seed=seed)
    return any(counting.place(much, partition, 0) is not None for partition in range(much.tasks))


SEEDS = list(islice(filter(throws, itertools.count()), 20))


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_count_when_servers_die_and_acks_are_lost_then_exact(seed, cluster, network, job, counted, until):
    much = job(**MUCH, seed=seed)
    network.rules = [Rule(CutAfterApply(), at_random(0.05, seed))]
    happened = len(network.happened())
    with network.between(), PS2Context.getOrCreate(cluster, servers=3, replicas=1) as ps:
        ps.waitForSlots(2)
        with killed_twice(ps, much, seed):
            assert counted(cluster, much) == [much.total]
        until(lambda: len(ps.recoveries) == 2, "both are replaced", RECOVERY_S)
    assert len(network.happened()) > happened
    assert any(one.thrown for one in counting.attempts(much.folder))
