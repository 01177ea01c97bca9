"""Classifies failures of a batch: the cause, and whether another attempt may succeed. Pure."""

from __future__ import annotations

import re

from ps2.errors import PS2Error, RolledBack, TransientError, UnavailableError, WorkerError
from ps2.run.spark.errors import MAX_CHARS, cancellation, error_class, failed_task, outermost_error

# Messages of Spark and Java about executors, Python workers and connections that are lost.
LOST = re.compile(
    r"ExecutorLostFailure|FetchFailed|TaskResultLost|RpcTimeoutException|ClosedChannelException"
    r"|Python worker (?:exited unexpectedly|failed to connect back)|java\.io\.EOFException"
    r"|java\.net\.(?:Connect|NoRouteToHost|Socket|SocketTimeout|UnknownHost)Exception"
    r"|java\.io\.IOException: (?:Broken pipe|Connection reset)"
)
# The cause in Spark's words about a query that has ended, without its ids and its class of errors.
ENDED = re.compile(r"terminated with exception: (?:\[\w+(?:\.\w+)*\] )?(.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
# The error of the driver's Java for a job whose query was stopped.
INTERRUPTED = re.compile(
    r"^: java\.(?:lang\.InterruptedException|io\.InterruptedIOException|nio\.channels\.ClosedByInterruptException)",
    re.MULTILINE,
)
# Names of Python's network exceptions: a user's function in the stream's DataFrame may raise them, too.
OF_NETWORK = frozenset(
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
    """Return True if another attempt may succeed: a server, an executor or a connection was lost.

    Other failures would occur again: wrong rows, an error in a user's function, a bug.
    """
    return isinstance(failure, (TransientError, RolledBack, ConnectionError, TimeoutError))


def is_stopped(error: Exception) -> bool:
    """Return whether a batch's Spark job ended because the user has cancelled it, or has stopped Spark's query."""
    return cancellation(error) is not None or INTERRUPTED.search(str(error)) is not None


def job_failure(error: Exception, batch: int) -> PS2Error:
    """Return an error that says in one line why a batch's Spark job failed: the exception of a task, if one raised."""
    text = str(error)
    raised = outermost_error(text)
    if raised is None:
        words = f"batch {batch}: Spark's job failed: {failed_task(error)[1]}"
        return UnavailableError(words) if LOST.search(text) else WorkerError(words)
    name, _, message = raised.partition(": ")
    known = error_class(name)
    if known is not None:
        return known(f"batch {batch}: {message}")
    words = f"batch {batch}: a task raised {raised}"
    return UnavailableError(words) if name.rpartition(".")[2] in OF_NETWORK else WorkerError(words)


def query_failure(error: Exception, learned: int) -> PS2Error:
    """Return an error that says in one line why Spark's query failed after batch ``learned``: source, or checkpoint."""
    text = str(error)
    match = ENDED.search(text)
    cause = match[1] if match else text.partition("\n")[0]
    words = f"after batch {learned}: Spark's query failed: {cause[:MAX_CHARS]}"
    return UnavailableError(words) if LOST.search(text) else WorkerError(words)
