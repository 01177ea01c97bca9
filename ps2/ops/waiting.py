"""Counts of the touches of keys that wait for their slots.

Up to ``EXACT_KEYS`` keys are counted exactly. Further keys are counted in a count-min sketch with conservative update
(``ps2.ops.touch_sketch``). Its estimates are never below the counts, so a key can get its slot early, but never late.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ps2.ops.guards import readable
from ps2.ops.kernels import Int64s, inline, kernel
from ps2.ops.keyindex import _mix
from ps2.ops.prefetch import prefetch_short
from ps2.ops.table import Array
from ps2.ops.touch_sketch import DEPTH, LINE, Counters, TouchSketch, counter, estimate, first_counter, power_above

Bools = npt.NDArray[np.bool_]

EXACT_KEYS = 1 << 18
MIN_CELLS = 64
NO_KEY = -1
# A cell has a key, and a stamp: tick << COUNT_BITS | count. The stamp of an empty cell is LATEST, which is never old.
COUNT_BITS = 8
COUNT_MASK = (1 << COUNT_BITS) - 1
LATEST = 2**62
# The sketch has counters of four bits if ``admit_after`` is at most this, else of eight bits.
MAX_FOUR_BITS = 15
# The maximum ratio of the touches expected in a window and the touches so far.
MAX_EXPECTED = 16
# Indices of the kernels' counts: keys in the exact table, and touches in the sketch's current window.
EXACT, SKETCHED = 0, 1
# The possible effects of a touch on a key without a cell: a new cell, raised counters, or none.
NEW_CELL, RAISED, UNCHANGED = -1, -2, -3
# The distance of prefetching, in keys.
AHEAD = 12


@dataclass(frozen=True)
class Touch:
    """A touch of keys, with everything that is needed to undo it.

    Attributes:
        keys: the distinct keys.
        admitted: True for keys that get their slots now.
        before: for each key the stamp of its cell before the touch, or ``NEW_CELL``, ``RAISED`` or ``UNCHANGED``.
        counters: for each key whose effect is ``RAISED``, its counters before the touch.
        sketched: the number of touches in the sketch's current window before this touch.
        had_sketch: whether there was a sketch before.
    """

    keys: Int64s
    admitted: Bools
    before: Int64s
    counters: Counters
    sketched: int
    had_sketch: bool


class WaitingKeys:
    """Counts of waiting keys; not thread-safe."""

    def __init__(self, admit_after: int, exact_keys: int = EXACT_KEYS) -> None:
        self._admit_after = admit_after
        self._exact_keys = exact_keys
        self._cells = _empty_cells(MIN_CELLS)
        self._sketch = TouchSketch(4 if admit_after <= MAX_FOUR_BITS else 8)
        self._counts = np.zeros(2, np.int64)

    def __len__(self) -> int:
        """The number of waiting keys; for keys in the sketch it is an estimate."""
        return int(self._counts[EXACT]) + self._sketch.keys()

    @property
    def nbytes(self) -> int:
        return self._cells.nbytes + self._sketch.nbytes

    def touch(self, keys: Int64s, tick: int, fresh: int) -> Touch:
        """Count a touch of distinct keys; keys that get their slots now are no longer counted.

        Args:
            tick: the current tick.
            fresh: the first tick that is not expired: a key whose last touch is older starts again at 1.
        """
        keys = readable(keys)
        admitted, before = np.zeros(keys.size, np.bool_), np.empty(keys.size, np.int64)
        counters = np.empty((keys.size, DEPTH), self._sketch.dtype)
        touched = Touch(keys, admitted, before, counters, int(self._counts[SKETCHED]), bool(self._sketch.lines))
        rule, next_key = (self._admit_after, tick, fresh, self._exact_keys), 0
        while True:
            sketch = self._sketch.array, self._sketch.lines, self._sketch.bits
            next_key = _touch(self._cells, sketch, self._counts, keys, (admitted, before, counters), rule, next_key)
            if next_key == keys.size:
                self._shrink()
                return touched
            if self._counts[EXACT] >= self._exact_keys:
                self._sketch.begin()
            else:
                self._grow()

    def take_back(self, touched: Touch) -> None:
        """Undo the last touch."""
        while (self._counts[EXACT] + touched.keys.size) * 2 > len(self._cells):
            self._grow()
        sketch = self._sketch.array, self._sketch.lines, self._sketch.bits
        _take_back(self._cells, sketch, self._counts, touched.keys, touched.before, touched.counters)
        self._counts[SKETCHED] = touched.sketched
        if not touched.had_sketch:
            self._sketch.end()

    def settle(self, keys: int, max_bytes: int) -> None:
        """Adjust the width of the sketch, up to ``max_bytes``, after a touch of ``keys`` keys that is not undone."""
        self._sketch.widen(int(self._counts[SKETCHED]), max_bytes)
        self._sketch.step(keys)

    def expect(self, passed: float, max_bytes: int) -> None:
        """Widen the sketch, up to ``max_bytes``, for the window's expected touches, given the passed share of it."""
        touches = int(self._counts[SKETCHED]) * min(1 / passed, MAX_EXPECTED)
        self._sketch.widen(int(touches), max_bytes)

    def expire(self, fresh: int) -> None:
        """Forget the exact counts of keys that were not touched in or after a tick."""
        self._counts[EXACT] -= _expire(self._cells, fresh)
        self._shrink()

    def lower(self, by: int) -> None:
        """Lower all ticks by a number, to at least 1."""
        used = self._cells[:, 0] != NO_KEY
        numbers = self._cells[used, 1]
        ticks = np.maximum((numbers >> COUNT_BITS) - by, 1)
        self._cells[used, 1] = (ticks << COUNT_BITS) | (numbers & COUNT_MASK)

    def rotate(self, all_windows: bool, max_bytes: int) -> None:
        """Begin a window of the sketch, of at most ``max_bytes``, and forget the oldest window, or all windows."""
        touches = int(self._counts[SKETCHED])
        self._counts[SKETCHED] = 0
        if all_windows or not touches:
            self._sketch.end()
        else:
            self._sketch.rotate(touches, max_bytes)

    def exact(self) -> tuple[Int64s, Int64s]:
        """Return the exactly counted keys and their stamps."""
        used = self._cells[self._cells[:, 0] != NO_KEY]
        return used[:, 0].copy(), used[:, 1].copy()

    def state(self) -> dict[str, Array]:
        """Return the counts as arrays, for ``adopt``."""
        keys, counts = self.exact()
        order = np.argsort(keys)
        keys, counts = keys[order], counts[order]
        sketched = np.array([self._counts[SKETCHED], self._sketch.target_lines])
        return {"waiting": keys, "counts": counts, "sketch": self._sketch.used, "sketched": sketched}

    def adopt(self, state: dict[str, Array], mine: Bools) -> None:
        """Add the counts of another shard.

        ``mine`` is True for the exactly counted keys that belong to this shard. The sketch is added as a whole, as its
        keys are unknown.
        """
        keys, counts = self.exact()
        self._restore(np.append(keys, state["waiting"][mine]), np.append(counts, state["counts"][mine]))
        touches, target_lines = state["sketched"].tolist()
        self._sketch.adopt(state["sketch"], target_lines)
        self._counts[SKETCHED] += touches

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
    cells = np.empty((count, 2), np.int64)
    cells[:] = NO_KEY, LATEST
    return cells


@inline
def _cell(cells: Int64s, key: int) -> int:
    """Return the cell of the key, or else the empty cell for it."""
    return _cell_from(cells, key, int(_mix(key)) & (cells.shape[0] - 1))


@inline
def _cell_from(cells: Int64s, key: int, cell: int) -> int:
    last = cells.shape[0] - 1
    while cells[cell, 0] != key and cells[cell, 0] != NO_KEY:
        cell = (cell + 1) & last
    return cell


@kernel
def _fill(cells: Int64s, keys: Int64s, counts: Int64s) -> None:
    for i in range(keys.size):
        cell = _cell(cells, keys[i])
        cells[cell, 0] = keys[i]
        cells[cell, 1] = counts[i]


@inline
def _drop(cells: Int64s, gap: int) -> None:
    """Empty a cell, and move later cells so that no probe sequence has a gap (Knuth, 6.4, Algorithm R)."""
    last = cells.shape[0] - 1
    cell = gap
    while True:
        cell = (cell + 1) & last
        if cells[cell, 0] == NO_KEY:
            break
        home = int(_mix(cells[cell, 0])) & last
        if ((cell - home) & last) >= ((cell - gap) & last):
            cells[gap, 0], cells[gap, 1] = cells[cell, 0], cells[cell, 1]
            gap = cell
    cells[gap, 0], cells[gap, 1] = NO_KEY, LATEST


@kernel
def _expire(cells: Int64s, fresh: int) -> int:
    """Drop the keys that were not touched in or after a tick; return their number."""
    dropped, cell, oldest = 0, 0, fresh << COUNT_BITS
    while cell < cells.shape[0]:
        # After a drop, another key may be in the cell, so the cell is checked again.
        if cells[cell, 1] < oldest:
            _drop(cells, cell)
            dropped += 1
        else:
            cell += 1
    return dropped


@kernel
def _touch(
    cells: Int64s,
    sketch: tuple[Counters, int, int],
    counts: Int64s,
    keys: Int64s,
    outputs: tuple[Bools, Int64s, Counters],
    rule: tuple[int, int, int, int],
    start: int,
) -> int:
    """Count touches of ``keys[start:]`` until a table is full; return the position of the next key.

    Args:
        sketch: the sketch's array, its number of lines, and the bits of a counter.
        outputs: the arrays ``admitted``, ``before`` and ``counters`` of ``Touch``; written.
        rule: the touch at which a key gets its slot, the current tick, ``fresh``, and the limit of exact keys.
    """
    admit_after, tick, fresh, max_exact = rule
    numbers, lines, bits = sketch
    admitted, before, counters = outputs
    last, power, mask = cells.shape[0] - 1, power_above(lines), (np.int64(1) << bits) - 1
    hashes = np.empty(keys.size - start, np.int64)
    for i in range(hashes.size):
        hashes[i] = _mix(keys[start + i])
    for i in range(start, keys.size):
        if i + AHEAD < keys.size:
            mixed = hashes[i + AHEAD - start]
            prefetch_short(cells, mixed & last)
            if lines:
                line = first_counter(mixed, lines, power)
                prefetch_short(numbers, line)
                if bits == 8:
                    prefetch_short(numbers, line + LINE // 2)
        mixed = hashes[i - start]
        cell = _cell_from(cells, keys[i], mixed & last)
        if cells[cell, 0] != NO_KEY:
            before[i] = cells[cell, 1]
            count = (cells[cell, 1] & COUNT_MASK) + 1 if cells[cell, 1] >> COUNT_BITS >= fresh else 1
            if count >= admit_after:
                admitted[i] = True
                _drop(cells, cell)
                counts[EXACT] -= 1
            else:
                cells[cell, 1] = (tick << COUNT_BITS) | count
            continue
        is_full = counts[EXACT] >= max_exact
        if (is_full and lines == 0) or (not is_full and 2 * counts[EXACT] >= cells.shape[0]):
            return i
        line = first_counter(mixed, lines, power)
        count = (estimate(numbers, line, mixed, bits) if lines else 0) + 1
        before[i] = UNCHANGED
        if count >= admit_after:
            admitted[i] = True
        elif not is_full:
            cells[cell, 0], cells[cell, 1] = keys[i], (tick << COUNT_BITS) | count
            counts[EXACT] += 1
            before[i] = NEW_CELL
        else:
            for row in range(DEPTH):
                position = line + counter(mixed, row)
                pair = np.int64(numbers[position])
                counters[i, row] = pair
                # Always stored: a CPU could not predict a branch here.
                numbers[position] = (pair & ~mask) | max(pair & mask, count)
            counts[SKETCHED] += 1
            before[i] = RAISED
    return keys.size


@kernel
def _take_back(
    cells: Int64s, sketch: tuple[Counters, int, int], counts: Int64s, keys: Int64s, before: Int64s, counters: Counters
) -> None:
    """Undo a touch, from its last key to its first."""
    numbers, lines, _ = sketch
    power = power_above(lines)
    for i in range(keys.size - 1, -1, -1):
        if before[i] == RAISED:
            mixed = np.int64(_mix(keys[i]))
            begin = first_counter(mixed, lines, power)
            for row in range(DEPTH):
                numbers[begin + counter(mixed, row)] = counters[i, row]
        elif before[i] != UNCHANGED:
            cell = _cell(cells, keys[i])
            if before[i] == NEW_CELL:
                _drop(cells, cell)
                counts[EXACT] -= 1
                continue
            counts[EXACT] += cells[cell, 0] == NO_KEY
            cells[cell, 0], cells[cell, 1] = keys[i], before[i]
