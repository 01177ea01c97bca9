"""Servers that are killed at random, each when the one before has been replaced."""

from __future__ import annotations

from faults import counting, processes
from faults.processes import AtRandom


def in_step(ps):
    """Whether every server has a backup with all of its shards."""
    result = [ps._coordinator.fleet.control.status(address) for address in ps.servers]
    return all(status.backup and not status.behind for status in result)


def killed_twice(ps, job, seed):
    """Kill two servers at random times while attempts run, the second when the first has been replaced.

    The job waits for it: it has one disturber.
    """
    killer = None

    def victims():
        replaced = len(killer.done) == len(ps.recoveries) and in_step(ps)
        return processes.servers_of(ps) if replaced and counting.running(job.folder) else []

    killer = AtRandom(processes.kill, victims, times=2, pause_s=(0.5, 1.5), seed=seed, then=job.release)
    return killer
