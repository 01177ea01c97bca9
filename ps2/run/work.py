"""A task of a run: takes its rank's place, calls the user's function, leaves."""

from __future__ import annotations

import itertools
import os
import socket
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import cloudpickle

from ps2.client.fleet import unseal
from ps2.client.send_scheduler import SendScheduler
from ps2.client.sessions import session_of
from ps2.client.task import RunIds, task_context, task_fleet
from ps2.config import WireConfig
from ps2.errors import LimitError, PS2Error, RolledBack
from ps2.protocol.plain_data import LIMIT_BYTES
from ps2.rpc.run_control import RunControl
from ps2.run.compiled import keep_compiled
from ps2.run.worker import RunRef, Worker

# What is said of an attempt that ends with the fleet's return to a checkpoint.
WENT_BACK = (
    "The fleet had gone back to a checkpoint, and this attempt cannot go on from there. The task's next one can, as "
    "long as Spark allows one: spark.task.maxFailures limits that; in local mode the F of local[N,F] does, by default "
    "1. With ps.run(..., read=) an attempt goes back by itself.\n"
)


@dataclass(frozen=True)
class Function:
    """The user's functions.

    Attributes:
        code: pickled, after the one that reads rows or None; unpickled where what goes wrong with it can be told.
        broadcasts: what of ``sc.broadcast`` it holds: Spark sends with a task what it meets when it pickles the task.
    """

    code: bytes
    broadcasts: tuple[Any, ...]


def work(ref: RunRef, function: Function, rows: Iterator[Any]) -> int:
    """Work as the task's rank; return it.

    Args:
        rows: what the function gets.
    """
    context: Any = task_context()
    rank = context.partitionId()
    session = session_of(ref.fleet)
    access = unseal(str(task_fleet()))
    control = RunControl(ref.address, access.run_token, WireConfig(tls=access.tls))
    try:
        place = control.join(rank, context.taskAttemptId(), socket.gethostname(), os.getpid())
        if place.done:
            return rank
        ids = RunIds(ref.series, ref.number, rank)
        worker = Worker(ref, rank, place, control, session, ids)
        with session.in_run(ids, SendScheduler.of(ref.priority, ref.bandwidth)), worker.reading():
            _call(worker, control, function, rows)
        return rank
    finally:
        control.close()


def _call(worker: Worker, control: RunControl, function: Function, rows: Iterator[Any]) -> None:
    keep_compiled()  # before the users' modules are imported
    try:
        rows = _some(rows, worker)
        read, work = cloudpickle.loads(function.code)

        def finish(held: Any) -> None:
            result = work(worker, held)
            worker._flush()
            pickled = _pickled(result, worker)
            control.leave(pickled, worker._lap(), worker._take_metrics())

        if read is None:
            finish(rows)  # Spark gives them once
        else:
            held = read(worker, rows)
            worker._again(lambda: finish(held))
    except (Exception, SystemExit) as error:
        if isinstance(error, LimitError):
            error = _FatalError(f"LimitError: rank {worker.rank} in clock {worker.clock}: {error}")
        fatal = isinstance(error, _FatalError)
        report = str(error) if fatal else "".join(traceback.format_exception(error))
        if not fatal and (worker.goesBack or isinstance(error, RolledBack)):
            report += WENT_BACK
        # If the run has ended, the driver has gone, or this is a child of the task: it is the error that counts.
        with suppress(PS2Error):
            worker._session.check_process()
            control.fail(report, worker._lap(), fatal, worker._take_metrics())
        raise


class _FatalError(Exception):
    """What another attempt would come to alike: the name of an error, and its message."""


def _some(rows: Iterator[Any], worker: Worker) -> Iterator[Any]:
    """Return the rows; a worker without any is a mistake that would pass for work."""
    for first in (rows := iter(rows)):
        return itertools.chain([first], rows)
    raise _FatalError(
        f"InputError: rank {worker.rank} of {worker.workers} has no rows: its rdd_partition is empty; use fewer "
        "workers, or repartition the data"
    )


def _pickled(result: Any, worker: Worker) -> bytes:
    try:
        pickled: bytes = cloudpickle.dumps(result)
    except Exception as error:  # a result may hold anything, and each thing fails in its own way
        raise _FatalError(
            f"WorkerError: rank {worker.rank} returned what cannot be pickled: {type(result).__name__}: {error}"
        ) from error
    if len(pickled) > LIMIT_BYTES:
        raise _FatalError(
            f"LimitError: rank {worker.rank} returned {len(pickled)} bytes (pickled), and a result may have "
            f"{LIMIT_BYTES}: keep what is large in a vector, or write it to a file and return its path"
        )
    return pickled
