"""Tasks that throw, and requests and replies that are lost, cut or doubled on the way: counts stay exact.

A request may never reach its server, or only its first bytes; a server may apply it and its reply may never come; or a
server gets a request twice: at once, in a race with itself, and long after it was answered.
"""

from __future__ import annotations

import pytest
from faults import counting
from faults.rules import CutAfterApply, CutReply, CutRequest, Drop, Duplicate, Rule, at_random, every, nth, of_clients

pytestmark = pytest.mark.usefixtures("fleet")


@pytest.mark.nightly
def test_count_when_attempts_throw_at_random_then_exact(spark, network, job, counted):
    network.rules = []
    throwing = job(tasks=16, throwing=0.4)
    assert counted(spark, throwing) == [throwing.total]
    thrown = [one for one in counting.attempts(throwing.folder) if one.thrown]
    assert len(thrown) >= 5
    # After none of their adds, after some, after all.
    assert any(one.adds for one in thrown)


def test_count_when_connections_drop_before_apply_then_exact(spark, network, job, counted):
    network.rules = [Rule(Drop(), nth(1, 2, 3)), Rule(Drop(), at_random(0.1, seed=1), of_clients)]
    assert counted(spark, job()) == [job().total]
    assert len(network.happened(Drop)) > 10


def test_count_when_connections_drop_after_apply_then_exact(spark, network, job, counted):
    before = network.replays
    network.rules = [Rule(CutAfterApply(), at_random(0.2, seed=2), of_clients)]
    assert counted(spark, job(tasks=8)) == [job(tasks=8).total]
    assert sum(happened.answered for happened in network.happened(CutAfterApply)) >= 10
    assert network.replays >= before + 10


def test_count_when_replies_are_cut_midway_then_exact(spark, network, job, counted):
    network.rules = [Rule(CutReply(3), at_random(0.2, seed=3), of_clients)]
    assert counted(spark, job(tasks=8)) == [job(tasks=8).total]
    assert len(network.happened(CutReply)) >= 5


def test_count_when_requests_are_cut_anywhere_then_exact(spark, network, job, counted):
    # In the head, in the header, in the arrays.
    network.rules = [
        Rule(CutRequest(at), every(k), of_clients) for at, k in ((1, 23), (12, 29), (30, 31), (100, 37), (None, 41))
    ]
    assert counted(spark, job(tasks=8)) == [job(tasks=8).total]
    assert {happened.fault for happened in network.happened(CutRequest)} == {rule.fault for rule in network.rules}


def test_count_when_large_requests_are_cut_midway_then_exact(spark, network, job, counted):
    # 1.5 million columns of int64: two requests a server for each add, sent without waiting for replies. Ones travel
    # in a byte each: 0.5 MB and 0.2 MB a request.
    network.rules = [Rule(CutRequest(), nth(2, 5, 9, 14), lambda seen: seen.id is not None and seen.nbytes > 100_000)]
    assert counted(spark, job(tasks=2, adds=4, dim=1_500_000)) == [8]
    parts = {happened.seen.id.part for happened in network.happened(CutRequest) if happened.seen.id.parts > 1}
    assert parts


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


@pytest.mark.nightly
def test_vector_when_duplicates_arrive_late_then_unchanged(spark, network, job, until):
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
