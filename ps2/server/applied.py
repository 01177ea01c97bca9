"""Which mutations a shard has applied, so that each counts once however often it is sent."""

from __future__ import annotations

from dataclasses import dataclass, field

from ps2.wire.messages import RequestId


@dataclass
class _Scope:
    """Numbers ``0 .. below - 1`` have been applied or are settled; those of ``above`` have been applied.

    ``parts`` holds what has been applied of numbers that come in several parts, until all of them have.
    """

    below: int = 0
    above: set[int] = field(default_factory=set)
    parts: dict[int, set[int]] = field(default_factory=dict)


class AppliedIds:
    """The ids that one shard has applied; guarded by the shard's lock.

    A scope numbers its mutations from 0, and most come in order, so a scope costs a number and a small set.
    """

    def __init__(self) -> None:
        self._scopes: dict[str, _Scope] = {}
        # Of requests that failed: how many of their operations, from the first, had been applied.
        self._begun: dict[RequestId, int] = {}

    def __contains__(self, id: RequestId) -> bool:
        scope = self._scopes.get(id.scope)
        if scope is None:
            return False
        return id.number < scope.below or id.number in scope.above or id.part in scope.parts.get(id.number, ())

    def covers(self, id: RequestId, position: int) -> bool:
        """Tell whether the operation at that position of the request has been applied."""
        return id in self or position < self._begun.get(id, 0)

    def add_begun(self, id: RequestId, count: int) -> None:
        """Note that a request failed after its first ``count`` operations."""
        if id not in self:
            self._begun[id] = count

    def add(self, id: RequestId) -> None:
        self._begun.pop(id, None)
        scope = self._scopes.setdefault(id.scope, _Scope())
        if id.number >= scope.below:
            self._note(scope, id)
        if id.settled > scope.below:
            scope.below = id.settled
            scope.above = {number for number in scope.above if number >= id.settled}
            scope.parts = {number: parts for number, parts in scope.parts.items() if number >= id.settled}
            for begun in [b for b in self._begun if b.scope == id.scope and b.number < id.settled]:
                del self._begun[begun]
        while scope.below in scope.above:
            scope.above.remove(scope.below)
            scope.below += 1

    @staticmethod
    def _note(scope: _Scope, id: RequestId) -> None:
        if id.parts > 1:
            applied = scope.parts.setdefault(id.number, set())
            applied.add(id.part)
            if len(applied) < id.parts:
                return
            del scope.parts[id.number]
        scope.above.add(id.number)
