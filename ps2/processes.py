"""Processes of this host."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass

import psutil

# The clock may have been set since; the same pid is not taken again this soon.
SAME_START_S = 2.0


@dataclass(frozen=True)
class ProcessId:
    """A process of this host that cannot be mistaken for a later one with its pid.

    Attributes:
        pid: of the operating system.
        created_s: when it was started, in seconds since 1970.
    """

    pid: int
    created_s: float

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        try:
            return cls(pid, psutil.Process(pid).create_time())
        except psutil.NoSuchProcess:
            return cls(pid, time.time())

    def alive(self) -> bool:
        """Tell whether it runs; one that has ended and was not waited for does not."""
        try:
            process = psutil.Process(self.pid)
            return self._same(process) and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    def _same(self, process: psutil.Process) -> bool:
        return abs(process.create_time() - self.created_s) < SAME_START_S
