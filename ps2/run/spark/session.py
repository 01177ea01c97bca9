"""The Spark session of a command."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ps2 import errors
from ps2.config import split_address
from ps2.errors import ConfigError, OpError, PS2Error
from ps2.run.spark.jvm import silence_jvm_shutdown

LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
STANDALONE = "spark://"
CONNECT = "sc://"
MASTER = re.compile(r"local(\[|$)|local-cluster\[|spark://|yarn$|k8s://")
CONNECT_S = 5.0
# The time in which child processes, such as the JVM with Spark, must end before they are killed.
END_TIMEOUT_S = 3.0
# The error in a Python traceback, whose line is not indented: "package.Class: text". The groups are class and text.
ERROR_LINE = re.compile(r"^(?:\w+\.)*(\w+): (.*(?:\n(?!\n|\s+at ).*)*)", re.MULTILINE)


def get_or_create_session(master: str | None, name: str) -> Any:
    """Return the running SparkSession, or start one; if ``master`` is None, Spark's settings decide.

    Raise ConfigError if Java is missing, the master's URL is wrong or not reachable, or Spark does not start.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    _check_java()
    if master is not None:
        _check_master(master)
    builder = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.python.daemon.module", "ps2.run.daemon")
    builder = builder.config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}")
    if master is not None:
        builder = builder.master(master)
    if master is not None and master.startswith("local"):
        # Tasks run with this Python, and a local Spark listens on loopback only.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.config("spark.ui.enabled", "false")
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise ConfigError(f"Spark did not start on {master}: {error}; it needs Java 17 or later (JAVA_HOME)") from error
    except Py4JJavaError as error:
        raise ConfigError(f"Spark did not start on {master}: {_first_line(str(error))}") from error


class Interrupt:
    """A handler of Ctrl-C that raises KeyboardInterrupt only the first time."""

    def __init__(self) -> None:
        self.was_pressed = False

    def install(self) -> None:
        """Install the handler. Call this again after Spark has installed its own, which interrupts calls to the JVM."""
        signal.signal(signal.SIGINT, self._handle)

    def _handle(self, *_: object) -> None:
        if self.was_pressed:
            return  # the command is ending
        self.was_pressed = True
        # Without logs and warnings: py4j would report the interrupted call.
        logging.disable()
        warnings.simplefilter("ignore")
        sys.unraisablehook = lambda _: None
        raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Let Ctrl-C end the with-block by KeyboardInterrupt without messages, and end all child processes."""
    interrupt = Interrupt()
    earlier_handler = signal.getsignal(signal.SIGINT)
    interrupt.install()
    try:
        yield interrupt
    except KeyboardInterrupt:
        interrupt.was_pressed = True  # raised by Spark's handler, which was installed for a moment
        raise
    except BaseException as error:
        if not interrupt.was_pressed:
            raise
        raise KeyboardInterrupt from error
    finally:
        if interrupt.was_pressed:
            _end_children()
        signal.signal(signal.SIGINT, earlier_handler)
    if interrupt.was_pressed:  # Ctrl-C was pressed where Python ignores exceptions
        raise KeyboardInterrupt


def silence_spark(spark: Any) -> None:
    """Turn off the JVM's log, and pyspark's messages about the JVM's end."""
    from py4j.protocol import Py4JError

    context = spark.sparkContext
    silence_jvm_shutdown(context)
    with suppress(Py4JError, OSError):
        context.setLogLevel("OFF")


def _end_children() -> None:
    """End all child processes. When Spark's JVM receives SIGTERM, it stops the application."""
    import psutil

    children = psutil.Process().children(recursive=True)
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.terminate()
    _, still_running = psutil.wait_procs(children, END_TIMEOUT_S)
    for child in [*still_running, *psutil.Process().children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            child.kill()


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise a task's error as the original error, without the layers of Java around it."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        raise _from_task(str(error)) from error


def _from_task(report: str) -> PS2Error:
    traceback = report[report.rfind("Traceback (most recent call last)") :]
    match = ERROR_LINE.search(traceback)
    if match is None:
        return OpError(f"Spark failed: {_first_line(report)}")
    cls = getattr(errors, match[1], None)
    if isinstance(cls, type) and issubclass(cls, PS2Error):
        return cls(match[2].strip())
    return OpError(f"a Spark task failed with {match[1]}: {match[2].strip()}")


def _first_line(report: str) -> str:
    """Return the error line of a Java report; the stack trace follows the line."""
    lines = [line.strip(": ") for line in report.splitlines() if not line.startswith("An error occurred while calling")]
    return next((line for line in lines if line), "without a reason")


def _check_master(master: str) -> None:
    """Raise ConfigError for a master URL with which Spark cannot start; Spark's own error is late and unclear."""
    if master.startswith(CONNECT):
        raise ConfigError(
            f"Spark's master: {master} is a Spark Connect server, and this command reads files through a SparkContext: "
            "use the estimators in a program that connects to it"
        )
    if not MASTER.match(master):
        raise ConfigError(
            f"Spark's master: expected local[2], spark://host:7077, yarn or k8s://https://host:443, got {master!r}"
        )
    if master == "yarn" and not any(os.environ.get(name) for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR")):
        raise ConfigError("Spark's master yarn: HADOOP_CONF_DIR or YARN_CONF_DIR has to name the cluster's settings")
    if master.startswith(STANDALONE):
        _check_listens(master)


def _check_listens(master: str) -> None:
    """Raise ConfigError unless one of a standalone cluster's masters accepts connections."""
    faults = []
    for address in master.removeprefix(STANDALONE).split(","):
        host, port = split_address(address, "Spark's master")
        try:
            socket.create_connection((host, port), CONNECT_S).close()
        except OSError as error:
            faults.append(f"{address}: {error.strerror or error}")
        else:
            return
    raise ConfigError(f"Spark's master {master} cannot be reached from {socket.gethostname()}: {'; '.join(faults)}")


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if home is not None:
        if not os.access(os.path.join(home, "bin", "java"), os.X_OK):
            raise ConfigError(f"JAVA_HOME: there is no bin/java in {home}; Spark needs Java 17 or later")
    elif shutil.which("java") is None:
        raise ConfigError(
            "Spark needs Java 17 or later: install a JRE (Debian: openjdk-17-jre-headless), or set JAVA_HOME"
        )
