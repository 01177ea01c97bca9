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
    """The calls of one scope, by number. Calls below ``settled`` were answered or given up."""

    series: str
    stage: int
    settled: int = 0
    replies: dict[int, Any] = field(default_factory=dict)
    running: set[int] = field(default_factory=set)


class CallDeduplicator:
    """Replies by call id. Thread-safe.

    Replies to a session are kept until the session has received them, replies to a task until the task's stage is over.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._scopes: dict[str, _Calls] = {}
        self._ended = EndedStages()

    def __len__(self) -> int:
        """Return the number of kept replies."""
        with self._changed:
            return sum(len(calls.replies) for calls in self._scopes.values())

    def once(self, id: RequestId, action: Callable[[], R]) -> R:
        """Call ``action`` unless it has succeeded under this id before; return its result.

        A repeated call waits while the first call is under way. Raises StoppedError if the sender has given the
        call up.
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
        """Forget the calls of stages that are over, and refuse their later calls."""
        with self._changed:
            self._ended = ended
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
        if self._ended.has(id.series, id.stage):
            raise StoppedError(f"stage {id.stage} of {id.series} is over: its requests are refused")
        if calls is not None and id.number < calls.settled:
            raise StoppedError(f"call {id.number} of {id.scope} was answered or given up before it came")


@dataclass(frozen=True)
class DeferredFree:
    """A row that a task has freed.

    Attributes:
        generation: the row's generation when it was freed; in a later generation the row holds another vector.
        orphan: True if the program did not free the row, but no attempt of the task holds a handle to it any more.
    """

    matrix: int
    row: int
    generation: int
    orphan: bool


class DeferredFrees:
    """Rows to free when a stage is over. Until then another attempt of the task may ask for them again."""

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
