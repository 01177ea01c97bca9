"""Operations on all servers of a fleet: start, activate and load them."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from ps2.coordinator.checkpoints import Newest, to_load
from ps2.coordinator.launcher import Launcher
from ps2.coordinator.master import Master
from ps2.coordinator.recovery import backup_of, backups
from ps2.errors import LaunchError, PS2Error
from ps2.interrupts import check
from ps2.rpc.control import Activation, ServerControl
from ps2.transport.concurrent_calls import call_concurrently

log = logging.getLogger(__name__)

# Seconds between two checks whether a new process has registered or has end_reasons.
START_POLL_S = 0.05


class FleetControl:
    """Makes calls to all servers of one coordinator; ``control`` makes calls to single servers."""

    def __init__(self, master: Master, launcher: Launcher, servers: ServerControl, replicas: int) -> None:
        self.master = master
        self.launcher = launcher
        self.control = servers
        self._replicas = replicas
        self._master_address = ""

    def start(self, master: str) -> None:
        """Start all servers, and wait until they have registered; ``master``: the master's ``host:port``."""
        self._master_address = master
        for index in range(self.launcher.servers):
            self.launch(index)
        self.wait_registered(range(self.launcher.servers))

    def launch(self, index: int) -> None:
        """Start a server; an earlier server with the same index is end_reasons."""
        self.launcher.start(index, self._master_address)

    def activate(
        self,
        lost: Collection[int] = (),
        seed: Collection[int] = (),
        loaded: Collection[int] = (),
        copies: bool = True,
    ) -> None:
        """Increase the route version, and let every server that is not lost serve requests of the new version.

        Args:
            seed: indices of the servers that must send all their data to their backup, which has no copies yet.
            loaded: indices of the servers that replace their shards by shards loaded from a checkpoint.
            copies: True: servers send each change to their backup, if the fleet has replicas.
        """
        lease_s = self.master.config.lost_after_s if self.launcher.replaces else 0.0
        self.master.update_routes()
        addresses = self.master.registry.addresses()
        backup_addresses = backups(addresses, lost, self._replicas if copies else 0)
        for index, address in enumerate(addresses):
            if index not in lost:
                backup, is_loaded, is_seed = backup_addresses[index], index in loaded, index in seed
                order = Activation(self.master.id, lease_s, loaded=is_loaded, backup=backup, seed=is_seed)
                self.control.activate(address, order)

    def release(self) -> None:
        """Stop coordinating the servers: another coordinator can then take over at once."""
        for address in self.master.registry.addresses():
            try:
                self.control.activate(address, Activation(self.master.id, leave=True))
            except PS2Error as error:
                log.debug("releasing server %s: %s", address, error)

    def load(self, newest: Newest, indices: Collection[int], ids: bool) -> int:
        """Let servers read their shards from a checkpoint; return the number of bytes.

        The servers use the shards after ``take_loaded``. ``ids``: also read the ids of applied requests.
        """
        entries, addresses = self.master.entries(), self.master.registry.addresses()

        def load(index: int) -> int:
            matrices = [matrix for entry in entries if (matrix := to_load(newest.manifest, entry, index))]
            return self.control.load(addresses[index], newest.path, matrices, ids)

        return sum(call_concurrently(indices, load))

    def discard_checkpoints(self) -> None:
        """Discard a checkpoint in progress, such as one that an earlier coordinator has begun."""
        for address in self.master.registry.addresses():
            self.control.discard(address, "")

    def take_loaded(self, indices: Collection[int]) -> None:
        """Let servers replace their shards by loaded shards; create new copies of the shards of all servers."""
        indices_of_all = range(self.launcher.servers)
        if not self._replicas:
            self.activate(loaded=indices)
            return
        # A server that takes loaded shards deletes its copies of other servers' shards.
        self.activate(loaded=indices, copies=False)
        for index in indices_of_all:
            self.allocate(index, backup_of(index, len(indices_of_all)), copies=True)
        self.activate(seed=indices_of_all)

    def allocate(self, owner: int, holder: int, copies: bool) -> None:
        """Allocate the shards of server ``owner`` on server ``holder``; ``copies``: as copies for the owner."""
        address = self.master.registry.addresses()[holder]
        for entry in self.master.entries():
            if partitions := entry.partitions_of(owner):
                self.control.create_matrix(address, entry.id, entry.spec, partitions, copies)
                if entry.retired:
                    self.control.update_rows(address, entry.id, freed=entry.retired)

    def end_stages(self, indices: Collection[int]) -> None:
        """Inform new servers of the stages that are over. They then reject late requests of these stages."""
        addresses = self.master.registry.addresses()
        for index in indices:
            for series, below, live in self.master.ended_stages():
                self.control.end_stages(addresses[index], series, below, live)

    def wait_registered(self, indices: Collection[int]) -> None:
        """Wait until servers have registered; raise LaunchError if one ends first, or after ``start_timeout_s``."""
        timeout_s = self.master.config.start_timeout_s
        deadline_s = time.monotonic() + timeout_s
        while missing := self.master.registry.wait_registered(indices, START_POLL_S):
            check()
            end_reasons = self.launcher.poll()
            for index in missing:
                if (reason := end_reasons.get(index)) is not None:
                    raise LaunchError(f"server {index} did not start: {reason}")
            if time.monotonic() > deadline_s:
                status = self.launcher.status_text()
                raise LaunchError(
                    f"servers {missing} did not register within {timeout_s:.0f} s{f': {status}' if status else ''}"
                )
