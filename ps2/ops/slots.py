"""Selects slots by the tick of their last touch, and moves the blocks of slots."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.ops.guards import readable
from ps2.ops.kernels import Int64s, kernel
from ps2.ops.table import Array

Ticks = npt.NDArray[np.uint32]

# The number of buckets of the histogram in ``oldest``. The result is exact if there are at most as many ticks.
BUCKETS = 1 << 16
# If there are more than MANY slots, ``oldest`` does not examine all of them: it returns the first slots whose ticks are
# among the oldest 1 / PART of all ticks. It estimates this quantile from SAMPLE slots.
MANY, PART, SAMPLE = 1 << 21, 64, 1 << 14
# A value above all ticks.
NO_TICK = 1 << 32


def older(ticks: Ticks, before: int, end: int, scan: int, limit: int) -> tuple[Int64s, int]:
    """Return at most ``limit`` slots below ``end`` whose last touch is before the tick ``before``, in descending order.

    The search examines at most ``scan`` slots. Also return the last examined slot, at which the next search can end.
    """
    out = np.empty(min(limit, scan, end), np.int64)
    count, next_end = _within(readable(ticks), 0, before, end, max(0, end - scan), out)
    return out[:count], next_end


def oldest(ticks: Ticks, count: int, newest: int, start: int = 0) -> Int64s:
    """Return the ``count`` least recently touched slots, or all if there are fewer, in descending order.

    Ticks above ``newest`` count as newest + 1. If there are many slots, slots below ``start`` are examined first.
    """
    count = min(count, ticks.size)
    out = np.empty(count, np.int64)
    if ticks.size > MANY and count * PART <= ticks.size:
        sample = ticks[:: ticks.size // SAMPLE]
        before = min(int(np.partition(sample, sample.size // PART)[sample.size // PART]), newest) + 1
        below, _ = older(ticks, before, start, start, count)
        above, _ = older(ticks[start:], before, ticks.size - start, ticks.size - start, count - below.size)
        if below.size + above.size == count:
            return np.concatenate((above + start, below))
    if count:
        first_tick = int(ticks.min())
        shift = max((newest + 1 - first_tick).bit_length() - BUCKETS.bit_length() + 1, 0)
        _oldest(readable(ticks), (first_tick, newest + 1, shift), np.zeros(BUCKETS, np.int64), out)
    return out


def newer(ticks: Ticks, since: int, end: int, scan: int, limit: int) -> tuple[Int64s, int]:
    """Do the same as ``older`` for slots whose last touch is in or after the tick ``since``."""
    out = np.empty(min(limit, scan, end), np.int64)
    count, next_end = _within(readable(ticks), since, NO_TICK, end, max(0, end - scan), out)
    return out[:count], next_end


@kernel
def _within(ticks: Ticks, since: int, before: int, end: int, begin: int, out: Int64s) -> tuple[int, int]:
    """Write the slots in [begin, end) with ticks in [since, before) to ``out``, in descending order, until it is full.

    Return the number of slots, and the last examined slot.
    """
    count = 0
    for slot in range(end - 1, begin - 1, -1):
        if since <= ticks[slot] < before:
            if count == out.size:
                return count, slot + 1
            out[count] = slot
            count += 1
    return count, begin


@kernel
def _oldest(ticks: Any, tick_range: tuple[Any, Any, int], buckets: Int64s, out: Int64s) -> None:
    """Select slots by a histogram of ticks; ``tick_range``: first tick, last tick, log2 of the width of a bucket."""
    first_tick, newest, shift = tick_range
    for slot in range(ticks.size):
        buckets[(min(np.int64(ticks[slot]), newest) - first_tick) >> shift] += 1
    last, older_slots = 0, 0
    while older_slots + buckets[last] < out.size:
        older_slots += buckets[last]
        last += 1
    # Take all slots of the buckets before ``last``, and the last slots of that bucket.
    remaining, count = out.size - older_slots, 0
    for slot in range(ticks.size - 1, -1, -1):
        bucket = (min(np.int64(ticks[slot]), newest) - first_tick) >> shift
        if bucket < last or (bucket == last and remaining > 0):
            remaining -= bucket == last
            out[count] = slot
            count += 1


@kernel
def move_blocks(m: Array, slots: Int64s, sources: Int64s) -> None:
    """Move the block of each source to its slot, in order, and set the source to 0. Both may be the same slot."""
    for i in range(slots.size):
        slot, source = slots[i], sources[i]
        for j in range(m.shape[1]):
            if slot != source:
                m[slot, j] = m[source, j]
            m[source, j] = 0


def stamp(ticks: Ticks, slots: Int64s, tick: int) -> None:
    """Set the tick of the last touch of slots; ignore slot -1 (absent keys)."""
    _stamp(ticks, readable(slots), tick)


@kernel
def _stamp(ticks: Any, slots: Int64s, tick: int) -> None:
    for i in range(slots.size):
        if slots[i] >= 0:
            ticks[slots[i]] = tick
