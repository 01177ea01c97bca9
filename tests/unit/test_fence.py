"""Which requests a server takes: those of its route version, while its coordinator surely counts it among its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ps2.errors import StaleRouteError
from ps2.server import fence as fences
from ps2.server.fence import Fence

LONG_S = 1000.0
SHORT_S = 0.01


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(fences, "TAKE_OVER_AFTER_S", 0)


def active(version=3, lease_s=LONG_S):
    fence = Fence()
    fence.activate(version, "a", lease_s)
    return fence


def is_taken(fence, version):
    try:
        fence.check(version)
    except StaleRouteError:
        return False
    return True


def run_out(fence, until):
    """Wait until the lease is over."""
    until(lambda: not is_taken(fence, fence.route_version), "the lease is over")


def test_fence_when_never_activated_then_any_version_is_taken():
    assert is_taken(Fence(), 0)
    assert is_taken(Fence(), 7)


@pytest.mark.parametrize(("version", "taken"), [(0, False), (2, False), (3, True), (4, False)])
def test_fence_when_activated_then_only_its_version_is_taken(version, taken):
    assert is_taken(active(), version) is taken


@pytest.mark.parametrize(("version", "coordinator"), [(2, "a"), (2, "b"), (3, "b")])
def test_activate_when_version_is_not_newer_then_stale(version, coordinator):
    fence = active()
    with pytest.raises(StaleRouteError, match="another coordinator has taken over"):
        fence.activate(version, coordinator, LONG_S)
    assert (fence.route_version, fence.coordinator) == (3, "a")


def test_activate_when_coordinator_is_alive_then_refuses_another(monkeypatch):
    monkeypatch.setattr(fences, "TAKE_OVER_AFTER_S", LONG_S)
    fence = active()
    with pytest.raises(
        StaleRouteError,
        match=r"which gave a sign of life \d.\d s ago; got a call of b: .* drivers with different namespaces",
    ):
        fence.activate(9, "b", LONG_S)
    assert (fence.route_version, fence.coordinator) == (3, "a")


def test_fence_when_coordinator_has_left_then_takes_any_version(monkeypatch):
    monkeypatch.setattr(fences, "TAKE_OVER_AFTER_S", LONG_S)
    fence = active()
    fence.leave()
    assert is_taken(fence, 0)
    fence.activate(4, "b", LONG_S)
    assert (fence.route_version, fence.coordinator) == (4, "b")


@pytest.mark.parametrize(("version", "coordinator"), [(3, "a"), (4, "a"), (4, "b")])
def test_activate_when_version_is_newer_or_equal_then_accepted(version, coordinator):
    fence = active()
    fence.activate(version, coordinator, LONG_S)
    assert (fence.route_version, fence.coordinator) == (version, coordinator)


def test_lease_when_it_is_zero_then_there_is_no_such_limit(until):
    fence = active(lease_s=0)
    until(lambda: fence.silent_s > SHORT_S, "some time passes")
    assert is_taken(fence, 3)


def test_lease_when_over_then_takes_nothing_until_next_answer(until):
    fence = active(lease_s=SHORT_S)
    run_out(fence, until)
    with pytest.raises(StaleRouteError, match="no answer from its coordinator"):
        fence.check_lease()
    fence.renew_lease(fences.now_s() + LONG_S)
    assert is_taken(fence, 3)


def test_lease_when_answer_is_to_old_call_then_stays_over(until):
    fence = active(lease_s=SHORT_S)
    sent_s = fences.now_s()
    run_out(fence, until)
    fence.renew_lease(sent_s)
    assert not is_taken(fence, 3)


def test_lease_when_answers_are_unordered_then_later_call_counts():
    fence = active()
    fence.renew_lease(fences.now_s() + LONG_S)
    fence.renew_lease(fences.now_s() - 2 * LONG_S)
    assert is_taken(fence, 3)


def test_lease_when_coordinator_calls_then_is_only_sign_of_life(until):
    """Its call may have waited in a buffer for as long as this process was stopped."""
    fence = active(lease_s=SHORT_S)
    run_out(fence, until)
    before_s = fence.silent_s
    fence.record_call()
    assert fence.silent_s < before_s
    assert not is_taken(fence, 3)


def test_lease_when_this_machine_has_slept_then_it_has_run_out(monkeypatch):
    fence = active(lease_s=LONG_S)
    awake_s = fences.now_s()
    monkeypatch.setattr(fences.time, "clock_gettime", {fences.time.CLOCK_BOOTTIME: awake_s + 2 * LONG_S}.__getitem__)
    assert not is_taken(fence, 3)


def test_clock_when_machine_slept_for_day_then_lanes_agree():
    """In a time namespace whose sleep is a day longer than the machine's; it needs root, on Linux."""
    code = (
        "import time, numpy as np; from numba import njit; from ps2.server import fence, libc;"
        "now = njit(libc.now_ns)(np.zeros(2, np.int64)) / 1e9;"
        "assert abs(now - fence.now_s()) < 60 and now - time.monotonic() > 80_000, now"
    )
    subprocess.run(["unshare", "--time", "--fork", "--boottime", "86400", sys.executable, "-c", code], check=True)
