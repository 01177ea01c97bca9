"""The servers' reports about themselves, which come with their heartbeats while somebody looks at the fleet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ps2.rpc.server_status import ServerStatus

# Servers continue to report for this long after the last request.
REQUESTED_S = 5.0


@dataclass(frozen=True)
class ServerReport:
    """A server's status, its time of arrival, and the previous status of the same process (None: there is none)."""

    status: ServerStatus
    at_s: float
    before: ServerStatus | None = None

    @property
    def interval_s(self) -> float:
        """Seconds between the two, by the server's own clock; 0 without a previous status."""
        return 0.0 if self.before is None else self.status.uptime_s - self.before.uptime_s


class ServerReports:
    """The last two reports of each server, by index. Thread-safe."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._reports: dict[int, ServerReport] = {}
        self._requested_until_s = 0.0

    def request(self) -> None:
        """Ask the servers to report from their next heartbeats on, for a few seconds."""
        self._requested_until_s = self._now_s() + REQUESTED_S

    @property
    def are_requested(self) -> bool:
        return self._now_s() < self._requested_until_s

    def add(self, index: int, status: ServerStatus) -> None:
        """Add a report; the previous one gives the rates, unless it is old or of another process."""
        now_s = self._now_s()
        with self._lock:
            last = self._reports.get(index)
            is_same = last is not None and last.status.server_id == status.server_id
            is_recent = last is not None and now_s - last.at_s < 2 * REQUESTED_S
            before = last.status if last is not None and is_same and is_recent else None
            if before is not None and status.uptime_s <= before.uptime_s:
                return  # an older report that arrived late
            self._reports[index] = ServerReport(status, now_s, before)

    def all(self) -> dict[int, ServerReport]:
        with self._lock:
            return dict(self._reports)
