"""Servers on this host, forked by a process that has imported what they need."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ps2.certificates import VARIABLES
from ps2.coordinator.launchers.processes.child import UNKNOWN, Child, tail
from ps2.errors import LaunchError
from ps2.processes import ProcessId, has_come
from ps2.programs import command, import_path

# For its imports, on a machine that is busy.
ANSWER_TIMEOUT_S = 60.0


class ForkServer:
    """Starts servers in milliseconds: each is a fork of one process (``ps2.cli.forking``), which starts with the first.

    It ends with this process. Servers do not end with it: who kills it makes the next one start a second later, and
    nobody knows then how those that run will end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, name: str, arguments: Sequence[str], log: Path) -> Child:
        """Start ``ps2`` with these arguments, and this process's environment and path of imports.

        Certificates that the environment names are not handed on.

        Args:
            name: of what is started, in errors.
            log: file that takes what it prints.

        Raises:
            LaunchError: it cannot be forked, or the file not be written.
        """
        wanted = {
            "arguments": list(arguments),
            "environment": {name: value for name, value in os.environ.items() if name not in VARIABLES},
            "path": import_path(),
            "folder": os.getcwd(),
            "log": str(log.absolute()),
        }
        try:
            log.write_bytes(b"")
            with self._lock:
                # Somebody may have killed it since the last one.
                told = self._ask({"start": wanted}, log) or self._ask({"start": wanted}, log)
        except OSError as error:
            raise LaunchError(f"{name} cannot be started: {error}") from error
        if told is None or "error" in told:
            raise LaunchError(f"{name} cannot be started: {told['error'] if told else tail(log)}")
        return Child(ProcessId.of(told["pid"]), self.code_of)

    def code_of(self, pid: int) -> int:
        """Return the exit code of a server that has ended, negative for a signal; ``UNKNOWN`` if that went with the
        process that saw it."""
        with self._lock:
            told = self._ask({"ended": pid}) if self._process is not None else None
        return told.get("code", UNKNOWN) if told else UNKNOWN

    def close(self) -> None:
        """End it; servers go on."""
        with self._lock:
            self._end()

    def _ask(self, request: dict[str, Any], log: Path | None = None) -> dict[str, Any] | None:
        """Return the answer; None if there is none, because it has ended or was stopped.

        Args:
            log: file that takes what it prints if it cannot start; without one it is not started.
        """
        if self._process is None:
            if log is None:
                return None
            self._process = _started(log)
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            if has_come(process.stdout, ANSWER_TIMEOUT_S) and (line := process.stdout.readline()):
                return dict(json.loads(line))
        except BrokenPipeError:
            pass
        self._end()
        return None

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()  # it may be stopped, and deaf to anything milder
            self._process.communicate()
            self._process = None


def _started(log: Path) -> subprocess.Popen[bytes]:
    with open(log, "wb") as file:
        return subprocess.Popen(
            command("ps2.cli.forking", str(os.getpid())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(import_path())},
            start_new_session=True,
        )
