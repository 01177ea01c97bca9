"""Steps of the driver's loop: what it goes back to, and checkpoints by interval."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ps2.client.session import Session
from ps2.coordinator.checkpoints import Checkpoint, Checkpoints, Newest
from ps2.coordinator.conf import PS2Conf
from ps2.coordinator.master import Master
from ps2.coordinator.recovery import Recovery
from ps2.coordinator.turns import Turns
from ps2.errors import CheckpointWarning, ConfigError, PS2Error, RecoveryError, RolledBack, UsageError
from ps2.interrupts import shielded
from ps2.protocol.plain_data import decode
from ps2.run.journal import Journal
from ps2.run.state import CUTS, Run
from ps2.storage import folders

log = logging.getLogger(__name__)


class Steps:
    """Counts the steps of one driver, and makes its checkpoints."""

    def __init__(self, checkpoints: Checkpoints, session: Session, master: Master, conf: PS2Conf) -> None:
        self._checkpoints = checkpoints
        self._session = session
        self._master = master
        self._conf = conf
        self._last_s = time.monotonic()  # when the last checkpoint was begun
        self._closing = threading.Event()
        self._inside = False  # a step, until the checkpoint at its end is made
        # Checkpoints that a loop of steps can go on from: all others hold a part of a step, or whatever a run left.
        self._cuts: deque[str] = deque(maxlen=CUTS)
        # Waits until all servers answer; returns what has become of lost ones.
        self.settled: Callable[[], Sequence[Recovery]] = lambda: ()
        # The run of workers that is under way, whose clocks are the steps.
        self.run: Run | None = None
        # What the driver has told the workers of runs; of the one that is under way, the run has it.
        self._journal = Journal()
        newest = checkpoints.newest
        if newest is not None and newest.manifest.messages is not None:
            saved = folders.read_messages(newest.path, newest.manifest.messages)
            self._journal = Journal.from_bytes(saved, newest.path)
        self.next = newest.manifest.step or 0 if newest is not None else 0
        if newest is not None:
            self._cuts.append(newest.path)
        # A cut at any time is no place for everybody to go back to.
        if conf.checkpointEveryS is not None and conf.recover != "consistent":
            threading.Thread(target=self._by_time, name="ps2-checkpoints", daemon=True).start()

    @shielded
    def checkpoint(self, path: str | None, step: int | None) -> Checkpoint:
        if step is not None:
            _check_number("checkpoint: step", step)
        self._last_s = time.monotonic()
        run = self.run
        if run is None:
            self._check()
            note = _nowhere if self._inside and step is None else self._cuts.append
            number = self.next if step is None else step
            return self._checkpoints.take(path, number, self._session.epoch, note, self._journal.to_bytes())
        # Asked before the checkpoint is made: what came in between is done again, and counts once.
        epoch, cut = run.epoch, run.cut()
        first = min(cut.applied) if step is None else step
        try:
            messages = cut.journal.to_bytes()
            return self._checkpoints.take(path, first, epoch, lambda folder: run.note_cut(folder, cut), messages)
        except RecoveryError as error:
            if run.epoch != epoch:
                raise RolledBack("the fleet went back to a checkpoint", min(run.applied())) from error
            raise

    def hand_over(self, addresses: Collection[str]) -> Newest:
        """Make a checkpoint, in the middle of whatever is under way, after which nothing changes on these servers."""
        run = self.run
        if run is None:
            # It may hold a part of a step, and all are not to go back to that.
            partial = self._inside or self._conf.recover == "consistent"
            note = None if partial else _nowhere
            messages = self._journal.to_bytes()
            return self._checkpoints.hand_over(addresses, self.next, self._session.epoch, note, messages)
        epoch, cut = run.epoch, run.cut()
        return self._checkpoints.hand_over(
            *(addresses, min(cut.applied), epoch, lambda folder: run.note_cut(folder, cut), cut.journal.to_bytes())
        )

    @contextmanager
    def step(self, number: int | None) -> Iterator[int]:
        if number is not None:
            _check_number("step", number)
        if self._inside:
            raise UsageError("step: steps do not nest")
        if self.run is not None:
            raise UsageError("step: the clocks of the run that is under way are the steps")
        self._check()
        current = self.next if number is None else number
        self._inside = True
        try:
            yield current
            self._session.flush()
            self._check()
            self.next = current + 1
            if self._due():
                self._automatic(lambda: self.checkpoint(None, self.next))
        except Exception as error:
            try:
                self._check()
            except PS2Error as rolled_back:
                raise rolled_back from error
            raise
        finally:
            self._inside = False

    def has_way_back(self, checkpoint: str) -> bool:
        """Tell whether what is under way, a run or a step, can go on from a checkpoint by itself."""
        run = self.run
        return run.has_cut(checkpoint) if run is not None else self._inside and checkpoint in self._cuts

    @property
    def by_clock(self) -> bool:
        """Whether checkpoints are made at the end of steps."""
        return self._conf.checkpointEverySteps is not None or self._conf.checkpointEveryS is not None

    def end_clock(self, clock: int) -> None:
        """Note that all workers of a run have finished a clock; make the checkpoint that is due."""
        self.next = clock + 1
        if self._due():
            self._automatic(lambda: self.checkpoint(None, None))

    @shielded
    def begin_run(self, run: Run) -> None:
        """Let the clocks of a run be the steps.

        Raises:
            UsageError: a step is under way.
            RolledBack: the fleet has gone back to a checkpoint, and the caller does not know yet.
        """
        if self._inside:
            raise UsageError("run: a step is under way, and the clocks of a run are steps themselves: call it outside")
        self._check()
        run.journal = self._journal.before(run.first)
        self.run = run

    def messages(self) -> list[Any]:
        """Return the messages of ``onClock`` that the next run goes on from, oldest first."""
        return [decode(message) for message in self._journal.before(self.next).messages()]

    def roll_back(self, step: int) -> None:
        """The driver's loop hears that the fleet went back to a step."""
        self.next = step
        self._journal = self._journal.before(step)

    def checkpoint_beginning(self) -> None:
        """Let all go back to the beginning of a run at least, if all go back together."""
        if self._conf.recover == "shard" or self._conf.checkpointDir is None:
            return
        while True:
            before = len(self.settled())
            try:
                self.checkpoint(None, None)
                return
            except RecoveryError:
                # A server may have been lost meanwhile: if it came back with all that it had, this is to be made again.
                since = self.settled()[before:]
                if not since or any(recovery.source == "checkpoint" for recovery in since):
                    raise

    @shielded
    def end_run(self) -> None:
        """Go on from where a run has come to; what it has dealt with is no news any more."""
        run, self.run = self.run, None
        if run is not None:
            ended = isinstance(run.error, RolledBack)
            with suppress(RolledBack):
                self._session.check_epoch(self._master.gone_back if ended else (run.epoch, None))
            if not ended:
                self.next = min(run.applied())
                # A run that has come to its end by STOP may be gone on with by another one.
                self._journal = run.journal.without_stop() if run.is_over else run.journal

    def close(self) -> None:
        self._closing.set()

    @shielded
    def _check(self) -> None:
        self._session.check_epoch(self._master.gone_back)

    def _due(self) -> bool:
        every_steps, every_s = self._conf.checkpointEverySteps, self._conf.checkpointEveryS
        if every_steps is not None and self.next % every_steps == 0:
            return True
        return every_s is not None and time.monotonic() - self._last_s >= every_s

    def _by_time(self) -> None:
        assert self._conf.checkpointEveryS is not None
        turns = Turns("ps2-checkpoints")
        while not self._closing.wait(self._conf.checkpointEveryS):
            # Steps and clocks make theirs at their ends; a loop that has to hear of a rollback hears of it first.
            if self.run is None and not self._inside and self._session.epoch == self._master.epoch:
                turns.take(lambda: self._automatic(self._between))

    def _between(self) -> Checkpoint:
        """Make a checkpoint where there are no steps; one may begin meanwhile, so nobody goes on from it."""
        self._last_s = time.monotonic()
        return self._checkpoints.take(None, self.next, self._session.epoch, messages=self._journal.to_bytes())

    def _automatic(self, take: Callable[[], Checkpoint]) -> None:
        """Make a checkpoint that nobody waits for: if it fails, the loop goes on, and is told."""
        try:
            take()
        except RolledBack:
            raise
        except PS2Error as error:
            if not self._closing.is_set():
                log.warning("%s", error)  # each time, while Python shows the same warning once
                warnings.warn(CheckpointWarning(str(error)), stacklevel=2)


def _nowhere(folder: str) -> None:
    """Note of a checkpoint that no loop can go on from it."""


def _check_number(name: str, number: object) -> None:
    """Raise ConfigError unless it is one of a step."""
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ConfigError(f"{name}: expected a number that is not negative, got {number!r}")
