"""The model of costs behind ``pairUpdate(via="auto")``: what makes a way dearer, and costs from times."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps2.client.placement import Costs, Times, Workload, choose, row_seconds, sample, server_seconds, solve

# About what a network of 1 Gbit/s and one core a server come to.
NETWORK = Costs(latency_s=5e-4, scalar_s=7e-8, byte_s=8e-9, server_madd_s=2e-10, local_madd_s=2e-10)
WORK = Workload(pairs=6000, distinct_rows=5000, columns=128, servers=4, itemsize=4)

seconds = st.floats(1e-12, 1e-6)
prices = st.builds(Costs, st.floats(0, 0.1), seconds, seconds, seconds, seconds)
works = st.builds(
    lambda pairs, share, columns, servers, itemsize: Workload(
        pairs, max(1, round(2 * pairs * share)), columns, servers, itemsize
    ),
    st.integers(1, 10**5),
    st.floats(0, 1),
    st.integers(1, 10**5),
    st.integers(1, 100),
    st.sampled_from([4, 8]),
)


def advantage(costs, work):
    """Seconds that the servers save."""
    return row_seconds(costs, work) - server_seconds(costs, work)


def not_above(a, b):
    return a <= b + 1e-9 * (abs(a) + abs(b))


@given(prices, works, st.integers(2, 10))
def test_columns_when_more_then_favour_fast_servers(costs, work, times):
    costs = replace(costs, server_madd_s=min(costs.server_madd_s, costs.local_madd_s))
    assert not_above(advantage(costs, work), advantage(costs, replace(work, columns=times * work.columns)))


@given(prices, works, st.integers(2, 10))
def test_servers_when_more_then_favour_rows(costs, work, times):
    assert not_above(advantage(costs, replace(work, servers=times * work.servers)), advantage(costs, work))


@given(prices, works)
def test_pairs_when_they_share_more_rows_then_favour_rows(costs, work):
    fewer = replace(work, distinct_rows=max(1, work.distinct_rows // 2))
    assert not_above(advantage(costs, fewer), advantage(costs, work))


@given(prices, works, st.floats(1, 100))
def test_bytes_when_dearer_then_favour_servers(costs, work, times):
    assert not_above(advantage(costs, work), advantage(replace(costs, byte_s=times * costs.byte_s), work))


@given(prices, works)
def test_latency_when_higher_then_favours_nobody(costs, work):
    free = replace(costs, latency_s=0.0)
    assert advantage(costs, work) == pytest.approx(advantage(free, work), rel=1e-6, abs=1e-9)


@given(prices, works, st.integers(2, 10))
def test_seconds_when_there_is_more_to_do_then_grow(costs, work, times):
    for field in ("pairs", "columns", "servers"):
        more = replace(work, **{field: times * getattr(work, field)})
        assert server_seconds(costs, work) < server_seconds(costs, more)
        assert row_seconds(costs, work) < row_seconds(costs, more)


@pytest.mark.parametrize(
    ("work", "way"),
    [
        (WORK, "servers"),
        (replace(WORK, columns=1024), "servers"),
        (replace(WORK, columns=8), "rows"),
        (replace(WORK, servers=64), "rows"),
        (replace(WORK, distinct_rows=200), "rows"),
    ],
    ids=["usual", "long rows", "short rows", "many servers", "few rows in many pairs"],
)
def test_choose_when_on_network_then_moves_fewer_bytes(work, way):
    assert choose(NETWORK, work) == way


@given(prices, works)
def test_choose_when_given_costs_then_takes_the_faster_way(costs, work):
    chosen = {"servers": server_seconds, "rows": row_seconds}[choose(costs, work)](costs, work)
    assert chosen == min(server_seconds(costs, work), row_seconds(costs, work))


def times_of(costs, work):
    """What a machine with exactly these costs would take."""
    scalars, numbers = work.pairs * work.servers, work.distinct_rows * work.servers
    madds = work.pairs * work.columns
    moved = work.distinct_rows * work.columns * work.itemsize
    return Times(
        one_pair_s=costs.latency_s,
        scalars_s=costs.latency_s + 2 * scalars * costs.scalar_s,
        rows_s=costs.latency_s + numbers * costs.scalar_s + moved * costs.byte_s,
        dots_s=costs.latency_s + 3 * scalars * costs.scalar_s + madds * costs.server_madd_s,
        local_s=3 * madds * costs.local_madd_s,
    )


def test_solve_when_times_follow_the_model_then_finds_its_costs():
    assert astuple(solve(times_of(NETWORK, WORK), WORK)) == pytest.approx(astuple(NETWORK))


measured = st.floats(1e-6, 10)


@given(st.builds(Times, measured, measured, measured, measured, measured), works)
def test_solve_when_times_are_noisy_then_costs_are_nonnegative(times, work):
    costs = solve(times, work)
    assert min(astuple(costs)) >= 0
    result = times_of(costs, work)
    for name in ("dots_s", "rows_s"):
        expected = max(getattr(times, name), times.one_pair_s)
        assert getattr(result, name) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(works)
def test_sample_when_taken_then_is_a_part_of_the_workload(work):
    part = sample(work)
    assert 1 <= part.pairs <= work.pairs
    assert 1 <= part.distinct_rows <= work.distinct_rows
    assert replace(part, pairs=work.pairs, distinct_rows=work.distinct_rows) == work


def test_sample_when_workload_is_large_then_takes_milliseconds():
    part = sample(Workload(pairs=10**7, distinct_rows=10**7, columns=1024, servers=8, itemsize=4))
    assert part.pairs * 1024 <= 1 << 22
    assert part.distinct_rows * 1024 * 4 <= 4 << 20
