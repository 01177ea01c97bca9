"""Servers that are killed (-9) twice in one job while every shard has a copy: nothing is lost at all."""

from __future__ import annotations

import pytest
from faults.replaced import killed_twice

from ps2 import PS2Context

RECOVERY_S = 60


@pytest.mark.nightly
def test_count_when_server_is_killed_twice_then_exact(spark, job, counted, until):
    slowly = job(tasks=24, adds=8, pause_s=0.1, throwing=0.1, disturbers=1)
    with PS2Context.getOrCreate(spark, servers=2, replicas=1) as ps:
        with killed_twice(ps, slowly, seed=11):
            assert counted(spark, slowly) == [slowly.total]
        until(lambda: len(ps.recoveries) == 2, "both are replaced", RECOVERY_S)
        assert [recovery.source for recovery in ps.recoveries] == ["replica", "replica"]
