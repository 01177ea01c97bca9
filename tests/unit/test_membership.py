"""Which servers are there, as a function of what was heard and when."""

from __future__ import annotations

import pytest

from ps2.coordinator.server_registry import Membership
from ps2.errors import NotFoundError


@pytest.fixture
def membership():
    """Two servers that were last heard at 0 s; 10 s of silence is too long."""
    members = Membership(lost_after_s=10)
    members.register(0, "id0", "a:1", now_s=0)
    members.register(1, "id1", "b:2", now_s=0)
    return members


def watch(membership, begin_s, end_s):
    """Look once a second, as the coordinator does more often; return who was declared lost."""
    lost = []
    for now_s in range(begin_s, end_s + 1):
        membership.find_silent(now_s)
        lost += membership.declare_lost(now_s)
    return lost


def test_tick_when_silence_is_within_limit_then_none_is_lost(membership):
    assert watch(membership, 0, 10) == []
    assert membership.lost_by_address() == {}


def test_tick_when_silent_too_long_then_lost_names_server(membership):
    watch(membership, 0, 5)
    membership.heartbeat(1, "id1", 5)
    assert watch(membership, 6, 11) == [0]
    assert watch(membership, 12, 12) == []
    assert membership.lost_by_address() == {"a:1": "server 0 (a:1): no sign of life for 11 s"}


def test_tick_when_lost_before_then_it_is_not_told_again(membership):
    watch(membership, 0, 11)
    assert watch(membership, 12, 12) == []


def test_heartbeat_when_the_server_was_silent_then_it_is_back(membership):
    watch(membership, 0, 11)
    membership.heartbeat(0, "id0", 12)
    assert list(membership.lost_by_address()) == ["b:2"]


def test_heartbeat_when_the_process_has_ended_then_not_found(membership):
    """A sign of life that was on its way when the process died must not bring it back."""
    membership.mark_ended(0, "exit code 1")
    with pytest.raises(NotFoundError, match="id0 is not server 0"):
        membership.heartbeat(0, "id0", 1)


@pytest.mark.parametrize(("index", "server_id"), [(0, "id1"), (2, "id0")])
def test_heartbeat_when_of_a_peer_then_not_found(membership, index, server_id):
    with pytest.raises(NotFoundError, match=f"{server_id} is not server {index}"):
        membership.heartbeat(index, server_id, 1)


def test_heartbeat_when_another_process_took_over_then_not_found(membership):
    membership.register(0, "new", "c:3", 1)
    with pytest.raises(NotFoundError):
        membership.heartbeat(0, "id0", 2)


def test_ended_when_told_then_lost_gives_the_reason(membership):
    membership.mark_ended(1, "ended by SIGKILL")
    assert membership.lost_by_address() == {"b:2": "server 1 (b:2): ended by SIGKILL"}


def test_ended_when_silent_before_then_the_end_is_the_reason(membership):
    watch(membership, 0, 11)
    membership.mark_ended(0, "ended by SIGKILL")
    assert membership.lost_by_address()["a:1"].endswith("ended by SIGKILL")


def test_ended_when_told_twice_then_the_first_reason_stays(membership):
    membership.mark_ended(0, "first")
    membership.mark_ended(0, "second")
    assert membership.lost_by_address()["a:1"].endswith("first")


def test_ended_when_server_never_registered_then_nothing_happens(membership):
    membership.mark_ended(7, "exit code 1")
    assert membership.lost_by_address() == {}


def test_tick_when_a_server_has_ended_then_the_reason_stays(membership):
    membership.mark_ended(0, "exit code 1")
    assert watch(membership, 0, 12) == [1]
    assert membership.lost_by_address()["a:1"].endswith("exit code 1")


def test_register_when_lost_server_is_replaced_then_none_is_lost(membership):
    membership.mark_ended(0, "exit code 1")
    membership.register(0, "new", "c:3", 5)
    assert membership.lost_by_address() == {}


def test_silent_when_half_of_limit_passed_then_are_to_be_asked(membership):
    watch(membership, 0, 4)
    assert membership.find_silent(5) == []
    membership.heartbeat(1, "id1", 5)
    assert membership.find_silent(6) == [0]


def test_tick_when_silent_server_was_not_asked_then_is_not_lost(membership):
    watch(membership, 0, 4)
    for now_s in range(5, 12):
        membership.heartbeat(1, "id1", now_s)
    assert membership.declare_lost(11) == []
    assert membership.find_silent(11) == [0]
    assert membership.declare_lost(12) == [0]


@pytest.mark.parametrize("gap_s", [9, 20, 3600])
def test_tick_when_the_caller_stood_still_then_nobody_is_lost(membership, gap_s):
    watch(membership, 0, 3)
    assert watch(membership, 3 + gap_s, 4 + gap_s) == []
    membership.heartbeat(0, "id0", 4 + gap_s)
    assert membership.lost_by_address() == {}


def test_tick_when_caller_stalled_while_asking_then_asks_again(membership):
    watch(membership, 0, 9)
    assert membership.find_silent(9) == [0, 1]
    assert membership.declare_lost(1000) == []
    assert membership.find_silent(1000) == [0, 1]
    membership.heartbeat(1, "id1", 1000)
    assert membership.declare_lost(1001) == [0]


def test_tick_when_sign_of_life_ends_gap_then_others_survive(membership):
    """The thread that hears it may be the first to run again."""
    watch(membership, 0, 3)
    membership.heartbeat(0, "id0", 60)
    assert watch(membership, 60, 61) == []


def test_tick_when_caller_stalls_again_then_hung_server_is_lost(membership):
    lost = [index for now_s in (20, 40, 60) for index in watch(membership, now_s, now_s + 1)]
    assert lost == [0, 1]
