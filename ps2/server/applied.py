"""Which mutations a shard has applied, so that each counts once however often it is sent."""

from __future__ import annotations

from dataclasses import dataclass, field

from ps2.wire.messages import RequestId


@dataclass
class _Scope:
    """Numbers ``0 .. below - 1`` have been applied or are settled; those of ``above`` have been applied."""

    below: int = 0
    above: set[int] = field(default_factory=set)


class AppliedIds:
    """The ids that one shard has applied; guarded by the shard's lock.

    A scope numbers its mutations from 0, and most come in order, so a scope costs a number and a small set.
    """

    def __init__(self) -> None:
        self._scopes: dict[str, _Scope] = {}
        # Of requests that failed: how many of their operations, from the first, had been applied.
        self._parts: dict[RequestId, int] = {}

    def __contains__(self, id: RequestId) -> bool:
        scope = self._scopes.get(id.scope)
        return scope is not None and (id.number < scope.below or id.number in scope.above)

    def covers(self, id: RequestId, position: int) -> bool:
        """Tell whether the operation at that position of the request has been applied."""
        return id in self or position < self._parts.get(id, 0)

    def add_part(self, id: RequestId, count: int) -> None:
        """Note that a request failed after its first ``count`` operations."""
        if id not in self:
            self._parts[id] = count

    def add(self, id: RequestId) -> None:
        self._parts.pop(id, None)
        scope = self._scopes.setdefault(id.scope, _Scope())
        if id.number >= scope.below:
            scope.above.add(id.number)
        if id.settled > scope.below:
            scope.below = id.settled
            scope.above = {number for number in scope.above if number >= id.settled}
            settled = [part for part in self._parts if part.scope == id.scope and part.number < id.settled]
            for part in settled:
                del self._parts[part]
        while scope.below in scope.above:
            scope.above.remove(scope.below)
            scope.below += 1
