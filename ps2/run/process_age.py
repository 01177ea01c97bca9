"""How long ago a Python process was started: what it has imported since costs the first task of a worker."""

from __future__ import annotations

import os
import time

# Fields of /proc/PID/stat after the name: the first is the state.
START_TICKS = 19


def python_ages_s() -> tuple[float, float]:
    """Return the seconds since this process was started, and since the Python process that forked it was, if any.

    0.0 where the system does not say (Linux does).
    """
    parent = _stat(os.getppid())
    return _age_s(_stat(os.getpid())), _age_s(parent) if parent is not None and parent[0].startswith("python") else 0.0


def _age_s(stat: tuple[str, list[str]] | None) -> float:
    if stat is None:
        return 0.0
    started_s = int(stat[1][START_TICKS]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)


def _stat(pid: int) -> tuple[str, list[str]] | None:
    """Return the name of a process, and what /proc says behind it."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            head, _, rest = file.read().rpartition(")")
    except OSError:
        return None
    return head.partition("(")[2], rest.split()
