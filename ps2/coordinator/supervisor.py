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

# Seconds between two attempts to restore servers.
PAUSE_S = 1.0
# Time limit of a call that asks a silent server for an answer.
ASK_TIMEOUT_S = 1.0
# Seconds between two checks of ``roll_back`` whether the fleet has rolled back.
WAIT_S = 0.1
REQUESTED = "the program called rollBack"
# Seconds until a failed checkpoint is tried again. Leaving servers run until the checkpoint succeeds, or until their
# own time limit.
RETRY_S = 5.0


class DrainController:
    """Saves the data of servers that were asked to shut down. One thread calls ``update`` repeatedly.

    A server with up-to-date copies may end at once. Otherwise the fleet makes a checkpoint. The leaving servers reject
    all later requests, so their replacements find all changes in the checkpoint. Without copies and without a folder
    for checkpoints, a server may end at once, and its data are lost.
    """

    def __init__(self, fleet: FleetControl, checkpoints: Checkpoints, policy: Policy, steps: Steps) -> None:
        self._master = fleet.master
        self._servers = fleet.control
        self._checkpoints = checkpoints
        self._policy = policy
        self._steps = steps
        self._released: set[str] = set()  # ids of servers that may end
        self._thread: threading.Thread | None = None
        self._next_attempt_s = 0.0  # in seconds of ``time.monotonic``
        self._handovers: Mapping[int, Newest] = {}  # the last checkpoint of each drained server, by index

    def update(self, leaving: Collection[int]) -> None:
        """Start a thread that drains the leaving servers, unless one is running or a recent attempt has failed."""
        members = self._master.registry.members()
        leaving_members = {index: members[index] for index in leaving if members[index][0] not in self._released}
        if (
            not leaving_members
            or time.monotonic() < self._next_attempt_s
            or (self._thread is not None and self._thread.is_alive())
        ):
            return
        self._next_attempt_s = time.monotonic() + RETRY_S
        # A checkpoint may take minutes, and the calling thread must continue to watch the servers.
        self._thread = threading.Thread(target=self._drain, args=(leaving_members,), name="ps2-drain", daemon=True)
        self._thread.start()

    def common_handover(self, indices: Collection[int]) -> Newest | None:
        """Return the last checkpoint of drained servers; None if they were not drained by the same checkpoint."""
        checkpoint, *others = (self._handovers.get(index) for index in indices)
        return checkpoint if all(other is checkpoint for other in others) else None

    def forget(self, indices: Collection[int]) -> None:
        """Forget the last checkpoints of servers: their data have changed, or the checkpoint cannot be read."""
        self._handovers = {index: newest for index, newest in self._handovers.items() if index not in indices}

    def _drain(self, leaving_members: Mapping[int, tuple[str, str]]) -> None:
        addresses = [address for _, address in leaving_members.values()]
        try:
            if not self._have_full_copies(addresses):
                self._hand_over(leaving_members)
        except PS2Error as error:
            log.warning(
                "servers %s were asked to end, but their data are not saved yet: %s", sorted(leaving_members), error
            )
            return
        for index, (server_id, address) in leaving_members.items():
            with suppress(PS2Error):  # if the call fails, the server reports again that it is leaving
                self._servers.hello(address, self._master.id, released=True)
                self._released.add(server_id)
                log.info("server %d may end", index)

    def _have_full_copies(self, addresses: Collection[str]) -> bool:
        """Return True if the leaving server's copies are up to date; False for two: one may have the other's copies."""
        if not self._policy.replicas or len(addresses) > 1:
            return False
        self._master.registry.check_all_present()
        return all(self._servers.status(address).behind == 0 for address in addresses)

    def _hand_over(self, leaving_members: Mapping[int, tuple[str, str]]) -> None:
        """Make the last checkpoint of leaving servers, given (server id, address) by index."""
        if self._checkpoints.folder is None:
            log.warning("servers %s end, and their data are lost: no checkpointDir is set", sorted(leaving_members))
            return
        newest = self._steps.hand_over([address for _, address in leaving_members.values()])
        self._handovers = {**self._handovers, **dict.fromkeys(leaving_members, newest)}


class Supervisor:
    """Watches the servers of one coordinator, and replaces lost ones. One thread calls ``poll`` repeatedly."""

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
        # True: a rollback of the whole fleet has begun, and some servers have not loaded the checkpoint yet.
        self._rolling_back = False
        self._pending: set[int] = set()  # indices of replaced servers that still lack their shards
        self._failing_since_s: float | None = None  # time of the first failed attempt; None: the last one succeeded
        self._copies_incomplete = False  # True: a lost server cannot be restored from its copies
        self._next_attempt_s = 0.0  # time of ``time.monotonic`` before which no attempt is made
        self._superseded = False  # True: another coordinator has taken over the servers
        self._target_epoch = 0  # epoch that ``roll_back`` waits for; 0: none

    def roll_back(self, timeout_s: float) -> None:
        """Let all servers load the newest checkpoint, and wait until they have. Callable from any thread."""
        deadline_s = time.monotonic() + timeout_s
        self._target_epoch = target = self._master.last_rollback[0] + 1
        try:
            while self._master.last_rollback[0] < target:
                if self._checkpoints.newest is None:
                    raise RecoveryError(f"the fleet cannot roll back: {self._missing_source()}")
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
            end_reasons = self._launcher.poll()
        except StoppedError as error:
            self._superseded = True
            self._master.registry.supersede(str(error))
            log.warning("%s", error)
            return
        for index, reason in end_reasons.items():
            if reason is None:
                self._master.registry.mark_alive(index)
            else:
                self._master.registry.mark_ended(index, reason)
        # Ask silent servers: a server that answers is not replaced, even if its heartbeats do not arrive.
        registry = self._master.registry
        call_concurrently(registry.find_silent(), self._ask, while_waiting=registry.record_activity)
        registry.declare_lost()
        self._drain.update(self._launcher.leaving)
        indices = set(self._master.registry.lost(self._launcher.replaces)) | self._pending
        if not indices:
            self._master.catch_up()
            self._roll_back_on_request()
        if not indices or time.monotonic() < self._next_attempt_s:
            return
        handover = self._drain.common_handover(indices)
        newest = handover or self._checkpoints.newest
        source = source_of(indices, self._launcher.servers, self._policy, newest is not None)
        if source == "replica" and self._copies_incomplete:
            source = "checkpoint" if newest is not None else None
        if source == "checkpoint" and handover is not None:
            source = "handover"
        if source is None:
            self._master.registry.give_up(self._missing_source())
            return
        try:
            self._recover(tuple(sorted(indices)), source, None if source == "replica" else newest)
            self._failing_since_s, self._copies_incomplete = None, False
        except PS2Error as error:
            if newest is not None and isinstance(error, (CheckpointMissingError, CheckpointCorruptError)):
                self._checkpoints.distrust(newest, str(error))
                self._drain.forget(indices)
            elif source == "replica" and isinstance(error, RecoveryError):
                log.warning("servers %s cannot be restored from their copies: %s", sorted(indices), error)
                self._copies_incomplete = True
            else:
                self._handle_failure(indices, error)

    def _ask(self, member: tuple[int, str, str]) -> None:
        """Ask a silent server, a tuple (index, server id, address), for a sign of life."""
        index, server_id, address = member
        try:
            info = self._servers.hello(address, self._master.id, ASK_TIMEOUT_S)
            if info.server_id == server_id:
                self._master.registry.mark_alive(index)
                # Renew the lease, which allows the server to serve clients while this coordinator counts it as alive.
                self._servers.hello(address, self._master.id, ASK_TIMEOUT_S, answered_s=info.now_s)
        except PS2Error as error:
            log.debug("asking server %d: %s", index, error)

    def _handle_failure(self, indices: Collection[int], error: PS2Error) -> None:
        """Pause before the next attempt; give up after ``give_up_after_s`` of attempts."""
        now_s = time.monotonic()
        log.warning("servers %s are not restored yet: %s", sorted(indices), error)
        self._failing_since_s = self._failing_since_s or now_s
        self._next_attempt_s = now_s + PAUSE_S
        if now_s - self._failing_since_s > self._master.config.give_up_after_s:
            self._master.registry.give_up(f"a lost server could not be restored: {error}")
            self._next_attempt_s = math.inf

    def _missing_source(self) -> str:
        """Return the reason why lost servers cannot be restored, for a message."""
        if self._checkpoints.distrusted:
            return f"no checkpoint can be read: {self._checkpoints.distrusted}"
        if self._copies_incomplete:
            return "the copies of its shards were incomplete, and there is no checkpoint"
        if self._policy.replicas:
            return "the server with the copies of its shards is lost, too, and there is no checkpoint"
        return "there is no checkpoint from which its shards could be restored"

    def _recover(self, indices: tuple[int, ...], source: Source, newest: Newest | None) -> None:
        """Replace lost servers; restore their shards from ``newest``, or from copies if it is None."""
        # The order matters. Fence the lost processes: they can change nothing any more. Start new processes. Load their
        # shards while no matrix is created or freed. Let the new processes answer. Record the recovery.
        outage = self._master.registry.fence(indices)
        start_s = time.monotonic()
        self._pending.update(indices)
        for index in indices:
            self._fleet.launch(index)
        # Activate the other servers without the lost backups first: they stop waiting for the lost servers, and reject
        # requests of the lost processes.
        self._fleet.activate(lost=indices)
        self._fleet.wait_registered(indices)
        with self._master.block_changes(), ExitStack() as held_locks:
            registered_s = time.monotonic()
            all_servers = False
            if newest is None:
                nbytes = self._restore_from_copies(indices, held_locks)
            else:
                can_resume = self._steps.can_resume(newest.path)
                all_servers = self._rolling_back or (source != "handover" and all_roll_back(self._policy, can_resume))
                nbytes = self._restore_from_checkpoint(indices, newest, all_servers, held_locks)
            self._rolling_back = False
            self._pending.clear()
            self._master.registry.mark_restored()
            costs = (registered_s - start_s, time.monotonic() - registered_s, nbytes)
            recovery = self._describe(outage, source, newest, all_servers, costs)
            self._recoveries.append(recovery)
        self._drain.forget(range(self._launcher.servers) if all_servers else indices)
        log.warning("%s", recovery)
        self._master.publish()  # the published catalog contains the ids of the servers

    def _roll_back_on_request(self) -> None:
        """Roll the fleet back if ``roll_back`` waits for a rollback."""
        newest = self._checkpoints.newest
        if newest is None or self._master.last_rollback[0] >= self._target_epoch:
            return
        start_s = time.monotonic()
        members = self._master.registry.counts()
        try:
            with self._master.block_changes(), ExitStack() as held_locks:
                nbytes = self._restore_from_checkpoint((), newest, True, held_locks)
                self._rolling_back = False
                outage = Outage((), REQUESTED, 0.0, members)
                costs = (0.0, time.monotonic() - start_s, nbytes)
                recovery = self._describe(outage, "checkpoint", newest, True, costs)
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

    def _describe(
        self,
        outage: Outage,
        source: Source,
        newest: Newest | None,
        all_servers: bool,
        costs: tuple[float, float, int],
    ) -> Recovery:
        """Return the record of a recovery; ``costs``: (seconds of starting, seconds of loading, bytes loaded)."""
        start_s, load_s, nbytes = costs
        loading = range(self._launcher.servers) if all_servers else outage.servers
        return Recovery(
            servers=outage.servers,
            reason=outage.reason,
            source=source,
            checkpoint=newest.path if newest is not None else None,
            step=newest.manifest.step if newest is not None else None,
            rolledBack=all_servers,
            mixed=source == "checkpoint" and len(loading) < self._launcher.servers,
            detectS=outage.silent_s,
            startS=start_s,
            loadS=load_s,
            nbytes=nbytes,
            mutationsLost=outage.mutations_since(newest.mutations, loading) if newest is not None else 0,
            zeros=missing_vectors(newest.manifest, self._master) if newest is not None else (),
        )

    def _restore_from_copies(self, indices: Collection[int], held_locks: ExitStack) -> int:
        """Restore shards from their copies, and let servers create missing copies; return the number of bytes."""
        count, addresses, entries = self._launcher.servers, self._master.registry.addresses(), self._master.entries()
        nbytes = 0
        for index in indices:
            shards = [(entry.id, partition.index) for entry in entries for partition in entry.partitions_of(index)]
            self._fleet.allocate(index, index, copies=False)
            nbytes += self._servers.send(addresses[backup_of(index, count)], addresses[index], shards, copies=False)
        without_copies = [(index - 1) % count for index in indices]  # their copies were on the lost servers
        for index in without_copies:
            self._fleet.allocate(index, backup_of(index, count), copies=True)
        self._fleet.end_stages(indices)
        held_locks.enter_context(self._recoveries.lock)
        self._fleet.activate(seed=without_copies)
        return nbytes

    def _restore_from_checkpoint(
        self, indices: Collection[int], newest: Newest, all_servers: bool, held_locks: ExitStack
    ) -> int:
        """Load the shards of replaced servers, or of ``all_servers``, from a checkpoint; return the number of bytes."""
        loading = range(self._launcher.servers) if all_servers else indices
        nbytes = self._fleet.load(newest, loading, ids=True)
        self._fleet.end_stages(indices)
        self._fleet.discard_checkpoints()  # an unfinished checkpoint may contain data that are replaced now
        if all_servers:
            self._rolling_back = True
            self._master.roll_back(newest.manifest.step)
        held_locks.enter_context(self._recoveries.lock)
        self._fleet.take_loaded(loading)
        if all_servers:
            self._master.finish_rollback(newest.path)
        return nbytes
