"""Counts the touches of waiting keys, which get a slot at their n-th touch (admission).

The touches of up to ``EXACT_KEYS`` keys are counted exactly, those of further keys in a count-min sketch
(``ps2.ops.touch_sketch``). Its estimates are never below the counts, so a key may get its slot early, but never late.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ps2.ops.guards import readable
from ps2.ops.kernels import Int64s, inline, kernel
from ps2.ops.keyindex import hash_key
from ps2.ops.prefetch import prefetch_short
from ps2.ops.table import Array
from ps2.ops.touch_sketch import DEPTH, LINE, Counters, TouchSketch, counter, estimate, line_start, power_above

Bools = npt.NDArray[np.bool_]

EXACT_KEYS = 1 << 18
MIN_CELLS = 64
NO_KEY = -1
# A cell contains a key and a stamp: (tick of the last touch) << COUNT_BITS | count. An empty cell has the stamp LATEST,
# which never expires.
COUNT_BITS = 8
COUNT_MASK = (1 << COUNT_BITS) - 1
LATEST = 2**62
# The sketch has counters of four bits if ``admit_after`` is at most this value, else of eight bits.
MAX_FOUR_BITS = 15
# The maximum ratio of the touches that are expected in a window to the touches until now.
MAX_EXPECTED = 16
# Indices of ``WaitingKeys._counts``: number of keys in the exact table; touches in the sketch's current window.
EXACT, SKETCHED = 0, 1
# The effects of a touch of a key without a cell: a new cell, incremented counters of the sketch, or none.
NEW_CELL, INCREMENTED, UNCHANGED = -1, -2, -3
# Number of keys between the current key and the prefetched key.
AHEAD = 12


@dataclass(frozen=True)
class Touch:
    """A touch of keys, with the data that undo it.

    Attributes:
        admitted: True for keys that get their slots now.
        before: for each key, the stamp of its cell before the touch; or, if it had no cell, ``NEW_CELL``,
            ``INCREMENTED`` or ``UNCHANGED``.
        counters: for each key with ``INCREMENTED``, its counters before the touch.
        sketched: the number of touches in the sketch's current window before this touch.
    """

    keys: Int64s
    admitted: Bools
    before: Int64s
    counters: Counters
    sketched: int
    had_sketch: bool


class WaitingKeys:
    """Counts of waiting keys. Not thread-safe."""

    def __init__(self, admit_after: int, exact_keys: int = EXACT_KEYS) -> None:
        """A key gets its slot at touch ``admit_after``. ``exact_keys``: maximum number of exactly counted keys."""
        self._admit_after = admit_after
        self._exact_keys = exact_keys
        self._cells = _empty_cells(MIN_CELLS)
        self._sketch = TouchSketch(4 if admit_after <= MAX_FOUR_BITS else 8)
        self._counts = np.zeros(2, np.int64)

    def __len__(self) -> int:
        """The number of waiting keys. The number of keys in the sketch is estimated."""
        return int(self._counts[EXACT]) + self._sketch.keys()

    @property
    def nbytes(self) -> int:
        return self._cells.nbytes + self._sketch.nbytes

    def touch(self, keys: Int64s, tick: int, fresh: int) -> Touch:
        """Count a touch of distinct keys; stop counting keys that get their slots now.

        ``fresh``: the first tick that has not expired. A key whose last touch is older starts again at 1.
        """
        keys = readable(keys)
        admitted, before = np.zeros(keys.size, np.bool_), np.empty(keys.size, np.int64)
        counters = np.empty((keys.size, DEPTH), self._sketch.dtype)
        touched = Touch(keys, admitted, before, counters, int(self._counts[SKETCHED]), bool(self._sketch.lines))
        limits, next_key = (self._admit_after, tick, fresh, self._exact_keys), 0
        while True:
            sketch = self._sketch.array, self._sketch.lines, self._sketch.bits
            next_key = _touch(self._cells, sketch, self._counts, keys, (admitted, before, counters), limits, next_key)
            if next_key == keys.size:
                self._shrink()
                return touched
            if self._counts[EXACT] >= self._exact_keys:
                self._sketch.begin()
            else:
                self._grow()

    def take_back(self, touched: Touch) -> None:
        """Undo a touch, which must be the last one."""
        while (self._counts[EXACT] + touched.keys.size) * 2 > len(self._cells):
            self._grow()
        sketch = self._sketch.array, self._sketch.lines, self._sketch.bits
        _take_back(self._cells, sketch, self._counts, touched.keys, touched.before, touched.counters)
        self._counts[SKETCHED] = touched.sketched
        if not touched.had_sketch:
            self._sketch.end()

    def settle(self, keys: int, max_bytes: int) -> None:
        """Continue a resize of the sketch after a final touch of ``keys`` keys. ``max_bytes``: maximum size."""
        self._sketch.widen(int(self._counts[SKETCHED]), max_bytes)
        self._sketch.step(keys)

    def expect(self, elapsed: float, max_bytes: int) -> None:
        """Widen the sketch for the expected touches of the window; ``elapsed``: elapsed fraction of the window."""
        touches = int(self._counts[SKETCHED]) * min(1 / elapsed, MAX_EXPECTED)
        self._sketch.widen(int(touches), max_bytes)

    def expire(self, fresh: int) -> None:
        """Delete the exact counts of keys that were last touched before the tick ``fresh``."""
        self._counts[EXACT] -= _expire(self._cells, fresh)
        self._shrink()

    def lower(self, by: int) -> None:
        """Subtract ``by`` from all ticks, but leave them at least 1."""
        is_used = self._cells[:, 0] != NO_KEY
        stamps = self._cells[is_used, 1]
        ticks = np.maximum((stamps >> COUNT_BITS) - by, 1)
        self._cells[is_used, 1] = (ticks << COUNT_BITS) | (stamps & COUNT_MASK)

    def rotate(self, all_windows: bool, max_bytes: int) -> None:
        """Start a window of the sketch. Delete the counts of the oldest window, or of all windows."""
        touches = int(self._counts[SKETCHED])
        self._counts[SKETCHED] = 0
        if all_windows or not touches:
            self._sketch.end()
        else:
            self._sketch.rotate(touches, max_bytes)

    def exact(self) -> tuple[Int64s, Int64s]:
        """Return the exactly counted keys and their stamps."""
        used_cells = self._cells[self._cells[:, 0] != NO_KEY]
        return used_cells[:, 0].copy(), used_cells[:, 1].copy()

    def state(self) -> dict[str, Array]:
        """Return all counts as arrays, for ``adopt``."""
        keys, stamps = self.exact()
        order = np.argsort(keys)
        keys, stamps = keys[order], stamps[order]
        sketched = np.array([self._counts[SKETCHED], self._sketch.target_lines])
        return {"waiting": keys, "counts": stamps, "sketch": self._sketch.used, "sketched": sketched}

    def adopt(self, state: dict[str, Array], is_own: Bools) -> None:
        """Add the counts of another shard.

        ``is_own``: True for the exactly counted keys that belong to this shard. The whole sketch is added, because its
        keys are unknown.
        """
        keys, stamps = self.exact()
        self._restore(np.append(keys, state["waiting"][is_own]), np.append(stamps, state["counts"][is_own]))
        touches, target_lines = state["sketched"].tolist()
        self._sketch.adopt(state["sketch"], target_lines)
        self._counts[SKETCHED] += touches

    def _restore(self, keys: Int64s, stamps: Int64s) -> None:
        """Replace the exact table by a table of these keys, with the smallest size."""
        num_cells = MIN_CELLS
        while num_cells < 2 * keys.size:
            num_cells *= 2
        self._cells = _empty_cells(num_cells)
        _fill(self._cells, readable(keys), readable(stamps))
        self._counts[EXACT] = keys.size

    def _shrink(self) -> None:
        if int(self._counts[EXACT]) * 16 < len(self._cells) > MIN_CELLS:
            self._restore(*self.exact())

    def _grow(self) -> None:
        keys, stamps = self.exact()
        self._cells = _empty_cells(2 * len(self._cells))
        _fill(self._cells, readable(keys), readable(stamps))


def _empty_cells(count: int) -> Int64s:
    cells = np.empty((count, 2), np.int64)
    cells[:] = NO_KEY, LATEST
    return cells


@inline
def _cell(cells: Int64s, key: int) -> int:
    """Return the cell of a key; if it has none, the empty cell into which it would be inserted."""
    return _cell_from(cells, key, int(hash_key(key)) & (cells.shape[0] - 1))


@inline
def _cell_from(cells: Int64s, key: int, cell: int) -> int:
    """Do the same as ``_cell``, given the first cell of the key's probe sequence."""
    last = cells.shape[0] - 1
    while cells[cell, 0] != key and cells[cell, 0] != NO_KEY:
        cell = (cell + 1) & last
    return cell


@kernel
def _fill(cells: Int64s, keys: Int64s, stamps: Int64s) -> None:
    for i in range(keys.size):
        cell = _cell(cells, keys[i])
        cells[cell, 0] = keys[i]
        cells[cell, 1] = stamps[i]


@inline
def _delete(cells: Int64s, gap: int) -> None:
    """Empty a cell, and move later cells of its probe sequences (Knuth, TAOCP vol. 3, 6.4, Algorithm R)."""
    last = cells.shape[0] - 1
    cell = gap
    while True:
        cell = (cell + 1) & last
        if cells[cell, 0] == NO_KEY:
            break
        first_probe = int(hash_key(cells[cell, 0])) & last
        if ((cell - first_probe) & last) >= ((cell - gap) & last):
            cells[gap, 0], cells[gap, 1] = cells[cell, 0], cells[cell, 1]
            gap = cell
    cells[gap, 0], cells[gap, 1] = NO_KEY, LATEST


@kernel
def _expire(cells: Int64s, fresh: int) -> int:
    """Delete the keys that were last touched before the tick ``fresh``; return their number."""
    num_deleted, cell, min_stamp = 0, 0, fresh << COUNT_BITS
    while cell < cells.shape[0]:
        # After a deletion, another key may have moved into the cell: check the cell again.
        if cells[cell, 1] < min_stamp:
            _delete(cells, cell)
            num_deleted += 1
        else:
            cell += 1
    return num_deleted


@kernel
def _touch(
    cells: Int64s,
    sketch: tuple[Counters, int, int],
    counts: Int64s,
    keys: Int64s,
    outputs: tuple[Bools, Int64s, Counters],
    limits: tuple[int, int, int, int],
    start: int,
) -> int:
    """Count touches of ``keys[start:]`` until the exact table is full; return the index of the next key.

    Args:
        cells: the exact table.
        sketch: the sketch's array, its number of lines, and the bits of a counter.
        counts: ``WaitingKeys._counts``; changed.
        outputs: the arrays ``admitted``, ``before`` and ``counters`` of ``Touch``.
        limits: the touch at which a key gets its slot, the current tick, the first tick that has not expired, and the
            maximum number of keys in the exact table.
    """
    admit_after, tick, fresh, max_exact = limits
    elements, lines, bits = sketch
    admitted, before, counters = outputs
    last, power, mask = cells.shape[0] - 1, power_above(lines), (np.int64(1) << bits) - 1
    hashes = np.empty(keys.size - start, np.int64)
    for i in range(hashes.size):
        hashes[i] = hash_key(keys[start + i])
    for i in range(start, keys.size):
        if i + AHEAD < keys.size:
            key_hash = hashes[i + AHEAD - start]
            prefetch_short(cells, key_hash & last)
            if lines:
                line = line_start(key_hash, lines, power)
                prefetch_short(elements, line)
                if bits == 8:
                    prefetch_short(elements, line + LINE // 2)
        key_hash = hashes[i - start]
        cell = _cell_from(cells, keys[i], key_hash & last)
        if cells[cell, 0] != NO_KEY:
            before[i] = cells[cell, 1]
            count = (cells[cell, 1] & COUNT_MASK) + 1 if cells[cell, 1] >> COUNT_BITS >= fresh else 1
            if count >= admit_after:
                admitted[i] = True
                _delete(cells, cell)
                counts[EXACT] -= 1
            else:
                cells[cell, 1] = (tick << COUNT_BITS) | count
            continue
        is_full = counts[EXACT] >= max_exact
        if (is_full and lines == 0) or (not is_full and 2 * counts[EXACT] >= cells.shape[0]):
            return i
        line = line_start(key_hash, lines, power)
        count = (estimate(elements, line, key_hash, bits) if lines else 0) + 1
        before[i] = UNCHANGED
        if count >= admit_after:
            admitted[i] = True
        elif not is_full:
            cells[cell, 0], cells[cell, 1] = keys[i], (tick << COUNT_BITS) | count
            counts[EXACT] += 1
            before[i] = NEW_CELL
        else:
            for row in range(DEPTH):
                position = line + counter(key_hash, row)
                pair = np.int64(elements[position])
                counters[i, row] = pair
                # Store always: a CPU could not predict a branch here.
                elements[position] = (pair & ~mask) | max(pair & mask, count)
            counts[SKETCHED] += 1
            before[i] = INCREMENTED
    return keys.size


@kernel
def _take_back(
    cells: Int64s, sketch: tuple[Counters, int, int], counts: Int64s, keys: Int64s, before: Int64s, counters: Counters
) -> None:
    """Undo a touch, from its last key to its first one."""
    elements, lines, _ = sketch
    power = power_above(lines)
    for i in range(keys.size - 1, -1, -1):
        if before[i] == INCREMENTED:
            key_hash = np.int64(hash_key(keys[i]))
            begin = line_start(key_hash, lines, power)
            for row in range(DEPTH):
                elements[begin + counter(key_hash, row)] = counters[i, row]
        elif before[i] != UNCHANGED:
            cell = _cell(cells, keys[i])
            if before[i] == NEW_CELL:
                _delete(cells, cell)
                counts[EXACT] -= 1
                continue
            counts[EXACT] += cells[cell, 0] == NO_KEY
            cells[cell, 0], cells[cell, 1] = keys[i], before[i]
