"""A scope's applied ids (``ps2.server.applied``), for compiled loops that hold the shard's lock."""

from __future__ import annotations

import numpy as np

from ps2.ops.kernels import Int64s, inline
from ps2.server.applied import BASE, BELOW, BITS, END, IRREGULAR, WINDOW


@inline
def is_applied(scope: Int64s, number: int, settled: int) -> int:
    """Return 1 if a number has been applied, 0 if it has not; -1 if only Python can decide."""
    if scope[IRREGULAR] != 0 or number < 0 or scope[BELOW] < 0 or scope[BASE] < 0 or scope[END] < 0:
        return -1
    if number < scope[BELOW]:
        return 1
    at = number - scope[BASE]
    if at < 0:
        return -1
    if at >= BITS:
        # For example the first number of a clock, far beyond its predecessors: the whole window is settled by then.
        return 0 if scope[BASE] + BITS <= settled <= number and number >= scope[END] else -1
    if scope[END] > scope[BASE] + BITS:
        return -1  # the window could move over numbers that only Python knows
    return (scope[WINDOW + (at >> 6)] >> (at & 63)) & 1


@inline
def note(scope: Int64s, number: int) -> None:
    """Record a number in the window; a number beyond the window becomes its new beginning (see ``is_applied``)."""
    at = number - scope[BASE]
    if at >= BITS:
        scope[WINDOW:] = 0
        scope[BASE] = number
        at = 0
    scope[WINDOW + (at >> 6)] |= np.int64(1) << (at & 63)


@inline
def settle(scope: Int64s, settled: int) -> None:
    """Forget settled numbers, and advance over applied numbers that follow without a gap, like ``AppliedIds.add``."""
    below = max(scope[BELOW], settled)
    at = below - scope[BASE]
    while 0 <= at < BITS and (scope[WINDOW + (at >> 6)] >> (at & 63)) & 1:
        at += 1
    below = scope[BASE] + at
    scope[BELOW] = below
    if at < BITS // 2:
        return
    # Drop whole words of the window that are no longer needed.
    words = min(at >> 6, BITS // 64)
    for i in range(BITS // 64):
        scope[WINDOW + i] = scope[WINDOW + i + words] if i + words < BITS // 64 else 0
    scope[BASE] += 64 * words
    if scope[BASE] < below and words == BITS // 64:
        scope[BASE] = below
