"""Which mutations a shard has applied, so that each counts once however often it is sent."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ps2.wire.messages import RequestId


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


@dataclass
class _Scope:
    """Numbers ``0 .. below - 1`` have been applied or are settled; those of ``above`` have been applied.

    Attributes:
        series, stage: those of its ids.
        parts: of numbers that come in several parts, what has been applied of them, until all of them have.
        begun: of requests that failed, by number and part: how many of their operations, from the first, were applied.
    """

    series: str = ""
    stage: int = 0
    below: int = 0
    above: set[int] = field(default_factory=set)
    parts: dict[int, set[int]] = field(default_factory=dict)
    begun: dict[tuple[int, int], int] = field(default_factory=dict)

    def has(self, id: RequestId) -> bool:
        return id.number < self.below or id.number in self.above or id.part in self.parts.get(id.number, ())

    def note(self, id: RequestId) -> None:
        if id.parts > 1:
            applied = self.parts.setdefault(id.number, set())
            applied.add(id.part)
            if len(applied) < id.parts:
                return
            del self.parts[id.number]
        self.above.add(id.number)

    def settle(self, below: int) -> None:
        """Forget what cannot come again: the numbers below this one."""
        if below > self.below:
            self.below = below
            self.above = {number for number in self.above if number >= below}
            self.parts = {number: parts for number, parts in self.parts.items() if number >= below}
            self.begun = {(number, part): count for (number, part), count in self.begun.items() if number >= below}
        while self.below in self.above:
            self.above.remove(self.below)
            self.below += 1


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
            # The same request sent again may fail at an earlier operation, one that reads.
            scope.begun[id.number, id.part] = max(count, scope.begun.get((id.number, id.part), 0))

    def add(self, id: RequestId) -> None:
        scope = self._scope(id)
        scope.begun.pop((id.number, id.part), None)
        if id.number >= scope.below:
            scope.note(id)
        scope.settle(id.settled)

    def end(self, over: EndedStages) -> None:
        """Forget the ids of stages that are over."""
        for name in [name for name, scope in self._scopes.items() if over.has(scope.series, scope.stage)]:
            del self._scopes[name]

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
            applied._scopes[name] = _Scope(
                series=scope["series"],
                stage=scope["stage"],
                below=scope["below"],
                above=set(scope["above"]),
                parts={number: set(parts) for number, parts in scope["parts"]},
                begun={(number, part): count for number, part, count in scope["begun"]},
            )
        return applied

    def _scope(self, id: RequestId) -> _Scope:
        return self._scopes.setdefault(id.scope, _Scope(id.series, id.stage))
