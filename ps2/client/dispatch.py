"""Sends plans: a call becomes at most one request per server, is retried until it is answered, and is applied once.

The common call takes the fast path: one request per server, sent directly on a pooled connection. Larger calls are cut
into pieces (``ps2.client.requests``). A failed request is retried under the same id.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ps2.client.async_writer import AsyncWriter, Mutation
from ps2.client.keysets import ServerKeySets
from ps2.client.plans import Plan
from ps2.client.read_your_writes import ReadYourWrites, is_plain
from ps2.client.requests import Piece, PositionedRequest, cut, group
from ps2.client.retry import RetryPolicy, RollbackTracker
from ps2.client.stopwatch import Stopwatch
from ps2.config import RetryConfig, WireConfig
from ps2.errors import (
    BusyError,
    KeyMissError,
    LimitError,
    LostError,
    PS2Error,
    RolledBack,
    TransientError,
    UsageError,
)
from ps2.interrupts import SHIELD, shielded
from ps2.matrix.route import Route
from ps2.ops.all import has_answer
from ps2.protocol.messages import Request, RequestId, Result
from ps2.rpc.control import Network
from ps2.rpc.master_control import MatrixInfo

T = TypeVar("T")

# Results by plan and operation; None until the operation's server has answered.
Results = list[list[Result | None]]

# Beyond this number of routes, the oldest one is dropped. Every call on a handle stores the route of its matrix again.
MAX_ROUTES = 4096


class Routes:
    """The routes of matrices. Thread-safe.

    Attributes:
        version: the newest route version seen of any matrix.
    """

    def __init__(self) -> None:
        self.by_matrix: dict[int, Route] = {}
        self.version = 0
        self._lock = threading.Lock()

    def store(self, matrix: int, route: Route) -> None:
        with self._lock:
            self.by_matrix[matrix] = route
            self.version = max(self.version, route.version)
            if len(self.by_matrix) > MAX_ROUTES:
                del self.by_matrix[next(iter(self.by_matrix))]

    def newest(self, matrix: int, route: Route) -> Route:
        """Return the newer of the stored route and the handle's route, because an old handle may have a stale route."""
        stored = self.by_matrix.get(matrix)
        if stored is not None and stored.version >= route.version:
            return stored
        self.store(matrix, route)
        return route


@dataclass(frozen=True)
class Locator:
    """Asks the master for a matrix by its id, once or with retries; ``Dispatch.routes`` stores the answers."""

    ask_once: Callable[[int], MatrixInfo]
    ask_with_retries: Callable[[int], MatrixInfo]


class Dispatch:
    """Sends the plans of one session. Thread-safe."""

    def __init__(
        self, network: Network, retry: RetryConfig, wire: WireConfig, rollbacks: RollbackTracker, locator: Locator
    ) -> None:
        self.network = network
        self.retry = retry
        self.wire = wire
        self.rollbacks = rollbacks
        self.routes = Routes()
        self.writer = AsyncWriter(self._send_all, rollbacks)
        self.stopwatch = Stopwatch()
        self.key_sets = ServerKeySets()
        self._ids = rollbacks.ids
        self._locator = locator
        self._pid = os.getpid()

    def run(self, plans: Sequence[Plan[Any]]) -> list[Any]:
        """Run plans in order, as one request per server, and return the answer of each.

        All servers work in parallel. A plan that changes data is applied once, however often it is sent. Operations for
        one server that exceed ``wire.block_bytes`` are sent as several requests, and each request is atomic.
        """
        with SHIELD:
            if os.getpid() != self._pid:
                check_process(self._pid)
            mutates = plans[0].mutates if len(plans) == 1 else any(plan.mutates for plan in plans)
            if not self.stopwatch.is_on:
                return self._run(plans, mutates)
            with self.stopwatch.running("push" if mutates else "pull"):
                return self._run(plans, mutates)

    def _run(self, plans: Sequence[Plan[Any]], mutates: bool) -> list[Any]:
        """Send plans after all queued additions.

        In ``ps.run``, a read does not wait for a long queue: this process adds the queued additions to its answer.
        """
        if not self.writer.is_idle:
            if self._ids.run is not None and self.writer.is_backed_up and is_plain(plans):
                self.writer.check()
                results, additions = self.read(plans)
                self.writer.forget(additions)
                if not additions.is_invalid:
                    additions.add_missing()
                    return _merged(plans, results)
            self.flush()
        if self.rollbacks.newest[0]:
            self.rollbacks.check()
        id = self._ids.next() if mutates else None
        try:
            return _merged(plans, self._send_or_drop(plans, id))
        finally:
            if id is not None:
                self._ids.retire(id)
                if not self.writer.is_idle:
                    self.writer.record_direct_writes(plans)

    @shielded
    def read(self, plans: Sequence[Plan[Any]]) -> tuple[Results, ReadYourWrites]:
        """Run read-only plans without waiting for queued additions.

        Return the results and a collector of the additions that the results do not contain. The caller ends the
        collection by ``writer.forget``. If the collector is invalid from the start, nothing is read.
        """
        with self.writer.hold_back(plans) as additions:
            if additions.is_invalid:
                return [], additions
            try:
                self.rollbacks.check()
                return self._send_or_drop(plans, None), additions
            except BaseException:
                self.writer.forget(additions)
                raise

    @shielded
    def read_now(self, plan: Plan[T]) -> T:
        """Run a read-only plan without waiting for queued changes; the answer may not contain them."""
        self.check_process()
        self.rollbacks.check()
        return plan.merge(self._send_or_drop((plan,), None)[0])  # type: ignore[arg-type]

    @shielded
    def run_later(self, plan: Plan[Any]) -> None:
        """Queue a plan that changes data and return at once. The caller must not change its arrays afterwards.

        Queued additions may run in any order. An overwrite runs after all plans queued earlier for its matrix, and
        before all plans queued later. All queued plans run before any later call of ``run``.
        """
        self.check_process()
        self.routes.newest(plan.matrix, plan.route)
        clock = 0 if self._ids.run is None else self._ids.run.clock
        with self.stopwatch.running("push"):
            self.writer.put(plan, self._ids.next, clock)

    @shielded
    def flush(self) -> None:
        """Wait until all plans given to ``run_later`` are answered; raise if one of them failed."""
        self.check_process()
        with self.stopwatch.running("push"):
            self.writer.flush()

    def check_process(self) -> None:
        """Raise UsageError in a child of the process that created this session."""
        check_process(self._pid)

    def current_routes(self, matrices: Iterable[int]) -> dict[int, Route]:
        """Return the routes of matrices; ask the master for those that were dropped since the call began."""
        routes = {}
        for matrix in matrices:
            route = self.routes.by_matrix.get(matrix)
            routes[matrix] = self._locator.ask_with_retries(matrix).route if route is None else route
        return routes

    def refresh(self, matrices: Iterable[int], error: TransientError, retries: RetryPolicy) -> None:
        """Ask the master for the current routes of matrices, and whether it is recovering one of their servers."""
        for matrix in matrices:
            try:
                info = self._locator.ask_once(matrix)
            except TransientError as master_error:
                retries.record_master_error(master_error)
                return
            if info.lost:
                raise LostError(f"{'; '.join(info.lost)}; {error}") from error
            if info.recovering:
                retries.record_progress()
        retries.record_master_error(None)
        self.rollbacks.check()

    def _send_or_drop(self, plans: Sequence[Plan[Any]], id: RequestId | None) -> Results:
        """Send plans. After a rollback in ``ps.run``, discard changes of a clock that will be repeated.

        Changes that return an answer are never discarded: they raise RolledBack.
        """
        while True:
            try:
                return self._send(plans, id)
            except RolledBack:
                if any(map(_changes_with_answer, plans)) or not self.rollbacks.discard_changes():
                    raise

    def _send(self, plans: Sequence[Plan[Any]], id: RequestId | None) -> Results:
        """Send the operations of plans until all are answered; return the results by plan."""
        results: Results = []
        stored, routes = self.routes.by_matrix, {}
        for plan in plans:
            results.append([None] * len(plan.operations))
            route = plan.route
            routes[plan.matrix] = route if stored.get(plan.matrix) is route else self.routes.newest(plan.matrix, route)
        error = None
        if len(plans) == 1 and (requests := self._one_request_each(plans[0], routes[plans[0].matrix], id)) is not None:
            error = self._attempt(requests, results)
            if error is None:
                return results
        if self.rollbacks.discards_changes:
            if any(map(_changes_with_answer, plans)):
                raise self.rollbacks.rolled_back()
            pieces = cut(plans, routes, self.wire.block_bytes)
            pieces = [piece for piece in pieces if not plans[piece.plan].mutates]
        else:
            pieces = cut(plans, routes, self.wire.block_bytes, id)
        if len(plans) == 1:
            self._send_pieces([piece for piece in pieces if results[0][piece.position] is None], results, error)
        else:
            # Later calls may depend on earlier ones, so a request waits until all requests before it are answered.
            for part in range(max((piece.part for piece in pieces), default=-1) + 1):
                self._send_pieces([piece for piece in pieces if piece.part == part], results)
        return results

    def _one_request_each(
        self, plan: Plan[Any], route: Route, id: RequestId | None
    ) -> dict[str, Sequence[PositionedRequest]] | None:
        """Return one request for each operation; None if two have the same server, or a rollback must be handled."""
        version, addresses = self.routes.version, route.addresses
        # Check rollbacks after reading the routes, because a session stores a rollback before the new routes.
        if self.rollbacks.newest[0] and not self.rollbacks.is_current(plan.mutates):
            return None
        requests: dict[str, Sequence[PositionedRequest]] = {
            addresses[operation.partition]: ((((0, position),), Request((operation,), id, version)),)
            for position, operation in enumerate(plan.operations)
        }
        return requests if len(requests) == len(plan.operations) else None

    def _send_all(self, mutations: Sequence[Mutation]) -> list[PS2Error]:
        """Send independent plans concurrently; return the errors of those that failed."""
        results: Results = [[None] * len(plan.operations) for plan, _ in mutations]
        errors: list[PS2Error] = []
        try:
            routes = self.current_routes({plan.matrix for plan, _ in mutations})
            self._send_pieces(
                [
                    piece
                    for number, (plan, id) in enumerate(mutations)
                    for piece in cut([plan], routes, self.wire.block_bytes, id, number)
                ],
                results,
            )
        except PS2Error as failure:
            if isinstance(failure, RolledBack) and self._ids.run is None:
                return [failure]  # raised once: sent again, the plans would change what the rollback has restored
            # It is unknown which plan failed and which other plans were applied. Send each plan again, alone: servers
            # apply no mutation id twice.
            for plan, id in mutations:
                try:
                    self._send_or_drop([plan], id)
                except PS2Error as error:
                    errors.append(error)
        finally:
            for _, id in mutations:
                self._ids.retire(id)
        return errors

    def _send_pieces(self, pieces: Sequence[Piece], results: Results, error: TransientError | None = None) -> None:
        """Send pieces, with retries, until all have their results. ``error``: the error of an earlier attempt."""
        retries = RetryPolicy(self.retry)
        previous_count = len(pieces)
        while pieces:
            if error is not None and not isinstance(error, KeyMissError):
                retries.wait(error)
                if not isinstance(error, BusyError):
                    matrices = {matrix for piece in pieces for matrix, _ in (piece.home, *piece.operation.shard_ids)}
                    self.refresh(matrices, error, retries)
                elif len(pieces) < previous_count:
                    retries.record_progress()
            previous_count = len(pieces)
            version = self.routes.version
            requests = group(pieces, self.current_routes({piece.home[0] for piece in pieces}), version)
            # Check rollbacks after reading the routes, as in ``_one_request_each``.
            self.rollbacks.check_run(changes=any(piece.id is not None for piece in pieces))
            error = self._attempt(requests, results)
            pieces = [piece for piece in pieces if results[piece.plan][piece.position] is None]

    def _attempt(self, requests: Mapping[str, Sequence[PositionedRequest]], results: Results) -> TransientError | None:
        """Send requests once and store their results. Return the transient error if some have no result yet."""
        shorten, outgoing = self.key_sets.shorten, {}
        for address, addressed in requests.items():
            outgoing[address] = [shorten(request) if _has_digest(request) else request for _, request in addressed]
        outcomes = self.network.exchange(outgoing)
        transient_error: TransientError | None = None
        final_error: PS2Error | None = None
        for address, addressed in requests.items():
            for (positions, request), outcome in zip(addressed, outcomes[address], strict=True):
                if not isinstance(outcome, PS2Error):
                    if _has_digest(request):
                        self.key_sets.add(request)
                    for (plan, position, *_), result in zip(positions, outcome.results, strict=True):
                        results[plan][position] = result
                elif isinstance(outcome, KeyMissError):
                    self.key_sets.forget(request)
                    transient_error = transient_error or outcome
                elif isinstance(outcome, BusyError):
                    # Other errors take precedence: they may mean that the routes are stale.
                    if transient_error is None or isinstance(transient_error, KeyMissError):
                        transient_error = BusyError(f"{address}: {outcome}")
                elif isinstance(outcome, TransientError):
                    transient_error = outcome
                elif final_error is None:
                    # Name the server whose memory limit was hit.
                    final_error = LimitError(f"{address}: {outcome}") if isinstance(outcome, LimitError) else outcome
        if final_error is not None:
            raise final_error
        return transient_error


def check_process(pid: int) -> None:
    """Raise UsageError if this process is not ``pid``, because a forked child would use its parent's mutation ids."""
    if os.getpid() != pid:
        raise UsageError(
            f"vectors work in a task or a driver itself (process {pid}), in any of its threads, but not in a child "
            f"process (this one, {os.getpid()}), because its updates could not be applied exactly once. Pass plain "
            "arrays to the child, and pull and push in the task or the driver"
        )


def _has_digest(request: Request) -> bool:
    """Return True if servers may cache a key set of the request by its digest."""
    for operation in request.operations:  # noqa: SIM110 - several times as fast as any()
        if operation.keys is not None and operation.keys.digest is not None:
            return True
    return False


def _merged(plans: Sequence[Plan[Any]], results: Results) -> list[Any]:
    return [plan.merge(answers) for plan, answers in zip(plans, results, strict=True)]  # type: ignore[arg-type]


def _changes_with_answer(plan: Plan[Any]) -> bool:
    """Return True if a plan changes data and also returns an answer."""
    return plan.mutates and any(has_answer(operation.name) for operation in plan.operations)
