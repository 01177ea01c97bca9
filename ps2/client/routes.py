"""Where matrices are, as far as this process knows."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

from ps2.matrix.route import Route

# Those of matrices that are gone are never asked for again; of those that are not, each handle brings one.
MOST = 4096


class Routes:
    """The routes of the matrices that were used last. Safe for threads.

    Attributes:
        version: the newest that has been seen of any.
    """

    def __init__(self) -> None:
        self.version = 0
        self._lock = threading.Lock()
        self._routes: OrderedDict[int, Route] = OrderedDict()

    def __len__(self) -> int:
        return len(self._routes)

    def note(self, matrix: int, route: Route) -> None:
        """Note what the master says."""
        with self._lock:
            self._note(matrix, route)

    def offer(self, matrix: int, route: Route) -> None:
        """Note what a handle says, unless more is known: it may be an old one."""
        with self._lock:
            known = self._routes.get(matrix)
            self._note(matrix, route if known is None or known.version < route.version else known)

    def of(self, matrices: Iterable[int]) -> dict[int, Route]:
        """Return those that are known."""
        with self._lock:
            return {matrix: self._routes[matrix] for matrix in matrices if matrix in self._routes}

    def _note(self, matrix: int, route: Route) -> None:
        self._routes[matrix] = route
        self._routes.move_to_end(matrix)
        self.version = max(self.version, route.version)
        if len(self._routes) > MOST:
            self._routes.popitem(last=False)
