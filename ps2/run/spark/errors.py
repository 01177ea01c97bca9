"""Parses Spark's error messages about failed jobs: the failed task, and its Python error."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from ps2 import errors
from ps2.errors import (
    ConfigError,
    InputError,
    PS2Error,
    RecoveryError,
    RolledBack,
    SpillError,
    TransientError,
    UnreachableError,
    WorkerError,
)

log = logging.getLogger(__name__)

# The maximum length of a quotation of Spark's message.
MAX_CHARS = 300
CANCELLED = re.compile(
    r"^: org\.apache\.spark\.SparkException: (?:\[\w+\] )?(Job \d+ cancelled.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE
)
# The text at the end of a traceback if the traceback of another error follows, which the first error caused.
LED_TO = re.compile(
    r"\n\n(?:The above exception was the direct cause of the following exception|"
    r"During handling of the above exception, another exception occurred):\n\n\Z"
)
# A traceback; the group is its error line.
RAISED = re.compile(r"^Traceback .*\n(?:[ \t].*\n)*(\S.*)", re.MULTILINE)
DISK_FULL = re.compile(r"java\.io\.IOException: (?:No space left on device|Disk quota exceeded)")
# Spark's error for a row that a model cannot predict; the group is the reason, a text of the model.
FAULTY_ROW = re.compile(
    r"(?:\[USER_RAISED_EXCEPTION\]|java\.lang\.RuntimeException:) (column .*?)(?: SQLSTATE: \w+)?$", re.MULTILINE
)
# The error line of a task that could not reach the driver; the group is the message.
UNREACHED = re.compile(rf"^{UnreachableError.__module__}\.{UnreachableError.__name__}: (.*)", re.MULTILINE)

# Texts of errors that lack of address space can cause.
NO_ADDRESS_SPACE = re.compile(
    r"MemoryError|can't start new thread|error return without exception set|annot allocate memory|"
    r"failed to map segment|Python worker exited unexpectedly|Resource temporarily unavailable"
)
# The smallest limit that leaves memory for rows: a worker's libraries take 0.6 GiB.
MIN_WORKER_MEMORY = "1g"


def memory_advice(limit: str | None, message: str) -> str:
    """Return advice if a worker may have died for lack of address space, else "". ``limit``: the setting's value."""
    if limit is None or NO_ADDRESS_SPACE.search(message) is None:
        return ""
    return (
        f"; spark.executor.pyspark.memory={limit}, divided by spark.executor.cores, limits the address space of each "
        f"Python worker: it needs at least {MIN_WORKER_MEMORY} and the size of its rows"
    )


def cancellation(error: Exception | None) -> str | None:
    """Return Spark's message if the job was cancelled: by its group or tag, or on Spark's web page."""
    match = CANCELLED.search(str(error))
    return match[1] if match else None


def failed_task(error: Exception | None) -> tuple[int | None, str]:
    """Return the index of the failed task, if Spark names it, and Spark's reason in one line."""
    text = str(error)
    match = re.search(r"Job aborted due to stage failure: [^\n]*", text)
    reason = match[0] if match else " ".join(text.split("\n")[:2])
    # If a worker cannot start, for example without NumPy, only the Python error contains the reason.
    if raised := outermost_error(text):
        reason = f"{reason[: max(0, MAX_CHARS - len(raised) - 1)]} {raised}"
    task = re.search(r"Task (\d+) in stage \S+ failed", reason)
    return int(task[1]) if task else None, reason[:MAX_CHARS]


def failure_message(rank: int, clock: int, traceback: str) -> str:
    """Return the message of the error that ends a run because a worker failed: the worker's error and traceback."""
    return f"run: rank {rank} failed in clock {clock}: {outermost_error(traceback) or 'see below'}\n{traceback}"


def outermost_error(text: str) -> str | None:
    """Return the error line of the first traceback in a text, skipping the tracebacks of its causes; None: none."""
    last, text = None, text[max(0, text.find("Traceback")) :]
    for match in RAISED.finditer(text):
        if last is not None and not LED_TO.search(text[last.end() : match.start()]):
            break
        last = match
    return last[1] if last else None


def unreachable_driver(message: str) -> ConfigError | None:
    """Return the run's error if a worker could not reach the driver, else None."""
    match = UNREACHED.search(message)
    return ConfigError(f"run: {match[1]}") if match else None


def error_class(name: str) -> type[PS2Error] | None:
    """Return PS2's error class with this qualified name, or None."""
    module, _, class_name = name.rpartition(".")
    cls = getattr(errors, class_name, None) if module == errors.__name__ else None
    return cls if isinstance(cls, type) and issubclass(cls, PS2Error) else None


def worker_error(message: str) -> WorkerError:
    """Return the error that ends a run because a worker failed.

    If the worker's function is not at fault (transient and recovery errors of PS2), the traceback is only logged.
    """
    sentence = message.partition("\n")[0]
    match = re.fullmatch(r"(run: rank \d+ failed in clock \d+: )(\S+): (.*)", sentence)
    cls = None if match is None else error_class(match[2])
    if match is None or cls is None or not issubclass(cls, (TransientError, RecoveryError)) or cls is RolledBack:
        return WorkerError(message)
    log.info("%s", message)
    return WorkerError(f"{match[1]}{match[3]}")


@contextmanager
def plain_job_errors() -> Iterator[None]:
    """Raise a PS2 error of a Spark job's task with its message only, and log the traceback.

    A row that a model cannot predict raises InputError, a full disk of Spark SpillError.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error)
        name, _, sentence = (outermost_error(text) or "").partition(": ")
        cls = error_class(name)
        if cls is None and (row := FAULTY_ROW.search(text)) is not None:
            cls, sentence = InputError, row[1]
        if cls is None and DISK_FULL.search(text) is None:
            raise
        log.info("%s", text)
        if cls is not None:
            raise cls(sentence) from None
        raise SpillError(
            f"{failed_task(error)[1]}: a local disk of Spark is full: use larger disks (spark.local.dir)"
        ) from None
