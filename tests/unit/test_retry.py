"""How long a client tries again."""

from __future__ import annotations

import pytest

from ps2.client import retry as patiences
from ps2.client.retry import RetryPolicy
from ps2.config import RetryConfig
from ps2.errors import UnavailableError, UnreachableError

RETRY = RetryConfig(total_s=10, recovery_s=100, first_pause_s=1, longest_pause_s=4)


class Clock:
    """Time that passes only in pauses."""

    def __init__(self):
        self.now_s = 1000.0
        self.pauses = []

    def monotonic(self):
        return self.now_s

    def sleep(self, pause_s):
        self.pauses.append(pause_s)
        self.now_s += pause_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(patiences, "time", clock)
    monkeypatch.setattr(patiences, "sleep", clock.sleep)
    return clock


def until_it_gives_up(patience, explained=lambda: False, error=None):
    while True:
        patience.wait(error or UnavailableError("refused"))
        if explained():
            patience.record_progress()


def test_wait_when_failing_again_then_pauses_double_to_longest(clock):
    with pytest.raises(UnavailableError, match="refused"):
        until_it_gives_up(RetryPolicy(RETRY))
    assert clock.pauses == [1, 2, 4]


def test_wait_when_cause_is_unknown_then_gives_up_after_total(clock):
    with pytest.raises(UnavailableError):
        until_it_gives_up(RetryPolicy(RETRY))
    assert 1000 + RETRY.total_s - RETRY.longest_pause_s < clock.now_s <= 1000 + RETRY.total_s


def test_wait_when_server_is_being_restored_then_keeps_waiting(clock):
    with pytest.raises(UnavailableError):
        until_it_gives_up(RetryPolicy(RETRY), explained=lambda: True)
    assert 1000 + RETRY.recovery_s <= clock.now_s <= 1000 + RETRY.recovery_s + RETRY.longest_pause_s


def test_wait_when_cause_was_known_then_total_starts_after_it(clock):
    with pytest.raises(UnavailableError):
        until_it_gives_up(RetryPolicy(RETRY), explained=lambda: clock.now_s < 1050)
    assert 1050 < clock.now_s < 1050 + RETRY.longest_pause_s + RETRY.total_s


def test_wait_when_master_was_never_reached_then_gives_up_early(clock):
    patience = RetryPolicy(RetryConfig(total_s=60, first_contact_s=10, first_pause_s=1, longest_pause_s=4))
    patience.record_master_error(UnreachableError("the driver's master"))
    with pytest.raises(UnreachableError, match=r"^the driver's master$"):
        until_it_gives_up(patience)
    assert sum(clock.pauses) <= 10


def test_doubt_when_finding_out_took_as_long_then_it_gives_up(clock):
    patience = RetryPolicy(RetryConfig(first_contact_s=2))
    patience.wait(UnavailableError("a server"))
    clock.now_s += 3
    with pytest.raises(UnreachableError, match=r"^the driver's master$"):
        patience.record_master_error(UnreachableError("the driver's master"))


def test_wait_when_server_was_never_reached_then_gives_up_early(clock):
    patience = RetryPolicy(RetryConfig(total_s=60, unreached_s=20, first_pause_s=1, longest_pause_s=4))
    with pytest.raises(UnreachableError, match=r"^a server$"):
        until_it_gives_up(patience, error=UnreachableError("a server"))
    assert 10 < sum(clock.pauses) <= 20
