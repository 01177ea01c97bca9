"""The routes of matrices, as far as this process knows them."""

from __future__ import annotations

import threading

from ps2.matrix.route import Route

# Routes of freed matrices are never asked for again. Routes of other matrices come back with each handle.
MAX_ROUTES = 4096


class Routes:
    """The routes of matrices. Thread-safe.

    Attributes:
        known: route by matrix.
        version: the newest route version seen of any matrix.
    """

    def __init__(self) -> None:
        self.known: dict[int, Route] = {}
        self.version = 0
        self._lock = threading.Lock()

    def note(self, matrix: int, route: Route) -> None:
        """Store a route that the master sent."""
        with self._lock:
            self.known[matrix] = route
            self.version = max(self.version, route.version)
            if len(self.known) > MAX_ROUTES:
                del self.known[next(iter(self.known))]

    def newest(self, matrix: int, route: Route) -> Route:
        """Return the newer of the stored route and the handle's route; an old handle may hold a stale one."""
        known = self.known.get(matrix)
        if known is not None and known.version >= route.version:
            return known
        self.note(matrix, route)
        return route
