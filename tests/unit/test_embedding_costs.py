"""Which way of learning vectors should take the least time, by what things cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ps2.algorithms.embeddings.choosing import Choice
from ps2.algorithms.embeddings.costs import LOCAL_BYTES, Costs, Scale, seconds_of, work_of
from ps2.algorithms.embeddings.problem import Recipe

WORDS = 100_000
RECIPE = Recipe(WORDS, 128, total=10**6, window=5, negative=5)
# A link of 1 Gbit/s; processors as they are.
COSTS = Costs(latency_s=1e-3, byte_s=8e-9, here_s=1e-10, server_s=1e-10)
ONE = Scale(parts=1, workers=1)


def work(recipe=RECIPE):
    shares = np.full(recipe.vocabulary, 1 / recipe.vocabulary)
    return work_of(recipe, np.ones(recipe.vocabulary, np.int64), shares, clock=100_000, batch=20_000, piece=1000)


def cheapest(by_way):
    return min(by_way, key=by_way.get)


def test_work_when_words_are_many_then_rows_are_those_that_come():
    found = work()
    # 20,000 tokens: 18,127 inputs of 100,000 words; with 100,000 negatives, 69,881 outputs.
    assert found.moved == pytest.approx(2 * 4 * 128 * (18_127 + 69_881) / 20_000, rel=1e-3)
    assert found.exchanged == 2 * 2 * 4 * 128 * WORDS / 100_000
    assert found.madds == 3 * 6 * 6 * 128


def test_seconds_when_the_network_is_slow_and_one_server_has_all_then_servers():
    by_way = seconds_of(work(), COSTS, ONE, 0)
    assert cheapest(by_way) == "servers"
    assert by_way["rows"] > 5 * by_way["servers"]


def test_seconds_when_servers_are_many_then_products_cost_more_than_rows():
    few, many = (seconds_of(work(), COSTS, Scale(parts, 1), LOCAL_BYTES + 1) for parts in (2, 32))
    assert many["servers"] > few["servers"]
    assert cheapest(many) == "rows"
    assert many["local"] == np.inf


def test_seconds_when_vectors_are_long_then_servers_and_when_short_rows():
    recipes = [replace(RECIPE, size=size) for size in (8, 1024)]
    costs = replace(COSTS, here_s=1e-11, server_s=1e-11)
    found = [seconds_of(work(recipe), costs, Scale(4, 1), LOCAL_BYTES + 1) for recipe in recipes]
    assert [cheapest(by_way) for by_way in found] == ["rows", "servers"]


def test_seconds_when_computing_is_all_then_where_it_is_quicker():
    here = seconds_of(work(), Costs(0.0, 0.0, 1e-11, 1e-10), ONE, 0)
    assert cheapest(here) in ("local", "rows")
    there = seconds_of(work(), Costs(0.0, 0.0, 1e-10, 1e-11), ONE, 0)
    assert cheapest(there) == "servers"
    # Which all workers share.
    assert seconds_of(work(), Costs(0.0, 0.0, 1e-10, 1e-11), Scale(1, 20), 0)["servers"] > here["local"]


def test_choice_when_asked_then_says_what_it_was_chosen_by():
    recipe, why = Choice(np.array([2e-6, 1e-6, np.inf])).of(replace(RECIPE, via="auto"))
    assert recipe.via == "rows"
    assert why.startswith("by 'rows', which was chosen by microseconds that a token should take: ")
    assert why.endswith("'local' 2, 'rows' 1, 'servers' has no room")
    recipe, why = Choice(np.empty(0)).of(replace(RECIPE, via="servers"))
    assert (recipe.via, why) == ("servers", "by 'servers', as was asked for")
