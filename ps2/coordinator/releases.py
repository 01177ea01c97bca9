"""What servers are to let go of, and could not be told yet: it is freed as soon as they can.

A call to free a matrix or rows comes at a bad moment where a server is being replaced, or has not heard from its
coordinator for a while. That is no business of the caller's: here the vectors are free already.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping

from ps2.errors import PS2Error, TransientError
from ps2.rpc.control import SIGN_OF_LIFE_TIMEOUT_S, ServerControl

log = logging.getLogger(__name__)

# Between two attempts.
PAUSE_S = 0.5
# For one of these, in the thread that looks after the servers.
ATTEMPT_TIMEOUT_S = 1.0


class Releases:
    """Of one coordinator. Safe for threads. What is owed is kept by server id: another process holds nothing of it."""

    def __init__(self, servers: ServerControl, members: Callable[[], list[tuple[str, str]]]) -> None:
        """``members``: gives server id and address of each server, by index."""
        self._servers = servers
        self._members = members
        self._lock = threading.Lock()
        self._matrices: set[tuple[str, int]] = set()
        self._rows: dict[tuple[str, int], set[int]] = {}
        self._next_s = 0.0

    def __len__(self) -> int:
        """How many matrices and rows are owed, of all servers."""
        with self._lock:
            return len(self._matrices) + sum(map(len, self._rows.values()))

    def free_matrix(self, matrix: int, indices: Collection[int]) -> None:
        """Let servers forget a matrix: now, or else later."""
        members = self._members()
        for index in indices:
            self._free(*members[index], matrix)

    def retire(self, matrix: int, rows: Collection[int], indices: Collection[int]) -> None:
        """Let servers take rows out of use, that nobody is handed meanwhile: now, or else later."""
        members = self._members()
        for index in indices:
            self._retire(*members[index], matrix, rows)

    def catch_up(self, free: Mapping[int, Collection[int]]) -> None:
        """Do what is owed, as far as servers can be told now; nothing if the last attempt was a moment ago.

        Args:
            free: by matrix: its rows that are not in use, and not handed out meanwhile.
        """
        with self._lock:
            now_s = time.monotonic()
            if now_s < self._next_s or not (self._matrices or self._rows):
                return
            self._next_s = now_s + PAUSE_S
            matrices, self._matrices = self._matrices, set()
            rows, self._rows = self._rows, {}
        there, silent = dict(self._members()), set[str]()
        for id, matrix in matrices:
            if id in there and not self._free(id, there[id], matrix, ATTEMPT_TIMEOUT_S, id in silent):
                silent.add(id)
        for (id, matrix), numbers in rows.items():
            # Those that were handed out since are zeros by that.
            left = numbers.intersection(free.get(matrix, ()))
            if id in there and left and not self._retire(id, there[id], matrix, left, ATTEMPT_TIMEOUT_S, id in silent):
                silent.add(id)

    def _free(
        self, id: str, address: str, matrix: int, timeout_s: float = SIGN_OF_LIFE_TIMEOUT_S, later: bool = False
    ) -> bool:
        return self._do(
            lambda: self._servers.free_matrix(address, matrix, timeout_s),
            lambda: self._matrices.add((id, matrix)),
            f"freeing matrix {matrix:x} on {address}",
            later,
        )

    def _retire(
        self,
        id: str,
        address: str,
        matrix: int,
        rows: Collection[int],
        timeout_s: float = SIGN_OF_LIFE_TIMEOUT_S,
        later: bool = False,
    ) -> bool:
        # They are made zero before they are handed out again, so what fails costs memory and nothing else.
        return self._do(
            lambda: self._servers.update_rows(address, matrix, 0, sorted(rows), (), timeout_s),
            lambda: self._rows.setdefault((id, matrix), set()).update(rows),
            f"taking back rows {sorted(rows)} of matrix {matrix:x} on {address}",
            later,
        )

    def _do(self, call: Callable[[], None], owe: Callable[[], None], what: str, later: bool) -> bool:
        """Ask a server, unless that is for later; owe it what it could not be asked. Return whether it answered."""
        try:
            if not later:
                call()
                return True
        except TransientError as error:
            log.debug("%s, later: %s", what, error)
        except PS2Error as error:
            log.warning("%s: %s", what, error)
            return True
        with self._lock:
            owe()
        return False
