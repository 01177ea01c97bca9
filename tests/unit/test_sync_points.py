"""Barriers, and what one worker makes for all."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps2.errors import WorkerError
from ps2.run.sync_points import SyncPoints

POINT = (3, 0)  # in clock 1


@pytest.fixture
def points():
    return SyncPoints(3)


def passed(points, point):
    for rank in (0, 1, 2):
        points.arrive(rank, point)


def test_barrier_when_the_last_one_comes_then_all_may_go_on(points):
    assert points.arrive(0, POINT) == set()
    assert points.arrive(2, POINT) == set()
    assert points.arrive(1, POINT) == {0, 1, 2}


def test_barrier_when_one_comes_twice_then_counts_once(points):
    points.arrive(0, POINT)
    points.arrive(0, POINT)
    assert points.arrive(1, POINT) == set()


def test_barrier_when_passed_then_a_later_attempt_passes_alone(points):
    passed(points, POINT)
    assert points.arrive(1, POINT) == {1}


def test_barrier_when_attempt_is_gone_then_waits_for_next_one(points):
    points.arrive(0, POINT)
    points.arrive(1, POINT)
    points.lose_attempt(0)
    assert points.arrive(2, POINT) == set()
    assert points.arrive(0, POINT) == {0, 1, 2}


def test_open_barriers_when_all_arrivals_are_gone_then_none(points):
    points.arrive(0, POINT)
    assert points.open_barriers == {POINT}
    points.lose_attempt(0)
    assert points.open_barriers == set()


def test_barrier_when_another_calls_once_there_then_names_both(points):
    points.request(2, POINT)
    with pytest.raises(WorkerError, match=r"rank 0 calls worker\.barrier\(\) in clock 1, another rank worker\.once"):
        points.arrive(0, POINT)


def test_once_when_another_is_at_barrier_there_then_names_both(points):
    points.arrive(2, POINT)
    with pytest.raises(WorkerError, match=r"rank 0 calls worker\.once\(\) in clock 1, another rank worker\.barrier"):
        points.request(0, POINT)


def test_once_when_several_ask_then_first_makes_it_for_all(points):
    assert points.request(1, POINT)
    assert points.value(POINT) is None
    assert not points.request(0, POINT)
    assert not points.request(2, POINT)
    assert points.publish(POINT, b"value") == {0, 2}
    assert points.value(POINT) == b"value"


def test_once_when_the_maker_dies_then_its_next_attempt_makes_it(points):
    points.request(1, POINT)
    points.request(0, POINT)
    points.lose_attempt(1)
    assert not points.request(2, POINT)
    assert points.request(1, POINT)
    assert points.publish(POINT, b"value") == {0, 2}


def test_once_when_made_twice_then_the_first_value_stays(points):
    points.request(0, POINT)
    points.publish(POINT, b"first")
    points.publish(POINT, b"second")
    assert points.value(POINT) == b"first"


def test_forget_when_clock_is_finished_then_only_its_points_go(points):
    for phase in (0, 1, 2, 3):
        points.request(0, (phase, 0))
        points.publish((phase, 0), b"value")
    points.forget(1)
    assert len(points) == 3
    assert points.value((0, 0)) == points.value((3, 0)) == b"value"


def test_forget_when_clocks_go_on_for_long_then_nothing_piles_up(points):
    for clock in range(1000):
        passed(points, (2 * clock + 1, 0))
        points.forget(clock)
    assert len(points) < 3


def test_roll_back_when_some_wait_then_they_are_told_and_return(points):
    points.arrive(0, POINT)
    points.request(1, (3, 1))
    points.request(2, (3, 1))
    assert points.roll_back(1, 1) == {0, 2}
    assert points.open_barriers == set()
    assert points.request(2, (3, 1))


def test_roll_back_when_highest_passed_barrier_then_rest_repass(points):
    passed(points, POINT)
    points.roll_back(1, 2)
    assert points.arrive(0, POINT) == {0}


def test_roll_back_when_all_come_by_again_then_they_meet_again(points):
    passed(points, POINT)
    points.roll_back(1, 1)
    assert points.arrive(0, POINT) == set()


@settings(max_examples=100)
@given(st.data())
def test_barriers_when_attempts_end_at_random_then_all_pass_all(data):
    workers, barriers = data.draw(st.integers(1, 4)), 4
    points = SyncPoints(workers)
    at = [0] * workers  # the barrier that each is before
    waits = [False] * workers
    deaths = data.draw(st.integers(0, 5))
    while movers := [rank for rank in range(workers) if at[rank] < barriers and not waits[rank]]:
        sleepers = [rank for rank in range(workers) if waits[rank]]
        if sleepers and deaths and data.draw(st.booleans()):
            deaths -= 1
            dying = data.draw(st.sampled_from(sleepers))
            points.lose_attempt(dying)
            waits[dying], at[dying] = False, 0  # its next attempt begins anew
            continue
        rank = data.draw(st.sampled_from(movers))
        waits[rank] = True
        here = at[rank]
        for going in points.arrive(rank, (0, here)):
            assert at[going] == here
            waits[going] = False
            at[going] += 1
    assert at == [barriers] * workers
