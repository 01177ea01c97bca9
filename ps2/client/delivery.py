"""Plans on their way: sent until all are answered, again and again where it may help."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ps2.client.async_writer import Mutation
from ps2.client.keysets import KnownKeys
from ps2.client.plans import Plan
from ps2.client.requests import Piece, cut, group
from ps2.client.retry import RetryPolicy
from ps2.client.rollback import RollbackTracker
from ps2.client.routes import Routes
from ps2.config import RetryConfig, WireConfig
from ps2.errors import BusyError, KeyMissError, LimitError, LostError, PS2Error, RolledBack, TransientError
from ps2.matrix.route import Route
from ps2.ops.all import has_answer
from ps2.protocol.messages import RequestId, Result
from ps2.rpc.master_control import MatrixInfo
from ps2.rpc.transport import Transport

Results = list[list[Result | None]]


@dataclass(eq=False)
class Delivery:
    """Of one session. Safe for threads.

    Attributes:
        locate: asks the master where a matrix is, once, and notes the answer.
        find: the same, again and again where it may help.
        routes: where matrices are, as far as is known.
    """

    transport: Transport
    retry: RetryConfig
    wire: WireConfig
    rollbacks: RollbackTracker
    locate: Callable[[int], MatrixInfo]
    find: Callable[[int], MatrixInfo]
    routes: Routes = field(default_factory=Routes)
    known: KnownKeys = field(default_factory=KnownKeys)

    def send_or_drop(self, plans: Sequence[Plan[Any]], id: RequestId | None) -> Results:
        """Send plans; in a run, drop changes of a clock that will be done again, as the fleet has gone back.

        Raises:
            RolledBack: outside a run, or a change has an answer.
        """
        while True:
            try:
                return self._send(plans, id)
            except RolledBack:
                if any(map(_changes_with_answer, plans)) or not self.rollbacks.drift():
                    raise

    def _send(self, plans: Sequence[Plan[Any]], id: RequestId | None) -> Results:
        """Send the operations of plans until all are answered; return the results by plan."""
        results: Results = [[None] * len(plan.operations) for plan in plans]
        routes = self.routes_of({plan.matrix for plan in plans})
        if self.rollbacks.drifts:
            if any(map(_changes_with_answer, plans)):
                raise self.rollbacks.rolled_back()
            pieces = cut(plans, routes, self.wire.block_bytes)
            pieces = [piece for piece in pieces if not plans[piece.plan].mutates]
        else:
            pieces = cut(plans, routes, self.wire.block_bytes, id)
        if len(plans) == 1:
            self._send_pieces(pieces, results)
        else:
            # Later calls may build on earlier ones, so no request goes out before those it follows are answered.
            for part in range(max((piece.part for piece in pieces), default=-1) + 1):
                self._send_pieces([piece for piece in pieces if piece.part == part], results)
        return results

    def send_all(self, mutations: Sequence[Mutation]) -> list[PS2Error]:
        """Send plans that do not depend on each other, all at once; return the errors of those that failed."""
        results: Results = [[None] * len(plan.operations) for plan, _ in mutations]
        errors: list[PS2Error] = []
        try:
            routes = self.routes_of({plan.matrix for plan, _ in mutations})
            self._send_pieces(
                [
                    piece
                    for number, (plan, id) in enumerate(mutations)
                    for piece in cut([plan], routes, self.wire.block_bytes, id, number)
                ],
                results,
            )
        except PS2Error:
            # Which one failed, and have the others been applied? Their ids let each be sent again by itself.
            for plan, id in mutations:
                try:
                    self.send_or_drop([plan], id)
                except PS2Error as error:
                    errors.append(error)
        finally:
            for _, id in mutations:
                self.rollbacks.ids.done(id)
        return errors

    def routes_of(self, matrices: set[int]) -> dict[int, Route]:
        """Return where matrices are; the master knows those that have been forgotten since their call began."""
        routes = self.routes.of(matrices)
        for matrix in matrices - routes.keys():
            routes[matrix] = self.find(matrix).route
        return routes

    def _send_pieces(self, pieces: Sequence[Piece], results: Results) -> None:
        """Send pieces, again and again where it may help, until all have brought their results."""
        attempts = RetryPolicy(self.retry)
        while pieces:
            before = len(pieces)
            pieces, error = self._attempt(pieces, results)
            if error is None or isinstance(error, KeyMissError):
                continue
            attempts.wait(error)
            if isinstance(error, BusyError):
                if len(pieces) < before:
                    attempts.explain()
            else:
                matrices = {matrix for piece in pieces for matrix, _ in (piece.home, *piece.operation.places)}
                self.refresh(matrices, error, attempts)

    def _attempt(self, pieces: Sequence[Piece], results: Results) -> tuple[list[Piece], TransientError | None]:
        """Send pieces to their servers; return those to send again, with the error that is why."""
        version = self.routes.version
        requests = group(pieces, self.routes_of({piece.home[0] for piece in pieces}), version)
        # After the routes were looked up: who has those to a fleet that has gone back knows that it has.
        self.rollbacks.check_run(changes=any(piece.id is not None for piece in pieces))
        outcomes = self.transport.exchange(
            {address: [self.known.shorten(request) for _, request in mine] for address, mine in requests.items()}
        )
        again: list[Piece] = []
        transient: TransientError | None = None
        final: PS2Error | None = None
        for address, mine in requests.items():
            for (sent, request), outcome in zip(mine, outcomes[address], strict=True):
                if isinstance(outcome, KeyMissError):
                    self.known.forget(request)
                    again += sent
                    transient = transient or outcome
                elif isinstance(outcome, BusyError):
                    again += sent
                    # Others say more: where partitions are may have to be asked.
                    if transient is None or isinstance(transient, KeyMissError):
                        transient = BusyError(f"{address}: {outcome}")
                elif isinstance(outcome, TransientError):
                    again += sent
                    transient = outcome
                elif isinstance(outcome, PS2Error):
                    final = final or _placed(outcome, address)
                else:
                    self.known.add(request)
                    for piece, result in zip(sent, outcome.results, strict=True):
                        results[piece.plan][piece.position] = result
        if final is not None:
            raise final
        return again, transient

    def refresh(self, matrices: set[int], error: TransientError, attempts: RetryPolicy) -> None:
        """Ask the master where the matrices are now, and whether it is bringing a server of theirs back.

        Raises:
            LostError: they are nowhere any more.
            RolledBack: they are not what they were.
        """
        for matrix in matrices:
            try:
                info = self.locate(matrix)
            except TransientError as silence:
                attempts.doubt(silence)
                return
            if info.lost:
                raise LostError(f"{'; '.join(info.lost)}; {error}") from error
            if info.recovering:
                attempts.explain()
        attempts.doubt(None)
        self.rollbacks.check()


def _placed(error: PS2Error, address: str) -> PS2Error:
    """Return an error that names the server, if it is about that one's memory."""
    return LimitError(f"{address}: {error}") if isinstance(error, LimitError) else error


def _changes_with_answer(plan: Plan[Any]) -> bool:
    """Tell whether a plan changes data and also brings something back."""
    return plan.mutates and any(has_answer(operation.name) for operation in plan.operations)
