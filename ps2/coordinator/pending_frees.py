"""Repeats calls that free matrices and rows on servers, after a server has refused or not answered.

A server refuses such a call while it is being replaced, or after its coordinator was silent. The caller gets no error:
the master has freed the vectors in its catalog already, and the server frees their memory later.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping

from ps2.errors import PS2Error, TransientError
from ps2.rpc.control import SIGN_OF_LIFE_TIMEOUT_S, ServerControl

log = logging.getLogger(__name__)

# Minimum time between two attempts of ``catch_up``.
PAUSE_S = 0.5
# Time limit of a repeated call. The thread that repeats calls also watches for lost servers, and must not wait longer.
ATTEMPT_TIMEOUT_S = 1.0


class PendingFrees:
    """The pending calls of one coordinator. Thread-safe.

    Calls are stored by server id: a replacement server has a new id, and does not have what the call would free.
    """

    def __init__(self, servers: ServerControl, members: Callable[[], list[tuple[str, str]]]) -> None:
        """Start without pending calls; ``members`` returns (server id, address) of each server, in order of index."""
        self._servers = servers
        self._members = members
        self._lock = threading.Lock()
        self._matrices: set[tuple[str, int]] = set()  # (server id, matrix)
        self._rows: dict[tuple[str, int], set[int]] = {}  # by (server id, matrix)
        self._next_attempt_s = 0.0

    def __len__(self) -> int:
        """Return the number of matrices and rows that are pending on all servers."""
        with self._lock:
            return len(self._matrices) + sum(map(len, self._rows.values()))

    def free_matrix(self, matrix: int, indices: Collection[int]) -> None:
        """Let the servers with these indices free a matrix; repeat the call later on servers that refuse."""
        members = self._members()
        for index in indices:
            self._free(*members[index], matrix)

    def retire(self, matrix: int, rows: Collection[int], indices: Collection[int]) -> None:
        """Let the servers with these indices free unused rows; repeat the call later on servers that refuse."""
        members = self._members()
        for index in indices:
            self._retire(*members[index], matrix, rows)

    def catch_up(self, unused_rows: Mapping[int, Collection[int]]) -> None:
        """Repeat pending calls, but at most once in ``PAUSE_S``.

        ``unused_rows``: the rows of each matrix that are not in use. They must stay unused during the call.
        """
        with self._lock:
            now_s = time.monotonic()
            if now_s < self._next_attempt_s or not (self._matrices or self._rows):
                return
            self._next_attempt_s = now_s + PAUSE_S
            matrices, self._matrices = self._matrices, set()
            rows, self._rows = self._rows, {}
        addresses, silent = dict(self._members()), set[str]()
        for id, matrix in matrices:
            if id in addresses and not self._free(id, addresses[id], matrix, ATTEMPT_TIMEOUT_S, id in silent):
                silent.add(id)
        for (id, matrix), pending_rows in rows.items():
            # Rows that are in use again need no call: the server set them to zero when they were reused.
            unused = pending_rows.intersection(unused_rows.get(matrix, ()))
            if id not in addresses or not unused:
                continue
            if not self._retire(id, addresses[id], matrix, unused, ATTEMPT_TIMEOUT_S, id in silent):
                silent.add(id)

    def _free(
        self, id: str, address: str, matrix: int, timeout_s: float = SIGN_OF_LIFE_TIMEOUT_S, is_silent: bool = False
    ) -> bool:
        return self._do(
            lambda: self._servers.free_matrix(address, matrix, timeout_s),
            lambda: self._matrices.add((id, matrix)),
            f"freeing matrix {matrix:x} on {address}",
            is_silent,
        )

    def _retire(
        self,
        id: str,
        address: str,
        matrix: int,
        rows: Collection[int],
        timeout_s: float = SIGN_OF_LIFE_TIMEOUT_S,
        is_silent: bool = False,
    ) -> bool:
        # 0 and (): the matrix does not grow, and reuses no rows. A failed call costs only memory: reused rows become 0.
        return self._do(
            lambda: self._servers.update_rows(address, matrix, 0, sorted(rows), (), timeout_s),
            lambda: self._rows.setdefault((id, matrix), set()).update(rows),
            f"freeing rows {sorted(rows)} of matrix {matrix:x} on {address}",
            is_silent,
        )

    def _do(self, call: Callable[[], None], postpone: Callable[[], None], description: str, is_silent: bool) -> bool:
        """Make a call; postpone it if the server is silent or refuses. Return True if the call needs no repetition."""
        try:
            if not is_silent:
                call()
                return True
        except TransientError as error:
            log.debug("%s is postponed: %s", description, error)
        except PS2Error as error:
            log.warning("%s: %s", description, error)
            return True
        with self._lock:
            postpone()
        return False
