"""Why a batch failed, and whether it may succeed another time. Pure: it reads what Spark says of a job."""

from __future__ import annotations

import re

from ps2 import errors
from ps2.errors import PS2Error, RolledBack, TransientError, UnavailableError, WorkerError
from ps2.run.spark_errors import failed_task, outermost

# What Spark and Java say of executors, Python workers and connections that are gone.
LOST = re.compile(
    r"ExecutorLostFailure|FetchFailed|TaskResultLost|RpcTimeoutException|ClosedChannelException"
    r"|Python worker (?:exited unexpectedly|failed to connect back)|java\.io\.EOFException"
    r"|java\.net\.(?:Connect|NoRouteToHost|Socket|SocketTimeout|UnknownHost)Exception"
    r"|java\.io\.IOException: (?:Broken pipe|Connection reset)"
)
# Python's exceptions of a network, by name: a user's function in the stream's frame may raise them, too.
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
    """Return whether a batch may succeed another time: a server, an executor or a connection was lost.

    What else fails would fail again: rows, a user's function, a program's error.
    """
    return isinstance(failure, (TransientError, RolledBack, ConnectionError, TimeoutError))


def job_failure(error: Exception, batch: int) -> PS2Error:
    """Return the error that says in one line why a batch's Spark job failed: what a task raised, if one did.

    Args:
        error: of Spark or py4j; its text ends with stack traces of Java.
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
    """Return the error of PS2 with a qualified name; None if there is none."""
    module, _, own = name.rpartition(".")
    found = getattr(errors, own, None) if module == errors.__name__ else None
    return found if isinstance(found, type) and issubclass(found, PS2Error) else None
