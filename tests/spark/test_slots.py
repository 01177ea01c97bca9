"""No free task slot is an error that names both numbers, never a hang."""

from __future__ import annotations

import threading

import pytest

from ps2.errors import SlotsError


def test_wait_for_slots_when_all_are_free_then_it_returns(ps):
    ps.waitForSlots(2, timeout=5)


def test_wait_for_slots_when_too_many_then_names_both_numbers(ps):
    with pytest.raises(SlotsError, match=r"has 2 free task slots after 0 s, and 3 are needed"):
        ps.waitForSlots(3, timeout=0)


def test_wait_for_slots_when_all_busy_then_names_both_numbers(ps, busy):
    with pytest.raises(SlotsError, match=r"has 0 free task slots after 1 s, and 1 are needed"):
        ps.waitForSlots(1, timeout=1)


def test_wait_for_slots_when_tasks_end_then_it_returns(ps, busy):
    threading.Timer(0.5, busy).start()
    ps.waitForSlots(2, timeout=20)
