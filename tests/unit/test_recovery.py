"""Where lost shards come from, and what is missing of them afterwards."""

from __future__ import annotations

import pytest

from ps2.coordinator.recovery import Outage, Policy, Recovery, all_roll_back, backup_of, backups, source_of

ADDRESSES = ["a:1", "b:2", "c:3"]


@pytest.mark.parametrize(
    ("lost", "replicas", "has_checkpoint", "source"),
    [
        ([1], 0, False, None),
        ([1], 0, True, "checkpoint"),
        ([1], 1, False, "replica"),
        ([1], 1, True, "replica"),
        ([0, 2], 1, False, None),  # server 2's copies are on 0
        ([0, 2], 1, True, "checkpoint"),
        ([0, 1, 2], 1, True, "checkpoint"),
    ],
)
def test_source_when_servers_are_lost_then_prefers_replica(lost, replicas, has_checkpoint, source):
    assert source_of(lost, 3, Policy(replicas), has_checkpoint) == source


def test_source_when_lost_are_not_neighbours_then_is_replica():
    assert source_of([0, 2], 4, Policy(1), has_checkpoint=False) == "replica"


@pytest.mark.parametrize(
    ("recover", "can_resume", "together"),
    [
        ("auto", True, True),
        ("auto", False, False),
        ("shard", True, False),
        ("shard", False, False),
        ("consistent", True, True),
        ("consistent", False, True),
    ],
)
def test_all_roll_back_when_unset_then_only_if_work_can_resume(recover, can_resume, together):
    assert all_roll_back(Policy(0, recover), can_resume) is together


@pytest.mark.parametrize("mixed", [True, False])
def test_recovery_when_others_stayed_then_says_ages_are_mixed(mixed):
    times = {"detectS": 0.1, "startS": 0.2, "loadS": 0.3}
    recovery = Recovery(
        (1,), "ended", "checkpoint", "c", 4, not mixed, mixed, **times, nbytes=8, mutationsLost=2, zeros=()
    )
    assert ("the other servers did not roll back, so ages of vectors are mixed" in str(recovery)) is mixed


def test_backups_when_all_servers_are_up_then_each_has_next_one():
    assert backups(ADDRESSES, [], 1) == ["b:2", "c:3", "a:1"]
    assert [backup_of(index, 3) for index in range(3)] == [1, 2, 0]


def test_backups_when_server_is_lost_then_one_before_has_none():
    assert backups(ADDRESSES, [1], 1) == ["", "c:3", "a:1"]


def test_backups_when_there_are_no_replicas_then_nobody_has_one():
    assert backups(ADDRESSES, [], 0) == ["", "", ""]


def test_mutations_lost_when_checkpoint_has_some_then_is_rest():
    lost = Outage((0,), "ended", 0.5, {0: ("id-0", 10), 1: ("id-1", 7)})
    assert lost.mutations_since({"id-0": 4, "id-1": 7}, [0]) == 6
    assert lost.mutations_since({"id-0": 4, "id-1": 7}, [0, 1]) == 6


def test_mutations_lost_when_server_is_newer_then_counts_all():
    assert Outage((0,), "ended", 0.5, {0: ("its successor", 3)}).mutations_since({"id-0": 9}, [0]) == 3


def test_mutations_lost_when_last_heartbeat_is_older_then_none():
    assert Outage((0,), "ended", 0.5, {0: ("id-0", 2)}).mutations_since({"id-0": 4}, [0]) == 0
