"""Submits the fleet's Spark application: computes its settings, and runs its process."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ps2.coordinator.launchers.processes.child import indented, last_lines
from ps2.errors import ConfigError, LaunchError
from ps2.programs import command, import_path
from ps2.run.spark.interpreter import VARIABLE as PYTHON_VARIABLE

MASTER = "spark.master"
MIB = 1 << 20
DEFAULT_MEMORY_BYTES = 1 << 30
# Memory of a container in addition to the server's arrays. Java's heap is small, because Java only starts Python.
HEAP_MIB = 512
# Memory of the processes: the server and its task (Python with its libraries), Spark's daemon of Python workers, and
# Java outside its heap.
PROCESSES_MIB = 700
# Settings of the training's application, or their prefixes, that describe the cluster and the connections to it. The
# fleet's application gets the same values.
COPIED = (
    "spark.archives",
    "spark.authenticate",
    "spark.driver.bindAddress",
    "spark.driver.host",
    "spark.executorEnv.",
    "spark.files",
    "spark.hadoop.",
    "spark.io.encryption.",
    "spark.kerberos.",
    "spark.kubernetes.",
    "spark.network.",
    "spark.pyspark.",
    "spark.ssl.",
    "spark.submit.pyFiles",
    "spark.yarn.",
)
# Exceptions: settings that are valid for the training's application only.
NOT_COPIED = ("spark.yarn.app.", "spark.yarn.tags", "spark.kubernetes.driver.pod.name")


@dataclass(frozen=True)
class Submission:
    """The settings with which the fleet's Spark application is submitted.

    Attributes:
        settings: Spark's settings; ``required_settings`` adds the settings that every fleet needs.
        arguments: further arguments of spark-submit.
        python: path of the containers' Python interpreter; None: Spark's default.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    python: str | None = None
    name: str = "ps2 fleet"


def submission_for(training: Mapping[str, str], conf: Mapping[str, str], python: str | None) -> Submission:
    """Return a submission to the cluster of a training's application, or to the cluster that ``conf`` names."""
    copied = {
        name: value for name, value in training.items() if name.startswith(COPIED) and not name.startswith(NOT_COPIED)
    }
    settings = copied | {MASTER: training.get(MASTER, "")} | dict(conf)
    master = settings[MASTER]
    if not master or (master.startswith("local") and not master.startswith("local-cluster")):
        raise ConfigError(
            f"launcher='spark': Spark at {master or 'no master'} starts no containers; give the master of a cluster "
            "(yarn, k8s://..., spark://...), in the SparkSession or by PS2Conf(sparkConf={'spark.master': ...})"
        )
    return Submission(settings, python=python, name=f"ps2 fleet of {training.get('spark.app.name', 'an application')}")


def required_settings(settings: Mapping[str, str], servers: int, memory_bytes: int) -> dict[str, str]:
    """Return the settings for one server per task, one task per executor, and a fixed number of executors."""
    cores = settings.get("spark.executor.cores", "1")
    fixed = {
        "spark.executor.instances": str(servers),
        "spark.executor.cores": cores,
        "spark.task.cpus": cores,
        "spark.cores.max": str(servers * int(cores)),
        "spark.dynamicAllocation.enabled": "false",
        "spark.speculation": "false",
        # No limit: each loss of a server's container is a failed attempt of its task.
        "spark.task.maxFailures": str(2**31 - 1),
        "spark.excludeOnFailure.enabled": "false",
    }
    defaults = {
        # Cluster managers end an application whose executors fail too often. The default allows very few failures.
        "spark.executor.maxNumFailures": str(100 * servers),
        "spark.ui.enabled": "false",
        "spark.eventLog.enabled": "false",
        **_memory(settings.get(MASTER, ""), memory_bytes),
    }
    return fixed | {name: settings.get(name, value) for name, value in defaults.items()}


def _memory(master: str, memory_bytes: int) -> dict[str, str]:
    processes = PROCESSES_MIB + -(-memory_bytes // MIB)
    if master.startswith(("spark:", "local-cluster")):  # standalone Spark limits a container by this setting alone
        return {"spark.executor.memory": f"{HEAP_MIB + processes}m"}
    return {"spark.executor.memory": f"{HEAP_MIB}m", "spark.executor.memoryOverhead": f"{processes}m"}


# Seconds that Spark has to release its containers before its process is killed.
END_TIMEOUT_S = 15.0
# Variables that connect this process with the Java process of its own spark-submit.
NOT_INHERITED = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS")


class FleetApplication:
    """Runs the program ``spark_app``. It ends with this process, even if this process is killed."""

    def __init__(self, submission: Submission, program_input: Mapping[str, object], log: Path) -> None:
        """Start the program. ``program_input`` is sent to its stdin; its log is appended to the file ``log``."""
        self._log = log
        self._reported: dict[str, Any] = {}  # the newest value of each field that ``spark_app`` reports
        try:
            with open(log, "ab") as file:
                self._process = subprocess.Popen(
                    command("ps2.coordinator.launchers.containers.spark_app"),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=file,
                    env=_environment(submission),
                    text=True,
                    start_new_session=True,  # Ctrl-C in a terminal must end this process only
                )
        except OSError as error:
            raise LaunchError(f"the fleet's Spark application cannot be started: {error}") from error
        assert self._process.stdin is not None
        settings = {"settings": dict(submission.settings), "name": submission.name}
        with contextlib.suppress(BrokenPipeError):  # the program has ended: ``ended`` returns the reason
            self._process.stdin.write(json.dumps({**program_input, **settings}) + "\n")
            self._process.stdin.flush()
        self._reader = threading.Thread(target=self._listen, name="ps2-fleet-application", daemon=True)
        self._reader.start()

    def ended(self) -> str | None:
        """Return the reason why the application has ended; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        self._reader.join(1.0)
        if fault := self._reported.get("fault"):
            return f"the fleet's Spark application has ended: {fault}"
        return f"the fleet's Spark application has ended with exit code {code}; its log ends:{self.tail()}"

    def failures(self) -> dict[int, tuple[int, str]]:
        """Return (number of failed task attempts, last error), by server index."""
        reported = self._reported.get("failures", {})
        return {int(index): (count, message) for index, (count, message) in reported.items()}

    def status_text(self) -> str:
        """Return the application's name, and its state in the cluster manager."""
        name, master = self._reported.get("application"), self._reported.get("master")
        state = f"application {name} at {master}" if name else "the fleet's Spark application has not started"
        manager = self._reported.get("manager")
        return f"{state}; {manager}" if manager else state

    def tail(self) -> str:
        """Return the last lines of the program's log, indented."""
        return indented(last_lines(self._log))

    def stop(self) -> None:
        """End the application; kill its process after ``END_TIMEOUT_S``."""
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
    """Return the environment of ``spark_app``, in which pyspark finds the arguments of spark-submit."""
    arguments = [*("--driver-memory", "512m"), *submission.arguments]
    if master := submission.settings.get(MASTER):
        arguments += ["--master", master]
    variables = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    variables["PYSPARK_SUBMIT_ARGS"] = shlex.join([*arguments, "pyspark-shell"])
    if submission.python is not None:
        variables[PYTHON_VARIABLE] = submission.python
    return {**variables, "PYTHONPATH": os.pathsep.join(import_path())}
