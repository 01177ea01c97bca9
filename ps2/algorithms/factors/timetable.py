"""The timetable of "sgd", from which workers and driver compute the role of each clock. Pure.

Workers load saved vectors, and train. An iteration has a number of turns, and then a closing clock if vectors are saved
or held-out rows are evaluated. A worker that has lost its vectors asks for a restart. Then the driver's message names a
clock in which all workers load the vectors that were saved last. They repeat the later iterations with the same random
draws.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ps2.algorithms.frame.program import NextClock, Task
from ps2.algorithms.training.run import FIRST_CLOCK
from ps2.errors import UsageError

# The number of clocks by which one worker can be ahead of another.
STALENESS = 1


class Kind(Enum):
    """The kind of a clock.

    BEGIN: workers load the vectors of an iteration; TURN: they train; CLOSE: they save and evaluate; IDLE: nothing.
    """

    BEGIN = "begin"
    TURN = "turn"
    CLOSE = "close"
    IDLE = "idle"


@dataclass(frozen=True)
class Phase:
    """The role of a clock.

    Attributes:
        iteration: the iteration, from 1; for BEGIN, the finished iteration whose vectors are loaded, 0: the initial
            vectors.
        turn: the number of the turn in the iteration, from 0.
    """

    kind: Kind
    iteration: int
    turn: int = 0


@dataclass(frozen=True)
class Lengths:
    """The lengths that determine a timetable.

    Attributes:
        turns: the clocks of an iteration, at least 2: workers know the message of an iteration from its second clock.
        save_interval: the number of iterations between saves; 0: vectors are saved at the end only.
        evaluates: whether held-out rows are evaluated after each iteration.
        keeps_best: whether held-out rows choose the iteration whose vectors are the result. Then each one is saved.
    """

    turns: int
    save_interval: int
    evaluates: bool
    keeps_best: bool = False

    def __post_init__(self) -> None:
        if self.turns < 2:
            raise UsageError(f"timetable: turns: expected at least 2, got {self.turns}")

    @property
    def copies(self) -> int:
        """The number of copies of saved vectors: the last save, the next save and, with ``keeps_best``, the best."""
        return 2 + self.keeps_best

    def saves(self, iteration: int, last: int) -> bool:
        """Return whether vectors are saved after an iteration."""
        interval = 1 if self.keeps_best else self.save_interval
        return iteration == last or (interval > 0 and iteration % interval == 0)

    def clocks(self, iteration: int, last: int) -> int:
        """Return the number of clocks of an iteration: its turns, and a closing clock if it saves or evaluates."""
        return self.turns + (self.evaluates or self.saves(iteration, last))


@dataclass(frozen=True)
class Begin(NextClock):
    """A message that names a clock in which all workers load saved vectors.

    Attributes:
        clock: the clock. No worker enters it before it has read the message.
        iteration: the iteration after which the vectors were saved; 0: the initial vectors.
        copy: the copy that holds them.
        halvings: the number of times that the step was halved.
    """

    clock: int = FIRST_CLOCK
    iteration: int = 0
    copy: int = 0
    halvings: int = 0


@dataclass(frozen=True)
class Iterate(NextClock):
    """The driver's message at the start of an iteration. Workers have read it by the iteration's second clock.

    Attributes:
        last: the last iteration.
        free: the copy that the next save overwrites.
    """

    last: int
    free: int


class Timetable:
    """The role of each clock, computed from the messages read so far; ``free`` is ``Iterate.free``."""

    def __init__(self, lengths: Lengths) -> None:
        self.lengths = lengths
        self.forget_messages()

    def forget_messages(self) -> None:
        self._begins = [Begin()]
        self._lasts: dict[Begin, int] = {}
        self.free = 1

    def read(self, message: Mapping[str, Any]) -> None:
        """Take the driver's decisions from a message; it may have none."""
        task = Task.of(message)
        if isinstance(task, Begin):
            self._begins.append(task)
        elif isinstance(task, Iterate):
            self._lasts[self._begins[-1]], self.free = task.last, task.free

    def begin(self, clock: int) -> Begin:
        """Return the newest message that names this clock or an earlier one."""
        return next(begin for begin in reversed(self._begins) if begin.clock <= clock)

    def last(self, clock: int) -> int:
        """Return the last iteration; ``sys.maxsize`` if this clock does not know it yet."""
        return self._lasts.get(self.begin(clock), sys.maxsize)

    def phase(self, clock: int) -> Phase:
        """Return the phase of a clock, from ``FIRST_CLOCK`` on."""
        begin, last = self.begin(clock), self.last(clock)
        iteration, offset = begin.iteration, clock - begin.clock - 1
        if offset < 0:
            return Phase(Kind.BEGIN, iteration)
        while iteration < last:
            iteration += 1
            if offset < self.lengths.turns:
                return Phase(Kind.TURN, iteration, offset)
            offset -= self.lengths.clocks(iteration, last)
            if offset < 0:
                return Phase(Kind.CLOSE, iteration)
        return Phase(Kind.IDLE, iteration)
