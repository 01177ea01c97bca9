"""Applied ids behave as a set of them, whatever their order, and cost little when they come in order."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from ps2.protocol.messages import RequestId
from ps2.server import fast_path_loop
from ps2.server.applied import AppliedIds, EndedStages

ids = st.builds(RequestId, st.sampled_from("abc"), st.integers(0, 30) | st.integers(2**63, 2**64 - 1))


@given(st.lists(ids), ids)
def test_applied_when_ids_come_in_any_order_then_acts_as_set(added, asked):
    applied = AppliedIds()
    for id in added:
        applied.add(id)
    assert (asked in applied) == (asked in set(added))
    assert all(id in applied for id in added)


@given(st.permutations(range(50)))
def test_applied_when_scope_has_no_gap_then_keeps_no_single_ids(order):
    applied = AppliedIds()
    for number in order:
        applied.add(RequestId("s", number))
    assert (applied._scopes["s"].below, applied._scopes["s"].above) == (50, set())


@given(st.lists(st.tuples(ids, st.none() | st.integers(0, 5))), ids, st.integers(0, 6))
def test_covers_when_some_requests_failed_then_tells_each(events, asked, position):
    """None is success; a number, failure after so many operations: the most of them count, and a success for all."""
    applied, whole, parts = AppliedIds(), set(), {}
    for id, count in events:
        if count is None:
            applied.add(id)
            whole.add(id)
        else:
            applied.add_begun(id, count)
            parts[id] = max(count, parts.get(id, 0))
    assert applied.covers(asked, position) == (asked in whole or position < parts.get(asked, 0))


def test_part_when_noted_then_whole_request_is_not_applied():
    applied = AppliedIds()
    applied.add_begun(RequestId("s", 0), 3)
    assert RequestId("s", 0) not in applied


def test_part_when_the_request_succeeds_then_it_is_forgotten():
    applied = AppliedIds()
    applied.add_begun(RequestId("s", 0), 3)
    applied.add(RequestId("s", 0))
    assert applied._scopes["s"].applied_counts == {}


def test_applied_when_numbers_settle_then_keeps_no_single_ids():
    """A shard that sees every second mutation of a session forgets those that can no longer come."""
    applied = AppliedIds()
    for number in range(0, 1000, 2):
        applied.add(RequestId("s", number, settled=number))
    assert len(applied._scopes["s"].above) <= 1


def test_applied_when_settled_number_comes_late_then_is_applied():
    applied = AppliedIds()
    applied.add(RequestId("s", 9, settled=9))
    assert RequestId("s", 4) in applied


# -- mutations that come in several parts ----------------------------------------------------------------------------


def part_of(number, part, parts, settled=0):
    return RequestId("a", number, settled, part, parts)


def test_parts_when_one_was_applied_then_the_others_still_count():
    applied = AppliedIds()
    applied.add(part_of(0, 1, 3))
    assert [part_of(0, part, 3) in applied for part in range(3)] == [False, True, False]


def test_parts_when_all_were_applied_then_number_costs_nothing():
    applied = AppliedIds()
    for part in (2, 0, 1):
        applied.add(part_of(0, part, 3))
    assert all(part_of(0, part, 3) in applied for part in range(3))
    scope = applied._scopes["a"]
    assert (scope.below, scope.above, scope.parts) == (1, set(), {})


def test_parts_when_number_is_settled_then_forgotten():
    applied = AppliedIds()
    applied.add(part_of(0, 1, 3))
    applied.add(part_of(5, 0, 2, settled=5))
    assert applied._scopes["a"].parts == {5: {0}}


# -- stages that are over --------------------------------------------------------------------------------------------


def of_stage(stage, number, rdd_partition=0):
    return RequestId(f"app/{stage}/{rdd_partition}", number, series="app", stage=stage)


def ended(below, *live):
    over = EndedStages()
    over.add("app", below, live)
    return over


def test_end_when_stage_is_over_then_only_its_ids_are_forgotten():
    applied = AppliedIds()
    for id in (of_stage(0, 0), of_stage(1, 0), of_stage(2, 0), RequestId("session/a", 0)):
        applied.add(id)
    applied.end(ended(2, 1))
    assert set(applied._scopes) == {"app/1/0", "app/2/0", "session/a"}


def test_end_when_scopes_only_request_failed_then_forgotten_too():
    applied = AppliedIds()
    applied.add_begun(of_stage(0, 0), 2)
    applied.end(ended(1))
    assert len(applied) == 0


def test_end_when_many_stages_ran_then_only_last_ones_are_kept():
    """The bound: what is remembered follows the stages under way, not those that ever ran."""
    applied, most = AppliedIds(), 0
    for stage in range(200):
        for rdd_partition in range(20):
            for number in range(5):
                applied.add(of_stage(stage, number, rdd_partition))
        most = max(most, len(applied))
        applied.end(ended(stage))
    assert most <= 40
    assert all(not scope.above for scope in applied._scopes.values())


# -- as JSON ---------------------------------------------------------------------------------------------------------

events = st.tuples(
    st.builds(
        RequestId,
        st.sampled_from("abc"),
        st.integers(0, 12) | st.integers(2**63, 2**64 - 1),
        settled=st.just(0) | st.integers(0, 4),
        part=st.integers(0, 2),
        parts=st.just(3),
        series=st.just("app"),
        stage=st.integers(0, 3),
    ),
    st.none() | st.integers(1, 4),
)


def after(history):
    applied = AppliedIds()
    for id, begun in history:
        if begun is None:
            applied.add(id)
        else:
            applied.add_begun(id, begun)
    return applied


@given(st.lists(events, max_size=40), st.lists(events, max_size=10), st.lists(events, max_size=20), st.integers(0, 4))
def test_json_when_read_again_then_answers_the_same(history, later, asked, below):
    applied = after(history)
    again = AppliedIds.from_json(json.loads(json.dumps(applied.to_json())))
    for one in (applied, again):
        for id, begun in later:
            if begun is None:
                one.add(id)
            else:
                one.add_begun(id, begun)
        one.end(ended(below))
    assert len(again) == len(applied)
    for id, _ in history + later + asked:
        assert (id in again) == (id in applied)
        assert [again.covers(id, position) for position in range(5)] == [
            applied.covers(id, position) for position in range(5)
        ]


def test_json_when_original_changes_then_snapshot_stays():
    applied = after([(of_stage(0, 3), None), (of_stage(0, 5), 1)])
    taken = applied.to_json()
    before = json.dumps(taken)
    applied.add(of_stage(0, 4))
    applied.add(of_stage(0, 5))
    assert json.dumps(taken) == before


# -- what the loop of a fast path goes by ------------------------------------------------------------------------------

# In a window and beyond it, in steps as they come: in order, by several threads, clock by clock.
steps = st.tuples(st.sampled_from([0, 1, 2, 5, 63, 64, 500, 1023, 1024, 5000, 1 << 21]), st.booleans())


@given(st.lists(st.tuples(steps, st.integers(0, 2000), st.booleans(), st.booleans()), max_size=60))
def test_window_when_python_and_loop_alternate_then_act_as_one(events):
    """The loop notes what it can tell to be new; whatever it cannot, Python does, also on another server from then on.

    A set is the oracle.
    """
    ours, noted, settled, last = AppliedIds(), set(), 0, 0
    words = ours.words(RequestId("s", 0)).view("int64")
    for (step, ahead), back, settles, moves in events:
        number = max(0, last + step - back) if ahead else last + step
        last = max(last, number)
        if settles:
            settled = max(settled, number - 100)
        if moves:
            ours = AppliedIds.from_json(ours.to_json())
            words = ours.words(RequestId("s", 0)).view("int64")
        id = RequestId("s", number, settled=settled)
        known = number in noted or number < settled_before(ours)
        messages = fast_path_loop.is_applied(words, number, settled)
        assert messages in (-1, int(known))
        if messages == 0:
            fast_path_loop.add_applied(words, number)
            fast_path_loop.settle(words, settled)
        elif messages < 0 and id not in ours:
            ours.add(id)
        noted.add(number)
        assert id in ours
        assert fast_path_loop.is_applied(words, number, settled) in (-1, 1)
    below = settled_before(ours)
    for number in {*noted, *(n + 1 for n in noted), *(n - 1 for n in noted if n)}:
        assert (RequestId("s", number) in ours) == (number in noted or number < below)
        assert fast_path_loop.is_applied(words, number, settled) in (-1, int(number in noted or number < below))
    again = AppliedIds.from_json(ours.to_json())
    assert again.to_json() == ours.to_json()


NOTHING = {"series": "", "stage": 0, "below": 0, "above": [], "parts": [], "begun": []}


def settled_before(applied):
    return applied._scopes["s"].below


def test_window_when_numbers_come_in_order_then_loop_notes_them():
    applied = AppliedIds()
    words = applied.words(RequestId("s", 0)).view("int64")
    for number in range(5000):
        assert fast_path_loop.is_applied(words, number, 0) == 0
        fast_path_loop.add_applied(words, number)
        fast_path_loop.settle(words, 0)
    assert applied.to_json()["s"] == {
        "series": "",
        "stage": 0,
        "below": 5000,
        "above": [],
        "parts": [],
        "begun": [],
    }


def test_window_when_new_clock_settles_older_then_loop_notes_it():
    applied = AppliedIds()
    words = applied.words(RequestId("s", 0)).view("int64")
    for clock in range(1, 5):
        for number in range(clock << 20, (clock << 20) + 3):
            if clock == 1:
                applied.add(RequestId("s", number))
            else:
                assert fast_path_loop.is_applied(words, number, clock << 20) == 0
                fast_path_loop.add_applied(words, number)
                fast_path_loop.settle(words, clock << 20)
            assert fast_path_loop.is_applied(words, number, 0) == 1
    assert applied.to_json()["s"]["below"] == (4 << 20) + 3


def test_window_when_later_number_is_known_then_loop_abstains():
    applied = AppliedIds.from_json({"s": {**NOTHING, "above": [5000, 1 << 21]}})
    words = applied.words(RequestId("s", 0)).view("int64")
    assert fast_path_loop.is_applied(words, 5000, 5000) == -1
    assert fast_path_loop.is_applied(words, 1 << 21, 1 << 20) == -1
    assert fast_path_loop.is_applied(words, (1 << 21) + 1, 1 << 20) == 0


def test_window_when_it_reaches_known_number_then_remembers_it():
    applied = AppliedIds.from_json({"s": {**NOTHING, "above": [2000]}})
    words = applied.words(RequestId("s", 0)).view("int64")
    for number in (1000, 1900):
        if fast_path_loop.is_applied(words, number, number) == 0:
            fast_path_loop.add_applied(words, number)
            fast_path_loop.settle(words, number)
        else:
            applied.add(RequestId("s", number, settled=number))
    assert fast_path_loop.is_applied(words, 2000, 1901) == 1


def test_window_when_number_is_half_done_then_loop_abstains():
    applied = AppliedIds()
    words = applied.words(RequestId("s", 0)).view("int64")
    applied.add_begun(RequestId("s", 3), 1)
    assert fast_path_loop.is_applied(words, 4, 0) == -1
    applied.add(RequestId("s", 3))
    assert fast_path_loop.is_applied(words, 4, 0) == 0
    applied.add(part_of(0, 1, 3))
    assert fast_path_loop.is_applied(applied.words(part_of(0, 0, 3)).view("int64"), 4, 0) == -1


def test_window_when_scope_is_forgotten_then_loop_abstains():
    applied = AppliedIds()
    words = applied.words(RequestId("s", 0, series="app", stage=3)).view("int64")
    over = EndedStages()
    over.add("app", 4, [])
    applied.end(over)
    assert fast_path_loop.is_applied(words, 0, 0) == -1
    words = applied.words(RequestId("t", 0)).view("int64")
    applied.end_all()
    assert fast_path_loop.is_applied(words, 0, 0) == -1
