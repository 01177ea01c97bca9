"""Where matrices are, as far as this process knows."""

from __future__ import annotations

import threading

from ps2.matrix.route import Route

# Those of matrices that are gone are never asked for again; of those that are not, each handle brings one.
MOST = 4096


class Routes:
    """The routes of matrices. Safe for threads.

    Attributes:
        known: by matrix.
        version: the newest that has been seen of any.
    """

    def __init__(self) -> None:
        self.known: dict[int, Route] = {}
        self.version = 0
        self._lock = threading.Lock()

    def note(self, matrix: int, route: Route) -> None:
        """Note what the master says."""
        with self._lock:
            self.known[matrix] = route
            self.version = max(self.version, route.version)
            if len(self.known) > MOST:
                del self.known[next(iter(self.known))]

    def newest(self, matrix: int, route: Route) -> Route:
        """Return what is known, or what a handle says if that is newer: it may be an old one."""
        known = self.known.get(matrix)
        if known is not None and known.version >= route.version:
            return known
        self.note(matrix, route)
        return route
