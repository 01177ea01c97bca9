"""The interface of the coordinator that a run uses."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ps2.client.session import Session
from ps2.config import Binding, WireConfig
from ps2.errors import LostError
from ps2.rpc.control import ServerControl
from ps2.run.state import RunState

Listener = Callable[[RunState], object]


class ActiveRuns:
    """The active runs of a context, each with the thread that called ``ps.run``. Thread-safe.

    Attributes:
        lock: held while all runs roll back with the fleet.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._by_thread: Mapping[int, RunState] = {}  # never changed, but replaced, so readers need no lock
        self._rollbacks: Counter[int] = Counter()
        self._listeners: list[tuple[Listener, Listener]] = []

    def all(self) -> list[RunState]:
        """Return the active runs, oldest first."""
        return list(self._by_thread.values())

    @property
    def own(self) -> RunState | None:
        """The run that the calling thread drives, if any."""
        return self._by_thread.get(threading.get_ident())

    @property
    def newest(self) -> RunState | None:
        """The run that has begun last, if any is active."""
        return next(reversed(self.all()), None)

    @property
    def rollbacks(self) -> int:
        """The number of rollbacks of the calling thread's runs with the fleet, since the context started."""
        return self._rollbacks[threading.get_ident()]

    def add(self, run: RunState) -> None:
        """Record that the calling thread drives a run."""
        with self.lock:
            self._by_thread = {**self._by_thread, threading.get_ident(): run}
        for on_begin, _ in self._listeners:
            on_begin(run)

    def remove(self, run: RunState) -> None:
        """Record that a run has ended."""
        with self.lock:
            self._by_thread = {thread: active for thread, active in self._by_thread.items() if active is not run}
        for _, on_end in self._listeners:
            on_end(run)

    def listen(self, on_begin: Listener, on_end: Listener) -> None:
        """Call ``on_begin`` with each run that becomes active, and ``on_end`` when it is no longer active."""
        self._listeners.append((on_begin, on_end))

    def log_fields(self) -> dict[str, object]:
        """Return the fields of a line of JSON: the number and the first unfinished clock of the thread's run.

        A thread without a run gets those of the only active run; no fields if there are several.
        """
        runs, own = self.all(), self.own
        run = own if own is not None else runs[0] if len(runs) == 1 else None
        return {} if run is None else {"run": run.number, "clock": run.clocks.finished}

    def pause(self) -> None:
        """Pause all runs, because the whole fleet is about to roll back to a checkpoint."""
        with self.lock:
            for run in self._by_thread.values():
                run.pause()

    def roll_back(self, epoch: int, checkpoint: str) -> None:
        """Roll back the clocks of all runs: the whole fleet has rolled back to a checkpoint."""
        with self.lock:
            for thread, run in self._by_thread.items():
                if run.roll_back(epoch, checkpoint):
                    self._rollbacks[thread] += 1

    def give_up(self, reason: str) -> None:
        """End the paused runs, because the fleet cannot be recovered."""
        for run in self.all():
            if run.is_paused:
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
    """The steps of the driver's loop, after which checkpoints are made. The clocks of a leading run are steps, too."""

    @property
    def has_periodic_checkpoints(self) -> bool:
        """True if checkpoints are made at the end of clocks."""

    def begin_run(self, run: RunState) -> None: ...
    def checkpoint_beginning(self) -> None: ...
    def end_clock(self, run: RunState, clock: int) -> bool:
        """Record the end of a clock; return True if a checkpoint was made."""

    def end_run(self, run: RunState) -> None: ...


@dataclass(frozen=True)
class RunHost:
    """The parts of the coordinator that a run uses.

    Attributes:
        active: the active runs, which the coordinator reads.
        binding: the addresses on which the run's server listens.
        token: the secret with which workers authenticate themselves.
    """

    session: Session
    servers: ServerControl
    fleet: FleetState
    steps: StepLog
    active: ActiveRuns
    binding: Binding
    token: str
    wire: WireConfig
