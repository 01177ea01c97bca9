"""The Python interpreter of Spark's tasks: checks that it matches the driver's, and an early start of workers."""

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
# The interpreter that pyspark looks for in the PATH if that variable is not set.
DEFAULT = "python3"
# If set, Python 3.11 and later do not import from the current folder.
SAFE_PATH_VARIABLE = "PYTHONSAFEPATH"
CHECK = "import sys, ps2; print('{}.{}'.format(*sys.version_info), ps2.__version__)"
VERSIONS = re.compile(r"(\d+\.\d+) (\S+)")
CHECK_TIMEOUT_S = 60.0
# Packages that PS2's tasks need.
MISSING = re.compile(r"No module named '(ps2|numpy|scipy|numba|pandas|pyarrow|grpc)'")
# The setting of the daemon's module applies to all interpreters of an application, but earlier DataFrames may use
# an interpreter without ps2. So later tasks run this program as their interpreter, which replaces the module.
PROGRAM = "ps2-python"
PROGRAM_TEXT = """\
#!/bin/sh
[ "$1 $2" = "-m pyspark.daemon" ] && shift 2 && set -- -m ps2.run.daemon "$@"
exec {python} "$@"
"""
MEMORY_SETTING = "spark.executor.pyspark.memory"
# That setting limits a worker's address space. Allocators reserve more of it than they use: Arrow's 1 GiB, and the C
# library's 64 MiB for each thread. With these environment variables, they do not.
ALLOCATOR_VARIABLES = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
# The checked interpreter of each SparkContext.
_checked: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def choose_python(spark_context: Any, folders: Sequence[str]) -> None:
    """Let local tasks run with this interpreter, or check the interpreter that the user has chosen.

    If it raises ConfigError, nothing has changed. On a cluster, only failed tasks show that an interpreter is
    unsuitable (``python_error``). ``folders`` are the workers' import folders; the first belongs to this application.
    """
    if not spark_context.master.startswith("local") or is_checked(spark_context):
        return
    chosen = os.environ.get(VARIABLE)
    # pyspark uses its default if the variable was not set when the SparkContext was made. If the variable is empty,
    # pyspark's interpreter has the empty name.
    is_default = not spark_context.pythonExec or spark_context.pythonExec == DEFAULT != chosen
    python = (chosen or sys.executable or DEFAULT) if is_default else spark_context.pythonExec
    environment = {**os.environ, **spark_context.environment}
    fault = _fault(python, environment, folders)
    shadowing = shadowing_files(os.getcwd()) if fault is not None else []
    if shadowing and hasattr(sys.flags, "safe_path"):
        # Spark starts the workers in the current folder, which is the first entry of their import path.
        fault = _fault(python, {SAFE_PATH_VARIABLE: "1", **environment}, folders)
        if fault is None:
            spark_context.environment.setdefault(SAFE_PATH_VARIABLE, "1")
            log.warning(
                "%s in the current folder, %s, hides a module of the standard library: tasks do not import from there",
                shadowing[0],
                os.getcwd(),
            )
    if fault is not None:
        cause = ""
        if shadowing:
            cause = f"; {shadowing[0]} in the current folder, {os.getcwd()}, hides a module of the standard library"
        raise _error(python, spark_context.master, f"{fault}{cause}")
    if is_default:
        spark_context.pythonExec = _write_program(folders[0], python) if _is_not_default(python) else python
    _checked[spark_context] = spark_context.pythonExec


def save_address_space(spark_context: Any) -> None:
    """If Spark limits the workers' address space, set ``ALLOCATOR_VARIABLES`` that the user has not set."""
    if spark_context._conf.contains(MEMORY_SETTING):
        for name in ALLOCATOR_VARIABLES.keys() - os.environ.keys():
            spark_context.environment.setdefault(name, ALLOCATOR_VARIABLES[name])


def is_checked(spark_context: Any) -> bool:
    """Return whether ``choose_python`` has checked the interpreter that tasks use now."""
    return _checked.get(spark_context) == spark_context.pythonExec


def python_error(spark_context: Any, message: str) -> ConfigError | None:
    """Return an error if tasks failed because of their interpreter."""
    # If the present interpreter was checked, the failed task used DataFrames that were made earlier, with the default.
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


def _is_not_default(python: str) -> bool:
    """Return whether an interpreter is in another folder than pyspark's default interpreter. Links are not followed."""
    default = shutil.which(DEFAULT)
    return default is None or Path(default).parent != Path(python).parent


def _write_program(folder: str, python: str) -> str:
    """Write a program that runs an interpreter with PS2's daemon instead of pyspark's; return the program's path."""
    program = Path(folder, PROGRAM)
    program.write_text(PROGRAM_TEXT.format(python=shlex.quote(python)))
    program.chmod(0o755)
    # A file system mounted with "noexec" does not run programs.
    return str(program) if os.access(program, os.X_OK) else python


def _fault(python: str, environment: Mapping[str, str], folders: Sequence[str]) -> str | None:
    """Return why an interpreter cannot run tasks; None: it can."""
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
    match = VERSIONS.fullmatch(answer)
    if match is None:
        return f"prints additional text when it starts, which Spark cannot read: {answer!r:.100}"
    return f"is Python {match[1]} with ps2 {match[2]}"


def _error(python: str, master: str, fault: str) -> ConfigError:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return ConfigError(
        f"Spark runs tasks with another Python than the driver's: that of tasks, {python} at {master}, "
        f"{fault}; the driver's is {sys.executable}, Python {version} with ps2 {__version__}. "
        f"Before the SparkSession is made, set {VARIABLE} (or, with spark-submit, spark.pyspark.python) to a Python "
        f"{version} that has this ps2 installed on every executor's host"
    )


DAEMON_SETTING = "spark.python.daemon.module"
# The daemon that imports what PS2's tasks need before it forks workers.
DAEMON = "ps2.run.daemon"
DESCRIPTION = "PS2 starts Spark's Python workers"


def fork_from_daemon(spark_context: Any) -> bool:
    """Let a local Spark fork its Python workers from PS2's daemon; return False if the user has set another daemon.

    Spark reads the setting each time it starts a worker. If ``PROGRAM`` runs, the setting is not needed.
    """
    if Path(spark_context.pythonExec).name == PROGRAM:
        return True
    settings = spark_context._conf  # the running application's settings
    if not settings.contains(DAEMON_SETTING):
        settings.set(DAEMON_SETTING, DAEMON)
    return bool(settings.get(DAEMON_SETTING) == DAEMON)


def start_workers(spark_context: Any) -> threading.Thread | None:
    """Run a job with one task, which starts the daemon, a worker, and the parts of Spark SQL that run Python.

    The task must have the environment variables of later tasks, because Spark has a daemon for each set of variables.
    Returns the thread that waits for the job; None: other jobs run, or there is no SparkSession.
    """
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None or spark_context.statusTracker().getActiveJobsIds():
        return None
    rows = session.range(0, 1, 1, 1).mapInArrow(_identity, "id long")
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
    except (Py4JError, OSError) as error:  # Spark was stopped, or the first task of a run will report the error
        log.debug("%s: %s", DESCRIPTION, error)


def _identity(batches: Iterator[Any]) -> Iterator[Any]:
    return batches
