"""Applied ids behave as a set of them, whatever their order, and cost little when they come in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ps2.server.applied import AppliedIds
from ps2.wire.messages import RequestId

ids = st.builds(RequestId, st.sampled_from("abc"), st.integers(0, 30) | st.integers(2**63, 2**64 - 1))


@given(st.lists(ids), ids)
def test_applied_when_ids_come_in_any_order_then_it_holds_what_a_set_holds(added, asked):
    applied = AppliedIds()
    for id in added:
        applied.add(id)
    assert (asked in applied) == (asked in set(added))
    assert all(id in applied for id in added)


@given(st.permutations(range(50)))
def test_applied_when_a_scope_has_no_gap_then_it_keeps_no_single_ids(order):
    applied = AppliedIds()
    for number in order:
        applied.add(RequestId("s", number))
    assert (applied._scopes["s"].below, applied._scopes["s"].above) == (50, set())


@given(st.lists(st.tuples(ids, st.none() | st.integers(0, 5))), ids, st.integers(0, 6))
def test_covers_when_requests_failed_or_succeeded_then_it_tells_each_operation(events, asked, position):
    """None is success; a number, failure after so many operations. A success covers all operations for good."""
    applied, whole, parts = AppliedIds(), set(), {}
    for id, count in events:
        if count is None:
            applied.add(id)
            whole.add(id)
        else:
            applied.add_begun(id, count)
            parts[id] = count
    assert applied.covers(asked, position) == (asked in whole or position < parts.get(asked, 0))


def test_part_when_noted_then_the_request_as_a_whole_is_not_applied():
    applied = AppliedIds()
    applied.add_begun(RequestId("s", 0), 3)
    assert RequestId("s", 0) not in applied


def test_part_when_the_request_succeeds_then_it_is_forgotten():
    applied = AppliedIds()
    applied.add_begun(RequestId("s", 0), 3)
    applied.add(RequestId("s", 0))
    assert applied._begun == {}


def test_applied_when_numbers_are_settled_then_no_single_ids_are_kept():
    """A shard that sees every second mutation of a session forgets those that can no longer come."""
    applied = AppliedIds()
    for number in range(0, 1000, 2):
        applied.add(RequestId("s", number, settled=number))
    assert len(applied._scopes["s"].above) <= 1


def test_applied_when_a_settled_number_comes_late_then_it_counts_as_applied():
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


def test_parts_when_all_were_applied_then_the_number_costs_nothing_more():
    applied = AppliedIds()
    for part in (2, 0, 1):
        applied.add(part_of(0, part, 3))
    assert all(part_of(0, part, 3) in applied for part in range(3))
    scope = applied._scopes["a"]
    assert (scope.below, scope.above, scope.parts) == (1, set(), {})


def test_parts_when_their_number_is_settled_then_they_are_forgotten():
    applied = AppliedIds()
    applied.add(part_of(0, 1, 3))
    applied.add(part_of(5, 0, 2, settled=5))
    assert applied._scopes["a"].parts == {5: {0}}
