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
# Indices of fields in /proc/PID/stat, after the command's name: the state, and the start in clock ticks since the boot.
STATE, START = 0, 19
ENDED = (b"Z", b"X")  # the states of zombies and of dead processes


@dataclass(frozen=True)
class ProcessId:
    """The identity of a process of this host. A later process with the same pid has another identity.

    Attributes:
        pid: the process id, which the system can give to a later process.
        start: the id of the host's boot, and the start in clock ticks since the boot, which do not depend on the host's
            clock. "": the process had already ended.
    """

    pid: int
    start: str

    @classmethod
    def from_pid(cls, pid: int) -> ProcessId:
        return cls(pid, _read_start(pid) or "")

    def alive(self) -> bool:
        """Return True if the process runs; a zombie does not."""
        return bool(self.start) and _read_start(self.pid) == self.start

    def send(self, number: signal.Signals) -> None:
        """Send a signal if the process still runs."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)


def wait_readable(pipe: IO[bytes] | IO[str] | int, timeout_s: float) -> bool:
    """Return True if a process's pipe becomes readable, or ends, within ``timeout_s``.

    Uses ``poll``, because ``select`` supports only file descriptors below 1,024.
    """
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(1000 * timeout_s))


def is_suspended(pid: int) -> bool:
    """Return True if a process was suspended, as by SIGSTOP."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def oom_kills() -> int:
    """Return how many processes this system has killed for want of memory since its boot; 0 if it does not tell."""
    try:
        lines = (PROC / "vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _read_start(pid: int) -> str | None:
    """Return ``ProcessId.start`` of the running process with a pid; None if there is no such process."""
    if not (PROC / "self/stat").exists():  # a system without /proc
        try:
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else str(hash(process))
        except psutil.NoSuchProcess:
            return None
    try:
        # The command's name is in brackets, and can contain brackets.
        fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[STATE] in ENDED else f"{_boot()}/{int(fields[START])}"


def _boot() -> str:
    """Return the id of this boot of the host; "" if the system has none."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""
