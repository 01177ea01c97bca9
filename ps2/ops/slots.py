"""Choose slots by the ticks of their last touch, and move slots."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.ops.guards import readable
from ps2.ops.kernels import Int64s, kernel
from ps2.ops.table import Array

Ticks = npt.NDArray[np.uint32]

# Buckets of ``oldest``: exact if the slots were touched in no more ticks.
BUCKETS = 1 << 16
# Among more than MANY slots, ``oldest`` takes the first ones whose tick is among the oldest 1 / PART of all ticks,
# estimated from SAMPLE slots. So it need not examine all slots.
MANY, PART, SAMPLE = 1 << 21, 64, 1 << 14


def older(ticks: Ticks, before: int, end: int, scan: int, limit: int) -> tuple[Int64s, int]:
    """Return at most ``limit`` slots below ``end`` that were last touched before a tick, in descending order.

    Examines ``scan`` slots, and also returns the slot below which none was examined.
    """
    out = np.empty(min(limit, scan, end), np.int64)
    count, next_end = _older(readable(ticks), before, end, max(0, end - scan), out)
    return out[:count], next_end


def oldest(ticks: Ticks, count: int, newest: int, start: int = 0) -> Int64s:
    """Return ``count`` slots that were touched least recently, in descending order; at most all slots.

    Slots with a greater tick than ``newest`` are taken last. Among many slots, those below ``start`` are examined
    first.
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
    """Return slots below ``end`` that were touched in or after a tick; otherwise like ``older``."""
    out = np.empty(min(limit, scan, end), np.int64)
    count, next_end = _newer(readable(ticks), since, end, max(0, end - scan), out)
    return out[:count], next_end


@kernel
def _newer(ticks: Ticks, since: int, end: int, begin: int, out: Int64s) -> tuple[int, int]:
    count = 0
    for slot in range(end - 1, begin - 1, -1):
        if ticks[slot] >= since:
            if count == out.size:
                return count, slot + 1
            out[count] = slot
            count += 1
    return count, begin


@kernel
def _older(ticks: Ticks, before: int, end: int, begin: int, out: Int64s) -> tuple[int, int]:
    count = 0
    for slot in range(end - 1, begin - 1, -1):
        if ticks[slot] < before:
            if count == out.size:
                return count, slot + 1
            out[count] = slot
            count += 1
    return count, begin


@kernel
def _oldest(ticks: Any, span: tuple[Any, Any, int], buckets: Int64s, out: Int64s) -> None:
    first_tick, newest, shift = span
    for slot in range(ticks.size):
        buckets[(min(np.int64(ticks[slot]), newest) - first_tick) >> shift] += 1
    last, before = 0, 0
    while before + buckets[last] < out.size:
        before += buckets[last]
        last += 1
    # All of the older buckets; of this one, those in the last slots.
    rest, count = out.size - before, 0
    for slot in range(ticks.size - 1, -1, -1):
        bucket = (min(np.int64(ticks[slot]), newest) - first_tick) >> shift
        if bucket < last or (bucket == last and rest > 0):
            rest -= bucket == last
            out[count] = slot
            count += 1


@kernel
def move_blocks(m: Array, slots: Int64s, sources: Int64s) -> None:
    """Move the block of each source to its slot, in order, and leave zeros; a block may stay where it is removed."""
    for i in range(slots.size):
        slot, source = slots[i], sources[i]
        for j in range(m.shape[1]):
            if slot != source:
                m[slot, j] = m[source, j]
            m[source, j] = 0


def stamp(ticks: Ticks, slots: Int64s, tick: int) -> None:
    """Note that slots were touched in a tick; -1 stands for an absent key."""
    _stamp(ticks, readable(slots), tick)


@kernel
def _stamp(ticks: Any, slots: Int64s, tick: int) -> None:
    for i in range(slots.size):
        if slots[i] >= 0:
            ticks[slots[i]] = tick
