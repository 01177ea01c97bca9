"""Requests of which a server gets the first bytes only: in the head, in the header, in the arrays."""

from __future__ import annotations

import pytest
from faults.rules import CutRequest, Rule, every, nth, of_clients

pytestmark = pytest.mark.usefixtures("fleet")


def test_count_when_requests_are_cut_anywhere_then_exact(spark, network, job, counted):
    network.rules = [
        Rule(CutRequest(at), every(k), of_clients) for at, k in ((1, 23), (12, 29), (30, 31), (100, 37), (None, 41))
    ]
    assert counted(spark, job(tasks=8)) == [job(tasks=8).total]
    assert {happened.fault for happened in network.happened()} == {rule.fault for rule in network.rules}


def test_count_when_large_requests_are_cut_midway_then_exact(spark, network, job, counted):
    # 1.5 million columns of int64: two requests a server for each add, sent without waiting for replies. Ones travel
    # in a byte each: 0.5 MB and 0.2 MB a request.
    network.rules = [Rule(CutRequest(), nth(2, 5, 9, 14), lambda seen: seen.id is not None and seen.nbytes > 100_000)]
    assert counted(spark, job(tasks=2, adds=4, dim=1_500_000)) == [8]
    parts = {happened.seen.id.part for happened in network.happened() if happened.seen.id.parts > 1}
    assert parts
