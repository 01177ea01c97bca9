"""Starts servers on this host as forks of one process that has imported all of a server's modules."""

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

# The first start imports modules; a busy machine takes its time.
ANSWER_TIMEOUT_S = 60.0


class ForkServer:
    """Starts servers in milliseconds, as forks of one process (``ps2.cli.forking``) that starts with the first server.

    The fork server ends with this process; its servers go on without it. If it is killed, the next server starts a
    second later, and the exit codes of running servers are lost.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, name: str, arguments: Sequence[str], log: Path) -> Child:
        """Start ``ps2`` with these arguments, and this process's environment and path of imports.

        Certificates that the environment names are not handed on.

        Args:
            name: the name of the server, for errors.
            log: the file for its output.

        Raises:
            LaunchError: the server cannot be forked, or the file cannot be written.
        """
        request = {
            "arguments": list(arguments),
            "environment": {name: value for name, value in os.environ.items() if name not in VARIABLES},
            "path": import_path(),
            "folder": os.getcwd(),
            "log": str(log.absolute()),
        }
        try:
            log.write_bytes(b"")
            with self._lock:
                # The second attempt starts a new fork server, if the first one was killed.
                answer = self._ask({"start": request}, log) or self._ask({"start": request}, log)
        except OSError as error:
            raise LaunchError(f"{name} cannot be started: {error}") from error
        if answer is None or "error" in answer:
            raise LaunchError(f"{name} cannot be started: {answer['error'] if answer else tail(log)}")
        return Child(ProcessId.of(answer["pid"]), self.code_of)

    def code_of(self, pid: int) -> int:
        """Return the exit code of an ended server, negative for a signal; ``UNKNOWN`` if its fork server has ended."""
        with self._lock:
            answer = self._ask({"ended": pid}) if self._process is not None else None
        return answer.get("code", UNKNOWN) if answer else UNKNOWN

    def close(self) -> None:
        """End the fork server. Servers go on."""
        with self._lock:
            self._end()

    def _ask(self, request: dict[str, Any], log: Path | None = None) -> dict[str, Any] | None:
        """Return the fork server's answer; None if it has ended or hangs. Without a ``log`` of errors, start none."""
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
            self._process.kill()  # a stopped process ignores SIGTERM
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
