"""Tracks which rows to free when their only handle is garbage-collected.

Garbage collection may run anywhere in the user's code. Python ignores exceptions raised in a weakref callback, also
those of a signal handler that runs there: Ctrl-C would have no effect, and the rows would leak. The callback here is
therefore a C function, in which no signal handler runs.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any


class Owner(weakref.ref[Any]):
    """A weak reference to a handle, with the rows to free when the handle is gone."""

    __slots__ = ("_owners", "holder", "matrix", "rows")

    matrix: int
    rows: Sequence[int]
    holder: str
    _owners: dict[int, Owner]

    def detach(self) -> None:
        """Keep the rows when the handle is gone."""
        self._owners.pop(id(self), None)


class Owners:
    """The owners of one session. Thread-safe."""

    def __init__(self) -> None:
        self._owners: dict[int, Owner] = {}
        self._gone: deque[Owner] = deque()

    def add(self, handle: object, matrix: int, rows: Sequence[int], holder: str) -> Owner:
        """Free ``rows``, a list that may still grow, when the handle is gone."""
        owner = Owner(handle, self._gone.append)
        owner.matrix, owner.rows, owner.holder, owner._owners = matrix, rows, holder, self._owners
        self._owners[id(owner)] = owner
        return owner

    def take_gone(self) -> Iterator[Owner]:
        """Yield each owner whose handle is gone, once."""
        with contextlib.suppress(IndexError):  # the queue is empty, or another thread has just emptied it
            while True:
                owner = self._gone.popleft()
                owner.detach()
                yield owner
