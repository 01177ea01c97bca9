"""Servers that are killed (-9) twice in one job while every shard has a copy: nothing is lost at all."""

from __future__ import annotations

import itertools
from itertools import islice

import pytest
from faults import counting, processes
from faults.processes import AtRandom
from faults.rules import CutAfterApply, Rule, at_random

from ps2 import PS2Context

RECOVERY_S = 60


MUCH = {"tasks": 24, "adds": 8, "pause_s": 0.1, "throwing": 0.1, "attempts": 6, "slow": (13,)}


def throws(seed):
    """Whether a first attempt does, by this seed."""
    much = counting.Job("", **MUCH, seed=seed)
    return any(counting.place(much, partition, 0) is not None for partition in range(much.tasks))


SEEDS = list(islice(filter(throws, itertools.count()), 20))


def in_step(ps):
    """Whether every server has a backup with all of its shards."""
    found = [ps._fleet.control.status(address) for address in ps.servers]
    return all(status.backup and not status.behind for status in found)


def killed_twice(ps, job, seed):
    """Kill servers at random times while attempts run, each when the one before has been replaced."""
    killer = None

    def victims():
        replaced = len(killer.done) == len(ps.recoveries) and in_step(ps)
        return processes.servers_of(ps) if replaced and counting.running(job.folder) else []

    killer = AtRandom(processes.kill, victims, times=2, pause_s=(0.5, 1.5), seed=seed)
    return killer


def test_a_count_when_a_server_is_killed_twice_then_every_column_is_exact(spark, job, counted, until):
    slowly = job(tasks=24, adds=8, pause_s=0.1, throwing=0.1)
    with PS2Context.getOrCreate(spark, servers=2, replicas=1) as ps:
        with killed_twice(ps, slowly, seed=11) as servers:
            assert counted(spark, slowly) == [slowly.total]
        assert servers.finished
        until(lambda: len(ps.recoveries) == 2, "both are replaced", RECOVERY_S)
        assert [recovery.source for recovery in ps.recoveries] == ["replica", "replica"]


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_count_when_all_that_the_issue_names_goes_wrong_then_every_column_is_exact(
    seed, cluster, network, job, counted, until
):
    much = job(**MUCH, seed=seed)
    network.rules = [Rule(CutAfterApply(), at_random(0.05, seed))]
    happened = len(network.happened())
    with network.between(), PS2Context.getOrCreate(cluster, servers=3, replicas=1) as ps:
        ps.waitForSlots(2)
        with killed_twice(ps, much, seed) as servers:
            assert counted(cluster, much) == [much.total]
        assert servers.finished
        until(lambda: len(ps.recoveries) == 2, "both are replaced", RECOVERY_S)
    assert len(network.happened()) > happened
    assert any(one.thrown for one in counting.attempts(much.folder))
