"""The driver's side of a training whose workers do different things from clock to clock.

What the driver knows before a clock is a value, a phase: it names what the workers do in the clock. After the clock,
the workers' reports lead to the next phase. Phases are kept by clock, as a clock comes again after a rollback.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from ps2.algorithms.training.record import Record
from ps2.algorithms.training.replay_journal import ReplayJournal
from ps2.run.message import STOP, Message, Stop

# What workers do in a clock after the last one of the training: nothing.
END = "end"


class Phase(Protocol):
    """What the driver knows before a clock."""

    @property
    def do(self) -> str:
        """What the workers do in the clock; ``END``: nothing, the training is over."""

    def message(self) -> dict[str, Any]:
        """Return what the workers are told."""


P = TypeVar("P", bound=Phase)


class Phases(Generic[P]):
    """The phases of one training, and the step from each to the next."""

    def __init__(
        self,
        first: P,
        following: Callable[[P, Sequence[Any]], P],
        journal: ReplayJournal,
        record: Record,
        keeps_end: bool,
    ) -> None:
        """Args:
        first: before the first clock.
        following: returns the next phase; it decides by the phase, the reports and what it hears by the journal.
        keeps_end: the last phase travels in a message, too, so that a restored context finds it.
        """
        self._phases = {0: first}
        self._following = following
        self._journal = journal
        self._record = record
        self._keeps_end = keeps_end

    @property
    def last(self) -> P:
        return self._phases[max(self._phases)]

    @property
    def is_over(self) -> bool:
        return self.last.do == END

    def replay(self, clocks: int) -> None:
        """Go through the clocks of an earlier driver, by its journal."""
        self._record.start()
        for clock in range(clocks):
            self.on_clock(clock)

    def on_clock(self, clock: int, reports: Sequence[Any] = ()) -> Message | Stop | None:
        """Do the driver's work after a clock, counted from ``FIRST_CLOCK``; after a rollback a clock comes again."""
        self._record.enter(clock)
        phase = self._phases[clock]
        if phase.do == END:
            return STOP
        self._phases = {at: one for at, one in self._phases.items() if at <= clock}
        with self._journal.page(clock):
            following = self._following(phase, reports)
        self._phases[clock + 1] = following
        if following.do == END and not self._keeps_end:
            return STOP
        return self._journal.message(**following.message())
