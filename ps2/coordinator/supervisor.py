"""Watches the servers, and restores lost ones from their copies on another server, or from a checkpoint."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress

from ps2.coordinator.checkpoints import Checkpoints, Newest, missing_vectors
from ps2.coordinator.fleet_control import FleetControl
from ps2.coordinator.recovery import Outage, Policy, Recovery, RecoveryLog, Source, all_roll_back, backup_of, source_of
from ps2.coordinator.steps import Steps
from ps2.errors import (
    CheckpointCorruptError,
    CheckpointMissingError,
    PS2Error,
    RecoveryError,
    StoppedError,
)
from ps2.interrupts import sleep
from ps2.transport.concurrent_calls import call_concurrently

log = logging.getLogger(__name__)

# Pause between two attempts to restore servers.
PAUSE_S = 1.0
# Time limit for a silent server to answer.
ASK_TIMEOUT_S = 1.0
# Interval at which ``roll_back`` checks whether the fleet has rolled back.
WAIT_S = 0.1
REQUESTED = "the driver asked for it"
# Pause before a failed checkpoint is tried again. The leaving servers keep running, up to their own limit.
RETRY_S = 5.0


class DrainController:
    """Drains servers that are about to end. One thread calls ``update`` repeatedly.

    A server with up-to-date copies is released at once. Otherwise the fleet makes a checkpoint, and the leaving servers
    refuse all later requests, so the checkpoint holds all changes for their successors. Without copies and without a
    folder for checkpoints, a server is released at once, and its data are lost.
    """

    def __init__(self, fleet: FleetControl, checkpoints: Checkpoints, policy: Policy, steps: Steps) -> None:
        self._master = fleet.master
        self._servers = fleet.control
        self._checkpoints = checkpoints
        self._policy = policy
        self._steps = steps
        self._released: set[str] = set()  # ids of processes
        self._thread: threading.Thread | None = None
        self._next_s = 0.0
        self._handovers: Mapping[int, Newest] = {}  # the checkpoint that each drained server has ended with

    def update(self, leaving: Collection[int]) -> None:
        """Begin to drain the leaving servers, and return at once."""
        members = self._master.registry.members()
        leaving_members = {index: members[index] for index in leaving if members[index][0] not in self._released}
        if (
            not leaving_members
            or time.monotonic() < self._next_s
            or (self._thread is not None and self._thread.is_alive())
        ):
            return
        self._next_s = time.monotonic() + RETRY_S
        # A checkpoint may take minutes, and the supervisor must not wait.
        self._thread = threading.Thread(target=self._drain, args=(leaving_members,), name="ps2-drain", daemon=True)
        self._thread.start()

    def handed_over(self, indices: Collection[int]) -> Newest | None:
        """Return the checkpoint by which all these servers handed over their data; None if they have no common one."""
        first, *others = (self._handovers.get(index) for index in indices)
        return first if all(other is first for other in others) else None

    def forget(self, indices: Collection[int]) -> None:
        """Forget the handover of servers, whose data now differ from their last checkpoint."""
        self._handovers = {index: newest for index, newest in self._handovers.items() if index not in indices}

    def _drain(self, leaving_members: Mapping[int, tuple[str, str]]) -> None:
        addresses = [address for _, address in leaving_members.values()]
        try:
            if not self._in_sync(addresses):
                self._hand_over(leaving_members)
        except PS2Error as error:
            log.warning(
                "servers %s are about to end, and their data are not safe yet: %s", sorted(leaving_members), error
            )
            return
        for index, (server_id, address) in leaving_members.items():
            with suppress(PS2Error):  # a server that misses this call reports again that it is leaving
                self._servers.hello(address, self._master.id, released=True)
                self._released.add(server_id)
                log.info("server %d is allowed to end", index)

    def _in_sync(self, addresses: Collection[str]) -> bool:
        """Return True if one server is leaving, and its copies are up to date. A second one could hold the copies."""
        if not self._policy.replicas or len(addresses) > 1:
            return False
        self._master.registry.check_all_present()
        return all(self._servers.status(address).behind == 0 for address in addresses)

    def _hand_over(self, leaving_members: Mapping[int, tuple[str, str]]) -> None:
        if self._checkpoints.folder is None:
            log.warning("servers %s end, and their data are lost: there is no checkpointDir", sorted(leaving_members))
            return
        newest = self._steps.hand_over([address for _, address in leaving_members.values()])
        self._handovers = {**self._handovers, **dict.fromkeys(leaving_members, newest)}


class Supervisor:
    """Watches the servers of one coordinator. One thread calls ``poll`` repeatedly."""

    def __init__(
        self,
        fleet: FleetControl,
        checkpoints: Checkpoints,
        policy: Policy,
        steps: Steps,
        recoveries: RecoveryLog,
    ) -> None:
        self._master = fleet.master
        self._launcher = fleet.launcher
        self._servers = fleet.control
        self._fleet = fleet
        self._checkpoints = checkpoints
        self._policy = policy
        self._steps = steps
        self._recoveries = recoveries
        self._drain = DrainController(fleet, checkpoints, policy, steps)
        self._rolling_back = False  # the whole fleet is rolling back to a checkpoint, and not all servers have done so
        self._pending: set[int] = set()  # replaced servers that still lack their shards
        self._failing_since_s: float | None = None
        self._copies_broken = False  # the copies of a lost server were incomplete
        self._next_attempt_s = 0.0
        self._superseded = False
        self._target_epoch = 0  # epoch that ``roll_back`` waits for; 0: none

    def roll_back(self, timeout_s: float) -> None:
        """Let the whole fleet roll back to the newest checkpoint, and wait until it has. Callable from any thread."""
        deadline_s = time.monotonic() + timeout_s
        self._target_epoch = target = self._master.last_rollback[0] + 1
        try:
            while self._master.last_rollback[0] < target:
                if self._checkpoints.newest is None:
                    raise RecoveryError(f"the fleet cannot roll back: {self._why_not_restorable()}")
                if time.monotonic() > deadline_s:
                    raise RecoveryError(f"the fleet has not rolled back to a checkpoint within {timeout_s:.0f} s")
                sleep(WAIT_S)
        finally:
            self._target_epoch = 0

    def poll(self) -> None:
        """Check all servers once; replace lost ones if their shards can be restored."""
        if self._superseded:
            return
        try:
            endings = self._launcher.poll()
        except StoppedError as error:
            self._superseded = True
            self._master.registry.supersede(str(error))
            log.warning("%s", error)
            return
        for index, reason in endings.items():
            if reason is None:
                self._master.registry.alive(index)
            else:
                self._master.registry.ended(index, reason)
        # A server that answers is not replaced, even without heartbeats.
        registry = self._master.registry
        call_concurrently(registry.silent(), self._ask, while_waiting=registry.caller_runs)
        registry.tick()
        self._drain.update(self._launcher.leaving)
        indices = set(self._master.registry.lost(self._launcher.replaces)) | self._pending
        if not indices:
            self._master.catch_up()
            self._roll_back_on_request()
        if not indices or time.monotonic() < self._next_attempt_s:
            return
        handover = self._drain.handed_over(indices)
        newest = handover or self._checkpoints.newest
        source = source_of(indices, self._launcher.servers, self._policy, newest is not None)
        if source == "replica" and self._copies_broken:
            source = "checkpoint" if newest is not None else None
        if source == "checkpoint" and handover is not None:
            source = "handover"
        if source is None:
            self._master.registry.give_up(self._why_not_restorable())
            return
        try:
            self._recover(tuple(sorted(indices)), source, None if source == "replica" else newest)
            self._failing_since_s, self._copies_broken = None, False
        except PS2Error as error:
            if newest is not None and isinstance(error, (CheckpointMissingError, CheckpointCorruptError)):
                self._checkpoints.distrust(newest, str(error))
                self._drain.forget(indices)
            elif source == "replica" and isinstance(error, RecoveryError):
                log.warning("servers %s do not come back from their copies: %s", sorted(indices), error)
                self._copies_broken = True
            else:
                self._handle_failure(indices, error)

    def _ask(self, member: tuple[int, str, str]) -> None:
        index, server_id, address = member
        try:
            info = self._servers.hello(address, self._master.id, ASK_TIMEOUT_S)
            if info.server_id == server_id:
                self._master.registry.alive(index)
                # Renew the lease: the server may serve clients while this coordinator counts it as alive.
                self._servers.hello(address, self._master.id, ASK_TIMEOUT_S, answered_s=info.now_s)
        except PS2Error as error:
            log.debug("asking server %d: %s", index, error)

    def _handle_failure(self, indices: Collection[int], error: PS2Error) -> None:
        """Pause before the next attempt; give up after ``give_up_after_s`` of attempts."""
        now_s = time.monotonic()
        log.warning("servers %s are not back yet: %s", sorted(indices), error)
        self._failing_since_s = self._failing_since_s or now_s
        self._next_attempt_s = now_s + PAUSE_S
        if now_s - self._failing_since_s > self._master.config.give_up_after_s:
            self._master.registry.give_up(f"it could not be brought back: {error}")
            self._next_attempt_s = math.inf

    def _why_not_restorable(self) -> str:
        if self._checkpoints.distrusted:
            return f"no checkpoint can be read: {self._checkpoints.distrusted}"
        if self._copies_broken:
            return "the copies of its shards were still being made, and there is no checkpoint"
        if self._policy.replicas:
            return "the server with copies of its shards is lost, too, and there is no checkpoint"
        return "there is no checkpoint to get its shards back from"

    def _recover(self, indices: tuple[int, ...], source: Source, newest: Newest | None) -> None:
        """Replace lost servers, restore their shards from ``newest`` or their copies, and let clients reach them."""
        # The order matters. Fence the lost processes, so that they change nothing any more. Start new processes. Load
        # their shards while no matrix changes. Let the new processes answer. Record the recovery.
        lost = self._master.registry.fence(indices)
        began_s = time.monotonic()
        self._pending.update(indices)
        for index in indices:
            self._fleet.launch(index)
        # Let the other servers continue without the lost backups, before any call that waits for these servers. From
        # now on the lost processes can change nothing on the other servers.
        self._fleet.activate(lost=indices)
        self._fleet.wait_registered(indices)
        with self._master.block_changes(), ExitStack() as answering:
            started_s = time.monotonic()
            together = False
            if newest is None:
                nbytes = self._restore_from_copies(indices, answering)
            else:
                can_resume = self._steps.can_resume(newest.path)
                together = self._rolling_back or (source != "handover" and all_roll_back(self._policy, can_resume))
                nbytes = self._restore_from_checkpoint(indices, newest, together, answering)
            self._rolling_back = False
            self._pending.clear()
            self._master.registry.restored()
            costs = (started_s - began_s, time.monotonic() - started_s, nbytes)
            recovery = self._report(lost, source, newest, together, costs)
            self._recoveries.append(recovery)
        self._drain.forget(range(self._launcher.servers) if together else indices)
        log.warning("%s", recovery)
        self._master.publish()  # the catalog contains the ids of the processes

    def _roll_back_on_request(self) -> None:
        newest = self._checkpoints.newest
        if newest is None or self._master.last_rollback[0] >= self._target_epoch:
            return
        began_s = time.monotonic()
        members = self._master.registry.counts()
        try:
            with self._master.block_changes(), ExitStack() as answering:
                nbytes = self._restore_from_checkpoint((), newest, True, answering)
                self._rolling_back = False
                lost = Outage((), REQUESTED, 0.0, members)
                costs = (0.0, time.monotonic() - began_s, nbytes)
                recovery = self._report(lost, "checkpoint", newest, True, costs)
                self._recoveries.append(recovery)
        except (CheckpointMissingError, CheckpointCorruptError) as error:
            self._checkpoints.distrust(newest, str(error))
            return
        except PS2Error as error:
            log.warning("the fleet has not rolled back yet: %s", error)
            return
        self._drain.forget(range(self._launcher.servers))
        log.warning("%s", recovery)
        self._master.publish()

    def _report(
        self,
        lost: Outage,
        source: Source,
        newest: Newest | None,
        together: bool,
        costs: tuple[float, float, int],
    ) -> Recovery:
        start_s, load_s, nbytes = costs
        rolled_back = range(self._launcher.servers) if together else lost.servers
        return Recovery(
            servers=lost.servers,
            reason=lost.reason,
            source=source,
            checkpoint=newest.path if newest is not None else None,
            step=newest.manifest.step if newest is not None else None,
            rolledBack=together,
            mixed=source == "checkpoint" and len(rolled_back) < self._launcher.servers,
            detectS=lost.silent_s,
            startS=start_s,
            loadS=load_s,
            nbytes=nbytes,
            mutationsLost=lost.mutations_since(newest.mutations, rolled_back) if newest is not None else 0,
            zeros=missing_vectors(newest.manifest, self._master) if newest is not None else (),
        )

    def _restore_from_copies(self, indices: Collection[int], answering: ExitStack) -> int:
        """Restore shards from their copies, and make new copies in the background; return the bytes."""
        count, addresses, entries = self._launcher.servers, self._master.registry.addresses(), self._master.entries()
        nbytes = 0
        for index in indices:
            names = [(entry.id, p.index) for entry in entries for p in entry.partitions_of(index)]
            self._fleet.allocate(index, index, copies=False)
            nbytes += self._servers.send(addresses[backup_of(index, count)], addresses[index], names, copies=False)
        backed_up = [(index - 1) % count for index in indices]  # the servers whose copies were on the lost servers
        for index in backed_up:
            self._fleet.allocate(index, backup_of(index, count), copies=True)
        self._fleet.end_stages(indices)
        answering.enter_context(self._recoveries.lock)
        self._fleet.activate(seed=backed_up)
        return nbytes

    def _restore_from_checkpoint(
        self, indices: Collection[int], newest: Newest, together: bool, answering: ExitStack
    ) -> int:
        """Load the shards of the lost servers, or of all if they roll back ``together``; return the bytes."""
        rolled_back = range(self._launcher.servers) if together else indices
        nbytes = self._fleet.load(newest, rolled_back, ids=True)
        self._fleet.end_stages(indices)
        self._fleet.discard_checkpoints()  # an unfinished checkpoint may hold data that is replaced now
        if together:
            self._rolling_back = True
            self._master.roll_back(newest.manifest.step)
        answering.enter_context(self._recoveries.lock)
        self._fleet.take_loaded(rolled_back)
        if together:
            self._master.finish_rollback(newest.path)
        return nbytes
