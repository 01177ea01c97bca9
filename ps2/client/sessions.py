"""The sessions of this process, one a fleet: made when a task first uses one, or given by the coordinator."""

from __future__ import annotations

import os
import threading

from ps2.client.fleet import Access, FleetRef, unseal
from ps2.client.session import Session
from ps2.client.task import stopped_fleets, task_fleet
from ps2.errors import StoppedError, UsageError
from ps2.wire.transport import GrpcTransport

_lock = threading.Lock()
_sessions: dict[tuple[int, str], Session] = {}  # by process: workers fork, and a channel does not survive that
_stopped: set[str] = set()
_current: str | None = None


def install(session: Session) -> None:
    """Make a session this process's current one (the coordinator does, in the driver)."""
    global _current
    with _lock:
        _sessions[os.getpid(), session.fleet.id] = session
        _current = session.fleet.id


def uninstall(fleet_id: str) -> None:
    """Close a session for good: handles of its fleet raise StoppedError from now on."""
    global _current
    with _lock:
        session = _sessions.pop((os.getpid(), fleet_id), None)
        _stopped.add(fleet_id)
        if _current == fleet_id:
            _current = None
    if session is not None:
        session.close()


def session_of(fleet: FleetRef) -> Session:
    """Return this process's session with a handle's fleet, made at its first use.

    Raises:
        StoppedError: its context was stopped.
        UsageError: this process has no access to that fleet.
    """
    with _lock:
        if fleet.id in _stopped or fleet.id in stopped_fleets():
            raise StoppedError(f"the PS2Context of this vector (fleet {fleet.id}) was stopped")
        session = _sessions.get((os.getpid(), fleet.id))
        if session is not None:
            return session
        access = _from_task()
        if access.fleet.id != fleet.id:
            raise UsageError(f"this vector is of fleet {fleet.id}, this task's context drives fleet {access.fleet.id}")
        return _open(fleet, access.token)


def current_session() -> Session:
    """Return the session that new vectors are made in."""
    with _lock:
        if _current is not None and (session := _sessions.get((os.getpid(), _current))) is not None:
            return session
        access = _from_task()
        return _sessions.get((os.getpid(), access.fleet.id)) or _open(access.fleet, access.token)


def flush() -> None:
    """Wait until all additions of this process made with ``wait=False`` are applied; raise what failed of them."""
    current_session().flush()


def _from_task() -> Access:
    text = task_fleet()
    if text is None:
        raise StoppedError(
            "there is no PS2Context here: call PS2Context.getOrCreate(spark, ...) in the driver first; vectors work in "
            "the driver and in the tasks of its jobs"
        )
    return unseal(text)


def _open(fleet: FleetRef, token: str | None) -> Session:
    session = Session(fleet, GrpcTransport(token))
    _sessions[os.getpid(), fleet.id] = session
    return session
