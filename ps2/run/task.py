"""A Spark task of a run, which is a worker: it acquires its rank, calls the user's function, and sends the result."""

from __future__ import annotations

import itertools
import logging
import os
import resource
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import cloudpickle

from ps2.client.fleet import unseal
from ps2.client.sessions import session_of
from ps2.client.task import RunIds, task_access, task_context
from ps2.config import WireConfig
from ps2.errors import InputError, LimitError, PS2Error, RolledBack, RunEndedError, WorkerError
from ps2.logs import JSON, JsonLog
from ps2.protocol.plain_data import LIMIT_BYTES
from ps2.rpc.run_control import RunControl, StartTimes
from ps2.run.clock_loop import LOG_INTERVAL_S, ClockLoop, RunRef
from ps2.run.compiled import measure_kernel_loads, share_compiled_functions
from ps2.run.spark.errors import MIN_WORKER_MEMORY, NO_ADDRESS_SPACE, failure_message
from ps2.run.worker import Worker
from ps2.run.worker_log import LineCollector

# True until the first task of a run begins in this process.
_is_fresh = True

# Appended to the error of an attempt that ends because the fleet has rolled back.
ROLLED_BACK = (
    "The fleet had rolled back to a checkpoint, and this attempt cannot resume from there. The task's next attempt "
    "can, if Spark allows one: the limit is spark.task.maxFailures, or in local mode the F of local[N,F], by default "
    "1. With ps.run(..., read=) the same attempt can resume.\n"
)

# The stack size of threads in a worker whose address space is limited. By default, Linux reserves 8 MiB each.
STACK_BYTES = 1 << 20
# Appended to the error of an attempt that has no memory left.
NO_MEMORY = (
    "This Python worker could not allocate more memory: {limit}. Use more workers, so that each has fewer rows, or "
    "give them more memory; rows can also be in files (spill of linear models, worker.keep).\n"
)


@dataclass(frozen=True)
class Function:
    """The user's functions.

    Attributes:
        code: the pickled pair (``read`` or None, ``worker_fn``). The task unpickles it itself, to report errors.
        broadcasts: the broadcast variables in ``code``. Spark looks for them when it pickles the task.
    """

    code: bytes
    broadcasts: tuple[Any, ...]


def run_task(ref: RunRef, function: Function, rows: Iterator[Any]) -> int:
    """Run a worker to its end; return its rank."""
    began_s, ages_s = time.monotonic(), _python_ages_s()
    context: Any = task_context()
    rank = context.partitionId()
    session = session_of(ref.fleet)
    access = unseal(str(task_access()))
    control = RunControl(ref.address, access.run_token(ref.fleet), WireConfig(tls=access.tls))
    try:
        start = StartTimes(*ages_s, time.monotonic() - began_s)
        joined = control.join(rank, context.taskAttemptId(), socket.gethostname(), os.getpid(), start)
        if joined.done:
            return rank
        ids = RunIds(ref.series, ref.number, rank)
        loop = ClockLoop(ref, rank, joined, control, session, ids)
        with _logging(loop), session.in_run(ids), loop.prefetching():
            _call(loop, function, rows, ref.retries)
        return rank
    except RunEndedError:
        # The driver has the error that ended the run. Spark would log this one for each worker, with a traceback.
        return rank
    finally:
        control.close()


def _python_ages_s() -> tuple[float, float]:
    """Return the ages of this process and of its daemon, in seconds; zeros after the first task in this process."""
    global _is_fresh
    was_fresh, _is_fresh = _is_fresh, False
    return python_ages_s() if was_fresh else (0.0, 0.0)


@contextmanager
def _logging(loop: ClockLoop) -> Iterator[None]:
    """Send warnings that this process logs to the driver; print all lines in the driver's format."""
    thread = threading.get_ident()

    def send(logger: str) -> None:
        """If the last message is old, send a line at once, unless PS2 logged it: PS2 may hold locks when it logs."""
        is_free = threading.get_ident() == thread and not loop.control.is_asking and not logger.startswith("ps2")
        if is_free and time.monotonic() - loop.last_message_s > LOG_INTERVAL_S:
            with suppress(PS2Error):  # the next request raises the error again
                loop.control.send_metrics(loop.take_metrics())

    def fields() -> dict[str, object]:
        return {"fleet": loop.ref.fleet.id, "run": loop.ref.number, "rank": loop.rank, "clock": loop.clock}

    collector = LineCollector(lambda: loop.clock, send)
    loop.control.take_lines = collector.take
    lines = JsonLog(fields, logger="", level=logging.WARNING)
    if loop.ref.log_format == JSON:
        lines.open()
    try:
        with collector.collecting():
            yield
    finally:
        lines.close()


def _call(loop: ClockLoop, function: Function, rows: Iterator[Any], retries: bool) -> None:
    worker = Worker(loop)
    if _has_memory_limit():
        threading.stack_size(STACK_BYTES)
    share_compiled_functions()  # before the users' modules are imported
    measure_kernel_loads(loop.session.stopwatch)
    try:
        rows = _nonempty(rows, worker)
        with loop.session.stopwatch.running("imports"):
            read, worker_fn = cloudpickle.loads(function.code)

        def finish(data: Any) -> None:
            result = worker_fn(worker, data)
            loop.flush()
            pickled = _pickled(result, worker)
            loop.control.leave(pickled, loop.lap(), loop.take_metrics())

        if read is None:
            finish(rows)  # Spark provides the rows only once, so the work cannot be repeated
        else:
            data = read(worker, rows)
            loop.run_with_rollbacks(lambda: finish(data))
    except _UnreadRowsError:
        raise  # Spark's own error has the reason
    except (Exception, SystemExit) as error:
        for kind in (InputError, LimitError, WorkerError):
            if isinstance(error, kind):
                error = _FatalError(f"{kind.__name__}: rank {worker.rank} in clock {worker.clock}: {error}")
        fatal, is_rollback = isinstance(error, _FatalError), worker.goesBack or isinstance(error, RolledBack)
        report = str(error) if fatal else "".join(traceback.format_exception(error))
        if not fatal and is_rollback:
            report += ROLLED_BACK
        if isinstance(error, MemoryError) or (_has_memory_limit() and NO_ADDRESS_SPACE.search(repr(error))):
            report += NO_MEMORY.format(limit=_memory_limit())
        # Sending fails if the run or the driver has ended, or in a child process of the task.
        is_reported = False
        with suppress(PS2Error):
            loop.session.dispatch.check_process()
            times = loop.lap()
            if not (fatal or is_rollback or retries):
                fatal, report = True, f"WorkerError: {failure_message(worker.rank, times.clock, report)}"
            loop.control.fail(report, times, fatal, loop.take_metrics())
            is_reported = True
        if is_reported and fatal:
            # The driver raises this error. Spark would log it for each worker, inside a stack trace of Java.
            raise RunEndedError("the driver has the error that ends the run") from error
        raise


def _has_memory_limit() -> bool:
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def _memory_limit() -> str:
    """Describe the limit of this process's memory."""
    if not _has_memory_limit():
        return "the machine has no free memory"
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return (
        f"spark.executor.pyspark.memory, or another limit of the address space, allows {limit:,} bytes, and a worker "
        f"needs at least {MIN_WORKER_MEMORY} and the size of its rows"
    )


class _FatalError(Exception):
    """An error that every later attempt would raise again; its text is "class: message"."""


class _UnreadRowsError(Exception):
    """A task's rows cannot be read, because their computation has failed."""


def _nonempty(rows: Iterator[Any], worker: Worker) -> Iterator[Any]:
    """Return the rows; raise _FatalError if there are none. Without rows, ``worker_fn`` could silently do nothing."""
    from pyarrow import ArrowInvalid

    try:
        for first in (rows := iter(rows)):
            return itertools.chain([first], rows)
    except ArrowInvalid as error:  # Spark has closed the stream of rows before its first message
        raise _UnreadRowsError("the rows were not computed") from error
    if worker.workers == 1:
        raise _FatalError("InputError: the data have no rows: a worker needs at least one")
    raise _FatalError(
        f"InputError: rank {worker.rank} of {worker.workers} has no rows: its partition of the data is empty; use "
        "fewer workers, or repartition the data"
    )


def _pickled(result: Any, worker: Worker) -> bytes:
    try:
        pickled: bytes = cloudpickle.dumps(result)
    except Exception as error:  # a result can hold any object, which can raise anything
        raise _FatalError(
            f"WorkerError: rank {worker.rank} returned a {type(result).__name__} that cannot be pickled: {error}"
        ) from error
    if len(pickled) > LIMIT_BYTES:
        raise _FatalError(
            f"LimitError: rank {worker.rank}: expected a result of at most {LIMIT_BYTES:,} bytes (pickled), got "
            f"{len(pickled):,}: keep large data in a vector, or write them to a file and return its path"
        )
    return pickled


# The index of the process's start, in clock ticks, among the fields of /proc/PID/stat after the process's name.
START_TICKS = 19


def python_ages_s() -> tuple[float, float]:
    """Return the ages of this process and of the Python process that forked it, if any; 0.0 if unknown (not Linux)."""
    parent = _stat(os.getppid())
    return _age_s(_stat(os.getpid())), _age_s(parent) if parent is not None and parent[0].startswith("python") else 0.0


def _age_s(stat: tuple[str, list[str]] | None) -> float:
    if stat is None:
        return 0.0
    started_s = int(stat[1][START_TICKS]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)


def _stat(pid: int) -> tuple[str, list[str]] | None:
    """Return the name of a process, and the fields of /proc/PID/stat after the name."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            head, _, fields = file.read().rpartition(")")
    except OSError:
        return None
    return head.partition("(")[2], fields.split()
