"""Which way of learning vectors should take the least time, by what things cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from embedding_training import make_plan

from ps2.algorithms.embeddings.work import LOCAL_BYTES, UnitCosts, seconds_per_token, with_strategy, work_per_token

WORDS = 100_000
PLAN = make_plan(WORDS, 10**6, vectorSize=128)
# A link of 1 Gbit/s; processors as they are.
COSTS = UnitCosts(latency_s=1e-3, byte_s=8e-9, local_s=1e-10, server_s=1e-10)
# One server, one worker.
ONE = (1, 1)


def work(plan=PLAN):
    shares = np.full(plan.vocabulary, 1 / plan.vocabulary)
    return work_per_token(plan, np.ones(plan.vocabulary, np.int64), shares, clock=100_000, batch=20_000, minibatch=1000)


def cheapest(by_way):
    return min(by_way, key=by_way.get)


def test_work_when_words_are_many_then_rows_are_those_that_come():
    result = work()
    # 20,000 tokens: 18,127 inputs of 100,000 words; with 100,000 negatives, 69,881 outputs.
    assert result.moved == pytest.approx(2 * 4 * 128 * (18_127 + 69_881) / 20_000, rel=1e-3)
    assert result.exchanged == 2 * 2 * 4 * 128 * WORDS / 100_000
    assert result.madds == 3 * 6 * 6 * 128


def test_seconds_when_slow_network_and_one_server_then_servers():
    by_way = seconds_per_token(work(), COSTS, *ONE, 0)
    assert cheapest(by_way) == "servers"
    assert by_way["rows"] > 5 * by_way["servers"]


def test_seconds_when_many_servers_then_products_cost_over_rows():
    few, many = (seconds_per_token(work(), COSTS, parts, 1, LOCAL_BYTES + 1) for parts in (2, 32))
    assert many["servers"] > few["servers"]
    assert cheapest(many) == "rows"
    assert many["local"] == np.inf


def test_seconds_when_vectors_are_long_then_servers_else_rows():
    plans = [make_plan(WORDS, 10**6, vectorSize=size) for size in (8, 1024)]
    costs = replace(COSTS, local_s=1e-11, server_s=1e-11)
    result = [seconds_per_token(work(plan), costs, 4, 1, LOCAL_BYTES + 1) for plan in plans]
    assert [cheapest(by_way) for by_way in result] == ["rows", "servers"]


def test_seconds_when_computing_is_all_then_where_it_is_quicker():
    here = seconds_per_token(work(), UnitCosts(0.0, 0.0, 1e-11, 1e-10), *ONE, 0)
    assert cheapest(here) in ("local", "rows")
    there = seconds_per_token(work(), UnitCosts(0.0, 0.0, 1e-10, 1e-11), *ONE, 0)
    assert cheapest(there) == "servers"
    # Which all workers share.
    assert seconds_per_token(work(), UnitCosts(0.0, 0.0, 1e-10, 1e-11), 1, 20, 0)["servers"] > here["local"]


def test_choice_when_asked_then_says_what_it_was_chosen_by():
    plan, why = with_strategy(PLAN, np.array([2e-6, 1e-6, np.inf]))
    assert plan.settings.via == "rows"
    assert why == "chosen by predicted time per token: 'local' 2 us, 'rows' 1 us, 'servers' does not fit"
    plan, why = with_strategy(PLAN.with_via("servers"), np.empty(0))
    assert (plan.settings.via, why) == ("servers", "as requested")
