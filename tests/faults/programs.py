"""Programs that are to be killed or stopped, with what they have printed so far."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

REPO = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Program:
    process: subprocess.Popen[bytes]
    output: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def lines(self) -> list[str]:
        """Return the whole lines that it has printed, without the links of live pages."""
        text = self.output.read_text()
        lines = text[: text.rfind("\n") + 1].splitlines()
        return [line for line in lines if not line.startswith("PS2: live page at ")]

    def children(self) -> list[int]:
        return [child.pid for child in psutil.Process(self.pid).children(recursive=True)]


@contextmanager
def running(output: Path, *command: object) -> Iterator[Program]:
    """Run ``python COMMAND`` in the background; kill it in the end, if it still runs."""
    with open(output, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": f"{REPO}{os.pathsep}{REPO / 'tests'}"},
            start_new_session=True,
        )
    try:
        yield Program(process, output)
    finally:
        process.kill()
        process.wait()
