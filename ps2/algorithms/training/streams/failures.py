"""Find the cause of a batch's failure, and whether another attempt can succeed. Pure."""

from __future__ import annotations

import re

from ps2.errors import PS2Error, RolledBack, TransientError, UnavailableError, WorkerError
from ps2.run.spark.errors import MAX_CHARS, cancellation, error_class, failed_task, outermost_error

# Messages of Spark and Java about lost executors, Python workers and connections.
LOST = re.compile(
    r"ExecutorLostFailure|FetchFailed|TaskResultLost|RpcTimeoutException|ClosedChannelException"
    r"|Python worker (?:exited unexpectedly|failed to connect back)|java\.io\.EOFException"
    r"|java\.net\.(?:Connect|NoRouteToHost|Socket|SocketTimeout|UnknownHost)Exception"
    r"|java\.io\.IOException: (?:Broken pipe|Connection reset)"
)
# The cause in Spark's message about a query that has ended. Group 1 lacks ids and the error's class.
ENDED = re.compile(r"terminated with exception: (?:\[\w+(?:\.\w+)*\] )?(.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
# The Java error in the driver for a job whose query was stopped.
INTERRUPTED = re.compile(
    r"^: java\.(?:lang\.InterruptedException|io\.InterruptedIOException|nio\.channels\.ClosedByInterruptException)",
    re.MULTILINE,
)
# The names of Python's network exceptions, which user functions in the stream's DataFrame can raise in tasks.
NETWORK_ERRORS = frozenset(
    {
        "BrokenPipeError",
        "ConnectionAbortedError",
        "ConnectionError",
        "ConnectionRefusedError",
        "ConnectionResetError",
        "TimeoutError",
        "gaierror",
    }
)


def is_repeatable(failure: Exception) -> bool:
    """Return whether another attempt can succeed, because a server, an executor or a connection was lost.

    Other failures would occur again: faulty rows, an error in a user's function, a bug.
    """
    return isinstance(failure, (TransientError, RolledBack, ConnectionError, TimeoutError))


def is_stopped(error: Exception) -> bool:
    """Return whether a batch's Spark job ended because the user has cancelled it or stopped Spark's query."""
    return cancellation(error) is not None or INTERRUPTED.search(str(error)) is not None


def job_failure(error: Exception, batch: int) -> PS2Error:
    """Return a one-line error for a batch's failed Spark job, with the exception of a task if a task raised one."""
    text = str(error)
    task_error = outermost_error(text)
    if task_error is None:
        summary = f"batch {batch}: Spark's job failed: {failed_task(error)[1]}"
        return UnavailableError(summary) if LOST.search(text) else WorkerError(summary)
    name, _, message = task_error.partition(": ")
    ps2_class = error_class(name)
    if ps2_class is not None:
        return ps2_class(f"batch {batch}: {message}")
    summary = f"batch {batch}: a task raised {task_error}"
    return UnavailableError(summary) if name.rpartition(".")[2] in NETWORK_ERRORS else WorkerError(summary)


def query_failure(error: Exception, learned: int) -> PS2Error:
    """Return a one-line error for Spark's query, which failed after batch ``learned``."""
    text = str(error)
    match = ENDED.search(text)
    cause = match[1] if match else text.partition("\n")[0]
    summary = f"after batch {learned}: Spark's query failed: {cause[:MAX_CHARS]}"
    return UnavailableError(summary) if LOST.search(text) else WorkerError(summary)
