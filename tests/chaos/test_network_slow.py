"""Requests and replies that take their time, and come in another order than they were sent by different tasks."""

from __future__ import annotations

import pytest
from faults.rules import DelayReply, DelayRequest, Rule, at_random, of_clients

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("fleet")]


@pytest.mark.parametrize("delay", [DelayRequest(0.3), DelayReply(0.3)], ids=["requests", "replies"])
def test_count_when_messages_are_delayed_then_exact(delay, spark, network, job, counted):
    network.rules = [Rule(delay, at_random(0.1, seed=4), of_clients)]
    assert counted(spark, job(tasks=8)) == [job(tasks=8).total]
    assert len(network.happened(type(delay))) >= 5
