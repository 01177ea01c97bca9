"""Deduplicates calls to the master: a repeated call takes effect once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ps2.errors import StoppedError
from ps2.protocol.messages import RequestId
from ps2.server.applied import EndedStages

R = TypeVar("R")


@dataclass
class _Calls:
    """The calls of one scope (a session or a task), by number.

    ``series``: "" if the scope is no task. ``settled``: the sender needs no replies to calls with lower numbers.
    """

    series: str
    stage: int
    settled: int = 0
    replies: dict[int, Any] = field(default_factory=dict)
    running: set[int] = field(default_factory=set)


class CallDeduplicator:
    """Stores the reply to each call, and answers a repeated call with the stored reply. Thread-safe.

    A reply to a session is stored until the session has received it; a reply to a task, until the task's stage is over.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._scopes: dict[str, _Calls] = {}
        self._ended_stages = EndedStages()

    def __len__(self) -> int:
        """Return the number of stored replies."""
        with self._changed:
            return sum(len(calls.replies) for calls in self._scopes.values())

    def once(self, id: RequestId, action: Callable[[], R]) -> R:
        """Call ``action`` unless it has succeeded under this id before; return its result.

        A repeated call waits while the first call is in progress. Raises StoppedError if the sender no longer waits for
        the call, or if the call's stage is over.
        """
        with self._changed:
            calls = self._scope(id)
            self._changed.wait_for(lambda: id.number not in calls.running)
            self._check(calls, id)
            if id.number in calls.replies:
                known_reply: R = calls.replies[id.number]
                return known_reply
            calls.running.add(id.number)
        try:
            reply = action()
            with self._changed:
                calls.replies[id.number] = reply
            return reply
        finally:
            with self._changed:
                calls.running.remove(id.number)
                self._changed.notify_all()

    def end(self, ended: EndedStages) -> None:
        """Forget the calls of stages that are over, and reject their later calls."""
        with self._changed:
            self._ended_stages = ended
            for scope in [scope for scope, calls in self._scopes.items() if ended.has(calls.series, calls.stage)]:
                del self._scopes[scope]

    def _scope(self, id: RequestId) -> _Calls:
        self._check(None, id)
        calls = self._scopes.setdefault(id.scope, _Calls(id.series, id.stage))
        if id.settled > calls.settled:
            calls.settled = id.settled
            calls.replies = {number: reply for number, reply in calls.replies.items() if number >= id.settled}
        return calls

    def _check(self, calls: _Calls | None, id: RequestId) -> None:
        if self._ended_stages.has(id.series, id.stage):
            raise StoppedError(f"stage {id.stage} of {id.series} is over: its requests are rejected")
        if calls is not None and id.number < calls.settled:
            raise StoppedError(
                f"call {id.number} of {id.scope} arrived after its sender had received the answer or given up"
            )


@dataclass(frozen=True)
class DeferredFree:
    """A row that will be freed when a task's stage is over.

    Attributes:
        generation: counts how often the row was allocated. If it has changed, the row belongs to another vector.
        orphan: True if the program has not freed the row, but the task's last handle to it was garbage-collected.
    """

    matrix: int
    row: int
    generation: int
    orphan: bool


class DeferredFrees:
    """Rows to free when a stage is over. Until then another attempt of the task may allocate the same rows again."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], set[DeferredFree]] = {}

    def __len__(self) -> int:
        return sum(len(rows) for rows in self._rows.values())

    def add(self, series: str, stage: int, row: DeferredFree) -> None:
        self._rows.setdefault((series, stage), set()).add(row)

    def take(self, ended: EndedStages) -> set[DeferredFree]:
        """Remove and return the rows of stages that are over."""
        stages = [(series, stage) for series, stage in self._rows if ended.has(series, stage)]
        return set().union(*(self._rows.pop(stage) for stage in stages))
