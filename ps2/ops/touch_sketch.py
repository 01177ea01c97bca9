"""A count-min sketch of touches (uses of keys) with conservative update and two time windows, resized incrementally.

An estimate is never below the count (Cormode and Muthukrishnan, "An improved data stream summary"; Estan and Varghese,
"New directions in traffic measurement"). The sketch forgets old touches: it has counters of the current and of the
previous window, and a touch copies the key's estimate to the current window.

All counters of a key, one in each row, are in one line of memory (128 or 64 bytes). So a touch has one cache miss
instead of one for each row, but collisions are slightly more frequent. Lines are added and removed one by one, like the
buckets of linear hashing (Litwin, "Linear hashing"). A new line is a copy of the line that had its keys before. A
removed line is merged into the line that gets its keys: each counter becomes the maximum of both. So no call takes time
proportional to the size of the sketch, except the start of a window, which shifts all counters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.ops.guards import readable
from ps2.ops.kernels import inline, kernel
from ps2.ops.mapped import MappedArray

Counters = npt.NDArray[Any]

# The number of rows of the sketch, and the number of counters of each row in one line. An array element contains two
# counters: of the current window in the low bits, and of the previous window in the high bits.
DEPTH, ROW_COUNTERS = 4, 16
# The number of array elements in a line.
LINE = DEPTH * ROW_COUNTERS
# The width is the number of counters of a row. It follows the number of touches in the last window: as a power of two
# from MIN_WIDTH to MAX_WIDTH, between half and twice the last width, and more if more touches are expected in the
# current window. With one touch per counter, a key that was never touched has an estimate of at least 1 with a
# probability of 17 %, and of at least 2 with 0.2 %.
FIRST_WIDTH, MIN_WIDTH, MAX_WIDTH = 1 << 21, 1 << 16, 1 << 23
# A call with n keys adds or removes n / KEYS_PER_LINE + LINES_PER_CALL lines. So a resize is complete after at most a
# quarter of the window's touches.
KEYS_PER_LINE, LINES_PER_CALL = 4, 1 << 10
# The number of lines from which the number of keys is estimated.
SAMPLE_LINES = 1 << 10
# The lowest of the bits of a key's hash that select its counters in the line.
CHOICE_BIT = 48


class TouchSketch:
    """A count-min sketch. Not thread-safe.

    Attributes:
        bits: the number of bits of a counter, 4 or 8.
        dtype: the dtype of the elements, each with two counters.
        lines: the number of lines in use.
        target_lines: the number of lines after the resize; calls of ``step`` add or remove lines until then.
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.dtype = np.dtype(np.uint8 if bits == 4 else np.uint16)
        self._empty = np.empty(0, self.dtype)
        self.end()

    @property
    def array(self) -> Counters:
        """All elements, including lines that are not in use yet: a writable 1-D view."""
        return self._empty if self._mapped is None else self._mapped.array[0]

    @property
    def used(self) -> Counters:
        """The elements of the lines in use: a view."""
        return self.array[: self.lines * LINE]

    @property
    def nbytes(self) -> int:
        return 0 if self._mapped is None else self._mapped.nbytes

    def keys(self) -> int:
        """Estimate the number of keys from the number of zero counters (linear counting; Whang et al., 1990)."""
        if not self.lines:
            return 0
        sample = self.used[: SAMPLE_LINES * LINE].reshape(-1, LINE)[:, :ROW_COUNTERS]
        empty = sample.size - int(np.count_nonzero(sample))
        return int(power_above(self.lines) * ROW_COUNTERS * np.log(sample.size / max(empty, 1)))

    def begin(self) -> None:
        """Allocate a sketch of the first width, without counts."""
        self._set(self._empty, FIRST_WIDTH // ROW_COUNTERS)

    def end(self) -> None:
        """Delete all counts, and free the memory."""
        self._mapped: MappedArray | None = None
        self.lines = self.target_lines = 0

    def rotate(self, touches: int, max_bytes: int) -> None:
        """Start a window. ``touches``: number of touches in the last window; ``max_bytes``: maximum size."""
        if self._mapped is None:
            return
        half = power_above(self.lines + 1) // 2
        self.target_lines = min(max(self._fitting(touches, max_bytes), half // 2), 2 * half)
        # The counters of the current window become the counters of the previous window; the new counters are 0.
        np.left_shift(self.used, self.bits, out=self.used)
        columns = max(self.lines, self.target_lines) * LINE
        if columns != self._mapped.columns:
            self._mapped.resize(columns)

    def widen(self, touches: int, max_bytes: int) -> None:
        """Let ``step`` add lines if ``touches`` touches are expected in the current window; see ``rotate``."""
        if self._mapped is None or self.lines != self.target_lines:
            return
        target_lines = self._fitting(touches, max_bytes)
        if target_lines > self.lines:
            self.target_lines = target_lines
            self._mapped.resize(target_lines * LINE)

    def step(self, keys: int) -> None:
        """Add or remove some lines during a resize, for a call with ``keys`` keys."""
        if self.lines == self.target_lines or self._mapped is None:
            return
        remaining = keys // KEYS_PER_LINE + LINES_PER_CALL
        while remaining > 0 and self.lines != self.target_lines:
            if self.lines < self.target_lines:
                half = power_above(self.lines + 1) // 2
                end = min(self.lines + remaining, 2 * half, self.target_lines)
                _add_lines(self.array, self.lines, end, half)
            else:
                half = power_above(self.lines) // 2
                end = max(self.lines - remaining, half, self.target_lines)
                _remove_lines(self.array, end, self.lines, half, self.bits)
            remaining -= abs(self.lines - end)
            self.lines = end
        if self.lines == self.target_lines and self._mapped.columns != self.lines * LINE:
            self._mapped.resize(self.lines * LINE)

    def adopt(self, other: Counters, target_lines: int) -> None:
        """Merge the counts of another sketch, given its ``used`` and ``target_lines``.

        A sketch without counts becomes an exact copy. So a replica of a shard counts exactly like the shard.
        """
        if not other.size:
            return
        if not self.lines:
            self._set(other, target_lines)
            return
        lines = min(power_above(elements // LINE + 1) // 2 for elements in (other.size, self.used.size))
        merged = np.zeros(lines * LINE, self.dtype)
        for sketch in (self.used, other):
            _merge(readable(sketch), merged, self.bits)
        self._set(merged, lines)

    def _fitting(self, touches: int, max_bytes: int) -> int:
        """Return the number of lines for a window of ``touches`` touches, a power of two."""
        width = MIN_WIDTH
        while width < min(touches, MAX_WIDTH) and 2 * DEPTH * width * self.dtype.itemsize <= max_bytes:
            width *= 2
        return width // ROW_COUNTERS

    def _set(self, elements: Counters, target_lines: int) -> None:
        self.target_lines = target_lines
        self.lines = elements.size // LINE or target_lines
        self._mapped = MappedArray(1, max(self.lines, target_lines) * LINE, self.dtype)
        self._mapped.array[0, : elements.size] = elements


@kernel
def power_above(number: int) -> int:
    """Return the smallest power of two that is at least ``number``."""
    power = 1
    while power < number:
        power *= 2
    return power


@inline
def line_start(key_hash: Any, lines: int, power: int) -> Any:
    """Return the index of the first element of a key's line; ``power`` is ``power_above(lines)``."""
    line = key_hash & np.int64(power - 1)
    return (line if line < lines else line - power // 2) * LINE


@inline
def counter(key_hash: Any, row: int) -> Any:
    """Return the index of a key's counter of a row, relative to the start of the key's line."""
    return row * ROW_COUNTERS + ((key_hash >> (CHOICE_BIT + 4 * row)) & 15)


@inline
def estimate(sketch: Counters, begin: Any, key_hash: Any, bits: Any) -> Any:
    """Return a key's estimate: the maximum of its estimates in the two windows; ``begin``: the start of its line."""
    mask = (np.int64(1) << bits) - 1
    current = previous = mask
    for row in range(DEPTH):
        pair = np.int64(sketch[begin + counter(key_hash, row)])
        current, previous = min(current, pair & mask), min(previous, pair >> bits)
    return max(current, previous)


@kernel
def _add_lines(sketch: Any, begin: int, end: int, half: int) -> None:
    """Set the new lines ``[begin, end)`` to copies of the lines that had their keys."""
    for counter_index in range(begin * LINE, end * LINE):
        sketch[counter_index] = sketch[counter_index - half * LINE]


@kernel
def _remove_lines(sketch: Any, begin: int, end: int, half: int, bits: int) -> None:
    """Merge the lines ``[begin, end)`` into the lines that get their keys."""
    for source in range(begin * LINE, end * LINE):
        target = source - half * LINE
        sketch[target] = _maximum(sketch[target], sketch[source], bits)


@kernel
def _merge(sketch: Counters, merged: Any, bits: int) -> None:
    """Merge a sketch into another one. The number of lines of ``merged`` is a power of two, and not larger."""
    for source in range(sketch.size):
        target = source & (merged.size - 1)
        merged[target] = _maximum(merged[target], sketch[source], bits)


@inline
def _maximum(element: Any, other: Any, bits: int) -> Any:
    """Return an element with the maximum counter of each window."""
    low = (np.int64(1) << bits) - 1
    a, b = np.int64(element), np.int64(other)
    return max(a & low, b & low) | max(a & ~low, b & ~low)
