"""Starts server processes on this host, as forks of one process, and ends them."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ps2.certificates import VARIABLES
from ps2.errors import LaunchError
from ps2.processes import ProcessId, wait_readable
from ps2.programs import command, import_path

# The exit code if the real one is lost, because the process's parent had ended before.
UNKNOWN = 255
# Number of log lines in a message about an ended server.
LOG_TAIL_LINES = 20
# Seconds that servers have to end after SIGTERM, before they are killed.
END_TIMEOUT_S = 4.0
POLL_S = 0.01


class Child:
    """A server process that the fork server has started."""

    def __init__(self, process: ProcessId, read_exit_code: Callable[[int], int]) -> None:
        """``read_exit_code`` returns the exit code of an ended process, given its pid."""
        self.process = process
        self._read_exit_code = read_exit_code
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        if self._code is None and not self.process.alive():
            self._code = self._read_exit_code(self.process.pid)
        return self._code

    def wait(self, timeout_s: float = math.inf) -> int:
        """Wait for the end of the process; return its exit code. Raise TimeoutError if it still runs."""
        deadline_s = time.monotonic() + timeout_s
        while (code := self.poll()) is None:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"process {self.process.pid} still runs after {timeout_s:.1f} s")
            time.sleep(POLL_S)
        return code

    def terminate(self) -> None:
        self.process.send(signal.SIGTERM)

    def kill(self) -> None:
        self.process.send(signal.SIGKILL)


def end(children: Collection[Child]) -> None:
    """End processes; kill all that still run after ``END_TIMEOUT_S``."""
    for child in children:
        child.terminate()
    deadline_s = time.monotonic() + END_TIMEOUT_S
    for child in children:
        try:
            child.wait(max(0.0, deadline_s - time.monotonic()))
        except TimeoutError:
            child.kill()
            child.wait()


def ending(code: int, lines: Sequence[str]) -> str:
    """Return a text why a server ended; ``code`` is negative for a signal, ``lines`` are the last lines of its log."""
    exit_text = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    # If the server has printed an error, show the error instead of the exit code.
    messages = [line.removeprefix("ps2: ") for line in lines if line.startswith("ps2: ")]
    return f"{messages[-1] if messages and code > 0 else exit_text}; its log ends:{indented(lines)}"


def indented(lines: Sequence[str]) -> str:
    """Return lines, each indented on a new line, as the end of a message."""
    return "".join(f"\n  {line}" for line in lines) or " (nothing)"


def last_lines(log: Path) -> list[str]:
    try:
        return log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    except OSError as error:  # ``stop``, or a program that deletes old temporary files, has removed the log
        return [f"({error})"]


# Long enough for the first start on a busy machine, which imports all modules.
ANSWER_TIMEOUT_S = 60.0


class ForkServer:
    """Starts servers in milliseconds, as forks of one process, which has imported all modules.

    That process (``ps2.cli.forking``) is started with the first server, and ends with this process. Servers continue to
    run after its end. If it is killed, the next server starts a second later, and the exit codes of running servers are
    lost.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self, name: str, arguments: Sequence[str], log: Path, record: Callable[[ProcessId], object] | None = None
    ) -> Child:
        """Start ``ps2``. It inherits ``sys.path`` and the environment, except variables with certificates.

        ``record`` is called with the process before it does anything. If this process ends before ``record`` returns,
        the new process ends, too.
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
                # If the fork server was killed, the first call fails, and the second call starts a new one.
                answer = self._ask({"start": request}, log) or self._ask({"start": request}, log)
        except OSError as error:
            raise LaunchError(f"{name} cannot be started: {error}") from error
        if answer is None or "error" in answer:
            raise LaunchError(f"{name} cannot be started: {answer['error'] if answer else indented(last_lines(log))}")
        child = Child(ProcessId.from_pid(answer["pid"]), self.read_exit_code)
        with ExitStack() as undo:
            undo.callback(child.kill)
            if record is not None:
                record(child.process)
            undo.pop_all()
        with self._lock:
            self._ask({"run": child.process.pid})
        return child

    def read_exit_code(self, pid: int) -> int:
        """Return the exit code of an ended server, negative for a signal; ``UNKNOWN`` if the fork server has ended."""
        with self._lock:
            answer = self._ask({"ended": pid}) if self._process is not None else None
        return answer.get("code", UNKNOWN) if answer else UNKNOWN

    def close(self) -> None:
        """End the fork server. Its servers continue to run."""
        with self._lock:
            self._end()

    def _ask(self, request: dict[str, Any], log: Path | None = None) -> dict[str, Any] | None:
        """Return the fork server's answer; None if it has ended or hangs.

        If no fork server runs, start one that prints errors to ``log``; ``log`` None: return None instead.
        """
        if self._process is None:
            if log is None:
                return None
            with open(log, "wb") as file:
                self._process = subprocess.Popen(
                    command("ps2.cli.forking", str(os.getpid())),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=file,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(import_path())},
                    start_new_session=True,
                )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            if wait_readable(process.stdout, ANSWER_TIMEOUT_S) and (line := process.stdout.readline()):
                return dict(json.loads(line))
        except BrokenPipeError:
            pass
        self._end()
        return None

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()  # SIGTERM does not end a process that SIGSTOP has suspended
            self._process.communicate()
            self._process = None
