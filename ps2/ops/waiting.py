"""Counts of the touches of keys that wait for their slots.

Up to ``EXACT_KEYS`` keys are counted exactly. Further keys are counted in a count-min sketch with conservative update
(Cormode and Muthukrishnan, "An improved data stream summary"; Estan and Varghese, "New directions in traffic
measurement"): an estimate is never below the count, so a key may get its slot early, never late. The sketch has two
windows, so that it forgets: a touch carries a key's estimate over to the current window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.ops.guards import readable
from ps2.ops.kernels import Int64s, kernel
from ps2.ops.keyindex import _mix
from ps2.ops.prefetch import prefetch_short
from ps2.ops.table import Array

Bools = npt.NDArray[np.bool_]
Sketch = npt.NDArray[Any]

EXACT_KEYS = 1 << 18
MIN_CELLS = 64
NO_KEY = -1
# A cell's second number is tick << COUNT_BITS | count.
COUNT_BITS = 8
COUNT_MASK = (1 << COUNT_BITS) - 1
# Rows of the sketch. Each has as many counters as the last window counted touches, between the bounds, and at most
# twice or half as many as before. With one touch for each counter, a key that was never touched has an estimate of 1 or
# more with a probability of 16%, and of 2 or more with a tenth of a percent.
DEPTH = 4
FIRST_WIDTH, MIN_WIDTH, MOST_WIDTH = 1 << 21, 1 << 16, 1 << 23
# A number of the sketch holds two counters: the current window's in the low bits, and that of the one before. Four bits
# each are enough for up to FEW touches.
FEW = 15
# What the kernel counts: keys in the exact table, and touches in the sketch's current window.
EXACT, SKETCHED = 0, 1
# Counters by which the number of keys in the sketch is estimated.
SAMPLE = 1 << 14
# How many keys ahead the loop prefetches.
AHEAD = 8


class WaitingKeys:
    """Counts of waiting keys; not thread-safe."""

    def __init__(self, admit_after: int, exact_keys: int = EXACT_KEYS) -> None:
        self._admit_after = admit_after
        self._exact_keys = exact_keys
        self._cells = _empty_cells(MIN_CELLS)
        self._bits = 4 if admit_after <= FEW else 8
        self._sketch: Sketch = self._no_counts(0)
        self._counts = np.zeros(2, np.int64)

    def __len__(self) -> int:
        """Number of waiting keys; that of those in the sketch is an estimate."""
        return int(self._counts[EXACT]) + self._sketched_keys()

    @property
    def nbytes(self) -> int:
        return self._cells.nbytes + self._sketch.nbytes

    def touch(self, keys: Int64s, tick: int, fresh: int) -> Bools:
        """Count a touch of distinct keys; return which of them get their slots now, and are no longer counted.

        Args:
            tick: the current tick.
            fresh: the first tick that still counts: a key that was touched before it last begins anew.
        """
        admitted, done = np.zeros(keys.size, np.bool_), 0
        rule = (self._admit_after, tick, fresh, self._exact_keys, self._bits)
        while True:
            done = _touch(self._cells, self._sketch, self._counts, readable(keys), admitted, rule, done)
            if done == keys.size:
                self._shrink()
                return admitted
            if self._counts[EXACT] >= self._exact_keys:
                self._sketch = self._no_counts(FIRST_WIDTH)
            else:
                self._grow()

    def put_back(self, keys: Int64s, tick: int) -> None:
        """Count distinct keys again that ``touch`` admitted, so that the next touch admits them."""
        while (self._counts[EXACT] + keys.size) * 2 > len(self._cells):
            self._grow()
        _fill(self._cells, readable(keys), np.full(keys.size, (tick << COUNT_BITS) | (self._admit_after - 1)))
        self._counts[EXACT] += keys.size

    def expire(self, fresh: int) -> None:
        """Forget the exact counts of keys that were not touched in or after a tick."""
        self._counts[EXACT] -= _expire(self._cells, fresh)
        self._shrink()

    def rotate(self, all_windows: bool, most_bytes: int) -> None:
        """Begin a window of the sketch: touches of the last but one are forgotten, or of all windows.

        Args:
            most_bytes: the most that the sketch should take.
        """
        touches = int(self._counts[SKETCHED])
        self._counts[SKETCHED] = 0
        if all_windows or not touches:
            self._sketch = self._sketch[:, :0]
            return
        width = MIN_WIDTH
        while width < min(touches, MOST_WIDTH) and 2 * DEPTH * width * self._sketch.itemsize <= most_bytes:
            width *= 2
        # The current window's counter takes the other one's place, and 0 takes its own.
        np.left_shift(self._sketch, self._bits, out=self._sketch)
        # A counter's index is the key's hash modulo the width: a wider row repeats a narrower one, and a narrower one
        # holds the larger of the counters that meet.
        given = self._sketch.shape[1]
        if width < given:
            self._sketch = np.maximum(self._sketch[:, : given // 2], self._sketch[:, given // 2 :])
        elif width > given:
            wider = np.empty((DEPTH, 2 * given), self._sketch.dtype)
            wider[:, :given] = wider[:, given:] = self._sketch
            self._sketch = wider

    def exact(self) -> tuple[Int64s, Int64s]:
        """Return the exactly counted keys, and tick << 8 | count of each."""
        used = self._cells[self._cells[:, 0] != NO_KEY]
        return used[:, 0].copy(), used[:, 1].copy()

    def state(self) -> dict[str, Array]:
        """Return the counts as arrays, for ``adopt``."""
        keys, counts = self.exact()
        order = np.argsort(keys)
        keys, counts = keys[order], counts[order]
        return {"waiting": keys, "counts": counts, "sketch": self._sketch, "sketched": self._counts[SKETCHED:].copy()}

    def adopt(self, state: dict[str, Array], mine: Bools) -> None:
        """Take over counts of another shard.

        Args:
            mine: which of the exactly counted keys belong here. All of the sketch is taken over, as it does not know
                its keys.
        """
        keys, counts = self.exact()
        self._restore(np.append(keys, state["waiting"][mine]), np.append(counts, state["counts"][mine]))
        sketches = [each for each in (state["sketch"], self._sketch) if each.shape[1]]
        if sketches:
            width = min(each.shape[1] for each in sketches)
            self._sketch = _merged([_folded(each, width) for each in sketches], self._bits)
        self._counts[SKETCHED] += int(state["sketched"][0])

    def _sketched_keys(self) -> int:
        """Estimate the number of keys in the sketch from its empty counters (linear counting, Whang et al.)."""
        sketch = self._sketch
        width = sketch.shape[1]
        if not width:
            return 0
        sample = sketch[0, :SAMPLE]
        empty = len(sample) - int(np.count_nonzero(sample))
        return int(width * np.log(len(sample) / max(empty, 1)))

    def _no_counts(self, width: int) -> Sketch:
        return np.zeros((DEPTH, width), np.uint8 if self._bits == 4 else np.uint16)

    def _restore(self, keys: Int64s, counts: Int64s) -> None:
        cells = MIN_CELLS
        while cells < 2 * keys.size:
            cells *= 2
        self._cells = _empty_cells(cells)
        _fill(self._cells, readable(keys), readable(counts))
        self._counts[EXACT] = keys.size

    def _shrink(self) -> None:
        if int(self._counts[EXACT]) * 16 < len(self._cells) > MIN_CELLS:
            self._restore(*self.exact())

    def _grow(self) -> None:
        keys, counts = self.exact()
        self._cells = _empty_cells(2 * len(self._cells))
        _fill(self._cells, readable(keys), readable(counts))


def _empty_cells(count: int) -> Int64s:
    return np.full((count, 2), NO_KEY, dtype=np.int64)


def _folded(sketch: Sketch, width: int) -> list[Sketch]:
    """Return the parts of a sketch that meet in a narrower one."""
    return np.split(sketch, sketch.shape[1] // width, axis=1)


def _merged(sketches: Sequence[Sequence[Sketch]], bits: int) -> Sketch:
    """Return a sketch whose estimates are not below those of any of its parts, which have its width."""
    parts = [part for each in sketches for part in each]
    low = parts[0].dtype.type((1 << bits) - 1)
    merged: Sketch = np.maximum.reduce([part & low for part in parts]) | np.maximum.reduce(
        [part & ~low for part in parts]
    )
    return merged


@kernel
def _cell(cells: Int64s, key: int) -> int:
    """Return the cell that holds the key, or else the empty cell where the key belongs."""
    last = cells.shape[0] - 1
    at: int = int(_mix(key)) & last
    while cells[at, 0] != key and cells[at, 0] != NO_KEY:
        at = (at + 1) & last
    return at


@kernel
def _fill(cells: Int64s, keys: Int64s, counts: Int64s) -> None:
    for i in range(keys.size):
        at = _cell(cells, keys[i])
        cells[at, 0] = keys[i]
        cells[at, 1] = counts[i]


@kernel
def _drop(cells: Int64s, gap: int) -> None:
    """Empty a cell, and move cells back so that none is behind an empty cell on its way (Knuth, 6.4, Algorithm R)."""
    last = cells.shape[0] - 1
    at = gap
    while True:
        at = (at + 1) & last
        if cells[at, 0] == NO_KEY:
            break
        home = int(_mix(cells[at, 0])) & last
        if ((at - home) & last) >= ((at - gap) & last):
            cells[gap, 0], cells[gap, 1] = cells[at, 0], cells[at, 1]
            gap = at
    cells[gap, 0] = NO_KEY


@kernel
def _expire(cells: Int64s, fresh: int) -> int:
    """Drop the keys that were not touched in or after a tick; return how many."""
    dropped = at = 0
    while at < cells.shape[0]:
        # Another key may move into the cell.
        if cells[at, 0] != NO_KEY and cells[at, 1] >> COUNT_BITS < fresh:
            _drop(cells, at)
            dropped += 1
        else:
            at += 1
    return dropped


@kernel
def _at(sketch: Sketch, mixed: Any, row: int) -> Any:
    """Return the index of a key's counter in a row, from its hash (Kirsch and Mitzenmacher's double hashing)."""
    return (mixed + row * ((mixed >> 32) | 1)) & np.int64(sketch.shape[1] - 1)


@kernel
def _estimate(sketch: Sketch, mixed: Any, bits: Any) -> Any:
    """Return a key's estimate: the larger one of the two windows."""
    mask = (np.int64(1) << bits) - 1
    current = before = mask
    for row in range(DEPTH):
        pair = np.int64(sketch[row, _at(sketch, mixed, row)])
        current, before = min(current, pair & mask), min(before, pair >> bits)
    return max(current, before)


@kernel
def _raise_to(sketch: Any, mixed: Any, count: Any, bits: Any) -> None:
    """Raise a key's counters of the current window to a count."""
    mask = (np.int64(1) << bits) - 1
    for row in range(DEPTH):
        at = _at(sketch, mixed, row)
        pair = np.int64(sketch[row, at])
        if pair & mask < count:
            sketch[row, at] = (pair & ~mask) | count


@kernel
def _touch(
    cells: Int64s,
    sketch: Sketch,
    counts: Int64s,
    keys: Int64s,
    admitted: Bools,
    rule: tuple[int, int, int, int, int],
    start: int,
) -> int:
    """Count touches of ``keys[start:]`` until there is no room; return the position of the next key."""
    admit_after, tick, fresh, most_exact, bits = rule
    last, width = cells.shape[0] - 1, sketch.shape[1]
    for i in range(start, keys.size):
        if i + AHEAD < keys.size:
            mixed = np.int64(_mix(keys[i + AHEAD]))
            prefetch_short(cells, mixed & last)
            if width:
                for row in range(DEPTH):
                    prefetch_short(sketch[row], _at(sketch, mixed, row))
        at = _cell(cells, keys[i])
        if cells[at, 0] != NO_KEY:
            count = (cells[at, 1] & COUNT_MASK) + 1 if cells[at, 1] >> COUNT_BITS >= fresh else 1
            if count >= admit_after:
                admitted[i] = True
                _drop(cells, at)
                counts[EXACT] -= 1
            else:
                cells[at, 1] = (tick << COUNT_BITS) | count
            continue
        is_full = counts[EXACT] >= most_exact
        if (is_full and width == 0) or (not is_full and 2 * counts[EXACT] >= cells.shape[0]):
            return i
        mixed = np.int64(_mix(keys[i]))
        count = (_estimate(sketch, mixed, bits) if width else 0) + 1
        if count >= admit_after:
            admitted[i] = True
        elif not is_full:
            cells[at, 0], cells[at, 1] = keys[i], (tick << COUNT_BITS) | count
            counts[EXACT] += 1
        else:
            _raise_to(sketch, mixed, count, bits)
            counts[SKETCHED] += 1
    return keys.size
