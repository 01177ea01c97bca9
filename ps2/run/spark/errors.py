"""What Spark's error messages say about a failed job: which task, and what its Python raised."""

from __future__ import annotations

import re

from ps2.errors import ConfigError, UnreachableError

# Most that is quoted of Spark's words.
MAX_CHARS = 300
CANCELLED = re.compile(
    r"^: org\.apache\.spark\.SparkException: (?:\[\w+\] )?(Job \d+ cancelled.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE
)
# Between the traceback of an error and the traceback of the error that it led to.
LED_TO = re.compile(
    r"\n\n(?:The above exception was the direct cause of the following exception|"
    r"During handling of the above exception, another exception occurred):\n\n\Z"
)
RAISED = re.compile(r"^Traceback .*\n(?:[ \t].*\n)*(\S.*)", re.MULTILINE)
UNREACHED = re.compile(rf"^{UnreachableError.__module__}\.{UnreachableError.__name__}: (.*)", re.MULTILINE)


def cancellation(error: Exception | None) -> str | None:
    """Return Spark's words if the job was cancelled: by its group or tag, or on Spark's web page."""
    match = CANCELLED.search(str(error))
    return match[1] if match else None


def failed_task(error: Exception | None) -> tuple[int | None, str]:
    """Return the index of the task that Spark gave up, if Spark names it, and Spark's reason in one line."""
    text = str(error)
    match = re.search(r"Job aborted due to stage failure: [^\n]*", text)
    words = match[0] if match else " ".join(text.split("\n")[:2])
    # If a worker cannot even start, such as without NumPy, only its Python says why.
    if raised := outermost_error(text):
        words = f"{words[: max(0, MAX_CHARS - len(raised) - 1)]} {raised}"
    task = re.search(r"Task (\d+) in stage \S+ failed", words)
    return int(task[1]) if task else None, words[:MAX_CHARS]


def failure_message(rank: int, clock: int, traceback: str) -> str:
    """Return the message of the error that ends a run because a worker failed: what it raised, then the traceback."""
    return f"run: rank {rank} failed in clock {clock}: {outermost_error(traceback) or 'see below'}\n{traceback}"


def outermost_error(text: str) -> str | None:
    """Return the error line of a text's first traceback, after all tracebacks that led to it."""
    last, text = None, text[max(0, text.find("Traceback")) :]
    for match in RAISED.finditer(text):
        if last is not None and not LED_TO.search(text[last.end() : match.start()]):
            break
        last = match
    return last[1] if last else None


def unreachable_driver(message: str) -> ConfigError | None:
    """Return the run's error if a worker says that it could not reach the driver, else None."""
    match = UNREACHED.search(message)
    return ConfigError(f"run: {match[1]}") if match else None
