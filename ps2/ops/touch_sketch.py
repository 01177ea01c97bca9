"""A count-min sketch of touches with conservative update, of two windows, whose width changes step by step.

An estimate is never below the count (Cormode and Muthukrishnan, "An improved data stream summary"; Estan and Varghese,
"New directions in traffic measurement"). The sketch has two windows, so that it forgets: a touch carries a key's
estimate over to the current window.

The counters of a key, one of each row, lie in one line of memory: one cache miss in place of one for each row, for
slightly more collisions. Lines are added and removed one by one, as the buckets of linear hashing are (Litwin, "Linear
hashing"): a new line begins as a copy of the one that its keys come from, and a line that goes leaves the larger of the
counters that meet. So no call takes time for the whole sketch, save the shift of a new window.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.ops.guards import readable
from ps2.ops.kernels import inline, kernel
from ps2.ops.mapped import MappedArray

Counters = npt.NDArray[Any]

# Rows of the sketch, and the counters of each in one line. A number holds two counters: the current window's in the low
# bits, and that of the one before.
DEPTH, OF_ROW = 4, 16
LINE = DEPTH * OF_ROW
# Each row has as many counters as the last window counted touches, between the bounds, and at most twice or half as
# many as before; or more, if more touches are expected of the current window. With one touch for each counter, a key
# that was never touched has an estimate of 1 or more with a probability of 17%, and of 2 or more with two tenths of a
# percent.
FIRST_WIDTH, MIN_WIDTH, MAX_WIDTH = 1 << 21, 1 << 16, 1 << 23
# Lines that a touch adds or removes: some for its keys, and some more. All are there before a quarter of the window's
# touches have come.
KEYS_PER_LINE, LINES_PER_CALL = 4, 1 << 10
# Lines by which the number of keys is estimated.
SAMPLE = 1 << 10
# The bits of a key's hash that choose the counters in its line.
CHOICE = 48


class TouchSketch:
    """Not thread-safe.

    Attributes:
        bits: bits of a counter, 4 or 8.
        dtype: of the numbers.
        lines: lines in use.
        wanted: lines that ``step`` leads to.
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.dtype = np.dtype(np.uint8 if bits == 4 else np.uint16)
        self._nothing = np.empty(0, self.dtype)
        self.end()

    @property
    def array(self) -> Counters:
        """All numbers, with room for more lines than are in use: a writable view of one dimension."""
        return self._nothing if self._mapped is None else self._mapped.array[0]

    @property
    def used(self) -> Counters:
        """The numbers of the lines in use: a view."""
        return self.array[: self.lines * LINE]

    @property
    def nbytes(self) -> int:
        return 0 if self._mapped is None else self._mapped.nbytes

    def keys(self) -> int:
        """Estimate the number of keys from the empty counters (linear counting, Whang et al.)."""
        if not self.lines:
            return 0
        sample = self.used[: SAMPLE * LINE].reshape(-1, LINE)[:, :OF_ROW]
        empty = sample.size - int(np.count_nonzero(sample))
        return int(power_above(self.lines) * OF_ROW * np.log(sample.size / max(empty, 1)))

    def begin(self) -> None:
        """Begin without counts, in the first width."""
        self._set(self._nothing, FIRST_WIDTH // OF_ROW)

    def end(self) -> None:
        """Forget everything, and give the memory back."""
        self._mapped: MappedArray | None = None
        self.lines = self.wanted = 0

    def rotate(self, touches: int, most_bytes: int) -> None:
        """Begin a window.

        Args:
            touches: touches in the window that ends.
            most_bytes: the most that the sketch should take.
        """
        if self._mapped is None:
            return
        half = power_above(self.lines + 1) // 2
        self.wanted = min(max(self._fitting(touches, most_bytes), half // 2), 2 * half)
        # The current window's counter takes the other one's place, and 0 takes its own.
        np.left_shift(self.used, self.bits, out=self.used)
        room = max(self.lines, self.wanted) * LINE
        if room != self._mapped.columns:
            self._mapped.resize(room)

    def widen(self, touches: int, most_bytes: int) -> None:
        """Let ``step`` lead to more lines, if so many touches are expected of the current window.

        Args:
            most_bytes: the most that the sketch should take.
        """
        if self._mapped is None or self.lines != self.wanted:
            return
        wanted = self._fitting(touches, most_bytes)
        if wanted > self.lines:
            self.wanted = wanted
            self._mapped.resize(wanted * LINE)

    def step(self, keys: int) -> None:
        """Add or remove some lines, for a touch of so many keys."""
        if self.lines == self.wanted or self._mapped is None:
            return
        moved = keys // KEYS_PER_LINE + LINES_PER_CALL
        while moved > 0 and self.lines != self.wanted:
            if self.lines < self.wanted:
                half = power_above(self.lines + 1) // 2
                end = min(self.lines + moved, 2 * half, self.wanted)
                _add_lines(self.array, self.lines, end, half)
            else:
                half = power_above(self.lines) // 2
                end = max(self.lines - moved, half, self.wanted)
                _drop_lines(self.array, end, self.lines, half, self.bits)
            moved -= abs(self.lines - end)
            self.lines = end
        if self.lines == self.wanted and self._mapped.columns != self.lines * LINE:
            self._mapped.resize(self.lines * LINE)

    def adopt(self, other: Counters, wanted: int) -> None:
        """Take over the counts of another sketch: ``used`` and ``wanted``.

        The first one is taken bit by bit, so that a copy of a shard goes on as the shard does.
        """
        if not other.size:
            return
        if not self.lines:
            self._set(other, wanted)
            return
        lines = min(power_above(size // LINE + 1) // 2 for size in (other.size, self.used.size))
        merged = np.zeros(lines * LINE, self.dtype)
        for each in (self.used, other):
            _merge(readable(each), merged, self.bits)
        self._set(merged, lines)

    def _fitting(self, touches: int, most_bytes: int) -> int:
        """Return the lines for so many touches in a window, a power of two."""
        width = MIN_WIDTH
        while width < min(touches, MAX_WIDTH) and 2 * DEPTH * width * self.dtype.itemsize <= most_bytes:
            width *= 2
        return width // OF_ROW

    def _set(self, numbers: Counters, wanted: int) -> None:
        self.wanted = wanted
        self.lines = numbers.size // LINE or wanted
        self._mapped = MappedArray(1, max(self.lines, wanted) * LINE, self.dtype)
        self._mapped.array[0, : numbers.size] = numbers


@kernel
def power_above(number: int) -> int:
    """Return the least power of two that is not below a number."""
    power = 1
    while power < number:
        power *= 2
    return power


@inline
def first_counter(mixed: Any, lines: int, power: int) -> Any:
    """Return where a key's line begins, from its hash; ``power`` is ``power_above(lines)``."""
    line = mixed & np.int64(power - 1)
    return (line if line < lines else line - power // 2) * LINE


@inline
def counter(mixed: Any, row: int) -> Any:
    """Return where in its line a key's counter of a row is, from the key's hash."""
    return row * OF_ROW + ((mixed >> (CHOICE + 4 * row)) & 15)


@inline
def estimate(sketch: Counters, begin: Any, mixed: Any, bits: Any) -> Any:
    """Return a key's estimate: the larger one of the two windows."""
    mask = (np.int64(1) << bits) - 1
    current = before = mask
    for row in range(DEPTH):
        pair = np.int64(sketch[begin + counter(mixed, row)])
        current, before = min(current, pair & mask), min(before, pair >> bits)
    return max(current, before)


@kernel
def _add_lines(sketch: Any, begin: int, end: int, half: int) -> None:
    for at in range(begin * LINE, end * LINE):
        sketch[at] = sketch[at - half * LINE]


@kernel
def _drop_lines(sketch: Any, begin: int, end: int, half: int, bits: int) -> None:
    for at in range(begin * LINE, end * LINE):
        to = at - half * LINE
        sketch[to] = _larger(sketch[to], sketch[at], bits)


@kernel
def _merge(sketch: Counters, merged: Any, bits: int) -> None:
    """Merge a sketch into one of as many lines or fewer, a power of two."""
    for at in range(sketch.size):
        to = at & (merged.size - 1)
        merged[to] = _larger(merged[to], sketch[at], bits)


@inline
def _larger(one: Any, other: Any, bits: int) -> Any:
    """Return the larger counters of each window."""
    low = (np.int64(1) << bits) - 1
    a, b = np.int64(one), np.int64(other)
    return max(a & low, b & low) | max(a & ~low, b & ~low)
