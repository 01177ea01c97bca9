"""Processes of this host."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

PROC = Path("/proc")
BOOT = PROC / "sys/kernel/random/boot_id"
# In /proc/PID/stat, counted from behind the command's name: the state, and the start in clock ticks since the boot.
STATE, START = 0, 19
ENDED = (b"Z", b"X")


@dataclass(frozen=True)
class ProcessId:
    """A process of this host that cannot be mistaken for a later one with its pid.

    Attributes:
        pid: of the operating system.
        start: what tells it from others that had, or will have, the pid. It depends on no clock that can be set. "":
            the process was gone before anybody looked.
    """

    pid: int
    start: str

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        return cls(pid, _start_of(pid) or "")

    def alive(self) -> bool:
        """Tell whether it runs; one that has ended and was not waited for does not."""
        return bool(self.start) and _start_of(self.pid) == self.start

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)


def has_come(pipe: IO[bytes] | IO[str] | int, timeout_s: float) -> bool:
    """Tell whether something can be read of a process's pipe, its end included, or can be within a time.

    Not by ``select``, which knows the first 1,024 open files of a process alone.
    """
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(1000 * timeout_s))


def _start_of(pid: int) -> str | None:
    """Return the ``start`` of the process that runs with a pid; None if there is none."""
    if not (PROC / "self/stat").exists():
        return _start_elsewhere(pid)
    try:
        # The command's name may hold anything, brackets too.
        fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[STATE] in ENDED else f"{_boot()}/{int(fields[START])}"


def _boot() -> str:
    """Return what tells this boot of the host from others; "" where the system does not say."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""


def _start_elsewhere(pid: int) -> str | None:
    """The same where there is no /proc: by what psutil itself tells processes by, which is its start as the kernel
    keeps it."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else str(hash(process))
    except psutil.NoSuchProcess:
        return None
