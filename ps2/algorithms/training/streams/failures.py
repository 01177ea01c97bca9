"""Classifies failures of a batch: the cause, and whether another attempt may succeed. Pure."""

from __future__ import annotations

import re

from ps2 import errors
from ps2.errors import PS2Error, RolledBack, TransientError, UnavailableError, WorkerError
from ps2.run.spark_errors import failed_task, outermost

# Messages of Spark and Java about executors, Python workers and connections that are lost.
LOST = re.compile(
    r"ExecutorLostFailure|FetchFailed|TaskResultLost|RpcTimeoutException|ClosedChannelException"
    r"|Python worker (?:exited unexpectedly|failed to connect back)|java\.io\.EOFException"
    r"|java\.net\.(?:Connect|NoRouteToHost|Socket|SocketTimeout|UnknownHost)Exception"
    r"|java\.io\.IOException: (?:Broken pipe|Connection reset)"
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


def job_failure(error: Exception, batch: int) -> PS2Error:
    """Return an error that says in one line why a batch's Spark job failed: the exception of a task, if one raised.

    Args:
        error: an exception of Spark or py4j, whose text ends with Java's stack traces.
    """
    text = str(error)
    raised = outermost(text)
    if raised is None:
        words = f"batch {batch}: Spark's job failed: {failed_task(error)[1]}"
        return UnavailableError(words) if LOST.search(text) else WorkerError(words)
    name, _, said = raised.partition(": ")
    known = _class_named(name)
    if known is not None:
        return known(f"batch {batch}: {said}")
    words = f"batch {batch}: a task raised {raised}"
    return UnavailableError(words) if name.rpartition(".")[2] in OF_NETWORK else WorkerError(words)


def _class_named(name: str) -> type[PS2Error] | None:
    """Return PS2's error class with this qualified name; None if it has none."""
    module, _, own = name.rpartition(".")
    found = getattr(errors, own, None) if module == errors.__name__ else None
    return found if isinstance(found, type) and issubclass(found, PS2Error) else None
