"""The ids of the mutations that a shard has applied. A mutation that is sent again is not applied again."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ps2.protocol.messages import Array, RequestId, byte_view


class EndedStages:
    """The stages that are over: in each series, all stages below a number, except live ones.

    A stage that is over stays over. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._series: dict[str, tuple[int, frozenset[int]]] = {}

    def add(self, series: str, below: int, live: Iterable[int]) -> None:
        """Record that all stages of a series below a number are over, except the live ones."""
        with self._lock:
            known_below, known_live = self._series.get(series, (0, frozenset()))
            if below >= known_below:
                # A delayed call must not revive a stage that is over: its ids are forgotten.
                still_live = frozenset(stage for stage in live if stage >= known_below or stage in known_live)
                self._series[series] = below, still_live

    def all(self) -> list[tuple[str, int, list[int]]]:
        """Return (series, below, live stages) of every series."""
        return [(series, below, sorted(live)) for series, (below, live) in self._series.items()]

    def has(self, series: str, stage: int) -> bool:
        """Return True if a stage is over. Ids without a stage, such as a driver session's, have the series ""."""
        below, live = self._series.get(series, (0, frozenset()))
        return stage < below and stage not in live


# Size of a scope's window, in numbers.
BITS = 1024
# Words of a scope. BELOW: all lower numbers are applied or settled. BASE: the first number of the window. IRREGULAR: 1
# if a number is partly applied or the scope was forgotten, else 0. END: a bound above all applied numbers outside of
# the window. From WINDOW on: the window, with one bit per number.
BELOW, BASE, IRREGULAR, END, WINDOW = range(5)
WORDS = WINDOW + BITS // 64
MAX_NUMBER = 2**64 - 1


class _Scope:
    """The applied numbers of one scope: all below ``below``, which may be settled, and those in the window and ``far``.

    The compiled loop for plain requests (``fast_path_loop``) shares the words. It reads and updates them under the
    shard's lock, like every other thread.

    Attributes:
        far: applied numbers outside of the window.
        parts: for each number that is sent in several parts, the applied parts; removed once all parts are applied.
        begun: for each failed request, by number and part, how many of its first operations were applied.
    """

    def __init__(self, series: str = "", stage: int = 0, below: int = 0, above: Iterable[int] = ()) -> None:
        self.series = series
        self.stage = stage
        self.far = set(above)
        self.parts: dict[int, set[int]] = {}
        self.begun: dict[tuple[int, int], int] = {}
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
        """The applied numbers from ``below`` on."""
        applied, bits = set(self.far), self._bits
        while bits:
            bit = bits.bit_length() - 1
            applied.add(self._words[BASE] + bit)
            bits ^= 1 << bit
        return {number for number in applied if number >= self.below}

    def has(self, id: RequestId) -> bool:
        return id.number < self.below or self._holds(id.number) or id.part in self.parts.get(id.number, ())

    def add(self, id: RequestId) -> None:
        if id.parts > 1:
            applied = self.parts.setdefault(id.number, set())
            applied.add(id.part)
            if len(applied) < id.parts:
                self._update_words()
                return
            del self.parts[id.number]
        if id.number >= self._words[BASE] + BITS:
            # An example is the first number of a clock: the numbers that follow it then fall into the window.
            self._slide(id.number)
        if id.number >= self._words[BASE]:
            self._bits |= 1 << id.number - self._words[BASE]
        else:
            self.far.add(id.number)
        self._update_words()

    def begin(self, id: RequestId, count: int) -> None:
        """Record that a request failed after its first ``count`` operations."""
        # A later attempt of the same request may fail at an earlier operation that only reads.
        self.begun[id.number, id.part] = max(count, self.begun.get((id.number, id.part), 0))
        self._update_words()

    def settle(self, below: int) -> None:
        """Forget the numbers below this one, which are never sent again, and advance ``below`` over applied numbers."""
        if below > self.below:
            self._words[BELOW] = below
            self.parts = {number: parts for number, parts in self.parts.items() if number >= below}
            self.begun = {(number, part): count for (number, part), count in self.begun.items() if number >= below}
        while self._holds(self.below) and self.below < MAX_NUMBER:
            self._words[BELOW] += 1
        self.far = {number for number in self.far if number >= self.below}
        if self.below - self._words[BASE] >= BITS // 2:
            self._slide(self.below)
        self._update_words()

    def forget(self) -> None:
        """Mark the scope as forgotten: fast paths that still use its words then leave all decisions to Python."""
        self._words[IRREGULAR] = 1

    @property
    def _bits(self) -> int:
        return int.from_bytes(self._bytes, sys.byteorder)

    @_bits.setter
    def _bits(self, bits: int) -> None:
        self._bytes[:] = bits.to_bytes(BITS // 8, sys.byteorder)

    def _holds(self, number: int) -> bool:
        bit = number - self._words[BASE]
        return bool(self._bits >> bit & 1) if 0 <= bit < BITS else number in self.far

    def _slide(self, base: int) -> None:
        """Move the window so that it begins at ``base``."""
        applied = self.above
        self._words[BASE] = base
        within = {number for number in applied if base <= number < base + BITS}
        self.far = applied - within
        self._bits = sum(1 << number - base for number in within)

    def _update_words(self) -> None:
        self._words[IRREGULAR] = bool(self.parts or self.begun)
        self._words[END] = min(max(self.far, default=-1) + 1, MAX_NUMBER)


class AppliedIds:
    """The ids that one shard has applied; guarded by the shard's lock.

    A scope numbers its mutations from 0. Its window has a fixed size. Applied numbers outside of the window are stored
    one by one, until they are settled or the scope's stage is over.
    """

    def __init__(self) -> None:
        self._scopes: dict[str, _Scope] = {}

    def __len__(self) -> int:
        """Number of scopes with stored ids."""
        return len(self._scopes)

    def __contains__(self, id: RequestId) -> bool:
        scope = self._scopes.get(id.scope)
        return scope is not None and scope.has(id)

    def covers(self, id: RequestId, position: int) -> bool:
        """Return True if the operation at this position of the request has been applied."""
        scope = self._scopes.get(id.scope)
        return scope is not None and (scope.has(id) or position < scope.begun.get((id.number, id.part), 0))

    def add_begun(self, id: RequestId, count: int) -> None:
        """Record that a request failed after its first ``count`` operations, which were applied."""
        scope = self._scope(id)
        if not scope.has(id):
            scope.begin(id, count)

    def add(self, id: RequestId) -> None:
        """Record that a request was applied, and forget the scope's settled numbers."""
        scope = self._scope(id)
        scope.begun.pop((id.number, id.part), None)
        if id.number >= scope.below:
            scope.add(id)
        scope.settle(id.settled)

    def end(self, ended: EndedStages) -> None:
        """Forget the ids of stages that are over."""
        for name in [name for name, scope in self._scopes.items() if ended.has(scope.series, scope.stage)]:
            self._scopes.pop(name).forget()

    def end_all(self) -> None:
        """Forget all ids."""
        for scope in self._scopes.values():
            scope.forget()
        self._scopes.clear()

    def words(self, id: RequestId) -> Array:
        """Return the words of an id's scope, for ``fast_path_loop``: uint64 of shape (WORDS,), shared."""
        return self._scope(id).words

    def to_json(self) -> dict[str, Any]:
        """Return the ids as plain data, for a checkpoint or another server."""
        return {
            name: {
                "series": scope.series,
                "stage": scope.stage,
                "below": scope.below,
                "above": sorted(scope.above),
                "parts": [[number, sorted(parts)] for number, parts in sorted(scope.parts.items())],
                "begun": [[number, part, count] for (number, part), count in sorted(scope.begun.items())],
            }
            for name, scope in self._scopes.items()
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> AppliedIds:
        """Read what ``to_json`` returned."""
        applied = cls()
        for name, scope in data.items():
            restored = applied._scopes[name] = _Scope(scope["series"], scope["stage"], scope["below"], scope["above"])
            restored.parts = {number: set(parts) for number, parts in scope["parts"]}
            restored.begun = {(number, part): count for number, part, count in scope["begun"]}
            restored._update_words()
        return applied

    def _scope(self, id: RequestId) -> _Scope:
        scope = self._scopes.get(id.scope)
        if scope is None:
            scope = self._scopes[id.scope] = _Scope(id.series, id.stage)
        return scope
