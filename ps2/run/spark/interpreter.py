"""The Python of Spark's tasks: the checks that it fits the driver's, and its early start, as imports take long."""

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
from ps2.programs import shadowing_files
from ps2.version import __version__

log = logging.getLogger(__name__)

VARIABLE = "PYSPARK_PYTHON"
# The interpreter that pyspark uses without that variable, from the PATH.
DEFAULT = "python3"
# Since Python 3.11: do not import from the current folder.
SAFE_PATH_VARIABLE = "PYTHONSAFEPATH"
CHECK = "import sys, ps2; print('{}.{}'.format(*sys.version_info), ps2.__version__)"
VERSIONS = re.compile(r"(\d+\.\d+) (\S+)")
CHECK_TIMEOUT_S = 60.0
MISSING = re.compile(r"No module named '(ps2|numpy|scipy|numba|pandas|pyarrow|grpc)'")
# Spark has one setting of the daemon's module for all interpreters of an application. DataFrames that were made earlier
# can use another interpreter, which may lack ps2. So this program, which runs as the interpreter, chooses the module.
PROGRAM = "ps2-python"
PROGRAM_TEXT = """\
#!/bin/sh
[ "$1 $2" = "-m pyspark.daemon" ] && shift 2 && set -- -m ps2.run.daemon "$@"
exec {python} "$@"
"""
MEMORY_SETTING = "spark.executor.pyspark.memory"
# That setting limits a worker's address space, of which allocators reserve more than they use: Arrow's allocator 1 GiB,
# and the C library's 64 MiB for each thread. These variables avoid it.
SPARING = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
# The checked interpreter of each SparkContext.
_checked: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def choose_python(spark_context: Any, folders: Sequence[str]) -> None:
    """Let local tasks run with this interpreter, or check the interpreter that the user has chosen.

    Raises ConfigError before anything has changed. On a cluster, only failed tasks show that an interpreter is wrong:
    see ``python_error``. ``folders`` are import folders; the first one belongs to this application.
    """
    if not spark_context.master.startswith("local") or is_checked(spark_context):
        return
    chosen = os.environ.get(VARIABLE)
    # pyspark uses its default if the variable was not set when the SparkContext was made. It takes an empty variable
    # for a name.
    is_default = not spark_context.pythonExec or spark_context.pythonExec == DEFAULT != chosen
    python = (chosen or sys.executable or DEFAULT) if is_default else spark_context.pythonExec
    environment = {**os.environ, **spark_context.environment}
    fault = _fault(python, environment, folders)
    hidden = shadowing_files(os.getcwd()) if fault is not None else []
    if hidden and hasattr(sys.flags, "safe_path"):
        # Spark starts the workers in the current folder, which comes first in their import path.
        fault = _fault(python, {SAFE_PATH_VARIABLE: "1", **environment}, folders)
        if fault is None:
            spark_context.environment.setdefault(SAFE_PATH_VARIABLE, "1")
            log.warning(
                "%s in the current folder, %s, hides a module of the standard library: tasks do not import from it",
                hidden[0],
                os.getcwd(),
            )
    if fault is not None:
        cause = ""
        if hidden:
            cause = f"; {hidden[0]} in the current folder, {os.getcwd()}, hides a module of the standard library"
        raise _error(python, spark_context.master, f"{fault}{cause}")
    if is_default:
        spark_context.pythonExec = _program(folders[0], python) if _is_elsewhere(python) else python
    _checked[spark_context] = spark_context.pythonExec


def save_address_space(spark_context: Any) -> None:
    """If Spark limits the workers' address space, let later tasks reserve less, unless the user has set variables."""
    if spark_context._conf.contains(MEMORY_SETTING):
        for name in SPARING.keys() - os.environ.keys():
            spark_context.environment.setdefault(name, SPARING[name])


def is_checked(spark_context: Any) -> bool:
    """Return whether ``choose_python`` has checked the present interpreter of tasks."""
    return _checked.get(spark_context) == spark_context.pythonExec


def python_error(spark_context: Any, message: str) -> ConfigError | None:
    """Return an error if tasks failed because of their interpreter."""
    # If the chosen interpreter is right, the failed task had DataFrames that were made earlier, with the default one.
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
    """Return whether an interpreter is in another folder than pyspark's default one. Links are not followed."""
    default = shutil.which(DEFAULT)
    return default is None or Path(default).parent != Path(python).parent


def _program(folder: str, python: str) -> str:
    """Write a program that runs an interpreter with PS2's daemon instead of pyspark's; return the program's path."""
    program = Path(folder, PROGRAM)
    program.write_text(PROGRAM_TEXT.format(python=shlex.quote(python)))
    program.chmod(0o755)
    # A file system mounted with "noexec" does not run programs.
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
        return f"prints additional text when it starts, which Spark cannot read: {answer!r:.100}"
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
# The daemon that imports what PS2's tasks need before it forks workers.
DAEMON = "ps2.run.daemon"
DESCRIPTION = "PS2 starts Spark's Python workers"


def fork_from_daemon(spark_context: Any) -> bool:
    """Let the Python workers of a local Spark be forks of PS2's daemon; return False if the user has set another one.

    Spark reads the setting each time it starts a worker. ``PROGRAM`` does not need it.
    """
    if Path(spark_context.pythonExec).name == PROGRAM:
        return True
    settings = spark_context._conf  # the running application's settings
    if not settings.contains(DAEMON_SETTING):
        settings.set(DAEMON_SETTING, DAEMON)
    return bool(settings.get(DAEMON_SETTING) == DAEMON)


def start_workers(spark_context: Any) -> threading.Thread | None:
    """Run a job of one task, which starts the daemon, a worker, and Spark SQL's support of Python.

    The task must have the environment variables of later tasks, as Spark has a daemon for each set of variables.
    Returns the thread that waits for the job; None: other jobs run, or there is no SparkSession.
    """
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None or spark_context.statusTracker().getActiveJobsIds():
        return None
    rows = session.range(0, 1, 1, 1).mapInArrow(_same, "id long")
    # The thread only calls Java, which raises py4j's errors if the application is stopped.
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
    except (Py4JError, OSError) as error:  # Spark was stopped, or the first task of a run will report the fault
        log.debug("%s: %s", DESCRIPTION, error)


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    return batches
