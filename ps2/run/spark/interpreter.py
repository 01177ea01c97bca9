"""The Python of Spark's tasks: it has the driver's version and the same ps2, and starts early, as imports take long."""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from ps2.errors import ConfigError
from ps2.programs import hiding
from ps2.version import __version__

log = logging.getLogger(__name__)

VARIABLE = "PYSPARK_PYTHON"
# The interpreter that pyspark takes without that variable: the first of the PATH.
DEFAULT = "python3"
# Python 3.11 and later: do not import from the current folder.
SAFE_PATH_VARIABLE = "PYTHONSAFEPATH"
CHECK = "import sys, ps2; print('{}.{}'.format(*sys.version_info), ps2.__version__)"
VERSIONS = re.compile(r"(\d+\.\d+) (\S+)")
CHECK_TIMEOUT_S = 60.0
MISSING = re.compile(r"No module named '(ps2|numpy|scipy|numba|pandas|pyarrow|grpc)'")
# Spark has one daemon module for all interpreters of an application. PS2's would end the DataFrames that were made
# before, whose rows another interpreter computes. So this program, which runs as the interpreter, chooses the module.
PROGRAM = "ps2-python"
PROGRAM_TEXT = """\
#!/bin/sh
[ "$1 $2" = "-m pyspark.daemon" ] && shift 2 && set -- -m ps2.run.daemon "$@"
exec {python} "$@"
"""
MEMORY_SETTING = "spark.executor.pyspark.memory"
# That setting limits a worker's address space, of which allocators reserve more than they use: Arrow's own one GiB, and
# the C library's 64 MiB for each thread.
SPARING = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
# The interpreter of each SparkContext that was found to be right.
_checked: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def choose_python(spark_context: Any, folders: Sequence[str]) -> None:
    """Let local tasks run with this interpreter, or check the one that the user has chosen.

    On a cluster, the driver learns of a wrong interpreter only from failed tasks: see ``python_error``. The first
    of ``folders`` is this application's own. Raises ConfigError before anything has changed.
    """
    if not spark_context.master.startswith("local") or is_checked(spark_context):
        return
    chosen = os.environ.get(VARIABLE)
    # Without the variable, or if it was set after the SparkContext was made, pyspark has taken its default. An empty
    # variable names none, but pyspark takes it for a name.
    is_default = not spark_context.pythonExec or spark_context.pythonExec == DEFAULT != chosen
    python = (chosen or sys.executable or DEFAULT) if is_default else spark_context.pythonExec
    environment = {**os.environ, **spark_context.environment}
    fault = _fault(python, environment, folders)
    hidden = hiding(os.getcwd()) if fault is not None else []
    if hidden and hasattr(sys.flags, "safe_path"):
        # Spark starts the workers in this folder, which comes first in their import path.
        fault = _fault(python, {SAFE_PATH_VARIABLE: "1", **environment}, folders)
        if fault is None:
            spark_context.environment.setdefault(SAFE_PATH_VARIABLE, "1")
            log.warning(
                "%s in the current folder, %s, hides a module of Python's own: tasks import nothing from there",
                hidden[0],
                os.getcwd(),
            )
    if fault is not None:
        cause = f"; {hidden[0]} in the current folder, {os.getcwd()}, hides a module of Python's own" if hidden else ""
        raise _error(python, spark_context.master, f"{fault}{cause}")
    if is_default:
        spark_context.pythonExec = _program(folders[0], python) if _is_elsewhere(python) else python
    _checked[spark_context] = spark_context.pythonExec


def save_address_space(spark_context: Any) -> None:
    """Let later tasks reserve less address space, if their workers' is limited, unless the user has said how much."""
    if spark_context._conf.contains(MEMORY_SETTING):
        for name in SPARING.keys() - os.environ.keys():
            spark_context.environment.setdefault(name, SPARING[name])


def is_checked(spark_context: Any) -> bool:
    """Return whether ``choose_python`` has found the interpreter of tasks to be right."""
    return _checked.get(spark_context) == spark_context.pythonExec


def has_program(spark_context: Any) -> bool:
    """Return whether tasks run with a program that chooses PS2's daemon for its own interpreter alone."""
    return Path(spark_context.pythonExec).name == PROGRAM


def python_error(spark_context: Any, message: str) -> ConfigError | None:
    """Return an error if tasks failed because of their interpreter."""
    # One that was right failed for rows of Python objects that are older than the choice of it.
    python = DEFAULT if is_checked(spark_context) else spark_context.pythonExec
    missing = MISSING.search(message)
    if missing is not None:
        fault = f"has no {missing[1]}"
    elif "PYTHON_VERSION_MISMATCH" in message:
        fault = "is of another version"
    elif f'Cannot run program "{python}"' in message:
        fault = "cannot be started"
    else:
        return None
    return _error(python, spark_context.master, fault)


def _is_elsewhere(python: str) -> bool:
    """Return whether pyspark's default interpreter is in another folder than this one. Links to it are not followed."""
    default = shutil.which(DEFAULT)
    return default is None or Path(default).parent != Path(python).parent


def _program(folder: str, python: str) -> str:
    """Write a program that runs an interpreter, with PS2's daemon of workers in place of pyspark's; return its path."""
    program = Path(folder, PROGRAM)
    program.write_text(PROGRAM_TEXT.format(python=shlex.quote(python)))
    program.chmod(0o755)
    # In a file system mounted with "noexec", nobody may run it.
    return str(program) if os.access(program, os.X_OK) else python


def _fault(python: str, environment: Mapping[str, str], folders: Sequence[str]) -> str | None:
    """Return what is wrong with an interpreter, or None."""
    path = os.pathsep.join(filter(None, [*folders, environment.get("PYTHONPATH")]))
    try:
        process = subprocess.run(
            [python, "-c", CHECK],
            env={**environment, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CHECK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cannot be started: {error}"
    if process.returncode:
        lines = process.stderr.strip().splitlines() or [f"exit code {process.returncode}"]
        return f"cannot import ps2: {lines[-1]}"
    answer = process.stdout.strip()
    if answer == f"{sys.version_info[0]}.{sys.version_info[1]} {__version__}":
        return None
    other = VERSIONS.fullmatch(answer)
    if other is None:
        return f"prints other things than it is asked for, which Spark cannot read: {answer!r:.100}"
    return f"is Python {other[1]} with ps2 {other[2]}"


def _error(python: str, master: str, fault: str) -> ConfigError:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return ConfigError(
        f"Spark runs tasks with another Python than the driver's: theirs, {python} at {master}, "
        f"{fault}; the driver's is {sys.executable}, Python {version} with ps2 {__version__}. "
        f"Before the SparkSession is made, set {VARIABLE} (or, with spark-submit, spark.pyspark.python) to a Python "
        f"{version} that has this ps2 installed on every executor's host"
    )


DAEMON_SETTING = "spark.python.daemon.module"
# It has imported what PS2's tasks need before it forks workers.
DAEMON = "ps2.run.daemon"
DESCRIPTION = "PS2 starts Spark's Python workers"


def fork_from_daemon(spark_context: Any) -> bool:
    """Let the Python workers of a local Spark be forks of PS2's daemon.

    Return False if the user has chosen another one. Spark's Java, which is this driver's, reads the setting before
    it starts a worker. It is not needed where tasks' interpreter chooses the daemon itself.
    """
    if has_program(spark_context):
        return True
    settings = spark_context._conf  # that of the running application
    if not settings.contains(DAEMON_SETTING):
        settings.set(DAEMON_SETTING, DAEMON)
    return bool(settings.get(DAEMON_SETTING) == DAEMON)


def start_workers(spark_context: Any) -> threading.Thread | None:
    """Start the daemon, a worker, and what Spark SQL needs for the first use of Python, by a job of one task.

    The environment of its task must be the one that later tasks have, as Spark keeps a daemon for each. Returns the
    thread that waits for the job's end; None: other jobs run, or there is no SparkSession.
    """
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None or spark_context.statusTracker().getActiveJobsIds():
        return None
    rows = session.range(0, 1, 1, 1).mapInArrow(_same, "id long")
    # From here on it is Java alone, which raises py4j's errors if the application is stopped meanwhile.
    arguments = [spark_context._jsc, rows._jdf.queryExecution()]
    thread = threading.Thread(target=_start_python, args=arguments, name="ps2-python-workers", daemon=True)
    thread.start()
    return thread


def _start_python(java_context: Any, execution: Any) -> None:
    from py4j.protocol import Py4JError

    try:
        java_context.setJobDescription(DESCRIPTION)
        try:
            execution.toRdd().count()
        finally:
            java_context.setJobDescription(None)
    except (Py4JError, OSError) as error:  # Spark was stopped; or the first task meets the fault again, and reports it
        log.debug("%s: %s", DESCRIPTION, error)


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    return batches
