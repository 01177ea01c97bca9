"""Lets a command go on in the background once its servers run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

OUT, ERR = 1, 2


def go_to_background() -> Callable[[Path], None]:
    """Fork: the process that was called waits, and the other one returns. Call it while there is one thread.

    Returns:
        What ends the wait when all is well: it takes a file, to which everything is printed from then on. The process
        that waits exits with 0 then; if the other one ends before, with its exit code.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        is_well = os.read(reading, 1) != b""
        sys.exit(0 if is_well else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os.close(reading)

    def all_is_well(log: Path) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        # The process leaves the terminal: its signals and its files.
        os.setsid()
        with open(os.devnull) as nothing, open(log, "a") as file:
            os.dup2(nothing.fileno(), 0)
            for number in (OUT, ERR):
                os.dup2(file.fileno(), number)
        os.write(writing, b"+")
        os.close(writing)

    return all_is_well
