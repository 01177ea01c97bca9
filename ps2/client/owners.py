"""Whose rows are given back when their only handle is garbage-collected.

That happens anywhere in the user's code, and what a callback raises is ignored, also what a handler of signals raises
in it: Ctrl-C would do nothing, and the rows be lost. Here the callback is a function of C, where no handler runs.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any


class Owner(weakref.ref[Any]):
    """A handle, and the rows that are given back with it."""

    __slots__ = ("_owners", "holder", "matrix", "rows")

    matrix: int
    rows: Sequence[int]
    holder: str
    _owners: dict[int, Owner]

    def detach(self) -> None:
        """Keep the rows when the handle is gone."""
        self._owners.pop(id(self), None)


class Owners:
    """The owners of one session. Safe for threads."""

    def __init__(self) -> None:
        self._owners: dict[int, Owner] = {}
        self._gone: deque[Owner] = deque()

    def add(self, handle: object, matrix: int, rows: Sequence[int], holder: str) -> Owner:
        """Give ``rows``, a list that may grow, back when the handle is gone."""
        owner = Owner(handle, self._gone.append)
        owner.matrix, owner.rows, owner.holder, owner._owners = matrix, rows, holder, self._owners
        self._owners[id(owner)] = owner
        return owner

    def take_gone(self) -> Iterator[Owner]:
        """Yield each owner once whose handle is gone."""
        with contextlib.suppress(IndexError):  # there is none, or another thread has just taken it
            while True:
                owner = self._gone.popleft()
                owner.detach()
                yield owner
