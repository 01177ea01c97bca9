"""The driver's clock: keys age by the time that has passed in the driver, whatever happens to servers meanwhile."""

from __future__ import annotations

import numpy as np
import pytest

from ps2 import DCV
from ps2.coordinator.in_process import InProcessServers, in_process_session
from ps2.coordinator.key_clock import KeyClock
from ps2.errors import UnavailableError


class UnreachableAtTimes(InProcessServers):
    """Servers that do not answer while ``away`` is True."""

    away = False

    def exchange(self, requests):
        if self.away:
            raise UnavailableError("away")
        return super().exchange(requests)


@pytest.fixture
def servers():
    network = UnreachableAtTimes(3, 1 << 30)
    with in_process_session(network):
        yield network


@pytest.fixture
def clock(servers):
    """A clock whose time is its ``now_s``."""
    created = KeyClock(servers.master, servers, "test/keys", lambda: created.now_s)
    created.now_s = 1000.0
    return created


def pass_by(clock, seconds):
    clock.now_s += seconds
    clock.poll()


def managed(**more):
    m = DCV.sparse(2**63, 2, layout="column", **more).matrix()
    m.add(columns=np.arange(50), values=np.ones((50, 2)))
    return m


def test_keys_when_time_passes_then_go_after_their_age(clock):
    m = managed(expireAfterS=100)
    clock.poll()
    pass_by(clock, 60)
    m.add(columns=np.arange(20), values=np.ones((20, 2)))
    assert m.keyStatus().nowS == 60
    pass_by(clock, 41)
    assert m.keyStatus().active == 20
    pass_by(clock, 60)
    assert m.keyStatus().active == 0


def test_time_when_servers_are_away_then_added_later(clock, servers):
    m = managed(expireAfterS=100)
    clock.poll()
    servers.away = True
    pass_by(clock, 30)
    pass_by(clock, 30)
    servers.away = False
    assert m.keyStatus().nowS == 0
    pass_by(clock, 30)
    assert m.keyStatus().nowS == 90


def test_time_when_expiry_fails_then_is_not_added_twice(clock, servers, monkeypatch):
    m = managed(expireAfterS=100)
    clock.poll()
    exchange = servers.exchange

    def without_expiry(requests):
        if any(one.operations[0].name == "keys_expire" for some in requests.values() for one in some):
            raise UnavailableError("away")
        return exchange(requests)

    monkeypatch.setattr(servers, "exchange", without_expiry)
    for _ in range(3):
        pass_by(clock, 30)
    assert m.keyStatus().nowS == 90


def test_time_when_not_due_or_of_events_then_stays(clock):
    slow, events, forever = managed(expireAfterS=1000), managed(expireAfterS=10, clock="event"), managed(init="normal")
    clock.poll()
    pass_by(clock, 5)
    assert [m.keyStatus().nowS for m in (slow, events, forever)] == [0, 0, 0]
    pass_by(clock, 6)
    assert [m.keyStatus().nowS for m in (slow, events, forever)] == [11, 0, 0]
