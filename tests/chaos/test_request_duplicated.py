"""Requests that a server gets twice: at once, in a race with themselves, and long after they were answered."""

from __future__ import annotations

import pytest
from faults.rules import Duplicate, Rule, every, of_clients

pytestmark = pytest.mark.usefixtures("fleet")


@pytest.mark.parametrize(
    "duplicate",
    [Duplicate("same"), Duplicate("other"), Duplicate("other", late_s=0.5)],
    ids=["on-its-connection", "in-a-race", "late"],
)
def test_count_when_requests_are_duplicated_then_exact(duplicate, spark, network, job, counted):
    network.rules = [Rule(duplicate, every(2), of_clients)]
    replays = network.replays
    # The stage lasts four times as long as a duplicate is late: one that comes after the stage is refused instead.
    counting_job = job(tasks=8, pause_s=duplicate.late_s / 8)
    assert counted(spark, counting_job) == [counting_job.total]
    network.settle()
    happened = [one for one in network.happened(Duplicate) if one.fault == duplicate]
    assert len(happened) >= 30
    assert network.replays > replays


@pytest.mark.chaos
def test_vector_when_duplicates_arrive_late_then_unchanged(spark, network, job, until):
    from faults import counting

    from ps2 import DCV

    late = Duplicate("other", late_s=3.0)
    network.rules = [Rule(late, every(3), of_clients)]
    total = DCV.dense(1000, dtype="int64")
    counting.count(spark.sparkContext, total, job(tasks=4, adds=4))
    before = len([one for one in network.happened(Duplicate) if one.fault == late])
    network.rules = []
    network.settle()
    assert len([one for one in network.happened(Duplicate) if one.fault == late]) > before
    assert counting.values_of(total) == [16]
