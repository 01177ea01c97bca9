"""The log of a fleet's recoveries."""

from __future__ import annotations

import threading
import time

from ps2.coordinator.recovery import Recovery


class RecoveryLog:
    """Recoveries of one fleet. Once a recovered server has answered a client, the log holds the recovery.

    Attributes:
        lock: guards the log. It is held from before a recovered server answers until the recovery is appended.
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
        """Return (end, recovery) of all recoveries; the end is in seconds since the Unix epoch."""
        with self.lock:
            return list(self._recoveries)
