"""Requests whose server applies them and answers, and the answer never comes: the client has to send them again."""

from __future__ import annotations

import pytest
from faults.rules import CutAfterApply, CutReply, Rule, at_random, of_clients

pytestmark = pytest.mark.usefixtures("fleet")


def test_count_when_connections_drop_after_apply_then_exact(spark, network, job, counted):
    network.rules = [Rule(CutAfterApply(), at_random(0.2, seed=2), of_clients)]
    assert counted(spark, job(tasks=8)) == [job(tasks=8).total]


def test_requests_when_cut_after_apply_then_are_replayed(network):
    assert sum(happened.answered for happened in network.happened(CutAfterApply)) >= 10
    assert network.replays >= 10


def test_count_when_replies_are_cut_midway_then_exact(spark, network, job, counted):
    network.rules = [Rule(CutReply(3), at_random(0.2, seed=3), of_clients)]
    assert counted(spark, job(tasks=8)) == [job(tasks=8).total]
    assert len(network.happened(CutReply)) >= 5
