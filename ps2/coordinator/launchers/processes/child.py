"""A server process on this host: how it ends, and how to end it."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from ps2.processes import ProcessId

# Exit code of a process that no parent has waited for.
UNKNOWN = 255
LOG_TAIL_LINES = 20
END_TIMEOUT_S = 4.0
POLL_S = 0.01


class Child:
    """A server process that the fork server has started."""

    def __init__(self, process: ProcessId, code_of: Callable[[int], int]) -> None:
        """``code_of``: returns the exit code of an ended process, by its pid."""
        self.process = process
        self._code_of = code_of
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        if self._code is None and not self.process.alive():
            self._code = self._code_of(self.process.pid)
        return self._code

    def wait(self, timeout_s: float = math.inf) -> int:
        """Wait for the end of the process; return its exit code.

        Raises:
            TimeoutError: the process still runs.
        """
        deadline_s = time.monotonic() + timeout_s
        while (code := self.poll()) is None:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"process {self.process.pid} runs after {timeout_s:.1f} s")
            time.sleep(POLL_S)
        return code

    def terminate(self) -> None:
        self.process.send(signal.SIGTERM)

    def kill(self) -> None:
        self.process.send(signal.SIGKILL)


def end(children: Collection[Child]) -> None:
    """End processes; kill those that take too long."""
    for child in children:
        child.terminate()
    deadline_s = time.monotonic() + END_TIMEOUT_S
    for child in children:
        try:
            child.wait(max(0.0, deadline_s - time.monotonic()))
        except TimeoutError:
            child.kill()
            child.wait()


def how_it_ended(code: int, log: Path) -> str:
    """Return why a server ended, and the tail of its log.

    Args:
        code: exit code; negative for a signal.
        log: the server's log file.
    """
    return ending(code, last_lines(log))


def ending(code: int, lines: Sequence[str]) -> str:
    """Return the same, given the last lines of the log."""
    how_it_ended = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    # The server's last message says more than its exit code.
    messages = [line.removeprefix("ps2: ") for line in lines if line.startswith("ps2: ")]
    return f"{messages[-1] if messages and code > 0 else how_it_ended}; its log ends:{below(lines)}"


def tail(log: Path) -> str:
    """Return the tail of a log, as indented lines."""
    return below(last_lines(log))


def below(lines: Sequence[str]) -> str:
    """Indent lines for the end of a message."""
    return "".join(f"\n  {line}" for line in lines) or " (nothing)"


def last_lines(log: Path) -> list[str]:
    try:
        return log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    except OSError as error:  # stop(), or a cleaner of temporary files, has removed it
        return [f"({error})"]
