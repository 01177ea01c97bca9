"""A slow attempt that Spark runs a second time while the first goes on: both add, with the same ids."""

from __future__ import annotations

import pytest
from faults import counting

from ps2 import PS2Context

pytestmark = pytest.mark.nightly


def test_count_when_slow_attempt_runs_twice_then_exact(cluster, job, counted):
    slow = job(tasks=12, slow=(2,), pause_s=0.05)
    with PS2Context.getOrCreate(cluster, servers=2) as ps:
        ps.waitForSlots(2)
        assert counted(cluster, slow) == [slow.total]
    message = {(one.partition, one.number): one for one in counting.attempts(slow.folder)}
    assert message[2, 0].adds > 1  # it went on when the other one had begun
    assert message[2, 1].adds
    assert not message[2, 0].thrown
