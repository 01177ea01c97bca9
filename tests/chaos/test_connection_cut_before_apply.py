"""Requests that never reach their server: the connection is cut, and the client cannot know that."""

from __future__ import annotations

import pytest
from faults.rules import Drop, Rule, at_random, nth, of_clients

pytestmark = pytest.mark.usefixtures("fleet")


def test_count_when_connections_drop_before_apply_then_exact(spark, network, job, counted):
    network.rules = [Rule(Drop(), nth(1, 2, 3)), Rule(Drop(), at_random(0.1, seed=1), of_clients)]
    assert counted(spark, job()) == [job().total]
    assert len(network.happened(Drop)) > 10
