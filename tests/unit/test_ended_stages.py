"""A stage that was said to be over stays over, whatever comes later or late; all others are not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ps2.server.applied import EndedStages

calls = st.tuples(st.integers(0, 12), st.sets(st.integers(0, 15)))


def over_after(calls, series="app"):
    over = EndedStages()
    for below, live in calls:
        over.add(series, below, live)
    return over


def test_has_when_nothing_was_said_then_no_stage_is_over():
    assert not EndedStages().has("app", 0)


def test_has_when_number_is_given_then_earlier_stages_are_over():
    over = over_after([(5, {1, 3})])
    assert [stage for stage in range(8) if over.has("app", stage)] == [0, 2, 4]


def test_has_when_other_series_counts_same_stages_then_not_over():
    """A driver may stop its SparkContext and make another, whose stages begin at 0 again."""
    assert not over_after([(5, ())], series="fleet/app-1").has("fleet/app-2", 0)


def test_has_when_it_has_no_series_then_it_is_never_over():
    assert not over_after([(5, ())]).has("", 0)


def test_add_when_a_live_stage_ends_then_it_is_over():
    assert over_after([(5, {3}), (5, ())]).has("app", 3)


def test_add_when_older_call_comes_late_then_changes_nothing():
    over = over_after([(5, {4}), (3, ())])
    assert [stage for stage in range(6) if over.has("app", stage)] == [0, 1, 2, 3]


@given(st.lists(calls, max_size=6), st.lists(calls, max_size=6))
def test_add_when_anything_comes_later_then_ended_stays_ended(earlier, later):
    before, afterwards = over_after(earlier), over_after(earlier + later)
    assert all(afterwards.has("app", stage) for stage in range(16) if before.has("app", stage))
