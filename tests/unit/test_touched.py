"""Touched columns are a set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps2.errors import OutOfRangeError
from ps2.ops import touched as module
from ps2.ops.touched import Touched

WIDTH = 200
SLOTS = st.lists(st.integers(-1, WIDTH - 1), max_size=30)


@pytest.fixture(autouse=True)
def _holds_any_column(monkeypatch):
    monkeypatch.setattr(module, "COLUMNS_PER_MEMBER", 1)


def ints(values):
    return np.array(values, dtype=np.int64)


@given(st.lists(SLOTS | st.none(), max_size=6))
def test_touched_when_marked_and_cleared_then_is_the_set(calls):
    touched, model = Touched(WIDTH), set()
    for slots in calls:
        if slots is None:
            touched.clear()
            model.clear()
        else:
            assert touched.mark(ints(slots))
            model |= {slot for slot in slots if slot >= 0}
        assert sorted(touched.columns.tolist()) == sorted(model)
        assert touched.columns.dtype == np.int64


@pytest.mark.parametrize("width", [1, 63, 64, 65, 1000])
def test_touched_when_every_column_is_marked_then_keeps_order(width):
    touched = Touched(width)
    slots = np.random.default_rng(width).permutation(width)
    assert touched.mark(slots)
    assert touched.columns.tolist() == slots.tolist()


@pytest.mark.parametrize("slot", [-2, 64, 2**40])
def test_touched_when_a_slot_is_outside_then_marks_nothing(slot):
    touched = Touched(64)
    with pytest.raises(OutOfRangeError, match=f"slot {slot}"):
        touched.mark(ints([3, slot]))
    assert touched.columns.size == 0


@pytest.mark.parametrize(("marked", "fit"), [(10, True), (11, False)])
def test_touched_when_more_than_its_share_is_marked_then_says_so(monkeypatch, marked, fit):
    monkeypatch.setattr(module, "COLUMNS_PER_MEMBER", 10)
    assert Touched(100).mark(np.repeat(np.arange(marked), 2)) is False
    assert Touched(100).mark(np.arange(marked)) is fit


def test_touched_when_made_then_takes_what_it_says():
    touched = Touched(64_001)
    assert Touched.bytes_for(64_001) == touched._bits.nbytes + touched._list.nbytes
