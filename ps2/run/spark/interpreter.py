"""The Python interpreter of Spark's tasks. It must have the driver's version and the same ps2."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from ps2.errors import ConfigError
from ps2.programs import hiding
from ps2.version import __version__

log = logging.getLogger(__name__)

VARIABLE = "PYSPARK_PYTHON"
# Python 3.11 and later: do not import from the current folder.
SAFE_PATH_VARIABLE = "PYTHONSAFEPATH"
CHECK = "import sys, ps2; print('{}.{}'.format(*sys.version_info), ps2.__version__)"
CHECK_TIMEOUT_S = 60.0


def choose_python(spark_context: Any, folders: Sequence[str]) -> None:
    """Let local tasks run with this interpreter, or check the one that the user has chosen.

    On a cluster, the driver learns of a wrong interpreter only from failed tasks: see ``python_error``.

    Args:
        folders: where tasks find files that the application ships.

    Raises:
        ConfigError: the chosen interpreter lacks ps2, has another version or cannot be started.
    """
    if not spark_context.master.startswith("local"):
        return
    if VARIABLE not in os.environ and sys.executable:
        # Spark would take the first python3 of the PATH.
        spark_context.pythonExec = sys.executable
    fault = _fault(spark_context, folders)
    hidden = hiding(os.getcwd()) if fault is not None else []
    if hidden and hasattr(sys.flags, "safe_path"):
        # Spark starts the workers in this folder, which comes first in their import path.
        spark_context.environment.setdefault(SAFE_PATH_VARIABLE, "1")
        fault = _fault(spark_context, folders)
        if fault is None:
            log.warning(
                "%s in the current folder, %s, hides a module of Python's own: tasks import nothing from there",
                hidden[0],
                os.getcwd(),
            )
    if fault is not None:
        why = f"; {hidden[0]} in the current folder, {os.getcwd()}, hides a module of Python's own" if hidden else ""
        raise _error(spark_context.pythonExec, spark_context.master, f"{fault}{why}")


def python_error(python: str, master: str, message: str) -> ConfigError | None:
    """Return an error if tasks failed because of their interpreter.

    Args:
        python, master: the interpreter of tasks, and Spark's master.
        message: Spark's error message.
    """
    faults = {  # by a sign of it in the message of a task that never called a function of ours
        "No module named 'ps2'": "has no ps2",
        "PYTHON_VERSION_MISMATCH": "is of another version",
        f'Cannot run program "{python}"': "cannot be started",
    }
    found = next((fault for sign, fault in faults.items() if sign in message), None)
    return None if found is None else _error(python, master, found)


def _fault(spark_context: Any, folders: Sequence[str]) -> str | None:
    """Return what is wrong with the chosen interpreter, or None."""
    environment = {**os.environ, **spark_context.environment}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [*folders, environment.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            [spark_context.pythonExec, "-c", CHECK],
            env=environment,
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cannot be started: {error}"
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return f"cannot import ps2: {lines[-1]}"
    wanted = f"{sys.version_info[0]}.{sys.version_info[1]} {__version__}"
    return None if done.stdout.strip() == wanted else "is Python {} with ps2 {}".format(*done.stdout.split())


def _error(python: str, master: str, fault: str) -> ConfigError:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return ConfigError(
        f"Spark runs tasks with another Python than the driver's: theirs, {python} at {master}, "
        f"{fault}; the driver's is {sys.executable}, Python {version} with ps2 {__version__}. "
        f"Before the SparkSession is made, set {VARIABLE} (or, with spark-submit, spark.pyspark.python) to a Python "
        f"{version} that has this ps2 installed on every executor's host"
    )
