"""Which servers are there, as a function of what was heard and when."""

from __future__ import annotations

import pytest

from ps2.coordinator.membership import Membership
from ps2.errors import NotFoundError


@pytest.fixture
def membership():
    """Two servers that were last heard at 0 s; 10 s of silence is too long."""
    members = Membership(lost_after_s=10)
    members.register(0, "id0", "a:1", now_s=0)
    members.register(1, "id1", "b:2", now_s=0)
    return members


def test_tick_when_silence_is_just_short_enough_then_nobody_is_lost(membership):
    assert membership.tick(10) == []
    assert membership.lost() == {}


def test_tick_when_silent_too_long_then_lost_names_server_address_and_silence(membership):
    membership.heartbeat(1, "id1", 5)
    assert membership.tick(12) == [0]
    assert membership.lost() == {"a:1": "server 0 (a:1): no sign of life for 12 s"}


def test_tick_when_lost_before_then_it_is_not_told_again(membership):
    membership.tick(11)
    assert membership.tick(12) == []


def test_heartbeat_when_the_server_was_silent_then_it_is_back(membership):
    membership.tick(11)
    membership.heartbeat(0, "id0", 12)
    assert list(membership.lost()) == ["b:2"]


def test_heartbeat_when_the_process_has_ended_then_not_found(membership):
    """A sign of life that was on its way when the process died must not bring it back."""
    membership.ended(0, "exit code 1")
    with pytest.raises(NotFoundError, match="id0 is not server 0"):
        membership.heartbeat(0, "id0", 1)


@pytest.mark.parametrize(("index", "server_id"), [(0, "id1"), (2, "id0")])
def test_heartbeat_when_of_a_stranger_then_not_found(membership, index, server_id):
    with pytest.raises(NotFoundError, match=f"{server_id} is not server {index}"):
        membership.heartbeat(index, server_id, 1)


def test_heartbeat_when_another_process_took_the_place_then_not_found(membership):
    membership.register(0, "new", "c:3", 1)
    with pytest.raises(NotFoundError):
        membership.heartbeat(0, "id0", 2)


def test_ended_when_told_then_lost_gives_the_reason(membership):
    membership.ended(1, "ended by SIGKILL")
    assert membership.lost() == {"b:2": "server 1 (b:2): ended by SIGKILL"}


def test_ended_when_silent_before_then_the_end_is_the_reason(membership):
    membership.tick(11)
    membership.ended(0, "ended by SIGKILL")
    assert membership.lost()["a:1"].endswith("ended by SIGKILL")


def test_ended_when_told_twice_then_the_first_reason_stays(membership):
    membership.ended(0, "first")
    membership.ended(0, "second")
    assert membership.lost()["a:1"].endswith("first")


def test_ended_when_the_server_never_registered_then_nothing_happens(membership):
    membership.ended(7, "exit code 1")
    assert membership.lost() == {}


def test_tick_when_a_server_has_ended_then_the_reason_stays(membership):
    membership.ended(0, "exit code 1")
    assert membership.tick(100) == [1]
    assert membership.lost()["a:1"].endswith("exit code 1")


def test_register_when_a_lost_server_is_replaced_then_nobody_is_lost(membership):
    membership.ended(0, "exit code 1")
    membership.register(0, "new", "c:3", 5)
    assert membership.lost() == {}
