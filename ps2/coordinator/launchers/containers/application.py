"""The fleet's Spark application, as a child process of the launcher."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ps2.coordinator.launchers.containers.submission import MASTER, Submission
from ps2.coordinator.launchers.processes.child import below, last_lines
from ps2.errors import LaunchError
from ps2.programs import command, import_path
from ps2.run.spark.interpreter import VARIABLE as PYTHON_VARIABLE

# Time for Spark to release its containers.
END_TIMEOUT_S = 15.0
# Variables of spark-submit's own Spark, if it has started this process.
NOT_INHERITED = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS")


class FleetApplication:
    """Runs ``spark_app``, which ends with this process, even if this process is killed."""

    def __init__(self, submission: Submission, program_input: Mapping[str, object], log: Path) -> None:
        """Args:
        program_input: the program's input, the token included.
        log: file for the program's output.

        Raises:
            LaunchError: the program cannot be started.
        """
        self._log = log
        self._reported: dict[str, Any] = {}
        try:
            with open(log, "ab") as file:
                self._process = subprocess.Popen(
                    command("ps2.coordinator.launchers.containers.spark_app"),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=file,
                    env=_environment(submission),
                    text=True,
                    start_new_session=True,  # Ctrl-C is for this process alone
                )
        except OSError as error:
            raise LaunchError(f"the fleet's Spark application cannot be started: {error}") from error
        assert self._process.stdin is not None
        settings = {"settings": dict(submission.settings), "name": submission.name}
        with contextlib.suppress(BrokenPipeError):  # the program has ended: ``ended`` says why
            self._process.stdin.write(json.dumps({**program_input, **settings}) + "\n")
            self._process.stdin.flush()
        self._reader = threading.Thread(target=self._listen, name="ps2-fleet-application", daemon=True)
        self._reader.start()

    def ended(self) -> str | None:
        """Return why the application has ended; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        self._reader.join(1.0)
        if fault := self._reported.get("fault"):
            return f"the fleet's Spark application has ended: {fault}"
        return f"the fleet's Spark application has ended with exit code {code}; it said:{self.tail()}"

    def failures(self) -> dict[int, tuple[int, str]]:
        """Return by index how many task attempts have failed, and the last error."""
        reported = self._reported.get("failures", {})
        return {int(index): (count, message) for index, (count, message) in reported.items()}

    def status_text(self) -> str:
        """Return the application's name, and its state in the cluster manager."""
        name, master = self._reported.get("application"), self._reported.get("master")
        state = f"application {name} at {master}" if name else "the fleet's Spark application has not begun"
        manager = self._reported.get("manager")
        return f"{state}; {manager}" if manager else state

    def tail(self) -> str:
        """Return the tail of its output, as indented lines."""
        return below(last_lines(self._log))

    def stop(self) -> None:
        """End the application; kill it if that takes too long."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._reported = {**self._reported, **json.loads(line)}


def _environment(submission: Submission) -> dict[str, str]:
    words = [*("--driver-memory", "512m"), *submission.arguments]
    if master := submission.settings.get(MASTER):
        words += ["--master", master]
    variables = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    variables["PYSPARK_SUBMIT_ARGS"] = shlex.join([*words, "pyspark-shell"])
    if submission.python is not None:
        variables[PYTHON_VARIABLE] = submission.python
    return {**variables, "PYTHONPATH": os.pathsep.join(import_path())}
