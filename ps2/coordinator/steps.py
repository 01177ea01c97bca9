"""Counts the steps of the driver's loop, makes checkpoints after them, and resumes the loop after a rollback."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ps2.client.session import Session
from ps2.coordinator.checkpoints import Checkpoint, Checkpoints, Newest
from ps2.coordinator.conf import PS2Conf
from ps2.coordinator.master import Master
from ps2.coordinator.recovery import Recovery, RecoveryLog
from ps2.errors import CheckpointWarning, ConfigError, PS2Error, RecoveryError, RolledBack, UsageError
from ps2.guarded_loop import GuardedLoop
from ps2.interrupts import check as check_interrupts
from ps2.interrupts import shielded, sleep
from ps2.protocol.plain_data import decode
from ps2.rpc.control import ServerControl
from ps2.run.clocks import MAX_CUTS, Cut
from ps2.run.host import ActiveRuns
from ps2.run.journal import Journal
from ps2.run.state import RunState
from ps2.storage import folders

log = logging.getLogger(__name__)

# Seconds between two checks of a waiting batch or checkpoint whether the current run has ended.
POLL_S = 0.05


class StreamTurns:
    """The streams of one coordinator. While a batch is processed, no other batch, no run and no step begins.

    A checkpoint contains the positions of all streams, so all streams can resume from every checkpoint.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._models: set[str] = set()  # names of the models that learn from streams
        self._thread: int | None = None  # id of the thread that processes a batch; None: there is no batch

    @property
    def are_open(self) -> bool:
        """True if a model learns from a stream."""
        return bool(self._models)

    def check_free(self, model: str) -> None:
        """Raise UsageError if the named model already learns from a stream."""
        if model in self._models:
            raise UsageError(f"model {model} learns from a stream already: stop that query first")

    @contextmanager
    def stream(self, model: str) -> Iterator[None]:
        """Register a model that learns from a stream. Within the with-block, a lost server rolls back all servers."""
        with self._changed:
            self.check_free(model)
            self._models.add(model)
        try:
            yield
        finally:
            with self._changed:
                self._models.remove(model)

    @contextmanager
    def batch(self, is_free: Callable[[], bool]) -> Iterator[None]:
        """Wait until no other batch is processed and ``is_free()`` is true; exclude other batches in the with-block."""
        with self._changed:
            while self._thread is not None or not is_free():
                self._changed.wait(POLL_S)
            self._thread = threading.get_ident()
        try:
            yield
        finally:
            with self._changed:
                self._thread = None
                self._changed.notify_all()

    def wait(self) -> None:
        """Wait until no batch of another thread is in progress."""
        with self._changed:
            while self._thread not in (None, threading.get_ident()):
                self._changed.wait(POLL_S)


class Steps:
    """Counts the steps of one driver's loop, and makes its checkpoints; ``next``: number of the next step or clock."""

    def __init__(  # noqa: PLR0913 - parts of one coordinator
        self,
        checkpoints: Checkpoints,
        session: Session,
        master: Master,
        servers: ServerControl,
        conf: PS2Conf,
        active: ActiveRuns,
        recoveries: RecoveryLog,
    ) -> None:
        """Continue after the newest checkpoint. The clocks of a run that leads (``begin_run``) are the steps."""
        self._checkpoints = checkpoints
        self._session = session
        self._master = master
        self._servers = servers
        self._conf = conf
        self._active = active
        self._recoveries = recoveries
        self._checkpoint_s = time.monotonic()  # start of the last checkpoint
        self._closing = threading.Event()
        self._in_step = False  # True during a step, and during the checkpoint after it
        self.streams = StreamTurns()
        # Folders of the checkpoints from which the loop can continue. Others contain a part of a step or run.
        self._resumable: deque[str] = deque(maxlen=MAX_CUTS)
        self._leader: RunState | None = None  # the active run whose clocks are the steps
        self._holding = threading.Lock()  # held by the thread that makes a checkpoint of runs
        self._epoch = 0  # the last rollback that ``roll_back`` has handled
        # The messages of finished runs that led. An active run has its own journal.
        self._journal = Journal()
        newest = checkpoints.newest
        if newest is not None and newest.manifest.messages is not None:
            saved = folders.read_messages(newest.path, newest.manifest.messages)
            self._journal = Journal.from_bytes(saved, newest.path)
        self.next = newest.manifest.step or 0 if newest is not None else 0
        if newest is not None:
            self._resumable.append(newest.path)
        # Checkpoints by time may contain a part of a step. With "consistent", all servers would roll back to them.
        if conf.checkpointEveryS is not None and conf.recover != "consistent":
            threading.Thread(target=self._make_timed_checkpoints, name="ps2-checkpoints", daemon=True).start()

    @shielded
    def checkpoint(self, path: str | None, step: int | None) -> Checkpoint | None:
        """See ``PS2Context.checkpoint``."""
        if step is not None:
            _check_number("checkpoint: step", step)
        self._checkpoints.parent(path)
        if (run := self._active.own) is not None and run.request_checkpoint(path, step):
            return None
        self.streams.wait()
        with self._holding_calls() as runs:
            if runs:
                return self._checkpoint_runs(runs, path, step)
        self._checkpoint_s = time.monotonic()
        self._check()
        on_complete = _record_no_cut if self._in_step and step is None else self._resumable.append
        number = self.next if step is None else step
        return self._checkpoints.take(path, number, self._session.epoch, on_complete, self._journal.to_bytes())

    @contextmanager
    def _holding_calls(self) -> Iterator[list[RunState]]:
        """Let no call of ``onClock`` be running in the with-block; yield the active runs. One thread at a time."""
        while not self._holding.acquire(timeout=POLL_S):
            check_interrupts()
        try:
            with ExitStack() as held:
                runs, own = self._active.all(), self._active.own
                for run in runs:
                    held.enter_context(run.holding_calls())
                while not all(run.is_between_calls for run in runs):
                    if own is not None and own.error is not None:
                        raise own.error
                    sleep(POLL_S)
                yield runs
        finally:
            self._holding.release()

    def _cuts(self, runs: Sequence[RunState]) -> _Cuts:
        """Read the positions of the workers of runs, for a checkpoint that is made afterwards.

        After a rollback, changes between the cut and the checkpoint are sent again, and the servers apply them once.
        """
        with self._active.lock:
            epoch = max(run.epoch for run in runs)
            # A run that has not rolled back with the others has failed, or is over.
            cuts = [(run, run.cut()) for run in runs if run.epoch == epoch]
        for run, cut in cuts:
            if run is self._leader:
                return _Cuts(epoch, cuts, cut.first, cut.saved())
        return _Cuts(epoch, cuts, self.next, self._journal.to_bytes())

    def _checkpoint_runs(self, runs: Sequence[RunState], path: str | None, step: int | None) -> Checkpoint:
        """Make a checkpoint of runs (``_holding_calls``); ``path``, ``step``: see ``checkpoint``; None: defaults."""
        self._checkpoint_s = time.monotonic()
        cuts = self._cuts(runs)
        next_step = cuts.step if step is None else step
        try:
            return self._checkpoints.take(path, next_step, cuts.epoch, cuts.add, cuts.messages)
        except RecoveryError as error:
            run = self._active.own or runs[0]
            if run.epoch != cuts.epoch:
                raise RolledBack("the fleet rolled back to a checkpoint", min(run.applied())) from error
            raise

    def hand_over(self, addresses: Collection[str]) -> Newest:
        """Make a checkpoint at once, even during a step or run. Servers at ``addresses`` reject all later changes."""
        runs = self._active.all()
        if not runs:
            # The checkpoint may contain a part of a step. The whole fleet must not roll back to such a checkpoint.
            is_partial = self._in_step or self._conf.recover == "consistent"
            on_complete = None if is_partial else _record_no_cut
            messages = self._journal.to_bytes()
            return self._checkpoints.hand_over(addresses, self.next, self._session.epoch, on_complete, messages)
        with ExitStack() as held:
            for run in runs:
                held.enter_context(run.holding_calls())
            # While ``onClock`` runs, the checkpoint may contain a part of its changes, and lacks its return value.
            is_free, cuts = all(run.is_between_calls for run in runs), self._cuts(runs)
            return self._checkpoints.hand_over(
                addresses, cuts.step, cuts.epoch, cuts.add if is_free else None, cuts.messages
            )

    @contextmanager
    def step(self, number: int | None) -> Iterator[int]:
        if number is not None:
            _check_number("step", number)
        if self._in_step:
            raise UsageError("step: steps do not nest")
        if self._active.all():
            raise UsageError("step: a run is in progress, and its clocks are the steps: call step outside of runs")
        self._check()
        current = self.next if number is None else number
        self._in_step = True
        try:
            yield current
            self._session.dispatch.flush()
            self._check()
            self.next = current + 1
            if self._is_due(self.next):
                self._make_due_checkpoint(lambda: self.checkpoint(None, self.next))
        except Exception as error:
            try:
                self._check()
            except PS2Error as rolled_back:
                raise rolled_back from error
            raise
        finally:
            self._in_step = False

    def can_resume(self, checkpoint: str) -> bool:
        """Return True if an active run or step can continue from a checkpoint without the program's help.

        A run that cannot continue from it, because it has just begun, then fails with RolledBack. If only lost servers
        were restored, the other runs would lose changes without notice.
        """
        if runs := self._active.all():
            return any(checkpoint in run.cuts for run in runs)
        return (self._in_step or self.streams.are_open) and checkpoint in self._resumable

    @contextmanager
    def stream_batch(self, check: Callable[[], None]) -> Iterator[None]:
        """Exclude other batches, runs, steps and checkpoints in the with-block; errors of ``check`` end the wait."""

        def is_free() -> bool:
            check()
            return not self._active.all() and not self._in_step

        with self.streams.batch(is_free):
            yield

    @property
    def has_periodic_checkpoints(self) -> bool:
        """True if the settings ask for checkpoints after steps."""
        return self._conf.checkpointEverySteps is not None or self._conf.checkpointEveryS is not None

    def end_clock(self, run: RunState, clock: int) -> bool:
        """Record that all workers of a run have finished a clock, and that ``onClock`` has returned for it.

        Make the checkpoints that ``onClock`` has requested, and a periodic one if due; return True if one was made.
        """
        if run is self._leader:
            self.next = clock + 1
        is_due, requested = self._is_due(clock + 1), run.take_requested()
        if not is_due and not requested:
            return False
        run.is_at_cut = True
        try:
            with self._holding_calls() as runs:
                for path, step in requested:
                    self._checkpoint_runs(runs, path, step)
                if is_due and all(path is not None for path, _ in requested):
                    self._make_due_checkpoint(lambda: self._checkpoint_runs(runs, None, None))
        finally:
            run.is_at_cut = False
        return True

    @shielded
    def begin_run(self, run: RunState) -> None:
        """Start a run of this thread. Raise RolledBack if the thread has not handled a rollback yet.

        The run leads if no active run leads: its clocks are the steps, and its journal is saved in checkpoints.
        """
        if self._in_step:
            raise UsageError(
                "run: a step is in progress, and the clocks of a run are steps, too: call run outside of steps"
            )
        self.streams.wait()
        self._session.rollbacks.remember_thread(begins_run=True)
        self._check()
        with self._active.lock:
            if self._leader is None:
                self._leader = run
                run.resume(self._journal)
        self._active.add(run)

    @property
    def called(self) -> int:
        """The first clock for which the next run calls ``onClock``; less than ``next`` if the workers were ahead."""
        pending = self._journal.pending
        return self.next if pending is None or pending.finished != self.next else pending.called

    def forget_stop(self) -> None:
        """Let the next run continue, although a program had stopped the last run, even in an earlier driver."""
        self._journal = self._journal.without_stop()

    def messages(self) -> list[Any]:
        """Return the messages that ``onClock`` sent to the workers before step ``next``, oldest first."""
        return [decode(message) for message in self._journal.before(self.next).messages()]

    def roll_back(self, epoch: int, step: int) -> None:
        """Continue from ``step``, because the fleet has rolled back ``epoch`` times, now to a checkpoint before it."""
        if epoch > self._epoch:  # else another thread has handled it
            self._epoch, self.next = epoch, step
            self._journal = self._journal.before(step)

    def checkpoint_beginning(self) -> None:
        """Make a checkpoint before the first clock of a run, unless ``recover="shard"`` or no folder is set."""
        if self._conf.recover == "shard" or self._conf.checkpointDir is None:
            return
        while True:
            num_recoveries = len(self.wait_for_servers())
            try:
                with self._holding_calls() as runs:
                    self._checkpoint_runs(runs, None, None)
                return
            except RecoveryError:
                # A server may have been lost. If it was restored without loss of changes, try again.
                recoveries = self.wait_for_servers()[num_recoveries:]
                if not recoveries or any(recovery.source == "checkpoint" for recovery in recoveries):
                    raise

    @shielded
    def end_run(self, run: RunState) -> None:
        """End a run of this thread. If it leads, its last clock is the last step. Its rollbacks raise no RolledBack."""
        has_failed = isinstance(run.error, RolledBack)
        with self._active.lock:
            has_led = run is self._leader
            if has_led:
                self._leader = None
        self._active.remove(run)
        self._session.acknowledge(*(self._master.last_rollback if has_failed else (run.epoch, None)))
        if has_led and not has_failed:
            self.next = min(run.applied())
            # The next run may continue, although this run was stopped.
            self._journal = run.journal.without_stop() if run.is_over else run.journal

    def acknowledge_rollback(self) -> None:
        """Record that the program has handled the last rollback: the next call does not raise RolledBack."""
        with suppress(RolledBack):
            self._check()

    def close(self) -> None:
        self._closing.set()

    def wait_for_servers(self) -> list[Recovery]:
        """Wait until all servers answer; return all recoveries. Raise LostError if a server cannot be replaced."""

        def ask() -> None:
            self._master.registry.check_all_present()
            for address in self._master.registry.addresses():
                self._servers.status(address)

        self._session.ask(ask)
        return self._recoveries.all()

    @shielded
    def _check(self) -> None:
        """Raise RolledBack if the program has not handled the last rollback."""
        self._session.check_epoch(self._master.last_rollback)

    def _is_due(self, next_step: int) -> bool:
        """Return True if the settings require a checkpoint before the next step or clock of a loop."""
        every_steps, every_s = self._conf.checkpointEverySteps, self._conf.checkpointEveryS
        if every_steps is not None and next_step % every_steps == 0:
            return True
        return every_s is not None and time.monotonic() - self._checkpoint_s >= every_s

    def _make_timed_checkpoints(self) -> None:
        assert self._conf.checkpointEveryS is not None
        loop = GuardedLoop("ps2-checkpoints")
        while not self._closing.wait(self._conf.checkpointEveryS):
            # Make no checkpoint during steps and runs, which make checkpoints after each step; while streams are open,
            # which make checkpoints between batches; or before the loop has handled a rollback.
            is_idle = not self._active.all() and not self._in_step and not self.streams.are_open
            if is_idle and self._session.epoch == self._master.epoch:
                loop.run_once(lambda: self._make_due_checkpoint(self._checkpoint_between_steps))

    def _checkpoint_between_steps(self) -> Checkpoint:
        """Make a checkpoint outside of steps. The loop cannot resume from it: a step may begin before its end."""
        self._checkpoint_s = time.monotonic()
        return self._checkpoints.take(None, self.next, self._session.epoch, messages=self._journal.to_bytes())

    def _make_due_checkpoint(self, take: Callable[[], object]) -> None:
        """Make a periodic checkpoint by ``take``. If it fails, warn and continue."""
        try:
            take()
        except RolledBack:
            raise
        except PS2Error as error:
            if not self._closing.is_set():
                log.warning("%s", error)  # log every failure: Python shows equal warnings only once
                warnings.warn(CheckpointWarning(str(error)), stacklevel=2)


@dataclass(frozen=True)
class _Cuts:
    """The positions of runs for a checkpoint: ``step`` and ``messages`` are for another driver that restores it."""

    epoch: int
    by_run: Sequence[tuple[RunState, Cut]]
    step: int
    messages: bytes

    def add(self, checkpoint: str) -> None:
        """Let the runs resume from a checkpoint."""
        for run, cut in self.by_run:
            run.add_cut(checkpoint, cut)


def _record_no_cut(folder: str) -> None:
    """Do nothing: the loop cannot resume from the checkpoint in ``folder``."""


def _check_number(name: str, number: object) -> None:
    """Raise ConfigError unless ``number`` is a valid step number."""
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ConfigError(f"{name}: expected an integer >= 0, got {number!r}")
