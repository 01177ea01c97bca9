"""A worker follows a plan, clock by clock: the same for all solvers that rotate items."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from ps2.algorithms.factors.plan import Kind, Place, Plan
from ps2.run.rotation import IDLE, RotationSchedule

# Fields of a worker's report, which are added up over workers. ASKS: how many have no state to go on with, and ask for
# a restart. Then weighted sums of squared errors, and sums of weights, of ratings that were trained on and of held-out
# ones; how many ratings were trained on; bytes that travelled. PENALTY: of all vectors, where it is known.
ASKS, LOSS, WEIGHT, HELD_LOSS, HELD_WEIGHT = "asks", "loss", "weight", "held_loss", "held_weight"
RATINGS, BYTES, PENALTY = "ratings", "bytes", "penalty"
NOTHING = dict.fromkeys((ASKS, LOSS, WEIGHT, HELD_LOSS, HELD_WEIGHT, RATINGS, BYTES), 0.0)


class PlannedWork(Protocol):
    """A solver's work in a worker."""

    def begin(self, iteration: int) -> None:
        """Take the vectors that were saved after an iteration; 0: those of the beginning. No other worker changes any
        meanwhile."""

    def train(self, turn: Any, place: Place) -> Mapping[str, float]:
        """Work on the block of a turn; return the report's fields that are not 0."""

    def close(self, iteration: int, saves: bool) -> Mapping[str, float]:
        """Evaluate held-out rows after an iteration, and save vectors if that is due; return the report's
        fields that are not 0. No worker changes any vectors of items meanwhile."""


def follow(
    worker: Any,
    plan: Plan,
    work: PlannedWork,
    ring: RotationSchedule,
    fetch: Callable[[int], Any],
    budget_s: float | Literal["auto"] | None = None,
) -> None:
    """Follow a plan until the driver ends the run.

    A worker has no state when it begins, and when the fleet has rolled back to a checkpoint. Until a clock in which all
    begin anew, it changes nothing then.

    Args:
        fetch: requests a block: see ``worker.rotate``.
        budget_s: seconds of a turn; "auto": the run decides; None: a turn ends when its block is done.
    """
    epoch, has_state = worker.epoch, False

    def at(clock: int) -> tuple[int, int] | None:
        nonlocal epoch, has_state
        if clock == worker.clock:
            if worker.epoch != epoch:
                epoch, has_state = worker.epoch, False
                plan.begin_again()
            for message in worker.messages:
                plan.read(message)
        place = plan.place(clock)
        if place.kind is not Kind.TURN:
            return None
        rotations = plan.lengths.turns // ring.turns
        rotation, number = divmod(place.turn, ring.turns)
        return (place.iteration - 1) * rotations + rotation, number

    for turn in worker.rotate(ring.blocks, slices=ring.slices, budgetS=budget_s, fetch=fetch, at=at):
        place = plan.place(worker.clock)
        report: Mapping[str, float] = {}
        if place.kind is Kind.BEGIN:
            worker.barrier()
            work.begin(place.iteration)
            worker.barrier()
            has_state = not worker.goesBack
        elif place.kind is Kind.CLOSE:
            worker.barrier()
            if has_state:
                report = work.close(place.iteration, plan.saves(place.iteration))
            worker.barrier()
        elif place.kind is Kind.TURN and has_state and turn.block != IDLE and not worker.goesBack:
            report = work.train(turn, place)
        worker.report({**NOTHING, **report, ASKS: float(not has_state)})
