"""Tracks rollbacks: how often the fleet rolled back to a checkpoint, and which of these the caller knows of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ps2.client.task import MutationIds, task_epoch
from ps2.errors import RolledBack


@dataclass(eq=False)
class RollbackTracker:
    """The rollbacks known to one session.

    In the driver, each rollback raises RolledBack once. In a task every call raises it, since the task may be a late
    one of an earlier stage. A worker of a run learns of a rollback from its run; until then its changes are discarded
    (``discard_changes``).

    Attributes:
        on_rollback: called in the driver with epoch and step, before RolledBack is raised.
        epoch: the epoch that the driver's loop knows of.
        newest: the newest epoch known to this process, and the step that the fleet rolled back to.
    """

    ids: MutationIds
    on_rollback: Callable[[int, int | None], None]
    epoch: int = 0
    newest: tuple[int, int | None] = (0, None)

    def note(self, epoch: int, step: int | None) -> None:
        self.newest = max(self.newest, (epoch, step), key=lambda pair: pair[0])

    def check(self) -> None:
        """Raise RolledBack if the fleet rolled back and the caller does not know. Does nothing in a run."""
        epoch, step = self.newest
        if self.ids.run is not None or not epoch:
            return
        epoch_of_task = task_epoch()
        if epoch <= (self.epoch if epoch_of_task is None else epoch_of_task):
            return
        if epoch_of_task is None:
            self.epoch = epoch
            self.on_rollback(epoch, step)
        raise self.rolled_back()

    def is_current(self, changes: bool) -> bool:
        """Return True if the caller has no rollback to handle."""
        epoch, run = self.newest[0], self.ids.run
        if run is not None:
            return epoch <= run.seen and not (changes and run.seen > run.epoch)
        if epoch == 0:
            return True
        epoch_of_task = task_epoch()
        return epoch <= (self.epoch if epoch_of_task is None else epoch_of_task)

    def check_run(self, changes: bool) -> None:
        """Raise RolledBack if a worker of a run must handle a rollback before it reads, or before it writes."""
        run = self.ids.run
        if run is None:
            self.check()
        elif self.newest[0] > (run.epoch if changes else run.seen):
            raise self.rolled_back()

    @property
    def discards_changes(self) -> bool:
        """Whether a run's worker is in a clock that will be redone, so that its changes are discarded."""
        run = self.ids.run
        return run is not None and run.seen > run.epoch

    def discard_changes(self) -> bool:
        """Let a run's worker continue in a clock that will be redone. Return False outside a run."""
        run = self.ids.run
        if run is not None:
            run.seen = self.newest[0]
        return run is not None

    def rolled_back(self) -> RolledBack:
        step = self.newest[1]
        return RolledBack(f"the fleet rolled back to a checkpoint; go on from step {step}", step)
