"""The interface of the coordinator that a run uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ps2.client.session import Session
from ps2.config import Binding, WireConfig
from ps2.errors import LostError
from ps2.rpc.control import ServerControl
from ps2.run.state import RunState

Listener = Callable[[RunState], object]


class ActiveRun:
    """The active run of a context, if any. ``rollbacks`` is the number of rollbacks of all runs with the fleet."""

    def __init__(self) -> None:
        self._run: RunState | None = None
        self.rollbacks = 0
        self._listeners: list[tuple[Listener, Listener]] = []

    @property
    def run(self) -> RunState | None:
        return self._run

    @run.setter
    def run(self, run: RunState | None) -> None:
        ended, self._run = self._run, run
        for on_begin, on_end in self._listeners:
            if ended is not None:
                on_end(ended)
            if run is not None:
                on_begin(run)

    def listen(self, on_begin: Listener, on_end: Listener) -> None:
        """Call ``on_begin`` with each run that becomes active, and ``on_end`` when it is no longer active."""
        self._listeners.append((on_begin, on_end))

    def log_fields(self) -> dict[str, object]:
        """Return the fields of a line of JSON: the run's number, and its first unfinished clock."""
        run = self._run
        return {} if run is None else {"run": run.number, "clock": run.clocks.finished}

    def pause(self) -> None:
        """Pause the run, because the whole fleet is about to roll back to a checkpoint."""
        if (run := self.run) is not None:
            run.pause()

    def roll_back(self, epoch: int, checkpoint: str) -> None:
        """Roll back the run's clocks: the whole fleet has rolled back to a checkpoint."""
        if (run := self.run) is not None and run.roll_back(epoch, checkpoint):
            self.rollbacks += 1

    def give_up(self, reason: str) -> None:
        """End a paused run, because the fleet cannot be recovered."""
        if (run := self.run) is not None and run.is_paused:
            run.fail(LostError(reason))


class FleetState(Protocol):
    """The state of the fleet, as the coordinator knows it."""

    @property
    def last_rollback(self) -> tuple[int, int | None]:
        """The number of the fleet's rollbacks to a checkpoint, and the step of the last one."""

    def present(self) -> dict[str, str]:
        """Return the address of each server that is not lost, by server id."""

    def end_stages(self, series: str, below: int, live: Sequence[int]) -> None:
        """Drop the mutation ids of stages or runs with numbers below ``below``, except those in ``live``."""


class StepLog(Protocol):
    """The steps of the driver's loop, after which checkpoints are made. Each clock of a run is a step."""

    @property
    def has_periodic_checkpoints(self) -> bool:
        """True if checkpoints are made at the end of clocks."""

    def begin_run(self, run: RunState) -> None: ...
    def checkpoint_beginning(self) -> None: ...
    def end_clock(self, clock: int) -> bool:
        """Record the end of a clock; return True if a checkpoint was made."""

    def end_run(self) -> None: ...


@dataclass(frozen=True)
class RunHost:
    """The parts of the coordinator that a run uses.

    Attributes:
        active: the holder of the active run, which the coordinator reads.
        binding: the addresses on which the run's server listens.
        token: the secret with which workers authenticate themselves.
    """

    session: Session
    servers: ServerControl
    fleet: FleetState
    steps: StepLog
    active: ActiveRun
    binding: Binding
    token: str
    wire: WireConfig
