"""What launchers on one host share: how a server's process ends, and ending it."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Collection
from pathlib import Path

LOG_TAIL_LINES = 20
END_TIMEOUT_S = 4.0


def how_it_ended(code: int, log: Path) -> str:
    """Say why a server ended, with the tail of its log below.

    Args:
        code: of its exit; negative for a signal.
        log: what it wrote.
    """
    try:
        lines = log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    except OSError as error:  # stop() has removed it, or somebody who tidies up temporary files
        lines = [f"({error})"]
    how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    # Its own last word says more than a number.
    said = [line.removeprefix("ps2: ") for line in lines if line.startswith("ps2: ")]
    tail = "".join(f"\n  {line}" for line in lines) or " (nothing)"
    return f"{said[-1] if said and code > 0 else how}; its log ends:{tail}"


def end(children: Collection[subprocess.Popen[bytes]]) -> None:
    """End processes, by force if they take too long."""
    for child in children:
        child.terminate()
    deadline_s = time.monotonic() + END_TIMEOUT_S
    for child in children:
        try:
            child.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
