"""A worker follows a timetable, clock by clock: the same for all solvers that rotate items."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ps2.algorithms.factors.timetable import Begin, Kind, Phase, Timetable
from ps2.run.rotation import IDLE, RotationSchedule

# Fields of a worker's report, which are added up over workers.
# ASKS: the number of workers that have no vectors to train, and ask for a restart.
# LOSS, WEIGHT: the weighted sum of squared errors of the ratings that were trained on, and the sum of their weights.
# HELD_LOSS, HELD_WEIGHT: the same of held-out ratings. RATINGS: the number of ratings that were trained on.
# BYTES: the bytes that travelled. PENALTY: the penalty of all vectors, where it is known.
ASKS, LOSS, WEIGHT, HELD_LOSS, HELD_WEIGHT = "asks", "loss", "weight", "held_loss", "held_weight"
RATINGS, BYTES, PENALTY = "ratings", "bytes", "penalty"
NOTHING = dict.fromkeys((ASKS, LOSS, WEIGHT, HELD_LOSS, HELD_WEIGHT, RATINGS, BYTES), 0.0)


class PlannedWork(Protocol):
    """A solver's work in a worker."""

    def begin(self, begin: Begin) -> None:
        """Take the saved vectors that the message names. No other worker changes any meanwhile."""

    def train(self, turn: Any, phase: Phase) -> Mapping[str, float]:
        """Work on the block of a turn; return the report's fields that are not 0."""

    def close(self, saves: bool) -> Mapping[str, float]:
        """Evaluate held-out rows after an iteration, and save vectors if that is due; return the report's
        fields that are not 0. No worker changes any vectors of items meanwhile."""


def follow(
    worker: Any,
    timetable: Timetable,
    work: PlannedWork,
    ring: RotationSchedule,
    fetch: Callable[[int], Any],
    budget_s: float | str | None = None,
) -> None:
    """Follow a timetable until the driver ends the run.

    A worker has no vectors when it begins, and when the fleet has rolled back to a checkpoint. Then it changes nothing
    until a clock in which all workers take saved vectors.

    Args:
        fetch: requests a block: see ``worker.rotate``.
        budget_s: seconds of a turn; "auto": the run decides; None: a turn ends when its block is done.
    """
    epoch, has_vectors = worker.epoch, False

    def find_turn(clock: int) -> tuple[int, int] | None:
        nonlocal epoch, has_vectors
        if clock == worker.clock:
            if worker.epoch != epoch:
                epoch, has_vectors = worker.epoch, False
                timetable.forget_messages()
            for message in worker.messages:
                timetable.read(message)
        phase = timetable.phase(clock)
        if phase.kind is not Kind.TURN:
            return None
        rotations = timetable.lengths.turns // ring.turns
        rotation, number = divmod(phase.turn, ring.turns)
        return (phase.iteration - 1) * rotations + rotation, number

    for turn in worker.rotate(ring.blocks, slices=ring.slices, budgetS=budget_s, fetch=fetch, at=find_turn):
        phase = timetable.phase(worker.clock)
        report: Mapping[str, float] = {}
        if phase.kind is Kind.BEGIN:
            worker.barrier()
            work.begin(timetable.begin(worker.clock))
            worker.barrier()
            has_vectors = not worker.goesBack
        elif phase.kind is Kind.CLOSE:
            worker.barrier()
            if has_vectors:
                report = work.close(timetable.lengths.saves(phase.iteration, timetable.last(worker.clock)))
            worker.barrier()
        elif phase.kind is Kind.TURN and has_vectors and turn.block != IDLE and not worker.goesBack:
            report = work.train(turn, phase)
        worker.report({**NOTHING, **report, ASKS: float(not has_vectors)})
