"""The ids of the mutations that a shard has applied, because a repeated request must not be applied twice."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ps2.protocol.messages import Array, RequestId, byte_view


class EndedStages:
    """The stages that are over, and stay over: in each series, all below a number, except live ones. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._series: dict[str, tuple[int, frozenset[int]]] = {}

    def add(self, series: str, below: int, live: Iterable[int]) -> None:
        """Record that all stages of a series below ``below`` are over, except the ``live`` stages."""
        with self._lock:
            known_below, known_live = self._series.get(series, (0, frozenset()))
            if below >= known_below:
                # A delayed call must not make an ended stage live again, because the stage's ids are forgotten.
                still_live = frozenset(stage for stage in live if stage >= known_below or stage in known_live)
                self._series[series] = below, still_live

    def all(self) -> list[tuple[str, int, list[int]]]:
        """Return (series, below, live stages) of each series."""
        return [(series, below, sorted(live)) for series, (below, live) in self._series.items()]

    def has(self, series: str, stage: int) -> bool:
        """Return True if a stage is over. Ids without a stage, such as the driver session's, have the series ""."""
        below, live = self._series.get(series, (0, frozenset()))
        return stage < below and stage not in live


# Size of a scope's window: the number of mutation numbers with a bit of their own.
BITS = 1024
# Indices into the uint64 words of a scope. BELOW: all lower numbers are applied or settled, that is, never sent again.
# BASE: the first number of the window. IRREGULAR: 1 if a number is partly applied or the scope was forgotten, else 0.
# END: larger than all applied numbers outside of the window. From WINDOW on: the window, one bit for each number.
BELOW, BASE, IRREGULAR, END, WINDOW = range(5)
WORDS = WINDOW + BITS // 64
# Maximum value of a word.
MAX_NUMBER = 2**64 - 1


class _Scope:
    """The applied mutation numbers of one scope, which is a session or a task.

    These are the numbers below ``below``, the numbers with a set bit in the window, and ``outside_window``. Fast paths
    (``fast_path_loop``) use the same array ``words``, also under the shard's lock.

    Attributes:
        outside_window: applied numbers from ``below`` on that have no bit in the window.
        parts: for each mutation that is sent in several parts, the applied parts until all parts are applied.
        applied_counts: for each failed request, by number and part, how many of its first operations were applied.
    """

    def __init__(self, series: str = "", stage: int = 0, below: int = 0, above: Iterable[int] = ()) -> None:
        self.series = series
        self.stage = stage
        self.outside_window = set(above)
        self.parts: dict[int, set[int]] = {}
        self.applied_counts: dict[tuple[int, int], int] = {}
        self.words = np.zeros(WORDS, np.uint64)
        self._bytes = byte_view(self.words[WINDOW:])
        self._words = byte_view(self.words).cast("Q")
        self._words[BELOW] = below
        self._slide(below)

    @property
    def below(self) -> int:
        return self._words[BELOW]

    @property
    def above(self) -> set[int]:
        """The applied numbers that are not below ``below``."""
        applied, bits = set(self.outside_window), self._bits
        while bits:
            bit = bits.bit_length() - 1
            applied.add(self._words[BASE] + bit)
            bits ^= 1 << bit
        return {number for number in applied if number >= self.below}

    def has(self, id: RequestId) -> bool:
        return id.number < self.below or self._is_applied(id.number) or id.part in self.parts.get(id.number, ())

    def add(self, id: RequestId) -> None:
        if id.parts > 1:
            applied = self.parts.setdefault(id.number, set())
            applied.add(id.part)
            if len(applied) < id.parts:
                self._update_words()
                return
            del self.parts[id.number]
        if id.number >= self._words[BASE] + BITS:
            # For example, the first number of a clock: the next numbers then have bits in the window.
            self._slide(id.number)
        if id.number >= self._words[BASE]:
            self._bits |= 1 << id.number - self._words[BASE]
        else:
            self.outside_window.add(id.number)
        self._update_words()

    def begin(self, id: RequestId, count: int) -> None:
        """Record that a request failed after its first ``count`` operations."""
        # A later attempt of the same request may fail at an earlier operation that only reads.
        self.applied_counts[id.number, id.part] = max(count, self.applied_counts.get((id.number, id.part), 0))
        self._update_words()

    def settle(self, below: int) -> None:
        """Forget the numbers below ``below``, which are never sent again; advance BELOW over applied numbers."""
        if below > self.below:
            self._words[BELOW] = below
            self.parts = {number: parts for number, parts in self.parts.items() if number >= below}
            self.applied_counts = {key: count for key, count in self.applied_counts.items() if key[0] >= below}
        while self._is_applied(self.below) and self.below < MAX_NUMBER:
            self._words[BELOW] += 1
        self.outside_window = {number for number in self.outside_window if number >= self.below}
        if self.below - self._words[BASE] >= BITS // 2:
            self._slide(self.below)
        self._update_words()

    def forget(self) -> None:
        """Mark the scope as forgotten: fast paths that still use its words then pass its requests to Python."""
        self._words[IRREGULAR] = 1

    @property
    def _bits(self) -> int:
        return int.from_bytes(self._bytes, sys.byteorder)

    @_bits.setter
    def _bits(self, bits: int) -> None:
        self._bytes[:] = bits.to_bytes(BITS // 8, sys.byteorder)

    def _is_applied(self, number: int) -> bool:
        bit = number - self._words[BASE]
        return bool(self._bits >> bit & 1) if 0 <= bit < BITS else number in self.outside_window

    def _slide(self, base: int) -> None:
        """Move the beginning of the window to ``base``."""
        applied = self.above
        self._words[BASE] = base
        within = {number for number in applied if base <= number < base + BITS}
        self.outside_window = applied - within
        self._bits = sum(1 << number - base for number in within)

    def _update_words(self) -> None:
        self._words[IRREGULAR] = bool(self.parts or self.applied_counts)
        self._words[END] = min(max(self.outside_window, default=-1) + 1, MAX_NUMBER)


class AppliedIds:
    """The ids of the mutations that one shard has applied, by scope; guarded by the shard's lock.

    A scope numbers its mutations from 0. Applied numbers outside of the scope's window are stored one by one until they
    are settled or the scope's stage is over.
    """

    def __init__(self) -> None:
        self._scopes: dict[str, _Scope] = {}

    def __len__(self) -> int:
        """Return the number of scopes with stored ids."""
        return len(self._scopes)

    def __contains__(self, id: RequestId) -> bool:
        scope = self._scopes.get(id.scope)
        return scope is not None and scope.has(id)

    def covers(self, id: RequestId, position: int) -> bool:
        """Return True if the operation at this position of a request has been applied."""
        scope = self._scopes.get(id.scope)
        return scope is not None and (scope.has(id) or position < scope.applied_counts.get((id.number, id.part), 0))

    def add_begun(self, id: RequestId, count: int) -> None:
        """Record that a request failed after its first ``count`` operations, which were applied."""
        scope = self._scope(id)
        if not scope.has(id):
            scope.begin(id, count)

    def add(self, id: RequestId) -> None:
        """Record that a request was applied; forget the scope's numbers below the request's ``settled``."""
        scope = self._scope(id)
        scope.applied_counts.pop((id.number, id.part), None)
        if id.number >= scope.below:
            scope.add(id)
        scope.settle(id.settled)

    def end(self, ended: EndedStages) -> None:
        """Forget the ids of stages that are over."""
        for name in [name for name, scope in self._scopes.items() if ended.has(scope.series, scope.stage)]:
            self._scopes.pop(name).forget()

    def end_all(self) -> None:
        for scope in self._scopes.values():
            scope.forget()
        self._scopes.clear()

    def words(self, id: RequestId) -> Array:
        """Return the words of an id's scope, uint64 of shape (WORDS,), not copied; for ``fast_path_loop``."""
        return self._scope(id).words

    def to_json(self) -> dict[str, Any]:
        """Return the ids as JSON data, for a checkpoint or another server."""
        return {
            name: {
                "series": scope.series,
                "stage": scope.stage,
                "below": scope.below,
                "above": sorted(scope.above),
                "parts": [[number, sorted(parts)] for number, parts in sorted(scope.parts.items())],
                "begun": [[number, part, count] for (number, part), count in sorted(scope.applied_counts.items())],
            }
            for name, scope in self._scopes.items()
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> AppliedIds:
        applied = cls()
        for name, scope in data.items():
            restored = applied._scopes[name] = _Scope(scope["series"], scope["stage"], scope["below"], scope["above"])
            restored.parts = {number: set(parts) for number, parts in scope["parts"]}
            restored.applied_counts = {(number, part): count for number, part, count in scope["begun"]}
            restored._update_words()
        return applied

    def _scope(self, id: RequestId) -> _Scope:
        scope = self._scopes.get(id.scope)
        if scope is None:
            scope = self._scopes[id.scope] = _Scope(id.series, id.stage)
        return scope
