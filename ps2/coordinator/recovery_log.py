"""What happened to lost servers, in order."""

from __future__ import annotations

import threading
import time

from ps2.coordinator.recovery import Recovery


class RecoveryLog:
    """Recoveries of one fleet. A client that a recovered server has answered finds its recovery here.

    Attributes:
        lock: of the log. A recovery holds it from before the server answers until it is appended.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._recoveries: list[tuple[float, Recovery]] = []

    def append(self, recovery: Recovery) -> None:
        """Append a recovery; the caller holds the lock."""
        self._recoveries.append((time.time(), recovery))

    def all(self) -> list[Recovery]:
        with self.lock:
            return [recovery for _, recovery in self._recoveries]

    def timed(self) -> list[tuple[float, Recovery]]:
        """Return them with the times of their ends, since the epoch of Unix."""
        with self.lock:
            return list(self._recoveries)
