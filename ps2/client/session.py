"""One process's connection to one fleet: sends plans, retries what may pass by itself, asks the master for rows."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ps2.client.fleet import FleetRef, unseal
from ps2.client.keysets import KnownKeys
from ps2.client.outbox import Mutation, Outbox
from ps2.client.plans import Plan
from ps2.client.requests import Piece, cut, group
from ps2.client.task import MutationIds, stopped_fleets, task_fleet
from ps2.config import RetryConfig, WireConfig
from ps2.errors import KeyMissError, PS2Error, StoppedError, TransientError, UnavailableError, UsageError
from ps2.partition import MatrixSpec
from ps2.route import Route
from ps2.wire.control import MasterControl, MatrixInfo
from ps2.wire.messages import RequestId, Result
from ps2.wire.transport import GrpcTransport, Transport

Results = list[list[Result | None]]


@dataclass(eq=False)
class Session:
    """Safe for threads. ``close`` it when done; a closed one raises StoppedError."""

    fleet: FleetRef
    transport: Transport
    retry: RetryConfig = field(default_factory=RetryConfig)
    wire: WireConfig = field(default_factory=WireConfig)

    def __post_init__(self) -> None:
        self._master = MasterControl(self.transport, self.fleet.master)
        self._ids = MutationIds(self.fleet.id)
        self._routes: dict[int, Route] = {}
        self._known = KnownKeys()
        self._outbox = Outbox(self._send_mutations)
        # Rows of handles that were garbage-collected; the collector may run anywhere, so it only notes them here.
        self._dropped: deque[tuple[int, int]] = deque()

    def run(self, plans: Sequence[Plan[Any]]) -> list[Any]:
        """Run plans in order, as one request a server, and return what each of them comes to.

        All servers work at the same time. A plan that changes data is applied once, however often it is sent. What
        takes more than ``wire.block_bytes`` on a server travels as several requests, each applied by itself.
        """
        self.flush()
        self._note_routes(plans)
        id = self._ids.next() if any(plan.mutates for plan in plans) else None
        try:
            results = self._send(plans, id)
        finally:
            if id is not None:
                self._ids.done(id)
        return [plan.merge(found) for plan, found in zip(plans, results, strict=True)]  # type: ignore[arg-type]

    def run_later(self, plan: Plan[Any]) -> None:
        """Run a plan that changes data, and whose arrays nobody changes, while the caller goes on.

        Plans run in no particular order among themselves, and before any that ``run`` is given later.
        """
        self._note_routes([plan])
        self._outbox.put(plan, self._ids.next())

    def flush(self) -> None:
        """Wait for what ``run_later`` was given; raise if any of it failed."""
        self._outbox.flush()

    def new_matrix(self, spec: MatrixSpec) -> MatrixInfo:
        """Make a matrix; its row 0 is handed out."""
        self._release_dropped()
        return self._remember(self._master.new_matrix(spec))

    def matrix(self, matrix: int) -> MatrixInfo:
        return self._remember(self._master.matrix(matrix))

    def take_rows(self, matrix: int, count: int = 0, reserved: bool = False) -> list[int]:
        """Get rows of a matrix, as zeros: ``count`` of them, or all that are reserved and not in use."""
        self._release_dropped()
        return self._master.take_rows(matrix, count, reserved)

    def free_rows(self, matrix: int, rows: Sequence[int]) -> None:
        self._outbox.drain()  # it may still be about these rows
        self._master.free_rows(matrix, rows)

    def drop(self, matrix: int, rows: Sequence[int]) -> None:
        """Note rows whose last handle is gone; they are freed with the next call for rows."""
        self._dropped.extend((matrix, row) for row in rows)

    def close(self) -> None:
        self.transport.close()

    def _send(self, plans: Sequence[Plan[Any]], id: RequestId | None) -> Results:
        """Send the operations of plans until all are answered; return the results by plan."""
        results: Results = [[None] * len(plan.operations) for plan in plans]
        pieces = cut(plans, self._routes, self.wire.block_bytes, id)
        if len(plans) == 1:
            self._send_pieces(pieces, results)
        else:
            # Later calls may build on earlier ones, so no request goes out before those it follows are answered.
            for part in range(max((piece.part for piece in pieces), default=-1) + 1):
                self._send_pieces([piece for piece in pieces if piece.part == part], results)
        return results

    def _send_mutations(self, mutations: Sequence[Mutation]) -> list[PS2Error]:
        """Send plans that do not depend on each other, all at once; return the errors of those that failed."""
        results: Results = [[None] * len(plan.operations) for plan, _ in mutations]
        errors: list[PS2Error] = []
        try:
            self._send_pieces(
                [
                    piece
                    for number, (plan, id) in enumerate(mutations)
                    for piece in cut([plan], self._routes, self.wire.block_bytes, id, number)
                ],
                results,
            )
        except PS2Error:
            # Which one failed, and have the others been applied? Their ids let each be sent again by itself.
            for plan, id in mutations:
                try:
                    self._send([plan], id)
                except PS2Error as error:
                    errors.append(error)
        finally:
            for _, id in mutations:
                self._ids.done(id)
        return errors

    def _note_routes(self, plans: Sequence[Plan[Any]]) -> None:
        for plan in plans:
            known = self._routes.get(plan.matrix)
            if known is None or known.version < plan.route.version:
                self._routes[plan.matrix] = plan.route

    def _send_pieces(self, pieces: Sequence[Piece], results: Results) -> None:
        """Send pieces, again and again where it may help, until all have brought their results."""
        deadline_s: float | None = None
        pause_s = self.retry.first_pause_s
        while pieces:
            pieces, error = self._attempt(pieces, results)
            if error is None or isinstance(error, KeyMissError):
                continue
            now_s = time.monotonic()
            deadline_s = deadline_s or now_s + self.retry.total_s
            if now_s + pause_s > deadline_s:
                raise error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, self.retry.longest_pause_s)
            self._refresh({piece.operation.matrix for piece in pieces}, error)

    def _attempt(self, pieces: Sequence[Piece], results: Results) -> tuple[list[Piece], TransientError | None]:
        """Send pieces to their servers; return those to send again, with the error that is why."""
        requests = group(pieces, self._routes)
        outcomes = self.transport.exchange(
            {address: [self._known.shorten(request) for _, request in mine] for address, mine in requests.items()}
        )
        again: list[Piece] = []
        transient: TransientError | None = None
        final: PS2Error | None = None
        for address, mine in requests.items():
            for (sent, request), outcome in zip(mine, outcomes[address], strict=True):
                if isinstance(outcome, KeyMissError):
                    self._known.forget(request)
                    again += sent
                    transient = transient or outcome
                elif isinstance(outcome, TransientError):
                    again += sent
                    transient = outcome
                elif isinstance(outcome, PS2Error):
                    final = final or outcome
                else:
                    self._known.add(request)
                    for piece, result in zip(sent, outcome.results, strict=True):
                        results[piece.plan][piece.position] = result
        if final is not None:
            raise final
        return again, transient

    def _refresh(self, matrices: set[int], error: TransientError) -> None:
        """Ask the master where the matrices are now; raise at once if it says that they are nowhere."""
        for matrix in matrices:
            try:
                info = self.matrix(matrix)
            except TransientError as unreachable:
                raise UnavailableError(f"{error}; nor does the master answer: {unreachable}") from error
            if info.lost:
                raise UnavailableError(f"{'; '.join(info.lost)}; {error}") from error

    def _remember(self, info: MatrixInfo) -> MatrixInfo:
        self._routes[info.id] = info.route
        return info

    def _release_dropped(self) -> None:
        if self._dropped:
            self._outbox.drain()  # it may still be about these rows
        by_matrix: dict[int, list[int]] = {}
        with contextlib.suppress(IndexError):  # it is empty, or another thread has just emptied it
            while True:
                matrix, row = self._dropped.popleft()
                by_matrix.setdefault(matrix, []).append(row)
        for matrix, rows in by_matrix.items():
            self.free_rows(matrix, rows)


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
        given, token = _from_task()
        if given.id != fleet.id:
            raise UsageError(f"this vector is of fleet {fleet.id}, this task's context drives fleet {given.id}")
        return _open(fleet, token)


def current_session() -> Session:
    """Return the session that new vectors are made in."""
    with _lock:
        if _current is not None and (session := _sessions.get((os.getpid(), _current))) is not None:
            return session
        fleet, token = _from_task()
        return _sessions.get((os.getpid(), fleet.id)) or _open(fleet, token)


def flush() -> None:
    """Wait until all additions of this process made with ``wait=False`` are applied; raise what failed of them."""
    current_session().flush()


def _from_task() -> tuple[FleetRef, str | None]:
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
