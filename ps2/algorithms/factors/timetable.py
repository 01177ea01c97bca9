"""The timetable of "sgd", from which the workers and the driver compute what happens in each clock. Pure.

Workers load saved vectors, and then train. An iteration has a fixed number of turns (see ``run/rotation.py``), and a
closing clock if vectors are saved or held-out rows are evaluated. A worker that has lost its vectors asks for a
restart. Then the driver's message names a clock in which all workers load the vectors that were saved last. They repeat
the iterations after the save with the same random order of ratings.
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

# The number of clocks that a worker can be ahead of the slowest worker.
STALENESS = 1


class Kind(Enum):
    """What workers do in a clock. BEGIN: load saved vectors. TURN: train on blocks of items. CLOSE: save vectors and
    evaluate held-out rows. IDLE: nothing, because the last iteration is over."""

    BEGIN = "begin"
    TURN = "turn"
    CLOSE = "close"
    IDLE = "idle"


@dataclass(frozen=True)
class Phase:
    """What happens in a clock; for BEGIN, vectors of the finished ``iteration`` are loaded (0: the initial vectors)."""

    kind: Kind
    iteration: int
    turn: int = 0


@dataclass(frozen=True)
class IterationSchedule:
    """The clocks of an iteration, and the iterations that save vectors.

    Attributes:
        turns: the number of turns of an iteration, each of which is a clock. At least 2, because workers have read the
            message of an iteration only in its second clock.
        save_interval: the number of iterations between saves; 0: vectors are saved at the end only.
        evaluates: whether held-out rows are evaluated after each iteration.
        keeps_best: whether held-out rows choose the iteration whose vectors are the result. Then all iterations save.
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
        """The number of saved copies of vectors: the newest, the next and, with ``keeps_best``, the best one."""
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
    """The driver's message: in ``clock``, workers load the vectors saved after ``iteration``, from ``copy``.

    A worker reads the message before it enters the clock. Iteration 0 stands for the initial vectors.
    """

    clock: int = FIRST_CLOCK
    iteration: int = 0
    copy: int = 0
    halvings: int = 0


@dataclass(frozen=True)
class Iterate(NextClock):
    """The driver's message at the start of an iteration. Workers have read it by the iteration's second clock.

    ``free`` is the index of the copy that the next save overwrites.
    """

    last: int
    free: int


class Timetable:
    """Computes the phase of each clock from the messages; ``free_copy`` is ``free`` of the newest ``Iterate``."""

    def __init__(self, schedule: IterationSchedule) -> None:
        self.schedule = schedule
        self.forget_messages()

    def forget_messages(self) -> None:
        self._begins = [Begin()]
        self._lasts: dict[Begin, int] = {}  # the last iteration after each restart
        self.free_copy = 1

    def read(self, message: Mapping[str, Any]) -> None:
        """Remember the driver's decisions in a message, if it has any."""
        task = Task.of(message)
        if isinstance(task, Begin):
            self._begins.append(task)
        elif isinstance(task, Iterate):
            self._lasts[self._begins[-1]], self.free_copy = task.last, task.free

    def begin(self, clock: int) -> Begin:
        """Return the newest message ``Begin`` for this clock or an earlier one."""
        return next(begin for begin in reversed(self._begins) if begin.clock <= clock)

    def last(self, clock: int) -> int:
        """Return the training's last iteration; ``sys.maxsize`` if its message has not been read."""
        return self._lasts.get(self.begin(clock), sys.maxsize)

    def phase(self, clock: int) -> Phase:
        """Return the phase of a clock, from ``FIRST_CLOCK`` on."""
        begin, last = self.begin(clock), self.last(clock)
        iteration, offset = begin.iteration, clock - begin.clock - 1
        if offset < 0:
            return Phase(Kind.BEGIN, iteration)
        while iteration < last:
            iteration += 1
            if offset < self.schedule.turns:
                return Phase(Kind.TURN, iteration, offset)
            offset -= self.schedule.clocks(iteration, last)
            if offset < 0:
                return Phase(Kind.CLOSE, iteration)
        return Phase(Kind.IDLE, iteration)
