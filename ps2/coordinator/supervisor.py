"""Looks after the servers, and gets lost ones back: from their copies on another server, or from a checkpoint."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack

from ps2.coordinator.checkpoints import Checkpoints, Newest, saved_matrices, to_load, younger
from ps2.coordinator.launchers.launcher import Launcher
from ps2.coordinator.master import Master
from ps2.coordinator.parting import Parting
from ps2.coordinator.recovery import Lost, Policy, Recovery, Source, all_go_back, backup_of, backups, source_of
from ps2.errors import (
    CheckpointCorruptError,
    CheckpointMissingError,
    LaunchError,
    PS2Error,
    RecoveryError,
    StoppedError,
)
from ps2.interrupts import check
from ps2.rpc.control import Activation, ServerControl
from ps2.storage.manifest import matrix_to_json
from ps2.transport.at_once import at_once

log = logging.getLogger(__name__)

# Between attempts to get servers back.
PAUSE_S = 1.0
# For a server that is asked whether it is there.
ASK_TIMEOUT_S = 1.0
# To look whether a new process has registered, or has ended already.
START_POLL_S = 0.05


class Supervisor:
    """Drives the servers of one coordinator. ``poll`` is called again and again, by one thread."""

    def __init__(
        self, master: Master, launcher: Launcher, servers: ServerControl, checkpoints: Checkpoints, policy: Policy
    ) -> None:
        self._master = master
        self._launcher = launcher
        self._servers = servers
        self._checkpoints = checkpoints
        self._policy = policy
        self.parting = Parting(master, servers, checkpoints, policy)
        # Tells whether what is under way in the driver can go on from a checkpoint by itself.
        self.has_way_back: Callable[[str], bool] = lambda checkpoint: False
        self._going_back = False  # all servers are, and have to arrive
        self._pending: set[int] = set()  # replaced, and without their shards yet
        self._failing_since_s: float | None = None
        self._copies_broken = False  # those that are needed were not whole
        self._next_attempt_s = 0.0
        self._published = 0
        self._dispossessed = False
        self._recoveries: list[Recovery] = []
        # Of a recovery: from when a server may answer until it is noted.
        self._noting = threading.Lock()

    @property
    def recoveries(self) -> list[Recovery]:
        """What has become of lost servers; whoever has been answered by one finds it here."""
        with self._noting:
            return list(self._recoveries)

    def start(self, face: str) -> None:
        """Start all servers, told to register with the master at that address; wait until they have.

        Raises:
            LaunchError: they did not start in time.
        """
        self._face = face
        for index in range(self._launcher.servers):
            self._launcher.start(index, face)
        self._wait_registered(range(self._launcher.servers))

    def activate(
        self,
        lost: Collection[int] = (),
        seed: Collection[int] = (),
        loaded: Collection[int] = (),
        copies: bool = True,
    ) -> None:
        """Raise the route version, and tell every server that is there what holds from now on.

        Args:
            lost: servers that are not there.
            seed: servers whose backups have nothing of them yet.
            loaded: servers that put what they have loaded in the place of what they have.
            copies: whether there are copies to keep in step.
        """
        self._master.rehome()
        addresses = self._master.roster.addresses()
        where = backups(addresses, lost, self._policy.replicas if copies else 0)
        for index, address in enumerate(addresses):
            if index not in lost:
                order = Activation(
                    self._master.id,
                    self._lease_s,
                    loaded=index in loaded,
                    backup=where[index],
                    seed=index in seed,
                )
                self._servers.activate(address, order)

    def publish(self) -> None:
        """Leave with every server what a later coordinator has to know to take over."""
        self._published += 1
        text = json.dumps(
            {
                "number": [self._servers.route_version, self._published],
                "servers": [server_id for server_id, _ in self._master.roster.members()],
                "matrices": [matrix_to_json(matrix) for matrix in saved_matrices(self._master) if matrix.names],
            }
        )
        addresses = self._master.roster.addresses()
        for address, backup in zip(addresses, backups(addresses, (), self._policy.replicas), strict=True):
            order = Activation(self._master.id, self._lease_s, backup=backup, catalog=text.encode())
            try:
                self._servers.activate(address, order)
            except PS2Error as error:  # the others have it, and a lost one is looked after elsewhere
                log.warning("leaving the catalog with %s: %s", address, error)

    def release(self) -> None:
        """Leave the servers to whoever comes next."""
        for address in self._master.roster.addresses():
            try:
                self._servers.activate(address, Activation(self._master.id, leave=True))
            except PS2Error as error:
                log.debug("leaving %s: %s", address, error)

    @property
    def _lease_s(self) -> float:
        return self._master.config.lost_after_s if self._launcher.replaces else 0.0

    def poll(self) -> None:
        """Look after the servers; replace lost ones if there is something to get their shards back from."""
        if self._dispossessed:
            return
        try:
            found = self._launcher.look()
        except StoppedError as error:
            self._dispossessed = True
            self._master.roster.dispossess(str(error))
            log.warning("%s", error)
            return
        for index, reason in found.items():
            if reason is None:
                self._master.roster.alive(index)
            else:
                self._master.roster.ended(index, reason)
        self._ask_silent()
        self._master.roster.tick()
        self.parting.look(self._launcher.leaving)
        indices = set(self._master.roster.lost(self._launcher.replaces)) | self._pending
        if not indices:
            self._master.catch_up()
        if not indices or time.monotonic() < self._next_attempt_s:
            return
        handed = self.parting.handed_over(indices)
        newest = handed or self._checkpoints.newest
        source = source_of(indices, self._launcher.servers, self._policy, newest is not None)
        if source == "replica" and self._copies_broken:
            source = "checkpoint" if newest is not None else None
        if source == "checkpoint" and handed is not None:
            source = "handover"
        if source is None:
            self._master.roster.give_up(self._why_nothing())
            return
        try:
            self._recover(tuple(sorted(indices)), source, None if source == "replica" else newest)
            self._failing_since_s, self._copies_broken = None, False
        except PS2Error as error:
            if newest is not None and isinstance(error, (CheckpointMissingError, CheckpointCorruptError)):
                self._checkpoints.distrust(newest, str(error))
                self.parting.forget(indices)
            elif source == "replica" and isinstance(error, RecoveryError):
                log.warning("servers %s do not come back from their copies: %s", sorted(indices), error)
                self._copies_broken = True
            else:
                self._failed(indices, error)

    def _ask_silent(self) -> None:
        """Ask those that are silent, all at once: nobody is replaced who only could not make himself heard."""
        at_once(self._master.roster.silent(), self._ask, meanwhile=self._master.roster.here)

    def _ask(self, member: tuple[int, str, str]) -> None:
        index, server_id, address = member
        try:
            meeting = self._servers.hello(address, self._master.id, ASK_TIMEOUT_S)
            if meeting.server_id == server_id:
                self._master.roster.alive(index)
                # It may serve for as long as it counts as alive here, even if its own calls do not get through.
                self._servers.hello(address, self._master.id, ASK_TIMEOUT_S, answered_s=meeting.now_s)
        except PS2Error as error:
            log.debug("asking server %d: %s", index, error)

    def _failed(self, indices: Collection[int], error: PS2Error) -> None:
        now_s = time.monotonic()
        log.warning("servers %s are not back yet: %s", sorted(indices), error)
        self._failing_since_s = self._failing_since_s or now_s
        self._next_attempt_s = now_s + PAUSE_S
        if now_s - self._failing_since_s > self._master.config.give_up_after_s:
            self._master.roster.give_up(f"it could not be brought back: {error}")
            self._next_attempt_s = math.inf

    def _why_nothing(self) -> str:
        if self._checkpoints.distrusted:
            return f"no checkpoint can be read: {self._checkpoints.distrusted}"
        if self._copies_broken:
            return "the copies of its shards were still being made, and there is no checkpoint"
        if self._policy.replicas:
            return "the server with copies of its shards is lost, too, and there is no checkpoint"
        return "there is no checkpoint to get its shards back from"

    def _recover(self, indices: tuple[int, ...], source: Source, newest: Newest | None) -> None:
        lost = self._master.roster.fence(indices)
        began_s = time.monotonic()
        self._pending.update(indices)
        for index in indices:
            self._launcher.start(index, self._face)
        # Those that are there go on meanwhile, and wait for no backup that is lost: before anything that may wait for
        # them. What was lost can change nothing there any more.
        self.activate(lost=indices)
        self._wait_registered(indices)
        with self._master.unchanging(), ExitStack() as answering:
            started_s = time.monotonic()
            together = False
            if newest is None:
                nbytes = self._from_copies(indices, answering)
            else:
                planned = source == "handover"
                together = self._going_back or (
                    not planned and all_go_back(self._policy, self.has_way_back(newest.path))
                )
                nbytes = self._from_checkpoint(indices, newest, together, answering)
            self._going_back = False
            self._pending.clear()
            self._master.roster.restored()
            costs = (started_s - began_s, time.monotonic() - started_s, nbytes)
            recovery = self._report(lost, source, newest, together, costs)
            self._recoveries.append(recovery)
        self.parting.forget(range(self._launcher.servers) if together else indices)
        log.warning("%s", recovery)
        self._master.publish()  # it names the processes that hold what there is

    def _report(
        self,
        lost: Lost,
        source: Source,
        newest: Newest | None,
        together: bool,
        costs: tuple[float, float, int],
    ) -> Recovery:
        start_s, load_s, nbytes = costs
        gone_back = range(self._launcher.servers) if together else lost.servers
        return Recovery(
            servers=lost.servers,
            reason=lost.reason,
            source=source,
            checkpoint=newest.path if newest is not None else None,
            step=newest.manifest.step if newest is not None else None,
            rolledBack=together,
            mixed=source == "checkpoint" and len(gone_back) < self._launcher.servers,
            detectS=lost.silent_s,
            startS=start_s,
            loadS=load_s,
            nbytes=nbytes,
            mutationsLost=lost.mutations_since(newest.mutations, gone_back) if newest is not None else 0,
            zeros=younger(newest.manifest, self._master) if newest is not None else (),
        )

    def _from_copies(self, indices: Collection[int], answering: ExitStack) -> int:
        """Get shards back from their copies; make new copies in the background."""
        count, addresses, entries = self._launcher.servers, self._master.roster.addresses(), self._master.entries()
        nbytes = 0
        for index in indices:
            names = [(entry.id, p.index) for entry in entries for p in entry.partitions_of(index)]
            self._allocate(index, index, copies=False)
            nbytes += self._servers.send(addresses[backup_of(index, count)], addresses[index], names, copies=False)
        before = [(index - 1) % count for index in indices]
        for index in before:
            self._allocate(index, backup_of(index, count), copies=True)
        self._end_stages(indices)
        answering.enter_context(self._noting)
        self.activate(seed=before)
        return nbytes

    def _from_checkpoint(self, indices: Collection[int], newest: Newest, together: bool, answering: ExitStack) -> int:
        """Load the shards of lost servers, or of all."""
        goes_back = range(self._launcher.servers) if together else indices
        nbytes = self.load(newest, goes_back, ids=True)
        self._end_stages(indices)
        self.discard_checkpoints()  # one under way may hold what is to be replaced
        if together:
            self._going_back = True
            self._master.roll_back(newest.manifest.step)
        answering.enter_context(self._noting)
        self.take_loaded(goes_back)
        if together:
            self._master.rolled_back(newest.path)
        return nbytes

    def load(self, newest: Newest, indices: Collection[int], ids: bool) -> int:
        """Let servers read their shards of a checkpoint; nothing is changed yet. Return the bytes that they are."""
        entries, addresses = self._master.entries(), self._master.roster.addresses()

        def load(index: int) -> int:
            matrices = [matrix for entry in entries if (matrix := to_load(newest.manifest, entry, index))]
            return self._servers.load(addresses[index], newest.path, matrices, ids)

        return sum(at_once(indices, load))

    def discard_checkpoints(self) -> None:
        """End a checkpoint that a coordinator before has left under way."""
        for address in self._master.roster.addresses():
            self._servers.discard(address, "")

    def take_loaded(self, indices: Collection[int]) -> None:
        """Put what was loaded in place, and make new copies of everything."""
        everyone = range(self._launcher.servers)
        if not self._policy.replicas:
            self.activate(loaded=indices)
            return
        # Loaded shards take the place of copies, too.
        self.activate(loaded=indices, copies=False)
        for index in everyone:
            self._allocate(index, backup_of(index, len(everyone)), copies=True)
        self.activate(seed=everyone)

    def _allocate(self, owner: int, holder: int, copies: bool) -> None:
        """Allocate the shards of one server on itself, or as copies on another."""
        address = self._master.roster.addresses()[holder]
        for entry in self._master.entries():
            if partitions := entry.partitions_of(owner):
                self._servers.create_matrix(address, entry.id, entry.spec, partitions, copies)
                if entry.retired:
                    self._servers.update_rows(address, entry.id, freed=entry.retired)

    def _end_stages(self, indices: Collection[int]) -> None:
        """Tell new servers which stages are over: what comes late of them must not count again."""
        addresses = self._master.roster.addresses()
        for index in indices:
            for series, below, live in self._master.stages_over():
                self._servers.end_stages(addresses[index], series, below, live)

    def _wait_registered(self, indices: Collection[int]) -> None:
        timeout_s = self._master.config.start_timeout_s
        deadline_s = time.monotonic() + timeout_s
        while missing := self._master.roster.wait_registered(indices, START_POLL_S):
            check()
            ended = self._launcher.look()
            for index in missing:
                if (reason := ended.get(index)) is not None:
                    raise LaunchError(f"server {index} did not start: {reason}")
            if time.monotonic() > deadline_s:
                known = self._launcher.status_text()
                raise LaunchError(
                    f"servers {missing} did not register within {timeout_s:.0f} s{f': {known}' if known else ''}"
                )
