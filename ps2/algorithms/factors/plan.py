"""What each clock of a factorization is for: workers and driver agree on it without asking. Pure.

An iteration is some turns, and then a closing clock if vectors are saved or held-out rows evaluated after it. A worker
that has lost its state asks for a restart. The driver's message names a clock in which all workers go back to the last
saved iteration, and the iterations after that come once more, from the same vectors with the same draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ps2.algorithms.training.run import FIRST_CLOCK
from ps2.errors import UsageError

# The first clock of a plan.
START = FIRST_CLOCK
# Clocks by which one worker may be ahead of another.
STALENESS = 1
# Fields of the driver's messages: [clock, iteration] of a restart; the last iteration; how often the step was halved;
# [iteration, copy]: where the vectors of an iteration are saved.
RESTART, LAST, HALVED, SLOT = "restart", "last", "halved", "slot"
# Copies of saved vectors on the servers: the last complete one stays while the next one is made; and so does the best
# one, where held-out rows choose it.
GENERATIONS, GENERATIONS_WITH_BEST = 2, 3


class Kind(Enum):
    """What a clock is for.

    BEGIN: workers take the vectors of an iteration; TURN: they train; CLOSE: they save and evaluate; IDLE: nothing.
    """

    BEGIN = "begin"
    TURN = "turn"
    CLOSE = "close"
    IDLE = "idle"


@dataclass(frozen=True)
class Place:
    """A clock's place in a plan.

    Attributes:
        iteration: from 1 on; of BEGIN: the finished iteration from which to go on, 0 before the first one.
        turn: of the iteration, from 0.
    """

    kind: Kind
    iteration: int
    turn: int = 0


@dataclass(frozen=True)
class Lengths:
    """What determines a plan.

    Attributes:
        turns: clocks of an iteration: 2 at least, as a decision takes effect an iteration later.
        iterations: at most.
        save_interval: iterations between saves; 0: vectors are saved at the end only.
        evaluates: whether held-out rows are evaluated after each iteration.
        keeps_best: whether they choose the iteration whose vectors are the result. Then each iteration is saved.
    """

    turns: int
    iterations: int
    save_interval: int
    evaluates: bool
    keeps_best: bool = False

    def __post_init__(self) -> None:
        if self.turns < 2:
            raise UsageError(f"plan: turns: expected 2 at least, got {self.turns}")

    @property
    def generations(self) -> int:
        """Copies of saved vectors."""
        return GENERATIONS_WITH_BEST if self.keeps_best else GENERATIONS


class Plan:
    """A plan, as far as the messages that were read have decided.

    Attributes:
        last: the last iteration.
        halvings: how often the step was halved.
    """

    def __init__(self, lengths: Lengths) -> None:
        self.lengths = lengths
        self.begin_again()

    def begin_again(self) -> None:
        """Forget all messages."""
        self.last = self.lengths.iterations
        self.halvings = 0
        self._begins = [(START, 0)]
        self._slots = {0: 0, 1: 1}

    def read(self, message: Mapping[str, Any]) -> None:
        """Take the driver's decisions from a message; it may have none."""
        if RESTART in message:
            clock, iteration = message[RESTART]
            self._begins.append((clock, iteration))
        self.last = message.get(LAST, self.last)
        self.halvings = message.get(HALVED, self.halvings)
        if HALVED in message:
            self._slots = {0: 0, 1: 1}
        if SLOT in message:
            iteration, slot = message[SLOT]
            self._slots[iteration] = slot

    def generation(self, iteration: int) -> int:
        """Return which copy holds the vectors that were saved after an iteration; 0: those of before the first one."""
        if self.lengths.keeps_best:
            return self._slots[iteration]
        every = self.lengths.save_interval
        return (-(-iteration // every) if every else int(iteration > 0)) % GENERATIONS

    def place(self, clock: int) -> Place:
        """Return the place of a clock, from ``START`` on."""
        begun, iteration = next(begin for begin in reversed(self._begins) if begin[0] <= clock)
        left = clock - begun
        if not left:
            return Place(Kind.BEGIN, iteration)
        left -= 1
        while iteration < self.last:
            iteration += 1
            if left < self.lengths.turns:
                return Place(Kind.TURN, iteration, left)
            left -= self.lengths.turns
            if self.closes(iteration):
                if not left:
                    return Place(Kind.CLOSE, iteration)
                left -= 1
        return Place(Kind.IDLE, iteration)

    def is_end(self, place: Place) -> bool:
        """Return whether an iteration ends with a clock."""
        if place.kind is Kind.TURN:
            return place.turn == self.lengths.turns - 1 and not self.closes(place.iteration)
        return place.kind is Kind.CLOSE

    def closes(self, iteration: int) -> bool:
        """Return whether an iteration has a closing clock."""
        return self.lengths.evaluates or self.saves(iteration)

    def saves(self, iteration: int) -> bool:
        """Return whether vectors are saved after an iteration."""
        every = 1 if self.lengths.keeps_best else self.lengths.save_interval
        return iteration == self.last or (every > 0 and iteration % every == 0)


def due_after(clock: int) -> int:
    """Return the first clock that no worker enters before it has read the driver's message of ``clock``."""
    return clock + STALENESS + 1
