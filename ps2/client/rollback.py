"""How often a fleet has gone back to a checkpoint: what is known of it here, and what the caller has been told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ps2.client.task import MutationIds, task_epoch
from ps2.errors import RolledBack


@dataclass(eq=False)
class RollbackTracker:
    """Of one session. The driver is told once; a task, which may be a late one of an earlier stage, each time; a worker
    of a run is told by its run, and has its changes dropped until then (``drift``).

    Attributes:
        on_rollback: called in the driver with epoch and step, before RolledBack is raised.
        epoch: what the driver's loop knows of.
        newest: what is known here: how often, and to which step.
    """

    ids: MutationIds
    on_rollback: Callable[[int, int | None], None]
    epoch: int = 0
    newest: tuple[int, int | None] = (0, None)

    def note(self, epoch: int, step: int | None) -> None:
        self.newest = max(self.newest, (epoch, step), key=lambda known: known[0])

    def check(self) -> None:
        """Raise RolledBack if the fleet has gone back since the caller's loop began, or was told so; not in a run."""
        epoch, step = self.newest
        if self.ids.run is not None or not epoch:
            return
        told = task_epoch()
        if epoch <= (self.epoch if told is None else told):
            return
        if told is None:
            self.epoch = epoch
            self.on_rollback(epoch, step)
        raise self.rolled_back()

    def is_settled(self, changes: bool) -> bool:
        """Tell whether there is nothing to say to the caller: the fleet is what it is taken for."""
        epoch, run = self.newest[0], self.ids.run
        if run is not None:
            return epoch <= run.seen and not (changes and run.seen > run.epoch)
        if epoch == 0:
            return True
        told = task_epoch()
        return epoch <= (self.epoch if told is None else told)

    def check_run(self, changes: bool) -> None:
        """Raise RolledBack if the fleet is not what a run's worker takes it for: for reads, or for its changes."""
        run = self.ids.run
        if run is None:
            self.check()
        elif self.newest[0] > (run.epoch if changes else run.seen):
            raise self.rolled_back()

    @property
    def drifts(self) -> bool:
        """Whether a run's worker is in a clock that will be done again: what it changes is dropped."""
        run = self.ids.run
        return run is not None and run.seen > run.epoch

    def drift(self) -> bool:
        """Let a run's worker go on in a clock that will be done again; False if there is none."""
        run = self.ids.run
        if run is not None:
            run.seen = self.newest[0]
        return run is not None

    def rolled_back(self) -> RolledBack:
        step = self.newest[1]
        return RolledBack(f"the fleet went back to a checkpoint; go on from step {step}", step)
