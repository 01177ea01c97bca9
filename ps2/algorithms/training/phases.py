"""The driver's side of a training whose workers do different things from clock to clock.

A phase is the driver's state before a clock; it names the workers' task in that clock. After the clock, the driver
computes the next phase from this phase and the workers' reports. The driver keeps the phase of each clock, because a
rollback repeats clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.record import Record
from ps2.algorithms.training.replay_journal import ReplayJournal
from ps2.algorithms.training.run import FIRST_CLOCK, Training, WorkerProgram, run_training
from ps2.algorithms.training.table import Table
from ps2.coordinator.training_host import training_host
from ps2.run.message import STOP, Message, Stop

# The field of a message with the workers' task, and their task in a clock after the training has ended: none.
DO, END = "do", "end"


class Phase(Protocol):
    """The driver's state before a clock."""

    @property
    def do(self) -> str:
        """The workers' task in the clock; ``END`` if the training is over."""

    def message(self) -> dict[str, Any]:
        """Return the message to the workers; its field "do" is their task."""


P = TypeVar("P", bound=Phase)
T_co = TypeVar("T_co", covariant=True)


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
        first: the phase before the first clock.
        following: computes the next phase from a phase, the workers' reports and the journal's answers.
        keeps_end: send the last phase in a message, too, so that a restored context finds it.
        """
        self._phases = {0: first}
        self._following = following
        self._journal = journal
        self._record = record
        self._keeps_end = keeps_end
        self._skipped: set[int] = set()

    @property
    def last(self) -> P:
        return self._phases[max(self._phases)]

    @property
    def is_over(self) -> bool:
        return self.last.do == END

    def replay(self, clocks: int) -> None:
        """Repeat the driver's work of an earlier driver's clocks, with the answers in its journal.

        That driver may have wanted more iterations, or fewer: its workers do what it has told them. If that was
        nothing, since its training was over, and this driver's is not, the next clock is skipped.
        """
        self._record.start()
        for clock in range(clocks):
            self.on_clock(clock)
            wanted = self._phases[clock + 1]
            # Of a clock that was skipped, the message after it has the task.
            told = self._journal.told.get(clock + self._journal.is_skipped(clock + 1))
            do = wanted.do if told is None else told[DO]
            if do == END:
                self._phases, self._skipped = {clocks: wanted}, {clocks}
                for over in range(clock + 1, clocks):
                    self._record.enter(over)
                return
            self._phases[clock + 1] = wanted if do == wanted.do else replace(wanted, do=do)  # type: ignore[type-var]

    def on_clock(self, clock: int, reports: Sequence[Any] = ()) -> Message | Stop | None:
        """Do the driver's work after a clock, counted from ``FIRST_CLOCK``. A rollback repeats clocks."""
        self._record.enter(clock)
        phase = self._phases[clock]
        if phase.do == END:
            return STOP
        self._phases = {at: one for at, one in self._phases.items() if at <= clock}
        if clock in self._skipped or self._journal.is_skipped(clock):
            following = phase
            self._journal.skip(clock)
        else:
            with self._journal.page(clock):
                following = self._following(phase, reports)
        self._phases[clock + 1] = following
        if following.do == END and not self._keeps_end:
            return STOP
        return self._journal.message(**following.message())


class PhasedDriver(Protocol[T_co]):
    """The driver's side of a family whose training goes through phases."""

    @property
    def phases(self) -> Phases[Any]: ...
    @property
    def program(self) -> WorkerProgram: ...
    @property
    def journal(self) -> ReplayJournal: ...

    def fitted(self) -> T_co:
        """Read the result from the servers."""

    def free(self) -> None:
        """Free everything that the training holds on the servers."""


def run_phases(
    ps: Any, driver: PhasedDriver[T_co], table: Table, form: Form, seed: int, names: CheckpointNames
) -> T_co:
    """Go through all phases of a training, free its memory on the servers, and return the result.

    Args:
        table: rows.
        form: the form that rows must have.
        names: say how far an earlier driver came, whose clocks are replayed.

    Raises:
        InputError, SlotsError, WorkerError...: as ``run_training`` raises.
    """
    try:
        driver.phases.replay(names.called - FIRST_CLOCK)
        if driver.phases.is_over:
            return driver.fitted()
        if names.begun:
            training_host(ps).forget_stop()
        training = Training(
            *(table, form, driver.program, driver.phases.on_clock, 0, seed, names.begun, driver.journal)
        )
        return run_training(ps, training, driver.fitted)
    finally:
        driver.free()
