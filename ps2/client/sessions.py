"""The sessions of this process, one per fleet: created at a task's first use, or installed by the coordinator.

A child process of a task has no session. Its updates would need their own mutation ids, and another attempt of the task
could not repeat these ids, because it might start other processes.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import threading
from dataclasses import replace

from ps2.client.dispatch import check_process
from ps2.client.fleet import Access, FleetRef, unseal
from ps2.client.network import FleetNetwork
from ps2.client.session import Session
from ps2.client.task import (
    ACCESS_VARIABLE,
    is_later_attempt,
    stopped_fleets,
    task_access,
    task_context,
    task_fleet,
)
from ps2.config import RetryConfig, WireConfig
from ps2.errors import StoppedError
from ps2.interrupts import shielded
from ps2.ops.modules import load_modules

NO_CONTEXT = (
    "there is no PS2Context here: call PS2Context.getOrCreate(spark, ...) in the driver first; vectors work in the "
    "driver and in the tasks of its jobs. A task that creates vectors finds the context by the first vector in its "
    "closure, or by the driver's thread that submitted it: call PS2Context.getOrCreate(spark) in that thread"
)

_lock = threading.Lock()
_sessions: dict[tuple[int, str], Session] = {}  # by process id and fleet id: channels do not survive a fork
_stopped: set[str] = set()
_current: str | None = None
# The process id of the parent whose sessions this process inherited by fork; 0: this process may open sessions.
_forked_from = 0


@shielded
def install(session: Session) -> None:
    """Make a session the current session of this process. The coordinator calls this in the driver."""
    global _current
    with _lock:
        _sessions[os.getpid(), session.fleet.id] = session
        _current = session.fleet.id


@shielded
def uninstall(fleet_id: str) -> None:
    """Close a session. Afterwards, handles of its fleet raise StoppedError."""
    global _current
    with _lock:
        session = _sessions.pop((os.getpid(), fleet_id), None)
        _stopped.add(fleet_id)
        if _current == fleet_id:
            _current = None
    if session is not None:
        session.close()


def session_of(fleet: FleetRef) -> Session:
    """Return this process's session with a handle's fleet; create it at first use."""
    with _lock:
        if fleet.id in _stopped or fleet.id in stopped_fleets():
            raise StoppedError(f"the PS2Context of this vector (fleet {fleet.id}) was stopped")
        session = _sessions.get((os.getpid(), fleet.id))
        if session is not None:
            return session
        return _open(fleet, _access())


def current_session() -> Session:
    """Return the session in which new vectors are created."""
    with _lock:
        if _current is not None and (session := _sessions.get((os.getpid(), _current))) is not None:
            return session
        own_sessions = [session for (pid, _), session in _sessions.items() if pid == os.getpid()]
        in_run = next((session for session in own_sessions if session.ids.run), None)
        if in_run is not None:
            return in_run
        access, fleet = _access(), task_fleet()
        if fleet is None:
            raise StoppedError(NO_CONTEXT)
        return _sessions.get((os.getpid(), fleet.id)) or _open(fleet, access)


def flush() -> None:
    """Wait until all ``wait=False`` additions of this process are applied; raise the first error among them."""
    current_session().dispatch.flush()


def _access() -> Access:
    if _forked_from:
        check_process(_forked_from)
    text = task_access()
    if text is None and ACCESS_VARIABLE in os.environ:  # a spawned child has the worker's environment
        check_process(os.getppid())
    if text is None:
        raise StoppedError(NO_CONTEXT)
    return unseal(text)


def _open(fleet: FleetRef, access: Access) -> Session:
    """Open a task's session. Close sessions of earlier tasks, because a driver has one context at a time."""
    token = access.fleet_token(fleet)
    load_modules(fleet.ops)
    for key in [key for key in _sessions if key[0] == os.getpid()]:
        _sessions.pop(key).close()
    # The token is the fleet's (``sure``): the driver's servers have proven that they know it.
    wire = WireConfig(tls=access.tls)
    if is_later_attempt():
        wire = replace(wire, connect_s=RetryConfig.later_connect_s)
    session = Session(fleet, FleetNetwork(token, wire, has_addresses_of_driver=True))
    _sessions[os.getpid(), fleet.id] = session
    return session


def _record_fork() -> None:
    """In a forked child, record a parent that is a task or driver. pyspark's daemon, which forks workers, is not."""
    global _forked_from, _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    if _sessions or task_context() is not None:
        _forked_from = _forked_from or os.getppid()
        # Garbage collection must not free gRPC objects of the parent: gRPC would abort, because its threads do not
        # exist in the child.
        gc.freeze()


def _is_child_of_task() -> bool:
    """Return True if a running task started this process before the process imported this module."""
    if task_context() is None:
        return False
    main = getattr(sys.modules["__main__"], "__spec__", None)
    # The daemon leads the process group of its workers.
    forked_by_daemon = main is None or main.name != "pyspark.daemon" or os.getppid() == os.getpgrp()
    return multiprocessing.parent_process() is not None or not forked_by_daemon


if _is_child_of_task():
    _forked_from = os.getppid()
os.register_at_fork(after_in_child=_record_fork)
