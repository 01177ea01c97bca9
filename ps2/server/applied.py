"""Which mutations a shard has applied, so that each counts once however often it is sent."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ps2.protocol.messages import Array, RequestId, byte_view


class EndedStages:
    """Which stages are over: of each series those below a number, save some. A stage that is over stays so.

    Safe for threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._series: dict[str, tuple[int, frozenset[int]]] = {}

    def add(self, series: str, below: int, live: Iterable[int]) -> None:
        """Note that all stages of a series below a number are over, save the live ones."""
        with self._lock:
            known, lived = self._series.get(series, (0, frozenset()))
            if below >= known:
                # What comes late must not bring a stage back: its ids are forgotten.
                still = frozenset(stage for stage in live if stage >= known or stage in lived)
                self._series[series] = below, still

    def all(self) -> list[tuple[str, int, list[int]]]:
        """Return what ``add`` was told, by series."""
        return [(series, below, sorted(live)) for series, (below, live) in self._series.items()]

    def has(self, series: str, stage: int) -> bool:
        """Tell whether a stage is over; "" is the series of what has none, such as driver sessions."""
        below, live = self._series.get(series, (0, frozenset()))
        return stage < below and stage not in live


# Numbers that the window of a scope holds.
BITS = 1024
# Words of a scope: below which number all is done, where the window begins, whether some number is half done, or the
# scope is forgotten, and the end of what is known outside of the window; then that, a bit a number.
BELOW, BASE, IRREGULAR, END, WINDOW = range(5)
WORDS = WINDOW + BITS // 64
LAST = 2**64 - 1


class _Scope:
    """Numbers below ``below`` have been applied or are settled; so have those of the window's bits, and the far ones.

    The words are shared with the loop that answers plain requests without Python (``fast_path_loop``): it goes by them
    and notes there what it applies, under the shard's lock as everybody does.

    Attributes:
        series, stage: those of its ids.
        far: numbers that have been applied, outside of the window.
        parts: of numbers that come in several parts, what has been applied of them, until all of them have.
        begun: of requests that failed, by number and part: how many of their operations, from the first, were applied.
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
        """Which numbers from ``below`` on have been applied."""
        applied, bits = set(self.far), self._bits
        while bits:
            at = bits.bit_length() - 1
            applied.add(self._words[BASE] + at)
            bits ^= 1 << at
        return {number for number in applied if number >= self.below}

    def has(self, id: RequestId) -> bool:
        return id.number < self.below or self._holds(id.number) or id.part in self.parts.get(id.number, ())

    def note(self, id: RequestId) -> None:
        if id.parts > 1:
            applied = self.parts.setdefault(id.number, set())
            applied.add(id.part)
            if len(applied) < id.parts:
                self._look()
                return
            del self.parts[id.number]
        if id.number >= self._words[BASE] + BITS:
            # The first of a clock, say: those that follow find their places in the window.
            self._slide(id.number)
        if id.number >= self._words[BASE]:
            self._bits |= 1 << id.number - self._words[BASE]
        else:
            self.far.add(id.number)
        self._look()

    def begin(self, id: RequestId, count: int) -> None:
        """Note that a request failed after so many of its operations."""
        # The same request sent again may fail at an earlier operation, one that reads.
        self.begun[id.number, id.part] = max(count, self.begun.get((id.number, id.part), 0))
        self._look()

    def settle(self, below: int) -> None:
        """Forget what cannot come again: the numbers below this one."""
        if below > self.below:
            self._words[BELOW] = below
            self.parts = {number: parts for number, parts in self.parts.items() if number >= below}
            self.begun = {(number, part): count for (number, part), count in self.begun.items() if number >= below}
        while self._holds(self.below) and self.below < LAST:
            self._words[BELOW] += 1
        self.far = {number for number in self.far if number >= self.below}
        if self.below - self._words[BASE] >= BITS // 2:
            self._slide(self.below)
        self._look()

    def forget(self) -> None:
        """Let nobody go by it who has it still."""
        self._words[IRREGULAR] = 1

    @property
    def _bits(self) -> int:
        return int.from_bytes(self._bytes, sys.byteorder)

    @_bits.setter
    def _bits(self, bits: int) -> None:
        self._bytes[:] = bits.to_bytes(BITS // 8, sys.byteorder)

    def _holds(self, number: int) -> bool:
        at = number - self._words[BASE]
        return bool(self._bits >> at & 1) if 0 <= at < BITS else number in self.far

    def _slide(self, base: int) -> None:
        """Let the window begin elsewhere."""
        applied = self.above
        self._words[BASE] = base
        within = {number for number in applied if base <= number < base + BITS}
        self.far = applied - within
        self._bits = sum(1 << number - base for number in within)

    def _look(self) -> None:
        self._words[IRREGULAR] = bool(self.parts or self.begun)
        self._words[END] = min(max(self.far, default=-1) + 1, LAST)


class AppliedIds:
    """The ids that one shard has applied; guarded by the shard's lock.

    A scope numbers its mutations from 0. Those that come in order, or are settled, cost one number together; what has
    come beyond a gap costs a number each, until the scope's stage is over.
    """

    def __init__(self) -> None:
        self._scopes: dict[str, _Scope] = {}

    def __len__(self) -> int:
        """How many scopes are remembered."""
        return len(self._scopes)

    def __contains__(self, id: RequestId) -> bool:
        scope = self._scopes.get(id.scope)
        return scope is not None and scope.has(id)

    def covers(self, id: RequestId, position: int) -> bool:
        """Tell whether the operation at that position of the request has been applied."""
        scope = self._scopes.get(id.scope)
        return scope is not None and (scope.has(id) or position < scope.begun.get((id.number, id.part), 0))

    def add_begun(self, id: RequestId, count: int) -> None:
        """Note that a request failed after its first ``count`` operations."""
        scope = self._scope(id)
        if not scope.has(id):
            scope.begin(id, count)

    def add(self, id: RequestId) -> None:
        scope = self._scope(id)
        scope.begun.pop((id.number, id.part), None)
        if id.number >= scope.below:
            scope.note(id)
        scope.settle(id.settled)

    def end(self, over: EndedStages) -> None:
        """Forget the ids of stages that are over."""
        for name in [name for name, scope in self._scopes.items() if over.has(scope.series, scope.stage)]:
            self._scopes.pop(name).forget()

    def end_all(self) -> None:
        """Forget all ids."""
        for scope in self._scopes.values():
            scope.forget()
        self._scopes.clear()

    def words(self, id: RequestId) -> Array:
        """Return the words of an id's scope, as ``fast_path_loop`` knows them."""
        return self._scope(id).words

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain data, for a checkpoint or another server."""
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
        """Return what ``to_json`` was called on.

        Raises:
            KeyError, TypeError, ValueError: the data are of another form.
        """
        applied = cls()
        for name, scope in data.items():
            made = applied._scopes[name] = _Scope(scope["series"], scope["stage"], scope["below"], scope["above"])
            made.parts = {number: set(parts) for number, parts in scope["parts"]}
            made.begun = {(number, part): count for number, part, count in scope["begun"]}
            made._look()
        return applied

    def _scope(self, id: RequestId) -> _Scope:
        scope = self._scopes.get(id.scope)
        if scope is None:
            scope = self._scopes[id.scope] = _Scope(id.series, id.stage)
        return scope
